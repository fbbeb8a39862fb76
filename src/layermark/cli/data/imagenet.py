"""`layermark data imagenet`: data sets of ImageNet's shape and any size."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from layermark.cli.parsing import Parser, texts

if TYPE_CHECKING:
    from layermark.data.base import Array

SUMMARY = "make an ImageNet-shaped data set of any size from sample pictures: TFRecords, WebDataset or class folders"


def configure(parser: Parser) -> None:
    """Declare the options."""
    from layermark.data.making import Recipe
    from layermark.options import options_of

    parser.usage = "layermark data imagenet FOLDER [options]"
    parser.add_argument("folder", metavar="FOLDER", help="where to put it")
    parser.add_argument("--from", dest="pictures", metavar="FOLDER", help="pictures to cut from (default: photographs)")
    parser.add_group("what to make", options_of(Recipe))


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Write the data set."""
    from layermark.data.making import Recipe, make
    from layermark.options import options_of, read_record

    recipe = Recipe(**read_record(Recipe, texts(args, options_of(Recipe))))
    folder = Path(args.folder)
    size = make(folder, recipe, _pictures(args.pictures))
    print(f"{recipe.count} pictures, {size / recipe.count / 1e3:.0f} kB each, as {recipe.format} in {folder}")
    return 0


def _pictures(folder: str | None) -> list[Array]:
    from layermark.data.base import Place
    from layermark.data.opening import open_source
    from layermark.data.photographs import photographs

    if folder is None:
        return [pixels for _, pixels in photographs()]
    source = open_source("images", Place(Path(folder)))
    return [source.read(index).decode() for index in range(len(source))]
