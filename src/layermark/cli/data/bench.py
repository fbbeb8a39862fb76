"""`layermark data bench`: how fast pictures are loaded, with no model to feed."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from layermark.cli.parsing import Parser, texts
from layermark.cli.request import BUDGET_HELP, read_budget

SUMMARY = "time the loader alone: images per second, and the share of reading, decoding and preprocessing"


def configure(parser: Parser) -> None:
    """Declare the options."""
    from layermark.data.bench import Bench
    from layermark.options import options_of
    from layermark.spec import Loading

    parser.usage = "layermark data bench [FOLDER] [options]"
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="the data set; the same as --data-dir")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--budget", metavar="TIME", help=BUDGET_HELP)
    parser.add_group("what to time", options_of(Bench))
    parser.add_group("how to load", options_of(Loading))


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Time the loader and print the rate."""
    from layermark.data.bench import Bench, bench
    from layermark.options import options_of, read_record
    from layermark.spec import Loading

    typed = texts(args, [*options_of(Bench), *options_of(Loading)])
    if args.folder is not None:
        typed["data_dir"] = args.folder
    budget_s = read_budget(args.budget)
    found = bench(Bench(**read_record(Bench, typed)), Loading(**read_record(Loading, typed)), budget_s)
    print(json.dumps(found) if args.json else _text(found))
    return 0


def _text(found: dict[str, Any]) -> str:
    shares = ", ".join(f"{name} {share:.0%}" for name, share in found["shares"].items())
    lines = [
        f"{found['images_per_s']:.1f} images/s  ({found['low']:.1f} to {found['high']:.1f} over "
        f"{found['blocks']} blocks; {found['workers']} loader processes)",
        f"time of the loader: {shares}; {found['ms_per_image']:.2f} ms an image in one process",
        f"{found['source']}, {found['samples']} samples in {found['folder']}",
    ]
    if found["bad"]:
        lines.append(f"{len(found['bad'])} bad, passed over:")
        lines += [f"  {where}: {reason}" for where, reason in found["bad"].items()]
    return "\n".join(lines)
