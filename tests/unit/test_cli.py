import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from layermark import cli
from layermark.cli import parsing
from layermark.cli.request import read_budget


class Answer:
    """What a command printed and how it ended."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Type a command in this process, with a store of its own."""
    monkeypatch.setenv("LAYERMARK_STORE", str(tmp_path / "results.db"))

    def typed(*argv: str) -> Answer:
        status = cli.main(argv)
        captured = capsys.readouterr()
        return Answer(status, captured.out, captured.err)

    return typed


WRONG = [
    ("lst", "unknown command 'lst'; did you mean list"),
    ("--versoin", "unknown option '--versoin'; did you mean --version"),
    ("run", "nothing to measure; type a workload (layermark run lstm) or a suite"),
    ("run lstn", "unknown workload 'lstn'; did you mean lstm"),
    ("run dense --backend tourch", "unknown backend 'tourch'; did you mean torch"),
    ("run dense --sise 4", "unknown option '--sise'; did you mean --size"),
    ("run dense --batch 4", "unknown option '--batch'; did you mean"),
    ("run dense --size=-4", "--size -4: expected a whole number of at least 1"),
    ("run dense --batch-size -1", "--batch-size -1: expected a whole number of at least 1"),
    ("run dense --batch-size", "--batch-size: expected one argument"),
    ("run dense --mode inference", "--mode inference: expected one of infer, eval, train"),
    ("run dense --kernel-size 3", "--kernel-size is not an option of dense; it belongs to conv"),
    ("run grouped_conv --group-dim 3", "grouped_conv: groups that do not divide channels"),
    ("run dense --budget soon", "--budget soon: expected a length of time"),
    ("run dense --time-box 0", "--time-box 0: expected a length of time above zero"),
    ("run dense --device gpu", "unknown device 'gpu'; did you mean xpu, cpu"),
    ("run --suite quik", "unknown suite 'quik'; did you mean quick"),
    ("run --suite quick dens", "unknown workload of suite quick 'dens'; did you mean dense"),
    ("run dense --resume x", "--resume goes on with what the session was asked for"),
    ("list wrkloads", "unknown kind 'wrkloads'; did you mean workloads"),
    ("describe", "the following arguments are required: WORKLOAD"),
    ("describe dens", "unknown workload 'dens'; did you mean dense"),
    ("describe dense conv", "unexpected argument 'conv'"),
    ("describe dense --batch-size 1,2", "expected one setting, received 2"),
    ("doctor --threads 0", "--threads 0: expected a whole number of at least 1"),
    ("compare dense", "the following arguments are required: B"),
    ("compare dense 20260101-000000-abcd", "cannot compare a setting with a stored session"),
    ("compare dense dense --batch-size 1,2", "setting 'dense': expected one measurement, received"),
    ("compare dense dense --starts 1", "--starts 1: expected a whole number of at least"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line for line, _ in WRONG])
def test_a_wrong_request_is_one_line_and_status_2(ask: Any, line: str, message: str) -> None:
    answer = ask(*line.split())
    assert answer.status == 2
    assert answer.out == ""
    assert answer.err.startswith("layermark: error: ")
    assert answer.err.count("\n") == 1
    assert message in answer.err


def test_a_broken_suite_is_one_line(ask: Any, tmp_path: Path) -> None:
    path = tmp_path / "own.yml"
    path.write_text("measure: [")
    answer = ask("run", "--suite", str(path))
    assert (answer.status, answer.err.count("\n")) == (2, 1)
    assert "own.yml:1: broken YAML" in answer.err


