"""`layermark data cifar`: small data sets that a network can learn."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from layermark.cli.parsing import Parser, texts

SUMMARY = "make a CIFAR-shaped data set of any size, with classes that a network learns within minutes"


def configure(parser: Parser) -> None:
    """Declare the options."""
    from layermark.data.making_cifar import SmallRecipe
    from layermark.options import options_of

    parser.usage = "layermark data cifar FOLDER [options]"
    parser.add_argument("folder", metavar="FOLDER", help="where to put it, in a folder named as the real one's")
    parser.add_group("what to make", options_of(SmallRecipe))


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Write the data set."""
    from layermark.data.making_cifar import SmallRecipe, make_small
    from layermark.options import options_of, read_record

    recipe = SmallRecipe(**read_record(SmallRecipe, texts(args, options_of(SmallRecipe))))
    place = make_small(Path(args.folder), recipe)
    print(f"{recipe.train} pictures to train with and {recipe.test} to validate, {recipe.classes} classes, in {place}")
    return 0
