"""Shared by all tests: a command line with a store of its own, and the planted backends plugged in."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PLANTED = Path(__file__).parent / "planted"
LOCKS = "LAYERMARK_TEST_LOCKS"

CPUS = "LAYERMARK_TEST_CPUS"

# In the environment, since this file is imported twice: as a plug-in, and by tests.
MASK = set(map(int, os.environ.setdefault(CPUS, ",".join(map(str, os.sched_getaffinity(0)))).split(",")))
"""The CPUs of a test that runs alone."""
_worker = os.environ.get("PYTEST_XDIST_WORKER", "")
OWN = {sorted(MASK)[int(_worker.removeprefix("gw")) % len(MASK)]} if _worker else MASK
"""Those of the others. Pools of several processes spin in each other's way: a test of 10 s took 80."""
os.sched_setaffinity(0, OWN)  # before anything counts the CPUs to size its pool


def pytest_configure(config):
    """Markers, and one folder for the locks and the cache that all the processes of a test run share."""
    config.addinivalue_line("markers", "alone: measures, so that no other test may run beside it")
    # A test process of xdist ignores Ctrl-C, and so would every command that its tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if LOCKS not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="layermark-tests-")
        os.environ[LOCKS] = folder.name
        # What one test has calibrated, or had answered by the oracle, serves the others; nothing is left behind.
        os.environ["XDG_CACHE_HOME"] = os.environ.get("LAYERMARK_TEST_CACHE", os.path.join(folder.name, "cache"))
        config.add_cleanup(folder.cleanup)


def pytest_collection_modifyitems(items):
    """Those that measure come last, so that nobody waits for them."""
    items.sort(key=measures)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Tests of several processes run side by side on a CPU each, except those that measure: they have all of them."""
    with turn(alone=measures(item)), cpus(MASK if measures(item) else OWN):
        return (yield)


def measures(item):
    """Whether a test wants the machine alone."""
    return item.get_closest_marker("alone") is not None


@contextmanager
def turn(*, alone):
    """A place in the room, or all of it. The turnstile before it keeps late comers from holding up who wants it all."""
    folder = Path(os.environ[LOCKS])
    with (folder / "turnstile").open("w") as turnstile, (folder / "room").open("w") as room:
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(turnstile, fcntl.LOCK_UN)
        yield


@contextmanager
def cpus(mask):
    """These for whatever is started meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, mask)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


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
            "PYTHONPATH": os.pathsep.join([str(PLANTED), os.environ.get("PYTHONPATH", "")]),
        }

    def start(self, *arguments, **more):
        """Start the command and leave it running."""
        command = [sys.executable, "-m", "layermark", *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=self.environment, cwd=self.folder, **(pipes | more))

    def kept(self):
        """The stored documents of all sessions."""
        from layermark.store import open_store

        with open_store(self.environment["LAYERMARK_STORE"]) as store:
            return [document for each in store.sessions() for document in store.documents(each.id)]

    def __call__(self, *arguments, timeout=240):
        process = self.start(*arguments)
        stdout, stderr = process.communicate(timeout=timeout)
        return Finished(process.returncode, stdout, stderr)


@pytest.fixture
def layermark(tmp_path):
    """The command line, with nothing stored yet."""
    return CommandLine(tmp_path)


class Git:
    """A project under version control."""

    def __init__(self, root):
        self.root = root
        (root / "src").mkdir(parents=True)
        self("init", "--quiet")

    def __call__(self, *arguments):
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        command = ["git", "-C", str(self.root), *identity, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def commit(self, name, text):
        """Write a file and commit it; give the root."""
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / "src" / "kept").touch()
        (self.root / name).write_text(text)
        self("add", "--all")
        self("commit", "--quiet", "--message", name)
        return self.root


@pytest.fixture
def git(tmp_path):
    """An empty project under version control."""
    return Git(tmp_path / "project")


@pytest.fixture
def pictures(tmp_path):
    """A folder of five small JPEGs, called as `--data real` expects it."""
    import numpy as np

    from layermark.data.decode import encode

    folder, rng = tmp_path / "images", np.random.default_rng(0)
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.jpg").write_bytes(encode(rng.integers(0, 256, (40, 50, 3), dtype="uint8"), 90))
    return folder


QUICKLY = ("--time-box", "1s", "--block", "100ms", "--execution", "eager")
"""Enough for a result, not for a good one."""
