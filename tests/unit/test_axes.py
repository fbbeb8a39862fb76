from pathlib import Path

import pytest

from layermark import axes, registry
from layermark.backends.base import Backend
from layermark.devices.cpu import thread_budget
from layermark.errors import UserError
from layermark.spec import Spec

NULL = {"backend": "null"}


def test_defaults_are_filled_in_completely() -> None:
    spec = axes.expand(["conv"], NULL).only()
    assert spec.params == {
        "channel_size": 4,
        "filter_number": 64,
        "input_height": 1080,
        "input_width": 1920,
        "kernel_size": (4, 4),
        "padding": (3, 3),
        "stride": (2, 2),
    }
    assert (spec.batch_size, spec.threads, spec.mode) == (1, thread_budget(), "infer")


def test_comma_lists_are_axes() -> None:
    specs = axes.expand(["dense"], NULL | {"batch_size": "1, 8", "mode": "infer,train", "size": "16,32"}).specs
    assert {(spec.batch_size, spec.mode, spec.params["size"]) for spec in specs} == {
        (batch, mode, size) for batch in (1, 8) for mode in ("infer", "train") for size in (16, 32)
    }
    assert len(specs) == 8


def test_the_bare_word_and_the_axis_of_a_switch() -> None:
    specs = axes.expand(["dense"], NULL | {"include_activation": "on,off"}).specs
    assert [spec.params["include_activation"] for spec in specs] == [True, False]


def test_duplicates_are_dropped() -> None:
    assert len(axes.expand(["dense", "dense"], NULL | {"batch_size": "4,4"}).specs) == 1


def test_an_option_of_some_workloads_applies_to_those() -> None:
    lstm, dense = axes.expand(["lstm", "dense"], NULL | {"hidden_size": "8"}).specs
    assert lstm.params["hidden_size"] == 8
    assert "hidden_size" not in dense.params


def test_specs_of_one_request_share_groups_across_backends() -> None:
    specs = axes.expand(["dense"], {"backend": "null,torch"}).specs
    assert [spec.backend for spec in specs] == ["null", "torch"]
    assert len({spec.group for spec in specs}) == 1


@pytest.mark.parametrize(
    ("workloads", "values", "message"),
    [
        ([], {}, "no workload is named"),
        (["lstn"], {}, "unknown workload 'lstn'; did you mean lstm"),
        (["dense"], {"backend": "tourch"}, "unknown backend 'tourch'; did you mean torch"),
        (["dense"], {"device": "gpu"}, "unknown device 'gpu'; did you mean xpu, cpu"),
        (["dense"], {"sise": "1"}, "unknown option '--sise'; did you mean --size"),
        (["dense"], {"hidden_size": "8"}, "--hidden-size is not an option of dense; it belongs to gru, lstm"),
        (["dense"], {"mode": "inference"}, "--mode inference: expected one of infer, eval, train"),
        (["dense"], {"batch_size": "0"}, "--batch-size 0: expected a whole number of at least 1"),
        (["dense"], {"batch_size": "1,,2"}, "expected values with one comma between them"),
        (["dense"], {"size": "-4"}, "--size -4: expected"),
        (["conv"], {"kernel_size": "4x"}, "--kernel-size 4x: expected a whole number or HxW"),
        (["grouped_conv"], {"group_dim": "3"}, "^grouped_conv: groups that do not divide channels"),
    ],
)
def test_wrong_requests(workloads: list[str], values: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        axes.expand(workloads, NULL | values)


def _installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    def installed(self: Backend) -> bool:
        return not self.package or self.name in names

    monkeypatch.setattr(Backend, "installed", property(installed))


@pytest.mark.parametrize("values", [{}, {"backend": "all"}])
def test_every_installed_runtime_by_default(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    _installed(monkeypatch, "torch")
    assert [spec.backend for spec in axes.expand(["dense"], values).specs] == ["torch"]


def test_a_missing_runtime_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch)
    found = axes.expand(["dense"], {"backend": "all,null"})
    assert [spec.backend for spec in found.specs] == ["null"]
    assert "torch is not installed; to add it: pip install 'layermark[torch]'" in found.notes


def test_no_runtime_at_all_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch)
    with pytest.raises(UserError, match=r"no runtime is installed; install one with: .*layermark\[torch\]"):
        axes.expand(["dense"], {})


def test_a_named_runtime_stays_in_even_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch)
    assert axes.expand(["dense"], {"backend": "torch"}).only().backend == "torch"


