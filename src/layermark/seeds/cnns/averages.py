"""`weight_avg.py`: averages of the checkpoints that a run has left behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from layermark.errors import UserError
from layermark.options import integer, positive_float, share
from layermark.safetensors import SUFFIX
from layermark.seeds.cnns.train_validation import write_exponential, write_mean
from layermark.seeds.cnns.validation import CHECKPOINTS
from layermark.seeds.parsing import SeedParser
from layermark.training import checkpoint

DECAY = 0.99


def parser(name: str) -> SeedParser:
    """Return the parser of the program."""
    made = SeedParser(name, "The average of the checkpoints of a run.", short_help=True)
    made.add_argument("--restore-path", required=True, metavar="FOLDER", help="folder of the run")
    made.add_argument("--filename", required=True, metavar="OUT", help="name of the average")
    made.add_argument("--mode", required=True, choices=("mean", "exponential"), help="which average")
    made.add_argument("-N", type=positive_float, metavar="EPOCHS", help="mean of the last epochs (default: of all)")
    made.add_argument("--decay", type=share, metavar="X", help=f"share of the old in a step (default: {DECAY})")
    made.add_argument(
        "--discard-last", type=integer(0), metavar="N", help="leave out the last checkpoints (default: 0)"
    )
    return made


def average(name: str, argv: Sequence[str]) -> int:
    """Write an average beside the checkpoints, or where a path says, and print where it is."""
    given = vars(parser(name).parse_args(argv))
    _check(given)
    folder = Path(given["restore_path"])
    place = folder / CHECKPOINTS if (folder / CHECKPOINTS).is_dir() else folder
    known, left_out = checkpoint.points(place), given.get("discard_last", 0)
    if not known:
        raise UserError(f"--restore-path {folder}: no whole checkpoint in it; expected the folder of a training run")
    target = _target(place, given["filename"])
    if given["mode"] == "mean":
        newest = max(point.epoch for point in known)
        made = write_mean(target, known, given.get("N", newest), discard_last=left_out)
    else:
        made = write_exponential(target, known, given.get("decay", DECAY), discard_last=left_out)
    print(f"Saved the average up to update {made.update} to {made.path}", flush=True)
    return 0


def _check(given: dict[str, object]) -> None:
    other = {"mean": "decay", "exponential": "N"}[str(given["mode"])]
    if other in given:
        dashes = "-" if len(other) == 1 else "--"
        raise UserError(f"{dashes}{other} has no meaning with --mode {given['mode']}; leave it out")


def _target(place: Path, name: str) -> Path:
    """A bare name lies beside the checkpoints."""
    path = Path(name if name.endswith(SUFFIX) else f"{name}{SUFFIX}")
    return path if path.parent != Path() else place / path
