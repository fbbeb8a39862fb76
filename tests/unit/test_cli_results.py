"""What the commands that measure do with what a session answers."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from layermark import cli, session, stats
from layermark.cli import progress, stored
from layermark.errors import Unsupported, WorkerFailed
from layermark.outcome import Failed, Skipped
from layermark.session.compare import Compared, ComparedSides
from layermark.spec import Spec
from layermark.stats.accounts import OperatorChange

SPEC = Spec(workload="dense", backend="null", batch_size=2, threads=1)
SKIPPED = stats.document(Skipped(spec=SPEC, reason="no such thing"), session="s1")
FAILED = stats.document(Failed(spec=SPEC, reason="killed by signal SIGSEGV", log="last line"), session="s1")


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Replace the session by one that answers at once; gives the list of calls it received."""
    monkeypatch.setenv("LAYERMARK_STORE", str(tmp_path / "results.db"))
    calls: list[dict[str, Any]] = []

    def prepare(documents: list[dict[str, Any]], error: BaseException | None = None) -> list[dict[str, Any]]:
        def run_session(specs: Any, protocol: Any, *, listener: Any, **more: Any) -> list[dict[str, Any]]:
            calls.append({"specs": specs, "protocol": protocol, **more})
            listener.started(len(specs))
            for document in documents:
                listener.phase(SPEC, "preparing")
                listener.finished(document)
            if error:
                raise error
            return documents

        monkeypatch.setattr(session, "run_session", run_session)
        return calls

    return prepare


def test_a_skip_is_status_0_and_a_failure_status_1(answering: Any) -> None:
    answering([SKIPPED])
    assert cli.main(["run", "dense", "--backend", "null"]) == 0
    answering([SKIPPED, FAILED])
    assert cli.main(["run", "dense", "--backend", "null"]) == 1


def test_what_was_typed_reaches_the_session(answering: Any) -> None:
    calls = answering([SKIPPED])
    cli.main(["run", "dense,rnn", "--backend", "null", "--time-box", "2s", "--budget", "1m30s"])
    assert [spec.workload for spec in calls[0]["specs"]] == ["dense", "rnn"]
    assert calls[0]["protocol"].time_box == 2.0
    assert calls[0]["budget_s"] == 90.0
    assert calls[0]["command"] == "layermark run dense,rnn --backend null --time-box 2s --budget 1m30s"


def test_a_suite_brings_its_protocol_and_typing_overrides_it(answering: Any) -> None:
    calls = answering([SKIPPED])
    cli.main(["run", "--suite", "quick", "--backend", "null"])
    cli.main(["run", "lstm", "--suite", "quick", "--backend", "null", "--time-box", "9s", "--mode", "infer"])
    assert [call["protocol"].time_box for call in calls] == [4.0, 9.0]
    assert [len(call["specs"]) for call in calls] == [14, 1]


def test_json_is_one_document_a_line_and_nothing_else(answering: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answering([SKIPPED, FAILED])
    cli.main(["run", "dense", "--backend", "null", "--json"])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [SKIPPED, FAILED]


def test_the_table_is_followed_by_where_the_results_are(answering: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answering([SKIPPED])
    cli.main(["run", "dense", "--backend", "null"])
    captured = capsys.readouterr()
    assert "no such thing" in captured.out
    assert captured.out.splitlines()[-1].endswith("results.db")
    assert captured.err == ""  # progress is for terminals


def test_an_interruption_shows_what_is_there_and_how_to_go_on(
    answering: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    answering([SKIPPED], session.Interrupted("s1", [SKIPPED]))
    assert cli.main(["run", "dense", "--backend", "null"]) == 130
    captured = capsys.readouterr()
    assert "no such thing" in captured.out
    assert captured.err.splitlines()[-1] == "interrupted; go on with: layermark run --resume s1"


VERDICT = stats.Verdict(
    answer="faster", ratio=1.5, low=1.4, high=1.6, noise_floor=0.01, starts=(3, 3), rounds=8, spread=0.01
)


def compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: Any) -> list[tuple[Spec, Spec]]:
    monkeypatch.setenv("LAYERMARK_STORE", str(tmp_path / "results.db"))
    asked = []

    def compare_settings(a: Spec, b: Spec, protocol: Any, **more: Any) -> Compared:
        asked.append((a, b))
        if isinstance(answer, Exception):
            raise answer
        return Compared(spec=b, verdict=VERDICT, differences=("kernel 6.1 -> 6.2",))

    monkeypatch.setattr(session, "compare_settings", compare_settings)
    return asked


def test_options_after_two_settings_apply_to_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = compared(monkeypatch, tmp_path, VERDICT)
    assert cli.main(["compare", "dense --size 8", "dense", "--backend", "null", "--batch-size", "3"]) == 0
    assert [(spec.params["size"], spec.batch_size) for spec in asked[0]] == [(8, 3), (1024, 3)]
    out = capsys.readouterr().out
    assert "faster" in out and out.endswith("\n    differs: kernel 6.1 -> 6.2\n")


def test_a_verdict_as_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compared(monkeypatch, tmp_path, VERDICT)
    cli.main(["compare", "dense", "rnn", "--backend", "null", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["answer"], found["ratio"]) == ("faster", 1.5)
    assert (found["a"]["workload"], found["b"]["workload"]) == ("dense", "rnn")
    assert found["differences"] == ["kernel 6.1 -> 6.2"]


@pytest.mark.parametrize("error", [Unsupported("no such type"), WorkerFailed("hung")])
def test_a_comparison_that_cannot_be_made_is_one_line_and_status_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    compared(monkeypatch, tmp_path, error)
    assert cli.main(["compare", "dense", "dense", "--backend", "null"]) == 1
    assert capsys.readouterr().err == f"layermark: error: {error}\n"


def test_stored_sessions_are_compared_spec_by_spec(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAYERMARK_STORE", str(tmp_path / "results.db"))
    conv = OperatorChange(nodes=("conv1",), before=("Conv",), after=("Conv",), before_s=0.003, after_s=0.0036)
    found = Compared(spec=SPEC, verdict=VERDICT, operators=(conv,))
    monkeypatch.setattr(stored, "two_sides", lambda store, a, b: ([], []))
    both = ComparedSides(compared=(found,), alone=(), new=())
    monkeypatch.setattr(session, "compare_stored", lambda a, b, spread: both)
    assert cli.main(["compare", "s1", "s2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("dense infer batch 2 on null auto:\n")
    assert "s2" in out and "\n    conv1 3 -> 3.6 ms (+20%)\n" in out
    assert cli.main(["compare", "s1", "s2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["operators"][0]["nodes"] == ["conv1"]


def test_json_lines_of_a_resumed_session_hold_what_was_there_before(capsys: pytest.CaptureFixture[str]) -> None:
    lines = progress.Lines(progress.Plain())
    lines.started(1)
    lines.finished(FAILED)
    lines.rest([SKIPPED, FAILED])
    assert [json.loads(line)["status"] for line in capsys.readouterr().out.splitlines()] == ["failed", "skipped"]


def test_the_bar_is_drawn_on_events_only(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(screen, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with progress.listening(as_json=False) as bar:
        assert isinstance(bar, progress.Bar)
        assert not bar._progress.live.auto_refresh
        bar.note("a word before")
        bar.started(2)
        bar.phase(SPEC, "warming up")
        bar.finished(SKIPPED)
    assert "a word before" in screen.getvalue()
    assert "dense infer batch 2 on null auto: warming up" in screen.getvalue()
    assert "1/2" in screen.getvalue()
