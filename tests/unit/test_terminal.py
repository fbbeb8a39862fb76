"""The table: everything a result says, in any terminal, and no winner that the noise could have made."""

import dataclasses
import io

import pytest

from layermark import stats
from layermark.outcome import Diagnostic, Failed, Skipped, Verification
from layermark.report import text
from layermark.report.model import build, marks
from layermark.report.terminal import render, render_verdict
from layermark.spec import Plan

from .samples import MS, a_run, a_spec, blocks_of


def documents_of(*outcomes, floor=0.01):
    return [{**stats.document(each, session="s1"), "noise_floor": floor} for each in outcomes]


def drawn(*outcomes, width=140, floor=0.01, details=()):
    file = io.StringIO()
    render(documents_of(*outcomes, floor=floor), width, file, details=details)
    return file.getvalue()


def on(backend, *times, **spec):
    return a_run(*(times or [10.0] * 12), spec=a_spec(backend=backend, **spec))


def lines_with(output, *words):
    return [line for line in output.splitlines() if all(word in line for word in words)]


def test_a_row_says_everything():
    (row,) = lines_with(drawn(on("torch")), "torch/eager", "ok")
    expected = ["lstm", "infer", "torch/eager", "32.32", "4", "400", "0.0%", "10.0/-", "10.0%", "ok", "2e-06", "0.500"]
    assert expected == row.split()


def test_the_documents_average_stands_beside_the_rate_where_it_is_asked_for():
    """By hand: 4 rows in 20 ms six times, then in 10 ms: the median time, and the mean of five times 200 and 400."""
    uneven = on("torch", *[20.0] * 6, 10.0)
    assert "mean rate" not in drawn(uneven)
    for width in (140, 70):
        (row,) = lines_with(drawn(uneven, width=width, details=("mean_rate",)), "torch/eager", "ok")
        assert {"200", "233"} <= set(row.split())


def in_copies(*ms):
    """A run of several copies, each with its half of four rows in so many milliseconds; a step lasts as the slowest."""
    (block,) = blocks_of(max(ms), samples=10)
    block = dataclasses.replace(block, ranks_ns=(tuple(int(each * MS) for each in ms),) * 10)
    return a_run(spec=a_spec(plan=Plan(replicas=len(ms))), blocks=(block,) * 12)


def test_the_rate_of_each_copy_stands_beside_that_of_all():
    """By hand: 4 rows in 20 ms are 200 a second; of two copies each does 2 of them, in 10 and in 20 ms."""
    for width in (160, 100):
        (row,) = lines_with(drawn(in_copies(10.0, 20.0), width=width), "torch/eager x2", "ok")
        assert "200" in row.split() and "200 + 100" in row
    assert "each copy" not in drawn(on("torch"))
    assert "25.0 to 50.0" in drawn(in_copies(*[10.0] * 7, 20.0))


def test_the_model_of_a_report_has_the_rates_of_copies():
    report = build(documents_of(in_copies(10.0, 20.0), on("torch")))
    place = [column.key for column in report.columns].index("copies")
    assert ["200 + 100", "-"] == sorted((row.cells[place].text for row in report.measured), reverse=True)
    keys = [column.key for column in report.columns]
    assert place == keys.index("throughput") + 1


def test_what_quantising_lost_has_a_column_where_something_was_quantised():
    lost = {"against": "float32", "items": 64, "relative_error": 0.1083, "top1_agreement": 0.6875}
    quantised = a_run(spec=a_spec(precision="int8"), accuracy=lost)
    for width in (140, 90):
        assert len(lines_with(drawn(quantised, on("torch"), width=width), "int8", "10.8%/68.8%")) == 1
    assert "lost" not in drawn(on("torch"))


def test_what_all_rows_share_stands_above():
    output = drawn(on("torch"), on("jax", *[5.0] * 12))
    assert "mode infer, precision 32.32, batch 4" == output.splitlines()[0]
    assert "precision" not in output.splitlines()[1]


def test_what_differs_has_a_column():
    output = drawn(on("torch"), on("torch", precision="bf16.32"))
    assert lines_with(output, "torch/eager", "bf16.32")


