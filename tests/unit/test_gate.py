"""May a change go in? Planted losses are found, equal sides pass, and a restless machine is told apart from both."""

import functools
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from layermark import cli, session, stats
from layermark.cli.gate import GateRequest, _judged
from layermark.errors import Unsupported, UserError, WorkerFailed
from layermark.launch import checkout as checkout_module
from layermark.launch.checkout import checkout, code_of, project
from layermark.outcome import Failed
from layermark.session import deadline
from layermark.session.gate import with_needs
from layermark.spec import Protocol, Spec
from layermark.stats.differences import result_differences
from layermark.stats.gate import (
    Finding,
    finding,
    gate_documents,
    gate_rounds,
    gate_starts,
    level,
    rounds_needed,
    status,
)
from layermark.stats.itself import against_itself
from layermark.stats.paired import paired
from layermark.stats.pairing import match
from layermark.store import open_store

from .samples import a_run, a_spec


def document(*times, session="s", rank=0, **changes):
    return stats.document(a_run(*times, **changes), session=session, rank=rank)


def verdict(ratio, half=0.01):
    return stats.Verdict(
        answer="cannot tell" if abs(ratio - 1) <= half else "faster" if ratio > 1 else "slower",
        ratio=ratio,
        low=ratio - half,
        high=ratio + half,
        noise_floor=half,
        starts=(1, 1),
        rounds=5,
        spread=None,
    )


SAME = verdict(1.0)


@pytest.mark.parametrize(
    ("found", "same", "answer", "expected"),
    [
        (verdict(0.9), SAME, "slower", 1),
        (verdict(0.98, half=0.005), SAME, "no slower", 0),  # slower, but the loss is tolerated
        (verdict(1.0), SAME, "no slower", 0),
        (verdict(1.1), SAME, "faster", 0),
        (verdict(1.0, half=0.05), SAME, "cannot tell", 3),
        (verdict(1.045, half=0.05), SAME, "cannot tell", 3),  # high by chance: the noise hides what is asked for
        (verdict(1.06, half=0.05), SAME, "faster", 0),
        (verdict(0.975), SAME, "cannot tell", 3),  # slower, and perhaps by more than is tolerated
        (verdict(0.9), verdict(0.95), "cannot tell", 3),
    ],
)
def test_what_two_comparisons_mean(found, same, answer, expected):
    judged = finding(a_spec(), found, same, 0.03)
    assert (answer, expected) == (judged.answer, status([judged]))


def test_what_cannot_be_told_has_a_code_and_says_what_could_have_been_seen():
    noisy = finding(a_spec(), verdict(1.0, half=0.08), SAME, 0.03)
    assert ("noise", "could have seen a loss of 7.4%, tolerated are 3.0%; measure longer, or on a quieter machine") == (
        noisy.code,
        noisy.reason,
    )
    near = finding(a_spec(), verdict(0.975), SAME, 0.03)
    assert "near" == near.code and near.reason.startswith("a loss of 3.5% is possible")
    assert "restless" == finding(a_spec(), verdict(0.9), verdict(0.95), 0.03).code
    assert "" == finding(a_spec(), verdict(0.9), SAME, 0.03).code


def test_the_worst_finding_decides():
    answers = [Finding(spec=a_spec(), answer=answer, reason="") for answer in ("faster", "cannot tell", "slower")]
    assert [0, 3, 1] == [status(answers[:1]), status(answers[:2]), status(answers)]


def rounds(rng, noise, loss=0.0, drift=0.3, count=8):
    """A base, the base again and a change, in rounds on a machine that drifts."""
    level = 10 * np.exp(drift * rng.normal(size=count).cumsum() / count)
    sides = [level * np.exp(noise * rng.normal(size=count)) for _ in range(3)]
    return [[document(time) for time in side] for side in (*sides[:2], sides[2] / (1 - loss))]


