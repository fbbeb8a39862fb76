"""What a report shows, before anything is drawn."""

import csv
import io
import json
import re
from dataclasses import replace
from importlib import resources

import pytest

from layermark import stats
from layermark.outcome import Failed, Skipped
from layermark.report import csv as csv_report
from layermark.report import extras, html, latex, markdown, over_time, plots
from layermark.report.html import page
from layermark.report.model import PastPoint, build
from layermark.report.payload import SAMPLES_SHOWN, embedded, thinned
from layermark.report.summary import SHADES, summarise

from .full_results import full_documents, some_lanes
from .results import a_document, documents
from .samples import a_spec

FOUR = [a_document(name) for name in ("torch", "onnxruntime", "openvino", "jax")]


def skipped(reason, **spec):
    return stats.document(Skipped(spec=a_spec(**spec), reason=reason), session="s1")


def test_groups_have_the_fastest_first_and_name_those_that_lead():
    (group,) = build(FOUR).groups
    assert ["onnxruntime", "openvino", "torch", "jax"] == [row.runtime for row in group.rows]
    assert ["onnxruntime", "openvino"] == [row.runtime for row in group.leaders]
    assert "cannot tell apart" == group.verdict


def test_a_start_spread_that_is_known_decides_what_can_be_told():
    two = [a_document("torch", time_ms=10.0), a_document("onnxruntime", time_ms=9.6)]
    assert "fastest" == build(two).groups[0].verdict
    assert "cannot tell apart" == build(two, start_spread=0.1).groups[0].verdict


def test_results_of_two_sessions_are_never_compared():
    report = build([a_document("torch", session="a"), a_document("jax", session="b")])
    assert [(), ()] == [group.leaders for group in report.groups]


def test_ids_stay_the_same_and_differ_between_results():
    first, again = build(FOUR), build(FOUR[::-1])
    assert 4 == len({row.id for row in first.rows})
    assert {row.title: row.id for row in first.rows} == {row.title: row.id for row in again.rows}
    assert 2 == len({row.id for row in build([FOUR[0], FOUR[0]]).rows})


def test_warnings_are_grouped_by_code():
    told = {"warnings": ["wide at 3 %", "took 3 s", "other words"], "warning_codes": ["wide", "slow", "wide"]}
    assert [("wide", "wide at 3 %", 2), ("slow", "took 3 s", 1)] == counted(told)
    assert [("wide", "wide at 3 %", 1)] == counted({"warnings": [{"code": "wide", "text": "wide at 3 %"}]})


def test_warnings_of_old_documents_are_grouped_by_their_words():
    assert [("took # s", "took 3 s", 2)] == counted({"warnings": ["took 3 s", "took 4 s"], "warning_codes": None})


def counted(told):
    found = build([{**a_document("torch"), "warning_codes": None, **told}]).warnings
    return [(each.code, each.text, len(each.rows)) for each in found]


def test_contenders_are_named_by_what_was_asked_for_and_differs():
    assert ["torch"] == [row.runtime for row in build(FOUR[:1]).rows]
    two = [a_document("torch", spec={"execution": each}) for each in ("eager", "compile")]
    assert {"torch eager", "torch compile"} == {row.runtime for row in build(two).rows}
    assert {"torch", "jax"} == {row.runtime for row in build([two[0], a_document("jax")]).rows}


def test_the_headline_names_who_wins_most():
    two = [a_document("torch"), a_document("jax")]
    assert "torch wins 1 of 1 comparison" == summarise(build(two)).headline
    even = [*two, *(a_document(name, batch_size=8, time_ms=time) for name, time in (("torch", 20.0), ("jax", 10.0)))]
    assert "jax and torch win 1 of 2 comparisons each" == summarise(build(even)).headline
    assert "No winner in 1 comparison" in summarise(build(FOUR[1:3])).headline
    assert "nothing to compare" in summarise(build(FOUR[:1])).headline


def test_standings_count_wins_ties_and_comparisons():
    more = [*FOUR, a_document("torch", batch_size=8), a_document("jax", batch_size=8)]
    found = {each.runtime: (each.won, each.shared, each.compared) for each in summarise(build(more)).standings}
    assert {"onnxruntime": (0, 1, 1), "openvino": (0, 1, 1), "torch": (1, 0, 2), "jax": (0, 0, 2)} == found


def test_advice_names_a_runtime_for_every_purpose_and_all_that_are_alike():
    several = [*FOUR, *(a_document(name, batch_size=1) for name in ("torch", "jax"))]
    summary = summarise(build(several))
    rate, latency, *_ = summary.advice[0].choices
    assert ("onnxruntime", "openvino") == rate.runtimes
    assert "batch 4, 667 sequences/s" == rate.text
    assert "batch 1" in latency.text and ("torch",) == latency.runtimes