def test_only_options_that_differ_are_shown():
    same = drawn(on("torch"), on("jax"))
    different = drawn(on("torch"), on("torch", params={"hidden_size": 128}))
    assert "hidden-size" not in same
    assert lines_with(different, "lstm hidden-size=128")


def test_fields_of_the_spec_that_differ_tell_rows_apart():
    for width in (140, 100):
        output = drawn(on("torch"), on("torch", *[5.0] * 12, formulation="tuned"), width=width)
        assert 1 == len(lines_with(output, "formulation=tuned", "ok"))
        assert 1 == len(lines_with(output, "formulation=library", "ok"))


def test_the_fastest_of_a_group_is_first_and_marked():
    rows = lines_with(drawn(on("torch"), on("jax", *[5.0] * 12)), "/eager", "ok")
    assert ["jax/eager", "torch/eager"] == [row.split()[1] for row in rows]
    assert [True, False] == [row.endswith("fastest") for row in rows]


def test_what_the_noise_could_have_made_cannot_be_told():
    output = drawn(on("torch", *[10.0] * 12), on("jax", *[9.9] * 12), on("slow", *[20.0] * 12))
    assert ["jax", "torch"] == [line.split()[1].split("/")[0] for line in lines_with(output, "cannot tell")]
    assert "fastest" not in output


def test_a_group_of_one_has_no_winner():
    output = drawn(on("torch"), on("torch", *[5.0] * 12, batch_size=8))
    assert "fastest" not in output
    assert "cannot tell" not in output


def test_a_failed_run_wins_nothing():
    wrong = Verification(ok=False, max_error=0.5, tolerance=1e-4, against="numpy")
    cheat = a_run(*[2.0] * 12, spec=a_spec(backend="cheat"), verified=wrong)
    output = drawn(on("torch"), cheat)
    assert lines_with(output, "cheat/eager", "WRONG 5e-01", "FAILED")
    assert lines_with(output, "FAILED: lstm infer 32.32 batch 4 on cheat/eager: the results are wrong")
    assert "fastest" not in output


def test_without_a_floor_no_winner_is_named():
    assert ["cannot tell"] * 2 == marks(documents_of(on("a"), on("b", *[1.5] * 12), floor=None))


def test_skips_are_grouped_by_reason():
    skips = [
        Skipped(spec=a_spec(backend="jax", batch_size=size), reason="jax is not installed") for size in range(1, 6)
    ]
    (line,) = lines_with(drawn(*skips), "jax is not installed")
    assert line.startswith("skipped: ")
    assert "batch 3 on jax and 2 more: jax is not installed" in line


def test_failures_show_the_last_lines_of_the_log():
    log = "\n".join(f"line {index}" for index in range(20)) + "\n"
    output = drawn(Failed(spec=a_spec(), reason="killed by signal 9", log=log))
    assert lines_with(output, "FAILED: lstm infer 32.32 batch 4 on torch: killed by signal 9")
    assert [f"    | line {index}" for index in range(15, 20)] == lines_with(output, "    | ")


def test_a_log_cannot_move_the_cursor():
    output = drawn(Failed(spec=a_spec(), reason="x\x1b[2J", log="\x1b[31mred\x1b[0m\x07[bold]kept[/bold]"))
    assert "\x1b" not in output
    assert "    | red[bold]kept[/bold]" in output.splitlines()


def test_warnings_of_one_kind_are_counted():
    runs = [
        a_run(spec=a_spec(backend=name), warnings=(Diagnostic("slow", f"took {n} s"),))
        for n, name in enumerate(["a", "b", "c"])
    ]
    (line,) = lines_with(drawn(*runs), "took")
    assert "took 0 s (and 2 more like it)" in line


def test_the_last_line_has_totals_and_the_session():
    output = drawn(on("torch"), Skipped(spec=a_spec(), reason="r"), Failed(spec=a_spec(), reason="r"))
    assert "3 results: 1 ok, 1 skipped, 1 failed; session s1" == output.splitlines()[-1]


def test_nothing_measured_is_still_an_answer():
    assert "0 results: nothing measured\n" == drawn()