@pytest.mark.parametrize("store", ["/proc/none/results.db", "mysql://somewhere/results"])
def test_a_store_that_cannot_be_written_is_one_line(ask: Any, store: str) -> None:
    answer = ask("run", "dense", "--backend", "null", "--store", store)
    assert (answer.status, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert answer.err.startswith("layermark: error: ")


def test_a_session_that_is_not_there_is_one_line(ask: Any) -> None:
    answer = ask("run", "--resume", "20260101-000000-abcd")
    assert (answer.status, answer.out, answer.err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("command", [("run", "dense"), ("compare", "dense", "dense")])
def test_the_environment_holds_the_default_budget(ask: Any, monkeypatch: pytest.MonkeyPatch, command: Any) -> None:
    monkeypatch.setenv("LAYERMARK_BUDGET", "soon")
    answer = ask(*command, "--backend", "null")
    assert (answer.status, answer.err.count("\n")) == (2, 1)
    assert "LAYERMARK_BUDGET soon: expected a length of time" in answer.err
    typed = ask(*command, "--backend", "null", "--budget", "never")
    assert "--budget never: expected a length of time" in typed.err
    monkeypatch.setenv("LAYERMARK_BUDGET", "30s")
    assert (read_budget(None), read_budget("2m")) == (30.0, 120.0)


def test_a_quoted_setting_says_which_one_is_wrong(ask: Any) -> None:
    answer = ask("compare", "dense --sise 3", "dense")
    assert answer.status == 2
    assert "setting 'dense --sise 3': unknown option '--sise'; did you mean --size" in answer.err


def test_no_arguments_show_the_overview(ask: Any) -> None:
    answer = ask()
    assert (answer.status, answer.err) == (0, "")
    assert all(f"  {name} " in answer.out for name in cli.COMMANDS)


def test_a_suite_may_ask_only_for_columns_that_there_are(ask: Any, tmp_path: Path) -> None:
    own = tmp_path / "own.yml"
    own.write_text("columns: mean_rat\nmeasure: [{workloads: dense}]")
    answer = ask("run", "--suite", str(own))
    assert (answer.status, answer.out) == (2, "")
    assert "unknown column of suite own 'mean_rat'; did you mean mean_rate" in answer.err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(ask: Any, name: str) -> None:
    answer = ask(name, "--help")
    assert answer.status == 0
    assert answer.out.startswith(f"usage: layermark {name}")


def test_version(ask: Any) -> None:
    assert ask("--version").out.startswith("layermark 0.")


def test_list_names_everything(ask: Any) -> None:
    rows = json.loads(ask("list", "--json").out)
    assert set(rows) == {"workloads", "backends", "devices", "sources", "suites"}
    assert {"dense", "conv", "grouped_conv", "rnn", "gru", "lstm", "lstm_multi"} <= {
        row["name"] for row in rows["workloads"]
    }
    assert all(row["summary"] for each in rows.values() for row in each)


def test_list_of_one_kind_is_only_that(ask: Any) -> None:
    assert [line.split()[0] for line in ask("list", "suites").out.splitlines()] == ["layers", "quick", "seeds"]


def test_describe_counts(ask: Any) -> None:
    facts = json.loads(ask("describe", "dense", "--size", "8", "--input-size", "4", "--batch-size", "3", "--json").out)
    assert facts["parameters"] == 4 * 8 + 8
    assert facts["macs"] == 4 * 8
    assert facts["bytes"]["infer"] == 4 * (3 * 4 + 4 * 8 + 8 + 3 * 8)
    assert set(facts["flops"]) == {"infer", "eval", "train"}
    assert facts["nodes"][0]["name"] == "x"
    assert isinstance(facts["splits"], list)


def test_describe_knows_the_size_of_the_types(ask: Any) -> None:
    narrow = json.loads(ask("describe", "dense", "--precision", "bf16.bf16", "--json").out)
    wide = json.loads(ask("describe", "dense", "--json").out)
    assert wide["bytes"]["infer"] == 2 * narrow["bytes"]["infer"]


def test_describe_prints_a_table(ask: Any) -> None:
    lines = ask("describe", "lstm_multi", "--mode", "train").out.splitlines()
    assert lines[0].startswith("lstm_multi  train")
    assert lines[-1].startswith("split at: ")


def test_a_quick_doctor_measures_nothing(ask: Any) -> None:
    facts = json.loads(ask("doctor", "--quick", "--json").out)
    assert facts["machine"]["cores"] == os.cpu_count()
    assert [runtime["name"] for runtime in facts["runtimes"]] == sorted(
        runtime["name"] for runtime in facts["runtimes"]
    )
    assert "ceilings" not in facts
    assert ask("doctor", "--quick").out.startswith("machine\n")


def _parse(*argv: str) -> Any:
    parser = parsing.Parser(prog="layermark run", description="")
    cli.command("run").configure(parser)
    return parsing.parse(parser, argv)


def test_positional_and_options_mix() -> None:
    args = _parse("dense", "--batch-size", "1,8", "conv", "--json", "lstm")
    assert args.workloads == ["dense", "conv", "lstm"]
    assert args.batch_size == "1,8"
    assert args.json


@pytest.mark.parametrize(
    ("argv", "workloads", "text"),
    [
        (["dense", "--include-activation"], ["dense"], "on"),
        (["--include-activation", "dense"], ["dense"], "on"),
        (["--include-activation", "on,off", "dense"], ["dense"], "on,off"),
        (["--include-activation=off", "dense"], ["dense"], "off"),
        (["--include-activation", "--json", "dense"], ["dense"], "on"),
    ],
)
def test_a_bare_switch_means_on(argv: list[str], workloads: list[str], text: str) -> None:
    args = _parse(*argv)
    assert (args.workloads, args.include_activation) == (workloads, text)


def test_a_reader_that_leaves_is_not_an_error() -> None:
    command = f"{sys.executable} -m layermark run --help | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[0].startswith("usage: layermark run")
    assert done.stdout.splitlines()[1] in ("0", "141")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_interrupt(monkeypatch: pytest.MonkeyPatch, ask: Any, number: signal.Signals) -> None:
    handled = (signal.SIGTERM, signal.SIGHUP)
    inherited = {each: signal.signal(each, signal.SIG_DFL) for each in handled}  # these tests may run under nohup
    try:
        monkeypatch.setattr(cli, "overview", lambda: signal.raise_signal(number))
        assert ask("--help").status == 130
        assert [signal.getsignal(each) for each in handled] == [signal.SIG_DFL] * 2
    finally:
        for each, handler in inherited.items():
            signal.signal(each, handler)


def test_a_hangup_that_is_ignored_stays_ignored(monkeypatch: pytest.MonkeyPatch, ask: Any) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        monkeypatch.setattr(cli, "overview", lambda: signal.raise_signal(signal.SIGHUP) or "")
        assert ask("--help").status == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
