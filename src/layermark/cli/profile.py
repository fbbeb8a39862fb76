"""`layermark profile`: measure like `run`, then show which operators and nodes take the time."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from layermark.cli import run
from layermark.cli.parsing import Parser

SUMMARY = "measure, then show where the time goes: operators by node, a trace, and what to try"

EPILOG = """examples:
  layermark profile resnet50 --backend torch,onnxruntime,openvino
  layermark profile lstm --backend jax --mode train
  layermark report --open    (the page has the operators of every profile)

The profile is a pass of its own after the timing, so that no number is slowed down by it.
exit status: 0 all ok or skipped, 1 something failed, 2 the request was wrong, 130 interrupted"""


def configure(parser: Parser) -> None:
    """Declare the options: those of `run`."""
    parser.usage, parser.epilog = "layermark profile WORKLOAD ... [--suite NAME|FILE] [options]", EPILOG
    parser.set_defaults(on=None, ray_address=None, everywhere=False)  # a profile is files, written where it is made
    run.add_measuring(parser)


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Measure, profile, keep and print; return 1 if something failed."""
    args.profile = True
    return run.execute(args, argv, command="profile")
