"""Sleeps that are noted in a file, since a busy machine sleeps for longer than it was asked to."""

import os
import time
from pathlib import Path

FOLDER = "LAYERMARK_TEST_SLEPT"
SECONDS = 0.05


def doze(what):
    """Sleep for fifty milliseconds and note how long it really was."""
    began = time.perf_counter()
    time.sleep(SECONDS)
    with (Path(os.environ[FOLDER]) / what).open("a", encoding="utf-8") as file:
        file.write(f"{time.perf_counter() - began}\n")
