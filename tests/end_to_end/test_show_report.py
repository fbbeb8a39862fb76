"""Stored sessions again: as a table, as Markdown, as CSV, and as a page."""

import csv
import io

import pytest

RUN = ("run", "--backend", "null", "--execution", "auto", "--block", "20ms")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A command line whose store holds two sessions, and their names, the oldest first."""
    from conftest import CommandLine

    layermark = CommandLine(tmp_path_factory.mktemp("stored"))
    tables = [layermark(*RUN, "dense", "--size", "64", "--batch-size", sizes).stdout for sizes in ("1", "1,2")]
    sessions = [table.split("; session ")[1].split()[0] for table in tables]
    return layermark, sessions, tables


def test_show_prints_what_run_printed(stored):
    layermark, (first, _), tables = stored
    for arguments, table in (((), tables[1]), ((first,), tables[0])):
        shown = layermark("show", *arguments)
        assert 0 == shown.status, shown.stderr
        assert table.startswith(shown.stdout)


def test_show_as_csv_and_markdown(stored):
    layermark, (first, _), _ = stored
    (row,) = csv.DictReader(io.StringIO(layermark("show", first, "--format", "csv").stdout))
    assert ("dense", "null", "64") == (row["workload"], row["backend"], row["size"])
    assert layermark("show", first, "--format", "markdown").stdout.startswith("| workload | mode |")


def test_wrong_requests_are_one_line(stored, tmp_path):
    layermark, _, _ = stored
    for arguments, words in (
        (("show", "nobody"), "unknown session 'nobody'"),
        (("show", "--format", "cvs"), "csv"),
        (("report", "-o", str(tmp_path)), "give -o another file"),
    ):
        refused = layermark(*arguments)
        assert (2, 1) == (refused.status, len(refused.stderr.splitlines()))
        assert words in refused.stderr


def test_an_empty_store_says_so(layermark):
    refused = layermark("report")
    assert 2 == refused.status
    assert "holds no session yet" in refused.stderr


def test_a_plain_report_has_the_history_of_its_measurements(stored):
    layermark, (first, last), _ = stored
    assert 0 == layermark("report", "-o", "now.html").status
    page = (layermark.folder / "now.html").read_text()
    history = page[page.index('<section id="history">') :].partition("</section>")[0]
    # Batch 1 was measured in both sessions; batch 2 in the last one only.
    assert 1 == history.count("<figure") and f"session {first}" in history and f"session {last}" in history
    assert 1 == history.count("<a href=")  # the older point is of a result that this page does not hold
    assert 0 == layermark("report", first, "-o", "then.html").status
    assert 'id="history"' not in (layermark.folder / "then.html").read_text()


def test_report_writes_one_file_and_says_where(stored):
    layermark, (_, last), _ = stored
    written = layermark("report")
    assert 0 == written.status, written.stderr
    path = layermark.folder / f"layermark-{last}.html"
    assert f"report: {path}" == written.stdout.splitlines()[-1]
    page = path.read_text()
    assert page.startswith("<!doctype html>")
    assert 'id="batch"' in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page


def test_several_sessions_have_a_history_whatever_their_order(stored):
    layermark, (first, last), _ = stored
    layermark("report", last, first, "-o", "out/both.html")
    page = (layermark.folder / "out" / "both.html").read_text()
    assert 'id="history"' in page
    assert page.index(f"session {first}, {last}") > 0