MANY = [
    on(backend, *[time] * 12, batch_size=size, mode=mode, params={"hidden_size": hidden})
    for backend, time in (("onnxruntime", 10.0), ("tensorflow", 1.25))
    for size in (1, 4096)
    for mode in ("infer", "train")
    for hidden in (64, 128)
]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_every_result_fits_and_is_whole(width):
    output = drawn(*MANY, width=width)
    rows = lines_with(output, "onnxruntime/eager", "ok 2e-06", "32.32" if width < 200 else "onnx")
    assert 8 == len(rows)
    assert all(len(line) <= width for line in rows)
    assert "\N{HORIZONTAL ELLIPSIS}" not in output
    assert 8 == len(lines_with(output, "fastest"))


def test_a_narrow_table_marks_the_winner_in_heading_and_row():
    output = drawn(*MANY, width=80)
    assert lines_with(output, "lstm hidden-size=64, infer, batch 4096, sequences/s; fastest: tensorflow/eager")
    assert all(row.startswith("* ") for row in lines_with(output, "tensorflow/eager", "ok 2e-06"))


def test_without_a_terminal_there_is_no_colour():
    assert "\x1b" not in drawn(on("torch"), on("jax", *[5.0] * 12))


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_a_terminal_has_colour_unless_told_otherwise(monkeypatch, no_color, coloured):
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    file = Terminal()
    render(documents_of(on("torch"), on("jax", *[5.0] * 12)), 140, file)
    assert coloured == ("\x1b[" in file.getvalue())


def test_an_ascii_terminal_gets_ascii():
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    render(documents_of(on("torch"), Failed(spec=a_spec(), reason="caf\N{LATIN SMALL LETTER E WITH ACUTE}")), 100, file)
    file.flush()
    assert b"caf?" in raw.getvalue()


def verdict(**changes):
    given = {"answer": "faster", "ratio": 1.021, "low": 1.012, "high": 1.03, "noise_floor": 0.009}
    return stats.Verdict(**(given | {"starts": (3, 3), "rounds": 16, "spread": 0.004} | changes))


def test_a_verdict_is_one_sentence_with_its_interval():
    file = io.StringIO()
    expected = "B is 2.1% faster than A (1.021 x); 99% interval +1.2% to +3.0%, 3 + 3 starts, 16 rounds"
    assert expected == render_verdict(verdict(), file)
    assert f"{expected}\n" == file.getvalue()


def test_an_early_end_is_not_called_certain():
    assert "; 99.99% interval +1.2%" in render_verdict(verdict(confidence=0.9999), io.StringIO())


def test_a_slower_verdict_names_the_loss():
    changes = {"answer": "slower", "ratio": 0.95, "low": 0.94, "high": 0.96}
    assert "eager is 5.0% slower than compile" in render_verdict(
        verdict(**changes), io.StringIO(), a="compile", b="eager"
    )


def test_a_verdict_that_cannot_tell_says_what_would_have_shown():
    changes = {"answer": "cannot tell", "ratio": 1.001, "low": 0.99, "high": 1.012, "noise_floor": 0.011}
    found = render_verdict(verdict(**changes), io.StringIO())
    assert found.startswith(
        "cannot tell: B / A = 1.0010, differences below 1.1% do not show; 99% interval -1.0% to +1.2%"
    )


@pytest.mark.parametrize(
    ("detectable", "expected"),
    [
        (0.018, "a difference of 1.8% would have been found in 95 of 100 cases; 99% interval"),
        (0.034, "of 3.4% would have been found in 95 of 100 cases; the noise did not allow 2%, try a longer --budget"),
    ],
)
def test_a_verdict_that_cannot_tell_says_what_it_could_have_seen(detectable, expected):
    changes = {"answer": "cannot tell", "ratio": 1.001, "low": 0.99, "high": 1.012, "detectable": detectable}
    assert expected in render_verdict(verdict(**changes), io.StringIO())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1234567, "1.23M"),
        (999_600, "1.00M"),
        (999.4, "999"),
        (0, "0.00"),
        (12.34, "12.3"),
        (5e-5, "5.00e-05"),
        (None, "-"),
    ],
)
def test_numbers_have_three_digits(value, expected):
    assert expected == text.human(value)
