"""`layermark data ladder`: which share of the time real data cost, and what for."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from layermark.cli.parsing import Parser
from layermark.cli.request import BUDGET_HELP, add_protocol, add_setting, read_budget, read_protocol, setting_texts

if TYPE_CHECKING:
    from layermark.stats import Ladder

SUMMARY = "measure synthetic, generated and real data in alternation: what is lost to reading, decoding, ... copying"


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.usage = "layermark data ladder WORKLOAD --backend NAME [options]"
    parser.add_argument("workload", metavar="WORKLOAD", help="a network that takes pictures")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--budget", metavar="TIME", help=BUDGET_HELP)
    add_setting(parser)
    add_protocol(parser)


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Measure and print."""
    from layermark.axes import expand

    budget_s = read_budget(args.budget)
    spec = expand([args.workload], {"backend": "torch"} | setting_texts(args) | {"data": "real"}).only()

    from layermark.cli.progress import listening
    from layermark.session.data_stall import measure_data_stall

    with listening(as_json=False) as listener:
        found = measure_data_stall(spec, read_protocol(args), listener, budget_s)
    print(json.dumps(_document(found)) if args.json else _text(found))
    return 0


def _document(found: Ladder) -> dict[str, object]:
    rates = {name: 1 / seconds for name, seconds in found.seconds.items()}
    return {
        "items_per_s": rates,
        "latency_ms": found.latency_ms,
        "lost": dict(found.lost),
        "lost_in_all": found.total,
        "network": found.network,
    }


def _text(found: Ladder) -> str:
    lines = [f"{name:10}  {1 / seconds:10.1f} items/s" for name, seconds in found.seconds.items()]
    lines += ["", f"real data cost {found.total:.1%} of the time:"]
    lines += [f"  {name:10} {share:6.1%}" for name, share in found.lost.items()]
    return "\n".join([*lines, f"the network itself took {found.network:.1%}"])