def test_a_word_that_no_runtime_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(axes.backend("torch")), "executions", ("auto", "eager"))
    assert axes.expand(["dense"], {"backend": "torch", "execution": "eager"}).only().execution == "eager"
    with pytest.raises(UserError, match="unknown execution 'eagr'; did you mean eager"):
        axes.expand(["dense"], {"backend": "torch", "execution": "eagr"})


def test_more_threads_than_cpus_are_noted() -> None:
    notes = axes.expand(["dense"], NULL | {"threads": str(thread_budget() + 1)}).notes
    assert len(notes) == 1
    assert notes[0].startswith(f"--threads {thread_budget() + 1} is more than the {thread_budget()} CPUs")


def test_only_refuses_axes() -> None:
    with pytest.raises(UserError, match="expected one setting, received 2"):
        axes.expand(["dense"], NULL | {"batch_size": "1,2"}).only()


def test_complete_fills_what_a_hand_written_spec_leaves_out() -> None:
    assert axes.complete(Spec(workload="dense", backend="null")) == axes.expand(["dense"], NULL).only()
    with pytest.raises(UserError, match="unknown option of dense 'sise'; did you mean size"):
        axes.complete(Spec(workload="dense", backend="null", params={"sise": 3}))


@pytest.mark.parametrize("name", sorted(registry.modules("workloads")))
def test_every_value_can_be_typed_as_it_is_shown(name: str) -> None:
    spec = axes.expand([name], NULL).only()
    typed = {option: axes.as_text(value) for option, value in spec.params.items()}
    assert axes.expand([name], NULL | typed).only() == spec


def test_no_workload_hides_an_option_of_every_measurement() -> None:
    common = {"backend", *(each.name for record in (Spec, axes.Protocol) for each in axes.options_of(record))}
    common |= {"workloads", "workload", "suite", "json", "store", "budget", "resume", "starts", "a", "b"}
    assert [name for options in axes.params_options().values() for name in options if name in common] == []


def suite(folder: Path, text: str) -> axes.Suite:
    path = folder / "own.yml"
    path.write_text(text)
    return axes.load_suite(str(path))


GOOD = """
name: own
description: two   layers
protocol: {time_box: 2s, min_blocks: 4}
measure:
  - {workloads: [dense, lstm], backend: "null", mode: [infer, train], precision: 32.32}
  - {workloads: "dense", backend: "null", include-activation: [on, off], batch_size: 3}
"""


def test_a_suite(tmp_path: Path) -> None:
    own = suite(tmp_path, GOOD)
    assert (own.name, own.description) == ("own", "two layers")
    assert own.protocol == {"time_box": "2s", "min_blocks": "4"}
    assert len(own.expand({}).specs) == 6
    assert own.entries[1].values == {"backend": "null", "include_activation": "on,off", "batch_size": "3"}


def test_typed_options_override_a_suite(tmp_path: Path) -> None:
    own = suite(tmp_path, GOOD)
    assert {spec.batch_size for spec in own.expand({"batch_size": "7"}).specs} == {7}
    specs = own.expand({"hidden_size": "8", "mode": "infer"}).specs
    assert {spec.params.get("hidden_size") for spec in specs} == {8, None}


def test_a_suites_execution_is_for_the_runtimes_that_know_it(tmp_path: Path) -> None:
    own = suite(tmp_path, "measure:\n  - {workloads: dense, execution: eager}")
    chosen = {spec.backend: spec.execution for spec in own.expand({"backend": "torch,onnxruntime,openvino"}).specs}
    assert chosen == {"torch": "eager", "onnxruntime": "auto", "openvino": "auto"}
    typed = own.expand({"backend": "onnxruntime", "execution": "eager"}).specs
    assert [spec.execution for spec in typed] == ["eager"]


def test_typed_workloads_narrow_a_suite(tmp_path: Path) -> None:
    own = suite(tmp_path, GOOD)
    assert {spec.workload for spec in own.expand({}, ["lstm"]).specs} == {"lstm"}
    with pytest.raises(UserError, match="unknown workload of suite own 'conv'"):
        own.expand({}, ["conv"])


