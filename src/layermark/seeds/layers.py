"""The layers' programs: from a command line to a measurement."""

from __future__ import annotations

import shlex
from pathlib import Path

from layermark.seeds.engine_options import engine_options
from layermark.seeds.parsing import parse
from layermark.seeds.request import layer_request
from layermark.seeds.scripts import script


def launch(name: str, file: Path, argv: list[str]) -> int:
    """Run the program of this name and return its exit status."""
    found = script(name)
    typed = parse(found, file.name, argv)
    request = layer_request(found, typed, engine_options())

    from layermark.seeds.job import led
    from layermark.seeds.printing import LayerPrinter
    from layermark.seeds.run import run

    command = shlex.join(["python3", file.name, *argv])
    return led(lambda peers: run(request, LayerPrinter(request, typed.values, file), command, peers=peers))
