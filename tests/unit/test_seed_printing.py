"""What the seed scripts print."""

import re
from pathlib import Path

import pytest

from layermark import stats
from layermark.outcome import Failed, Skipped
from layermark.seeds.engine_options import EngineOptions
from layermark.seeds.parsing import parse
from layermark.seeds.printing import LayerPrinter, banner, step_line, summary
from layermark.seeds.request import layer_request
from layermark.seeds.scripts import script
from layermark.session.budget import Cost, StepPlan, fit

from .samples import a_block, a_run, a_spec


def requested(name, *argv):
    typed = parse(script(name), "script.py", [*argv, "--backend", "torch"])
    return layer_request(script(name), typed, EngineOptions()), typed.values


def shown(name, *argv):
    return list(banner(*requested(name, *argv)))


def test_banners():
    assert [
        "PopART LSTM Inference Synthetic benchmark.",
        " Batch size 1.",
        " Batches per Step 1000.",
        " Steps 5.",
        " Hidden size 32.",
        " Timesteps 1.",
    ] == shown("popart/lstm")
    assert " Input size 112." in shown("tensorflow/grouped_conv", "--input-size", "112", "--train")
    assert "TensorFlow Dense Training Synthetic benchmark." in shown("tensorflow/dense", "--train")
    assert " Number of layers 2." in shown("tensorflow/lstm_multi")
    assert "PopART Convolution Evaluation Synthetic benchmark." == shown("popart/conv", "--mode", "eval")[0]


def test_a_report_has_no_steps_in_its_banner():
    assert {" Batches per Step n/a.", " Steps n/a."} <= set(shown("tensorflow/gru", "--report"))


@pytest.mark.parametrize(
    ("family", "seconds", "expected"),
    [
        ("popart", 1234.5, "1.23e+03 sec/itr.   0.810045 items/sec."),
        ("popart", 12.0, "12.0     sec/itr.   83.333333 items/sec."),
        ("tensorflow", 0.00001234, "1.23e-05 sec/itr.   81037277.147488 items/sec"),
        ("tensorflow", 1.0, "1.0     sec/itr.   1000.000000 items/sec"),
    ],
)
def test_step_lines(family, seconds, expected):
    assert expected == step_line(family, seconds, 1000)


@pytest.mark.parametrize("family", ["popart", "tensorflow"])
def test_the_seeds_own_checkers_read_the_lines(family):
    line = step_line(family, 0.0123, 1000)
    assert re.search(r"\w+.\w+ items/sec", line)
    assert ("0.0123", "81300.813008") == re.search(r"([\d.]+)\s+sec/itr\.\s+([\d.]+)", line).groups()


def test_the_printer_follows_the_seeds(capsys):
    layer_request, values = requested("popart/lstm", "--report-hw", "yes", "--budget", "2m")
    printer = LayerPrinter(layer_request, values, Path("lstm.py"))
    printer.begin()
    printer.expected(7200)
    printer.shortened(StepPlan(steps=5, batches=10), layer_request.steps)
    printer.compiled(12.3451)
    printer.step(a_block(123), 1000)
    printer.stopped(1)
    printer.end({})
    assert [
        "Compiling...",
        "Shortened to fit the budget of 2m: 10 of 1000 batches per host call.",
        "Duration: 12.345 seconds",
        "",
        "Executing...",
        "0.123    sec/itr.   8130.081301 items/sec.",
        "The budget ended the run after 1 of 5 steps.",
        "Hardware cycle count per host call: 123000000 (nanoseconds)",
    ] == capsys.readouterr().out.splitlines()


def test_long_runs_say_how_long(capsys):
    printer = LayerPrinter(*requested("tensorflow/lstm"), Path("lstm.py"))
    printer.expected(599)
    printer.expected(9000)
    assert ["This run will take about 2h30m; --budget 2m would end it in time."] == capsys.readouterr().out.splitlines()


def document(outcome):
    return stats.document(outcome, session="s", command="c")


def test_the_summary_is_of_all_items_over_all_time():
    lines = "\n".join(summary(document(a_run(10.0, 20.0))))
    assert "266.667" not in lines
    assert re.search(r"rate +267 sequences/s \+-\d", lines)
    assert re.search(r"first +400 sequences/s in the first step, 262 in the others", lines)
    assert re.search(r"ceiling +\d+\.\d%", lines)
    assert re.search(r"verified +yes, error 2\.00e-06, allowed 0\.000100", lines)
    assert "items/sec" not in lines


def test_the_summary_says_why_there_is_none():
    assert ["Not measured: no such luck"] == list(summary(document(Skipped(spec=a_spec(), reason="no such luck"))))
    failed = "\n".join(summary(document(Failed(spec=a_spec(), reason="died", log="last words"))))
    assert "FAILED: died" in failed
    assert "last words" in failed


@pytest.mark.parametrize("left", [3.0, 10.0, 60.0, 1e9])
@pytest.mark.parametrize("batch_s", [1e-5, 1e-3, 0.3, 20.0])
@pytest.mark.parametrize("steps", [1, 5, 1000])
def test_what_fits_never_takes_longer_than_what_is_left(left, batch_s, steps):
    requested, cost = StepPlan(steps=steps, batches=1000, warm_up=True), Cost(batch_s=batch_s, proof_s=0.1)
    found = fit(requested, cost, left)
    assert 1 <= found.steps <= steps
    assert 1 <= found.batches <= 1000
    assert (found.steps, found.batches) == (1, 1) or cost.seconds(found) <= left
    if cost.seconds(requested) < left / 3 and left > 1e8:
        assert requested == found
