"""Traces of profiles: a strict reading of Chrome's trace events, and the little server that shows one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

from layermark.errors import UserError

LOOPBACK = "127.0.0.1"
_MOST_BYTES = 500_000_000
_FIELDS = {
    "M": {"ph", "pid", "tid", "ts", "name", "args"},
    "X": {"ph", "pid", "tid", "ts", "dur", "name", "cat", "args"},
}
_ROUNDING_US = 0.0015
"""Times are written in thousandths of a microsecond, so that sums of two may be off by one."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)

Event = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What a trace holds, in short."""

    spans: int
    lanes: tuple[str, ...]
    duration_s: float


def read_trace(path: Path) -> Trace:
    """Return what a trace holds; raise `UserError` with the first fault of one that no viewer should be given."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UserError(f"{path}: larger than {_MOST_BYTES / 1e6:.0f} MB; profile fewer batches")
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a .trace.json that layermark profile wrote") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); give a .trace.json that layermark profile wrote") from None
    fault = next(faults(document), None)
    if fault:
        raise UserError(f"{path}: not a trace of layermark profile: {fault}")
    spans = [each for each in document["traceEvents"] if each["ph"] == "X"]
    lanes = tuple(each["args"]["name"] for each in document["traceEvents"] if each["name"] == "thread_name")
    end = max((each["ts"] + each["dur"] for each in spans), default=0.0)
    return Trace(spans=len(spans), lanes=lanes, duration_s=end / 1e6)


def faults(document: Any, pass_s: float | None = None) -> Iterator[str]:
    """Every fault of a trace: fields and their types, lanes without a name, times before 0, after the pass, crossing.

    >>> list(faults({"traceEvents": [{"ph": "X", "name": "conv"}]}))[0]
    'event 0: expected the fields args, cat, dur, name, ph, pid, tid, ts; received name, ph'
    """
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        yield "expected an object with the list traceEvents"
        return
    wrong = [fault for number, event in enumerate(events) for fault in _event_faults(number, event)]
    yield from wrong
    if not wrong:
        yield from _lane_faults(events, pass_s)


def _event_faults(number: int, event: Any) -> Iterator[str]:
    if not isinstance(event, dict) or event.get("ph") not in _FIELDS:
        yield f"event {number}: expected a complete event (X) or a name (M)"
        return
    expected = _FIELDS[event["ph"]]
    if set(event) != expected:
        yield f"event {number}: expected the fields {', '.join(sorted(expected))}; received {', '.join(sorted(event))}"
        return
    for name in ("pid", "tid"):
        if type(event[name]) is not int:
            yield f"event {number}: {name} is no whole number"
    for name in {"ts", "dur"} & expected:
        if type(event[name]) not in (int, float) or not 0 <= event[name] < float("inf"):
            yield f"event {number}: {name} is no time"
    for name in {"name", "cat"} & expected:
        if not isinstance(event[name], str) or not event[name]:
            yield f"event {number}: {name} is no text"
    if not isinstance(event["args"], dict):
        yield f"event {number}: args is no object"
    elif event["ph"] == "M" and not (isinstance(event["args"].get("name"), str) and event["args"]["name"]):
        yield f"event {number}: names nothing"


def _lane_faults(events: Sequence[Event], pass_s: float | None) -> Iterator[str]:
    named = {(each["pid"], each["tid"]) for each in events if each["name"] == "thread_name"}
    lanes: dict[tuple[int, int], list[Event]] = {}
    for each in events:
        if each["ph"] == "X":
            lanes.setdefault((each["pid"], each["tid"]), []).append(each)
    for lane, members in lanes.items():
        if lane not in named:
            yield f"lane {lane[1]} has no name"
        yield from _crossings(members)
    end = max((each["ts"] + each["dur"] for members in lanes.values() for each in members), default=0.0)
    if pass_s is not None and end > pass_s * 1e6 + 1:
        yield f"ends at {end / 1e6:.6f} s, after the pass of {pass_s:.6f} s"


def _crossings(members: Sequence[Event]) -> Iterator[str]:
    """Spans of a lane that overlap without one being inside of the other."""
    above: list[Event] = []
    for each in sorted(members, key=lambda event: (event["ts"], -event["dur"])):
        while above and above[-1]["ts"] + above[-1]["dur"] <= each["ts"] + _ROUNDING_US:
            above.pop()
        if above and each["ts"] + each["dur"] > above[-1]["ts"] + above[-1]["dur"] + _ROUNDING_US:
            yield f"{each['name']} ends after {above[-1]['name']}, in which it began"
        above.append(each)


def server(trace: Path, port: int = 0) -> ThreadingHTTPServer:
    """Return a server of the viewer and this one file, for this machine only; it listens at once."""
    content = trace.read_bytes()
    assets = resources.files("layermark.report") / "assets"
    pages = {
        "/": ("text/html; charset=utf-8", (assets / "trace.html").read_bytes()),
        "/trace.js": ("text/javascript; charset=utf-8", (assets / "trace.js").read_bytes()),
        "/trace.css": ("text/css; charset=utf-8", (assets / "trace.css").read_bytes()),
        "/trace.json": ("application/json", content),
    }

    class Handler(BaseHTTPRequestHandler):
        """Gives out four pages, to requests that name this machine."""

        def do_GET(self) -> None:
            """One page, or none."""
            here = {f"{name}:{self.server.server_port}" for name in (LOOPBACK, "localhost")}  # type: ignore[attr-defined]
            found = pages.get(self.path.partition("?")[0])
            # A page elsewhere could point a name of its own at this machine and read the trace under it.
            if self.headers.get("Host") not in here:
                self.send_error(403)
            elif found is None:
                self.send_error(404)
            else:
                self._send(*found)

        def _send(self, kind: str, body: bytes) -> None:
            self.send_response(200)
            headers = {"Content-Type": kind, "Content-Length": str(len(body)), "Content-Security-Policy": _POLICY}
            for name, value in {**headers, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the terminal belongs to the user."""

    return ThreadingHTTPServer((LOOPBACK, port), Handler)