def test_advice_is_that_of_the_latest_session():
    days = ["20261118-080000-aaaa", "20261119-080000-bbbb"]
    once = a_document("torch", session=days[0], time_ms=1.0)
    now = [a_document(name, session=days[1], time_ms=ms) for name, ms in (("torch", 10.0), ("jax", 5.0))]
    rate, *_ = summarise(build([once, *now])).advice[0].choices
    assert (("jax",), "batch 4, 800 sequences/s") == (rate.runtimes, rate.text)


def test_a_purpose_without_numbers_has_no_choice():
    unknown = a_document("torch", memory={"peak_rss_bytes": None})
    *_, memory = summarise(build([unknown])).advice[0].choices
    assert memory is None


def test_heat_is_relative_to_the_best_of_the_row():
    (line,) = summarise(build([*FOUR, a_document("null", time_ms=600.0)])).heat
    shades = {cell.label.split(" on ")[1].split("/")[0]: cell.shade for cell in line.cells}
    assert SHADES == shades["onnxruntime"] > shades["torch"] > shades["jax"] > shades["null"] == 0


def test_batch_plots_need_two_sizes_and_carry_intervals():
    assert [] == [each for each in plots.sections(build(FOUR)) if each.key == "batch"]
    (batch,) = [each for each in plots.sections(build(documents(24))) if each.key == "batch"]
    (plot,) = batch.plots
    assert [1, 2, 4, 8, 16, 32] == [point.x for point in plot.series[0].points]
    assert all(point.low < point.y < point.high for each in plot.series for point in each.points)


def test_the_front_is_what_nobody_beats_in_both():
    assert ((1, 1), (2, 2), (4, 3)) == plots.front([(2, 2), (1, 1), (4, 3), (1.5, 2.5), (2, 2), (3, 3)])


def test_every_measurement_is_on_the_roofline_below_its_ceiling():
    report = build(documents(24))
    (roofline,) = [each for each in plots.sections(report) if each.key == "roofline"]
    points = [point for plot in roofline.plots for each in plot.series for point in each.points]
    assert {row.id for row in report.rows} == {point.row for point in points}
    for point in points:
        document = next(row.document for row in report.rows if row.id == point.row)
        assert point.y / point.limit == pytest.approx(document["efficiency"])


def test_history_needs_several_sessions():
    days = ["20261118-080000-aaaa", "20261119-080000-bbbb"]
    both = [a_document(name, session=day) for day in days for name in ("torch", "jax")]
    (history,) = [each for each in plots.sections(build(both)) if each.key == "history"]
    assert ((0, "11-18 08:00"), (1, "11-19 08:00")) == history.plots[0].x.ticks
    assert [2, 2] == [len(each.points) for each in history.plots[0].series]
    assert "history" not in [each.key for each in plots.sections(build(both[:2]))]


def test_history_is_that_of_the_store_with_its_changes():
    report = build([a_document("torch", session="20261120-080000-cccc")])
    (row,) = report.rows
    days = [
        PastPoint(session=f"2026111{day}-080000-aaaa", created=f"2026-11-1{day}", value=70.0) for day in range(1, 6)
    ]
    days[3] = replace(days[3], change=0.85)
    held = PastPoint(session="20261120-080000-cccc", created="2026-11-20", value=71.0)
    (history,) = [
        each for each in plots.sections(replace(report, history={row.id: (*days, held)})) if each.key == "history"
    ]
    (plot,) = history.plots
    (line,) = plot.series
    assert 6 == len(line.path) == len(plot.x.ticks)
    assert ["", "", "", "-15.0%", "", ""] == [point.note for point in line.points]
    assert ["", row.id] == [line.points[0].row, line.points[-1].row]
    assert [3.0, 3.0] == [x for each in plot.lines for x, _ in each.points]
    drawn = page(replace(report, history={row.id: (*days, held)}))
    assert 1 == drawn.count('class="change"') and 'href="#result-"' not in drawn


def test_several_results_of_a_runtime_in_a_comparison_are_told_by_the_best():
    plans = [{"plan": {"replicas": count, "stages": 1}} for count in (1, 2, 4)]
    found = [a_document("torch", time_ms=ms, spec=plan) for ms, plan in zip((10.0, 7.0, 12.0), plans, strict=True)]
    found.append(a_document("jax"))
    report = build(found)
    (line,) = summarise(report).heat
    jax, torch = line.cells
    best = max(report.rows, key=lambda row: row.document["throughput"]["value"])
    assert (best.id, 2, 0) == (torch.row, torch.others, jax.others)
    assert "best of 3" in page(report) and "2 more of torch" in torch.label