def test_a_planted_loss_is_found_and_equal_sides_pass():
    rng = np.random.default_rng(0)
    lost = [gate_rounds(a_spec(), *rounds(rng, 0.005, loss=0.05), 0.03).answer for _ in range(20)]
    equal = [gate_rounds(a_spec(), *rounds(rng, 0.005), 0.03).answer for _ in range(50)]
    assert lost.count("slower") >= 19
    assert equal.count("slower") + equal.count("faster") <= 1
    assert equal.count("no slower") >= 45


def starts(rng, loss=0.0, count=3, blocks=16):
    """Base, base again and change: starts that differ by 0.4 %, blocks of 1.5 %, one in ten disturbed, and drift."""
    shape = (3 * count, blocks)
    drift = rng.normal(0, 0.03, blocks).cumsum()
    logs = drift + rng.normal(0, 0.004, (shape[0], 1)) + rng.normal(0, 0.015, shape)
    logs -= (rng.random(shape) < 0.1) * rng.exponential(0.1, shape)
    logs[2 * count :] += np.log1p(-loss)
    return np.split(np.exp(logs), 3)


def test_a_planted_loss_is_found_in_one_alternation_and_equal_sides_pass():
    rng = np.random.default_rng(3)
    lost = [gate_starts(a_spec(), *starts(rng, loss=0.05), 0.03).answer for _ in range(200)]
    equal = [gate_starts(a_spec(), *starts(rng), 0.03).answer for _ in range(500)]
    assert lost.count("slower") >= 0.95 * 200
    assert equal.count("slower") + equal.count("faster") <= 0.02 * 500
    assert equal.count("no slower") >= 0.9 * 500


def noisy(rng, blocks, noise=0.1):
    """Equal starts of three sides whose blocks differ by so much."""
    return np.split(np.exp(rng.normal(0, noise, (9, blocks))), 3)


def test_what_noise_hides_is_seen_after_the_rounds_that_are_named():
    rng = np.random.default_rng(6)
    short = [gate_starts(a_spec(), *noisy(rng, 16), 0.03) for _ in range(20)]
    needed = [rounds_needed(each.verdict, 0.03) for each in short if each.code == "noise"]
    assert len(needed) >= 19 and min(needed) > 16
    longer = [gate_starts(a_spec(), *noisy(rng, int(np.median(needed))), 0.03).code for _ in range(40)]
    assert longer.count("noise") <= 8


def test_what_cannot_be_told_comes_with_rounds_and_time():
    found = gate_starts(a_spec(), *noisy(np.random.default_rng(6), 32), 0.03)
    told = with_needs(found, 0.03, round_s=6.0, others_s=30.0)
    assert "noise" == told.code and told.rounds_needed > 8
    assert told.seconds_needed == pytest.approx(30 + 6 * told.rounds_needed)
    minutes = f"{told.seconds_needed / 60:.1f} min"
    assert told.reason == f"{found.reason}: at this noise --rounds {told.rounds_needed} would show it, about {minutes}"
    clear = gate_starts(a_spec(), *starts(np.random.default_rng(3), loss=0.2), 0.03)
    assert clear is with_needs(clear, 0.03, round_s=6.0, others_s=30.0)


def test_a_loss_below_what_starts_differ_by_is_never_promised():
    found = gate_starts(a_spec(), *noisy(np.random.default_rng(6), 32), 0.003)
    assert rounds_needed(found.verdict, 0.003) is None
    told = with_needs(found, 0.003, round_s=6.0, others_s=30.0)
    assert told.rounds_needed is None
    assert told.reason.endswith("3 processes a side differ by too much for that, however long they are measured")


def test_a_base_that_differs_from_itself_tells_nothing():
    base, again, change = starts(np.random.default_rng(4), loss=0.05)
    found = gate_starts(a_spec(), base, 0.9 * again, change, 0.03)
    assert "cannot tell" == found.answer and "the base differs from itself" in found.reason


@pytest.mark.parametrize("noise", [0.003, 0.01, 0.03])
def test_equal_sides_seldom_differ_however_noisy(noise):
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(1000):
        shifts = noise * rng.normal(size=6)
        shifts[0] -= 0.2 * (rng.random() < 0.2)  # a disturbance now and then
        alarms += paired(shifts, 1.5, (12, 6)).answer != "cannot tell"
    assert alarms <= 30


