"""`layermark data images`: real photographs, without a network."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from layermark.cli.parsing import Parser

SUMMARY = "fill a folder with real photographs, without a network, and say where they come from"


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.usage = "layermark data images [FOLDER]"
    parser.add_argument("folder", nargs="?", default="images", metavar="FOLDER", help="where to put them (images)")


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Write the pictures and print their origins."""
    from layermark.data.photographs import ORIGINS_FILE, origins, write_photographs

    folder = Path(args.folder)
    written = write_photographs(folder)
    print(origins())
    print(f"{len(written)} pictures in {folder}; {folder / ORIGINS_FILE} says where they come from")
    return 0