def test_a_failed_result_does_not_hide_one_that_is_right():
    wrong = a_document("torch", time_ms=1.0, spec={"plan": {"replicas": 2, "stages": 1}}, status="failed", reason="no")
    report = build([wrong, a_document("torch"), a_document("jax")])
    (line,) = summarise(report).heat
    assert ["ok", "ok"] == [next(row.status for row in report.rows if row.id == cell.row) for cell in line.cells]


def test_a_failure_without_a_rate_is_told_from_what_was_not_measured():
    reason = "killed by <signal> 9\nmore"
    failed = stats.document(Failed(spec=a_spec(backend="jax"), reason=reason), session=FOUR[0]["session"])
    elsewhere = a_document("null", batch_size=8)
    report = build([FOUR[0], {**failed, "group": FOUR[0]["group"]}, elsewhere])
    line = next(each for each in summarise(report).heat if "batch 4" in each.title)
    jax, null, torch = line.cells
    assert (None, "failed", "FAILED", "") == (null, jax.text, jax.mark, torch.reason)
    assert "lstm infer 32.32 batch 4 on jax: failed: killed by <signal> 9 more" == jax.label
    row = next(row for row in report.rows if row.status == "failed")
    drawn = page(report)
    assert f'<td class="h0 bad"><a href="#result-{row.id}"' in drawn
    assert 'title="killed by &lt;signal&gt; 9 more"><b>failed</b>' in drawn


def test_lanes_say_what_they_leave_out():
    drawn = over_time.lanes(some_lanes(lanes=over_time.LANES_SHOWN + 3, bars=64))
    assert over_time.LANES_SHOWN == len(drawn.lanes)
    assert over_time.BARS_SHOWN >= sum(map(len, drawn.lanes.values()))
    assert (
        f"3 more lanes and {over_time.LANES_SHOWN * 64 - over_time.BARS_SHOWN} more pieces of work left out"
        == drawn.note
    )
    assert "" == over_time.lanes(some_lanes(lanes=4, bars=64)).note


def test_a_hundred_results_that_carry_everything_are_below_a_megabyte():
    report = build(full_documents(100))
    assert len(page(report).encode()) < 1_000_000
    data = json.loads(embedded(report, dict.fromkeys({row.runtime for row in report.rows}, 0)))
    assert all(100 == len(data[name]) for name in ("rows", "profiles"))
    assert over_time.FIGURES_SHOWN == len(data["lanes"])
    assert all(each["samples"] and 100 <= len(each["samples"]["ms"]) for each in data["rows"])
    assert all({"lines", "tree", "alive", "memory", "timeline", "trace"} <= set(each) for each in data["profiles"])


def test_a_page_of_few_results_has_all_of_their_views():
    few, many = build(full_documents(4)), build(full_documents(100))
    assert extras.OPERATORS_SHOWN == len(extras.operators(few)[0][0].lines)
    assert 5 < len(extras.operators(many)[0][0].lines) < extras.OPERATORS_SHOWN


def test_the_dark_colours_are_those_of_a_screen_only():
    style = (resources.files("layermark.report") / "assets" / "page.css").read_text()
    screen, paper = style.split("@media print")
    dark = [line for line in screen.splitlines() if 'data-theme="dark"]' in line or "scheme: dark)" in line]
    assert 2 == len(dark) and all(line.startswith("@media screen ") for line in dark)
    assert "dark" not in paper and "color-scheme: light;" in paper


def test_more_plots_than_a_page_should_hold_are_counted():
    (batch,) = [each for each in plots.sections(build(documents(24 * 30))) if each.key == "batch"]
    assert (plots.PLOTS_SHOWN, 6) == (len(batch.plots), batch.left_out)


def test_curves_lanes_and_operators_are_shown_if_they_are_there():
    report = build(FOUR)
    assert ((), ([], 0), ([], 0)) == (
        extras.curves(report).plots,
        over_time.row_lanes(report),
        extras.operators(report),
    )
    full = a_document(
        "torch",
        curve=[{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5, "accuracy": 0.5}],
        lanes=[{"lane": "stage 0", "name": "forward", "start_s": 0.0, "end_s": 0.5}],
        profile={"operators": [{"name": "relu", "time_s": 0.1}, {"name": "gemm", "time_s": 0.9, "calls": 20_000}]},
    )
    report = build([full])
    assert ["loss", "accuracy"] == [plot.y.label for plot in extras.curves(report).plots]
    assert ["stage 0"] == list(over_time.row_lanes(report)[0][0].drawn.lanes)
    ((operators,), _) = extras.operators(report)
    assert (("name", "time_s", "calls"), ("gemm", "0.900", "20.0k")) == (operators.header, operators.lines[0])


def test_a_loss_that_is_not_finite_is_left_out():
    curve = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": float("nan")}, {"step": 3, "loss": float("inf")}]
    (plot,) = extras.curves(build([a_document(curve=curve)])).plots
    assert [1.0] == [point.x for point in plot.series[0].points]