def test_a_side_that_failed_cannot_be_told():
    base, again, change = rounds(np.random.default_rng(2), 0.005)
    change[3] = stats.document(Failed(spec=a_spec(), reason="crashed"), session="s")
    found = gate_rounds(a_spec(), base, again, change, 0.03)
    assert ("cannot tell", "not measured: crashed") == (found.answer, found.reason)


def test_few_rounds_are_refused():
    with pytest.raises(UserError, match="needs 5 rounds; received 3"):
        gate_rounds(a_spec(), *rounds(np.random.default_rng(2), 0.005, count=3), 0.03)


def test_stored_results_say_what_could_explain_a_difference():
    a = document(10.0, 10.01, 9.99, 10.0, environment={"cpu": "some", "versions": {"torch": "2.12"}})
    b = document(
        *(11.0, 11.01, 10.99, 11.0),
        spec=a_spec(threads=1),
        settings={"execution": "compile", "layout": "NTC"},
        environment={"cpu": "some", "versions": {"torch": "2.13"}},
    )
    (found,) = gate_documents([a], [b], 0.03)
    assert "slower" == found.answer
    assert ("threads 2 -> 1", "execution eager -> compile", "versions.torch 2.12 -> 2.13") == found.differences


def test_what_was_measured_explains_nothing():
    training = {"curve": [{"update": 1, "loss": 2.0}], "anatomy": {"forward": 0.1}, "updates": 7, "global_batch": 8}
    other = {"curve": [{"update": 1, "loss": 3.0}], "anatomy": {"forward": 0.2}, "updates": 9, "global_batch": 16}
    sides = [document(settings={"training": each, "stages": [{"name": each["updates"]}]}) for each in (training, other)]
    (found,) = gate_documents(sides[:1], sides[1:], 0.03)
    assert ("training.global_batch 8 -> 16",) == found.differences


def profiled(*rows):
    """A profile: nodes, operator and milliseconds of each row."""
    told = [{"node": node, "operator": name, "calls": 1, "seconds": ms / 1e3} for node, name, ms in rows]
    return {"batches": 1, "pass_s": 0.01, "operators": told}


def test_the_operator_that_became_slower_is_named_first():
    before = profiled(
        (["conv1"], "Conv", 3.0), (["conv2", "relu"], "Conv", 3.0), ([], "copy", 1.0), (["fc"], "Gemm", 3.0)
    )
    after = profiled((["conv1"], "Conv", 3.02), (["conv2"], "Conv", 3.1), (["relu"], "Relu", 0.5), ([], "copy", 1.0))
    after["operators"].append({"node": ["fc"], "operator": "Gemm", "calls": 1, "seconds": 0.0029})
    sides = [document(*[10.0] * 6, profile=before), document(*[11.0] * 6, profile=after)]
    (found,) = gate_documents(*([each] for each in sides), 0.03)
    assert "slower" == found.answer
    # What one side fused is one piece of work on both.
    assert [("conv2", "relu")] == [each.nodes for each in found.operators]
    (first,) = found.operators
    assert (("Conv",), ("Conv", "Relu")) == (first.before, first.after)
    assert (0.003, 0.0036) == pytest.approx((first.before_s, first.after_s))


def test_no_operator_is_named_where_no_difference_is_told():
    one, other = profiled((["conv1"], "Conv", 3.0)), profiled((["conv1"], "Conv", 4.0))
    (found,) = gate_documents([document(profile=one)], [document(profile=other)], 0.03)
    assert ("no slower", ()) == (found.answer, found.operators)
    (found,) = gate_documents([document(*[10.0] * 6)], [document(*[11.0] * 6, profile=other)], 0.03)
    assert ("slower", ()) == (found.answer, found.operators)


def test_a_restless_base_cannot_be_gated_on():
    times = [10.0, 12.0] * 4  # every other block
    (found,) = gate_documents([document(*times)], [document()], 0.03)
    assert "cannot tell" == found.answer


