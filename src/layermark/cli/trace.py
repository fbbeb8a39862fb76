"""`layermark trace`: check a trace that a profile wrote, and show it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from layermark.cli.parsing import Parser

SUMMARY = "check a profile's trace and show it in a browser, from this machine only"

EPILOG = """examples:
  layermark trace layermark-profiles/resnet50-torch-infer-batch1-1a2b3c.trace.json
  layermark trace FILE --open    (until Ctrl-C)

The file can also be dropped onto https://ui.perfetto.dev or chrome://tracing; neither is needed."""


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.usage, parser.epilog = "layermark trace FILE [--open] [--port N]", EPILOG
    parser.add_argument("file", metavar="FILE", help="a .trace.json of layermark profile")
    parser.add_argument("--open", action="store_true", help="show it in a browser, served from 127.0.0.1 until Ctrl-C")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="where to serve it (default: any free port)")


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Say what the trace holds; with `--open`, serve it until interrupted."""
    from layermark.report.text import clean
    from layermark.report.trace import read_trace

    path = Path(args.file)
    found = read_trace(path)
    print(f"{clean(args.file)}: {found.spans} spans in {len(found.lanes)} lanes, {found.duration_s * 1e3:.4g} ms")
    print(*(f"  {clean(name)}" for name in found.lanes), sep="\n")
    if not args.open:
        print("show it: layermark trace FILE --open, or drop it onto ui.perfetto.dev or chrome://tracing")
        return 0
    return _serve(path, args.port)


def _serve(path: Path, port: int) -> int:
    import webbrowser

    from layermark.errors import UserError
    from layermark.report.trace import LOOPBACK, server

    try:
        serving = server(path, port)
    except (OSError, OverflowError) as error:
        raise UserError(f"--port {port}: {error}; leave it out for any free port") from None
    with serving:
        address = f"http://{LOOPBACK}:{serving.server_port}/"
        print(f"serving {address} until Ctrl-C", flush=True)
        webbrowser.open(address)
        try:
            serving.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0