def test_typed_options_that_fit_nothing_in_a_suite(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--kernel-size is not an option of dense, lstm"):
        suite(tmp_path, GOOD).expand({"kernel_size": "3"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"^own.yml: expected a mapping .* received nothing$"),
        ("- dense", r"^own.yml: expected a mapping .* received a list$"),
        ("measure: [", r"^own.yml:\d+: broken YAML"),
        ("measure:\n\t- x", r"^own.yml:2: broken YAML"),
        ("a: \x00", r"^own.yml: broken YAML"),
        ("mesure: []", r"^own.yml: unknown key 'mesure'; did you mean measure"),
        ("name: x", r"^own.yml: measure: expected a list of entries, received nothing$"),
        ("measure: []", r"^own.yml: measure: expected a list of entries, received an empty list$"),
        ("measure: dense", r"^own.yml: measure: expected a list of entries, received a text$"),
        ("measure:\n- dense", r"^own.yml:2: an entry of measure: expected a mapping"),
        ("measure:\n- {mode: infer}", r"^own.yml:2: expected the key workloads"),
        ("measure:\n- workloads: dense\n- workloads: dens", r"^own.yml:3: unknown workload 'dens'; did you mean dense"),
        ("measure:\n- {workloads: dense, mod: infer}", r"^own.yml:2: unknown option '--mod'; did you mean --mode"),
        ("measure:\n- {workloads: dense, mode: {a: 1}}", r"^own.yml:2: mode: expected a value .* a mapping$"),
        ("measure:\n- {workloads: dense, size: null}", r"^own.yml:2: size: expected a value .* nothing$"),
        ("measure:\n- {workloads: dense, size: -1}", r"^own.yml:2: --size -1: expected"),
        ("protocol: {time_bx: 1}\nmeasure: [{workloads: dense}]", r"^own.yml: unknown protocol option 'time_bx'"),
        ("protocol: {time_box: x}\nmeasure: [{workloads: dense}]", r"^own.yml: --time-box x: expected"),
        ("protocol: 3\nmeasure: [{workloads: dense}]", r"^own.yml: protocol: expected a mapping"),
        ("columns: {a: 1}\nmeasure: [{workloads: dense}]", r"^own.yml: columns: expected a value .* a mapping$"),
    ],
)
def test_wrong_suites(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        suite(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_a_suite_whose_name_is_a_word_of_the_message_is_named_as_well(tmp_path: Path) -> None:
    path = tmp_path / "measure"
    path.write_text("measure: []")
    with pytest.raises(UserError, match=r"^measure: measure: expected a list of entries, received an empty list$"):
        axes.load_suite(str(path))


def test_a_combination_that_cannot_be_names_the_entry(tmp_path: Path) -> None:
    own = suite(tmp_path, "measure:\n\n- {workloads: grouped_conv, backend: 'null', group_dim: 3}")
    with pytest.raises(UserError, match=r"^own.yml:3: grouped_conv: groups that do not divide"):
        own.expand({})


def test_the_suite_of_the_seeds_has_the_documents_sweeps_and_their_average() -> None:
    assert axes.load_suite("seeds").columns == ("mean_rate",)
    entries = axes.load_suite("seeds").entries
    ladders = [(*request.workloads, request.values["backend"], request.values["batch_size"]) for request in entries]
    assert ladders == [
        ("resnet50", "torch", "1,4,16,32,64,80"),
        ("efficientnet-b0", "torch", "1,8,16,32,48"),
        ("efficientnet-b4", "torch", "1,2,4,8,10"),
        ("resnext101", "torch", "1,2,4,8,16"),
        ("resnet50", "tensorflow", "1,4,16,32,64,90"),
        ("resnext101-32x4d", "tensorflow", "1,2,4,8,16"),
        ("efficientnet-b0", "tensorflow", "1,8,16,32"),
        ("resnet50", "tensorflow", "1,4,16,32,64,80"),
        ("resnext101-32x4d", "tensorflow", "1,2,4,8,16"),
        ("efficientnet-b0", "tensorflow", "1,8,16,32"),
    ]
    for request in entries:
        assert axes.expand(request.workloads, {**request.values, "batch_size": "1"}).only()


def test_suites_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown suite 'quik'; did you mean quick"):
        axes.load_suite("quik")
    with pytest.raises(UserError, match=r"cannot read suite .*none.yml: No such file or directory"):
        axes.load_suite(str(tmp_path / "none.yml"))
    with pytest.raises(UserError, match=r"cannot read suite .*: Is a directory"):
        axes.load_suite(str(tmp_path))
    (tmp_path / "bytes.yml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(UserError, match=r"^bytes.yml: expected YAML, received bytes that are not UTF-8"):
        axes.load_suite(str(tmp_path / "bytes.yml"))


@pytest.mark.parametrize("name", sorted(axes.suites()))
def test_every_suite_of_the_package_is_right(name: str) -> None:
    found = axes.load_suite(name)
    assert found.name == name
    assert found.description
    assert found.expand(NULL).specs
    page = Path(__file__).parents[2] / "docs" / "suites.md"
    assert f"| `{name}` |" in page.read_text(), "docs/suites.md does not tell what it measures"