def quiet(rng, noise, blocks=12):
    """Times of blocks of a quiet machine, where one in twenty is disturbed."""
    return noise * rng.normal(size=blocks) + (rng.random(blocks) < 0.05) * rng.exponential(0.05, blocks)


def differs(logs, measurements=1):
    """Which parts of a result differ; nothing where it is like itself."""
    found, parts = against_itself(document(*(10 * np.exp(logs))), level(measurements))
    return "" if found.answer == "cannot tell" else parts


@pytest.mark.parametrize("blocks", [4, 6, 9, 12, 20])
def test_a_quiet_base_seldom_differs_from_itself(blocks):
    rng = np.random.default_rng(blocks)
    alarms = sum(bool(differs(quiet(rng, noise, blocks))) for noise in (0.003, 0.02) for _ in range(100))
    assert alarms <= 0.02 * 200


def test_a_quiet_suite_seldom_differs_from_itself():
    rng = np.random.default_rng(20)
    suites = [any(differs(quiet(rng, 0.01), 20) for _ in range(20)) for _ in range(25)]
    assert sum(suites) <= 1
    assert (0.99, 0.9995) == pytest.approx((level(1), level(20)))


def test_a_base_that_drifts_or_steps_or_alternates_by_a_third_is_found():
    rng, blocks = np.random.default_rng(7), 12
    shapes = {
        "its second half from its first": [np.linspace(0, 0.3, blocks), 0.3 * (np.arange(blocks) >= blocks // 2)],
        "its even blocks from its odd ones": [0.3 * (np.arange(blocks) % 2)],
    }
    for parts, each in shapes.items():
        for shape in each:
            assert [differs(0.01 * rng.normal(size=blocks) + shape) for _ in range(25)].count(parts) >= 24


def test_a_base_that_became_another_tells_nothing_and_says_so():
    times = [10.0, 10.02, 9.99, 10.01, 10.0, 9.98, 13.0, 13.02, 12.99, 13.01, 13.0, 12.98]
    (found,) = gate_documents([document(*times)], [document(*[12.0] * 12)], 0.03)
    assert ("cannot tell", "restless") == (found.answer, found.code)
    assert "the base differs from itself by -23.1% (its second half from its first)" in found.reason


def test_what_has_no_partner_is_told():
    base = [document(), *(document(spec=a_spec(batch_size=size)) for size in (1, 2, 2))]
    change = [document(), document(spec=a_spec(batch_size=2)), document(spec=a_spec(batch_size=9))]
    found = {each.spec.batch_size: each for each in gate_documents(base, change, 0.03)}
    assert {4: "", 1: "unpaired", 2: "ambiguous"} == {size: each.code for size, each in found.items()}
    assert {"cannot tell"} == {found[size].answer for size in (1, 2)}
    assert "the change has no such result; measure it there, too" == found[1].reason
    assert found[2].reason.startswith("results of one spec, 2 in the base and 1 in the change: which belong together")
    assert [9] == [spec.batch_size for spec in match(base, change).new]


def test_a_base_of_few_blocks_cannot_be_gated_on():
    (found,) = gate_documents([document(10.0, 10.0)], [document()], 0.03)
    assert ("cannot tell", "the base has fewer than four blocks; measure longer") == (found.answer, found.reason)
    assert "few_blocks" == found.code


def test_equal_specs_are_paired_first_and_threads_only_where_nothing_is_mistaken():
    one, two, four = (document(spec=a_spec(threads=threads)) for threads in (1, 2, 4))
    assert [(one, one)] == match([one, two], [one]).pairs
    assert [(one, one), (two, four)] == match([one, two], [one, four]).pairs
    assert [] == match([one, two], [four]).pairs
    assert [] == match([document()], [document(rank=1)]).pairs
    with pytest.raises(UserError, match="no measurement in common"):
        gate_documents([one], [document(spec=a_spec(batch_size=9))], 0.03)


@pytest.fixture
def ask(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LAYERMARK_STORE", str(tmp_path / "results.db"))
    monkeypatch.chdir(tmp_path)
    with open_store() as store:
        for name, time in (("a", 10.0), ("same", 10.01), ("slow", 11.0), ("fast", 9.0), ("restless", None)):
            run = a_run(*([time, time * 1.0002, time * 0.9998] * 4 if time else [9.0, 11.0, 10.0, 10.0]))
            store.begin(name, command="c", specs=[], protocol=Protocol(), environment={}, fingerprint="m")
            store.append(name, run, stats.document(run, session=name))

    def typed(line):
        return cli.main(line.split()), capsys.readouterr()

    return typed


@pytest.mark.parametrize(
    ("other", "expected", "sign"), [("same", 0, "="), ("slow", 1, "!"), ("fast", 0, "+"), ("restless", 3, "?")]
)
def test_two_sessions_are_gated(ask, other, expected, sign):
    done, captured = ask(f"gate a {other}")
    assert expected == done
    assert captured.out.startswith(f"{sign} lstm infer batch 4 on torch: ")
    assert captured.out.splitlines()[-1].startswith("1 measurements: 1 ")


def test_new_and_missing_measurements_are_told(ask, tmp_path):
    three = [document(spec=a_spec(batch_size=size)) for size in (1, 2, 3)]
    for name, some in (("a", three[:2]), ("b", three[1:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in some))
    done, captured = ask("gate a.jsonl b.jsonl --junit gate.xml")
    assert 3 == done
    assert (
        "layermark: note: new in the change, nothing to compare it with: lstm infer batch 3 on torch\n" == captured.err
    )
    assert "batch 1 on torch: cannot tell; the change has no such result; measure it there, too\n" in captured.out
    assert "2" == ElementTree.parse(tmp_path / "gate.xml").getroot().attrib["tests"]


def test_two_settings_take_turns_and_the_first_runs_twice(ask, monkeypatch):
    asked = []

    def gate_sides(base, change, *given, **more):
        asked.append((base, change, more["measurements"]))
        found = finding(change.spec, verdict(0.9), SAME, 0.03)
        return found if change.spec.workload == "dense" else finding(change.spec, verdict(1.0), SAME, 0.03)

    monkeypatch.setattr(session, "gate_sides", gate_sides)
    assert 1 == cli.main(["gate", "dense,lstm --threads 2", "dense,lstm --threads 1", "--backend", "null"])
    assert [("dense", 2, 1, 2), ("lstm", 2, 1, 2)] == [
        (base.spec.workload, base.spec.threads, change.spec.threads, count) for base, change, count in asked
    ]
    assert all(side.variables == {} for each in asked for side in each[:2])


def test_a_setting_against_itself_is_not_slower(layermark):
    quickly = ("--backend", "null", "--size", 16, "--rounds", 5, "--json")
    done = layermark("gate", "dense", "dense --threads 1", *quickly)
    found = json.loads(done.stdout)
    assert (0, "no slower") == (done.status, found["answer"])
    assert ([6, 3], [3, 3]) == (found["verdict"]["starts"], found["same"]["starts"])


def test_what_was_asked_differently_is_told():
    a, b = document(), document(spec=a_spec(batch_size=9, params={"size": 2}))
    assert ["batch_size 4 -> 9", "params.size none -> 2"] == [
        each for each in result_differences(a, b) if each.startswith(("batch", "params.size"))
    ]


def test_a_larger_loss_may_be_tolerated(ask):
    assert [1, 0] == [ask(f"gate a slow --fail-if-slower {share}")[0] for share in ("5%", "0.15")]


def test_files_of_export_and_of_run_are_gated(ask, tmp_path):
    ask("export a --output a.jsonl")
    with open_store() as store:
        (tmp_path / "b.jsonl").write_text(json.dumps(store.documents("slow")[0]) + "\n")
    status_, captured = ask("gate a.jsonl b.jsonl --json")
    found = json.loads(captured.out)
    assert (1, "slower", "lstm") == (status_, found["answer"], found["spec"]["workload"])
    assert pytest.approx(1 / 1.1, rel=1e-3) == found["verdict"]["ratio"]


def test_outputs_for_ci(ask, tmp_path):
    assert 1 == ask("gate a slow --junit gate.xml --markdown gate.md")[0]
    suite = ElementTree.parse(tmp_path / "gate.xml").getroot()
    assert ("1", "1", "0") == tuple(suite.attrib[name] for name in ("tests", "failures", "errors"))
    assert suite.find("testcase/failure").attrib["message"].startswith("slower -9.1% (99% interval -")
    table = (tmp_path / "gate.md").read_text().splitlines()
    assert table[2].startswith("| lstm infer batch 4 on torch | **slower** | -9.1% | ")
    assert 3 == ask("gate a restless --junit gate.xml")[0]
    assert ElementTree.parse(tmp_path / "gate.xml").getroot().find("testcase/error") is not None


def test_names_do_not_run_in_the_outputs(ask, tmp_path):
    name = "<script>alert(1)</script>|x\x1b[2J"
    spec, evil = a_spec(workload=name), "[x](http://y) **`<b>`** #1|\x1b[2J\n# no slower"
    for each in ("a", "b"):
        found = {**document(spec=spec), "environment": {"cpu": f"{evil} {each}"}}
        (tmp_path / f"{each}.jsonl").write_text(json.dumps(found) + "\n")
    done, captured = ask("gate a.jsonl b.jsonl --junit gate.xml --markdown gate.md")
    assert (0, 3) == (done, captured.out.count("\n")) and "\x1b" not in captured.out
    text = (tmp_path / "gate.md").read_text()
    assert "\\<script\\>" in text and "\\|x?" in text and "\x1b" not in text
    told = r"\[x\](http://y) \*\*\`\<b\>\`\*\* \#1\| \# no slower"
    assert f"| cpu {told} a -\\> {told} b |\n" in text
    case = ElementTree.parse(tmp_path / "gate.xml").getroot().find("testcase")
    assert case.attrib["name"].startswith("<script>alert(1)</script>|x?[2J")


def test_reasons_do_not_run_in_the_outputs(ask, tmp_path):
    reason = "**died** <i>|\x1b[2J\n= lstm: no slower"
    failed = stats.document(Failed(spec=a_spec(), reason=reason), session="s")
    for name, each in (("a", document()), ("b", failed)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(each) + "\n")
    done, captured = ask("gate a.jsonl b.jsonl --markdown gate.md")
    assert (3, 3) == (done, captured.out.count("\n"))
    assert "cannot tell; not measured: the change: **died** <i>| = lstm: no slower\n" in captured.out
    assert r": not measured: the change: \*\*died\*\* \<i\>\| = lstm: no slower" in (tmp_path / "gate.md").read_text()


@pytest.fixture
def in_whole_processes(monkeypatch):
    """Gate what cannot take turns, at ten seconds a measurement; return the finding and how many were made."""

    def gated(budget_s):
        clock, made = [0.0], []

        def measure_in(root, spec, protocol):
            clock[0] += 10.0
            made.append(spec)
            return document(10.0 + 0.01 * (len(made) % 5))

        def refuse(*given, **more):
            raise Unsupported("one program is enough")

        monkeypatch.setattr(deadline, "Deadline", functools.partial(deadline.Deadline, clock=lambda: clock[0]))
        monkeypatch.setattr(checkout_module, "measure_in", measure_in)
        monkeypatch.setattr(session, "gate_sides", refuse)
        asked = {"protocol": Protocol(), "rounds": 8, "tolerated": 0.03, "listener": session.Listener()}
        base, change = (session.Side(spec=a_spec(), root=Path(name)) for name in ("base", "change"))
        return _judged(base, change, GateRequest(budget_s=budget_s, measurements=1, **asked)), len(made)

    return gated


@pytest.mark.parametrize(("budget_s", "rounds"), [(None, 8), (1000.0, 8), (185.0, 6), (159.0, 5)])
def test_whole_processes_stop_between_rounds_when_the_budget_ends(in_whole_processes, budget_s, rounds):
    found, made = in_whole_processes(budget_s)
    assert (3 * rounds, "no slower") == (made, found.answer)


@pytest.mark.parametrize(("budget_s", "rounds"), [(1.0, 1), (100.0, 3)])
def test_too_few_rounds_within_the_budget_tell_nothing(in_whole_processes, budget_s, rounds):
    found, made = in_whole_processes(budget_s)
    assert (3 * rounds, "cannot tell", "not_measured") == (made, found.answer, found.code)
    told = f"not measured: the budget ended after {rounds} of the 5 rounds that a gate needs; give a longer --budget"
    assert told == found.reason


WRONG = [
    ("gate", "expected --base REF and what to measure, or two settings, sessions or files"),
    ("gate a", "expected --base REF"),
    ("gate a nothing", "unknown session 'nothing'"),
    ("gate a slow --batch-size 3", "leave the settings out, or add --base REF"),
    ("gate a slow --fail-if-slower much", "--fail-if-slower much: expected a share between 0 and 100%"),
    ("gate a slow --fail-if-slower 300%", "expected a share between 0 and 100%"),
    ("gate a slow --junit /dev/null/x", "/dev/null/x: Not a directory"),
    ("gate --base HEAD", "nothing to measure; type a workload"),
    ("gate --base HEAD dense --backend null --rounds 2", "--rounds 2: expected a whole number of at least 5"),
    ("gate --base HEAD dense --backend null", "not a git repository"),
    ("gate dense a", "cannot compare a setting with a stored session: 'dense' and 'a'"),
    ("gate dense lstm --backend null", "need the same workloads, one measurement for one; received dense and lstm"),
    ("gate dense dense --suite quick", "a suite goes with --base REF"),
    ("gate broken.jsonl a", "broken.jsonl:1: not a result (KeyError"),
    ("gate empty.jsonl a", "empty.jsonl: holds no result"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line for line, _ in WRONG])
def test_a_wrong_request_is_one_line_and_status_2(ask, tmp_path, line, message):
    (tmp_path / "broken.jsonl").write_text('{"status": "ok"}\n')
    (tmp_path / "empty.jsonl").write_text("\n")
    done, captured = ask(line)
    assert (2, "", 1) == (done, captured.out, captured.err.count("\n"))
    assert message in captured.err


FIRST_RELEASE = """
class Spec:
    @staticmethod
    def from_json(doc):
        assert not {"norms", "update", "mixing", "loading"} & set(doc), doc
        return doc

class Protocol:
    def __init__(self, *, time_box, **others):
        assert "trial" not in others

def measure(spec, protocol):
    return {"status": "ok", "spec": spec}
"""


def test_a_checkout_of_the_first_release_is_told_nothing_that_came_later(tmp_path):
    (tmp_path / "src" / "layermark").mkdir(parents=True)
    (tmp_path / "src" / "layermark" / "__init__.py").write_text(FIRST_RELEASE)
    spec = a_spec(batch_size=3)
    found = checkout_module.measure_in(tmp_path, spec, Protocol())
    assert ("ok", 3) == (found["status"], found["spec"]["batch_size"])
    assert spec == Spec.from_json(found["spec"])
    with pytest.raises(WorkerFailed, match="AssertionError"):  # what was asked for is never left out
        checkout_module.measure_in(tmp_path, spec.replace(norms="full"), Protocol())


def test_a_checkout_is_the_commit_and_leaves_nothing(git, tmp_path):
    root = git.commit("x.txt", "one")
    git.commit("x.txt", "two")
    (root / "x.txt").write_text("three")
    with checkout(project(root / "src"), "HEAD~1") as base:
        assert ("one", base / "src") == ((base / "x.txt").read_text(), code_of(base))
    assert not base.exists()
    assert "three" == (root / "x.txt").read_text()
    assert 1 == len(git("worktree", "list").splitlines())
    with pytest.raises(UserError, match="--base nonsense: no such commit"), checkout(root, "nonsense"):
        pass
