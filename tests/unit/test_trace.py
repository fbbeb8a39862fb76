"""Traces are what viewers expect, faults are found, and one is shown to this machine only."""

import http.client
import json
import threading

import pytest

from layermark import cli
from layermark.backends._trace import Span, by_operator, write_trace
from layermark.backends.base import TRACE_FILE
from layermark.errors import UserError
from layermark.report.trace import LOOPBACK, faults, read_trace, server

SPANS = [
    Span("main", "call", 5e9, 1000.4),
    Span("main", "conv.1", 5e9 + 100.2, 500.5, "conv", ("conv1",)),
    Span("main", "inner", 5e9 + 200, 100, "move"),
    Span("helper", "conv.1", 5e9 + 100, 300, "conv", ("conv1",)),
]


def written(folder, spans=SPANS):
    write_trace(spans, folder)
    return json.loads((folder / TRACE_FILE).read_text())


def test_a_trace_is_valid_and_begins_at_zero(tmp_path):
    document = written(tmp_path)
    assert [] == list(faults(document, pass_s=1.1e-6))
    assert 0 == min(each["ts"] for each in document["traceEvents"])
    found = read_trace(tmp_path / TRACE_FILE)
    assert (4, {"main", "helper"}) == (found.spans, set(found.lanes))


def test_ends_that_cross_by_a_reading_of_the_clock_are_cut(tmp_path):
    crossing = [
        Span("main", "outer", 0, 1000, "a"),
        Span("main", "inner", 900, 150, "b"),
        Span("main", "next", 1000, 5, "c"),
    ]
    assert [] == list(faults(written(tmp_path, crossing)))


def test_hostile_and_empty_names_are_only_names(tmp_path):
    names = ["", "</script><script>alert(1)</script>", "\x1b[2J\n", "n" * 10_000, "é"]
    spans = [Span(name, name, index * 10, 5, name, (name,)) for index, name in enumerate(names)]
    assert [] == list(faults(written(tmp_path, spans)))


def test_no_span_is_a_trace_too(tmp_path):
    assert [] == list(faults(written(tmp_path, []))) and 0 == read_trace(tmp_path / TRACE_FILE).spans


def test_own_times_add_up_to_the_outer_ones():
    rows = by_operator(
        [Span("a", "w", 0, 100, "while"), Span("a", "d", 10, 60, "dot", ("fc",)), Span("b", "e", 0, 7, "dot")]
    )
    assert [("while", (), 40), ("dot", ("fc",), 60), ("dot", (), 7)] == [
        (each.operator, each.names, round(each.seconds * 1e9)) for each in rows
    ]


def event(**changes):
    return {"ph": "X", "pid": 0, "tid": 0, "ts": 1.0, "dur": 2.0, "name": "conv", "cat": "conv", "args": {}} | changes


NAME = {"ph": "M", "pid": 0, "tid": 0, "ts": 0, "name": "thread_name", "args": {"name": "main"}}


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        ([NAME, event(ph="B")], "complete event"),
        ([NAME, "text"], "complete event"),
        ([NAME, {**event(), "more": 1}], "received"),
        ([NAME, event(ts=-1)], "ts is no time"),
        ([NAME, event(dur=float("nan"))], "dur is no time"),
        ([NAME, event(ts=True)], "ts is no time"),
        ([NAME, event(tid="0")], "tid is no whole number"),
        ([NAME, event(name="")], "name is no text"),
        ([NAME, event(args=[])], "args is no object"),
        ([{**NAME, "args": {}}], "names nothing"),
        ([event()], "lane 0 has no name"),
        ([NAME, event(), event(ts=2.0, dur=9.0, name="late")], "late ends after conv"),
        ([NAME, event(dur=2e6)], "after the pass"),
    ],
)
def test_every_fault_is_found(events, fault):
    assert any(fault in each for each in faults({"traceEvents": events}, pass_s=1.0))


@pytest.mark.parametrize("content", ["", "[]", "{", '{"traceEvents": 3}', "null", '{"traceEvents": [1]}'])
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, content, capsys):
    path = tmp_path / "some.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"some\.json"):
        read_trace(path)
    assert 2 == cli.main(["trace", str(path)])
    assert 1 == len(capsys.readouterr().err.splitlines())


def test_the_command_says_what_is_in_a_trace(tmp_path, capsys):
    written(tmp_path)
    assert 0 == cli.main(["trace", str(tmp_path / TRACE_FILE)])
    assert "4 spans in 2 lanes" in capsys.readouterr().out
    assert 2 == cli.main(["trace", str(tmp_path / "missing.json")])
    assert 2 == cli.main(["trace", str(tmp_path / TRACE_FILE), "--open", "--port", "99999"])


@pytest.fixture
def served(tmp_path):
    written(tmp_path)
    with server(tmp_path / TRACE_FILE) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield serving
        serving.shutdown()


def asked(served, path, **headers):
    line = http.client.HTTPConnection(LOOPBACK, served.server_port, timeout=10)
    line.request("GET", path, headers=headers)
    answer = line.getresponse()
    return answer.status, answer.headers, answer.read()


def test_the_viewer_is_served_from_loopback(served, tmp_path):
    assert LOOPBACK == served.server_address[0]
    for path in ("/", "/trace.js", "/trace.css", "/trace.json?again"):
        status, headers, body = asked(served, path)
        assert 200 == status and body and "default-src 'none'" in headers["Content-Security-Policy"]
    assert (tmp_path / TRACE_FILE).read_bytes() == asked(served, "/trace.json")[2]


def test_nothing_else_is_served_and_nobody_else_is(served):
    for path in ("/etc/passwd", "/../trace.json", "//trace.json/", "/trace.py"):
        assert 404 == asked(served, path)[0]
    assert 403 == asked(served, "/trace.json", Host="evil.example")[0]


def test_the_page_asks_for_nothing_from_elsewhere(served):
    for path in ("/", "/trace.js", "/trace.css"):
        body = asked(served, path)[2].decode()
        assert "http" not in body and "//" not in body.replace("// ", "") and "innerHTML" not in body
