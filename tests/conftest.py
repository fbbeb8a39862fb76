"""Shared by all tests: a command line with a store and a cache of its own, and the planted backends plugged in."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PLANTED = Path(__file__).parent / "planted"


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def documents(self):
        """What `--json` printed, one document a line."""
        return [json.loads(line) for line in self.stdout.splitlines()]


class CommandLine:
    """Runs `layermark` as a user would, in a process of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {
            **os.environ,
            "LAYERMARK_STORE": str(folder / "results.db"),
            "XDG_CACHE_HOME": os.environ.get("LAYERMARK_TEST_CACHE", str(folder / "cache")),
            "PYTHONPATH": os.pathsep.join([str(PLANTED), os.environ.get("PYTHONPATH", "")]),
        }

    def start(self, *arguments, **more):
        """Start the command and leave it running."""
        command = [sys.executable, "-m", "layermark", *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=self.environment, cwd=self.folder, **(pipes | more))

    def __call__(self, *arguments, timeout=240):
        process = self.start(*arguments)
        stdout, stderr = process.communicate(timeout=timeout)
        return Finished(process.returncode, stdout, stderr)


@pytest.fixture
def layermark(tmp_path):
    """The command line, with nothing stored or cached yet."""
    return CommandLine(tmp_path)


QUICKLY = ("--time-box", "1s", "--block", "100ms", "--execution", "eager")
"""Enough for a result, not for a good one."""