def test_a_page_can_be_made_when_nothing_was_measured():
    assert "2 results: 2 skipped" in page(build([skipped("no"), skipped("not here", backend="x")]))


def test_samples_are_thinned_evenly_and_keep_the_slowest():
    many = [{"block": 0, "batches": 1, "items": 1, "seconds": 1.0} for _ in range(5000)]
    many[1234] = {**many[0], "seconds": 9.0}
    shown = thinned(many)
    assert SAMPLES_SHOWN >= len(shown) > 0.9 * SAMPLES_SHOWN
    assert many[1234] in shown
    assert many[:7] == thinned(many[:7])


def test_no_name_can_end_the_element_that_holds_the_data():
    data = embedded(build([a_document(spec={"workload": "</script><b>"})]), {"torch": 0})
    assert "<" not in data
    assert "</script><b>" in json.loads(data)["rows"][0]["title"]


def test_csv_has_every_number_raw():
    report = build([*FOUR, skipped('no, "really"', backend="x")])
    rows = list(csv.DictReader(io.StringIO(csv_report.render(report))))
    assert 5 == len(rows)
    torch = next(row for row in rows if row["backend"] == "torch")
    assert FOUR[0]["throughput"]["value"] == float(torch["throughput"])
    assert FOUR[0]["throughput"]["low"] == float(torch["throughput.low"])
    assert ("sequences/s", "64", "ok") == (torch["throughput.unit"], torch["hidden_size"], torch["status"])
    assert ("", 'no, "really"') == (rows[-1]["throughput"], rows[-1]["reason"])


@pytest.mark.parametrize("evil", ["=HYPERLINK(1)", "+1+1", "-1+1", "@SUM(A1)"])
def test_csv_holds_no_formulas(evil):
    report = build(
        [a_document(spec={"workload": evil, "params": {evil: -3, "size": evil}}), skipped(evil, backend="x")]
    )
    rows = list(csv.reader(io.StringIO(csv_report.render(report))))
    cells = {cell for row in rows for cell in row}
    assert f"'{evil}" in cells and evil not in cells
    assert "-3" in cells


def test_markdown_is_a_table_that_names_cannot_break():
    output = markdown.render(
        build([a_document(spec={"workload": "a|b <i>"}), a_document("jax", spec={"workload": "a|b <i>"})])
    )
    lines = output.splitlines()
    assert lines[0].startswith("| workload | mode | backend |")
    assert r"a\|b \<i\>" in lines[2] and lines[2].endswith("| fastest |")
    assert len({line.replace(r"\|", "").count("|") for line in lines[:4]}) == 1
    assert lines[-1].startswith("2 results: 2 ok")


def test_the_curve_of_a_training_run_is_drawn_and_not_spelt_out():
    entries = [{"update": step, "loss": 2.0 / step, "rate": 0.1} for step in range(1, 1001)]
    found = a_document()
    found["settings"] = {**found["settings"], "training": {"updates": 1000, "curve": entries}}
    loss, rate = extras.curves(build([found])).plots
    assert ("update", "loss", "rate") == (loss.x.label, loss.y.label, rate.y.label)
    (line,) = loss.series
    drawn = [x for x, _ in line.path]
    assert extras.CURVE_SHOWN / 2 < len(drawn) <= extras.CURVE_SHOWN and 1000 == drawn[-1] and sorted(drawn) == drawn
    assert 1 < len(line.points) <= plots.HOVERED and 1000 == line.points[-1].x
    assert len(html.page(build([found]))) < 300_000


def test_latex_is_a_table_that_names_cannot_break():
    evil = r"50% \input{/etc/passwd} & $x_1^2$ # ~ {"
    lines = latex.render(build([a_document("torch", spec={"workload": evil}), a_document("jax")])).splitlines()
    rows = [line for line in lines if line.endswith(r"\\")]
    assert 3 == len(rows)
    bare = [re.sub(r"\\[a-z]+\{\}|\\[%&$_#{}]", "", line.removesuffix(r"\\")) for line in rows]
    assert [rows[0].count(" & ")] * 3 == [line.count("&") for line in bare]
    assert not re.search(r"[\\%$#^_~{}<>|]", "".join(bare))
    assert lines[-1] == r"\end{tabular}" and 1 == sum(line.startswith(r"\begin{tabular}{") for line in lines)


def test_markdown_says_what_failed_and_what_was_skipped():
    failed = stats.document(Failed(spec=a_spec(), reason="out of memory"), session="s1")
    output = markdown.render(build([failed, skipped("no such thing"), skipped("no such thing")]))
    assert "- failed: lstm infer 32.32 batch 4 on torch: out of memory" in output
    assert "- skipped: lstm infer 32.32 batch 4 on torch (and 1 more): no such thing" in output
