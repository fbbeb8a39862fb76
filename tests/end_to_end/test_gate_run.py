"""Two checkouts of a project, measured in turn: a planted loss is found."""

from xml.etree import ElementTree

import pytest

from needed import FULL

# On a clock of its own: the same on every machine, however busy.
BACKEND = """
from pathlib import Path
from layermark.backends.base import OperatorTime, Profile
from layermark.backends.null import NullBackend, NullProgram

class Program(NullProgram):
    def profile(self, folder, batches):
        (folder / "trace.json").write_text('{{"traceEvents": []}}')
        rows = [("first", 1e-3), ("dense", {operator_s}), ("last", 2e-3)]
        found = [OperatorTime(name, batches, batches * seconds, (name,)) for name, seconds in rows]
        return Profile(operators=found, pass_s=0.01, memory={{}})

class Paced(NullBackend):
    name = "paced"
    built = 0
    def prepare(self, spec, task):
        self.built += 1
        if self.built > {most}:
            raise RuntimeError("one program is enough")
        program = Program(spec, task)
        program._batch_ns = int(program._batch_ns * {slowdown})
        return program

BACKEND = Paced()
"""
ENTRY = "[layermark.backends]\npaced = paced\n"
QUICKLY = ("--backend", "paced", "--size", 16, "--time-box", "100ms", "--block", "10ms", "--rounds", 5)


@pytest.fixture
def gate(layermark, git):
    """A gate between a committed backend and another one in the working tree."""
    git.commit("src/paced-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: paced\nVersion: 1.0\n")
    git.commit("src/paced-1.0.dist-info/entry_points.txt", ENTRY)

    def run(*arguments, slowdown, most=99):
        root = git.commit("src/paced.py", BACKEND.format(slowdown=1.0, most=most, operator_s=3e-3))
        (root / "src" / "paced.py").write_text(BACKEND.format(slowdown=slowdown, most=most, operator_s=3.6e-3))
        layermark.environment["PYTHONPATH"] = f"{root / 'src'}:{layermark.environment['PYTHONPATH']}"
        layermark.folder = root
        done = layermark("gate", "--base", "HEAD", "dense", *QUICKLY, *arguments)
        assert 1 == len(git("worktree", "list").splitlines())
        return done

    return run


def test_two_checkouts_take_turns(gate, git):
    done = gate("--junit", git.root / "gate.xml", slowdown=1.05)
    assert (1, "") == (done.status, done.stderr), done.stdout
    assert "! dense infer batch 32 on paced: slower -4." in done.stdout
    assert "base against itself" in done.stdout
    (case,) = ElementTree.parse(git.root / "gate.xml").getroot().iter("failure")
    assert "dense 3 -> 3.6 ms (+20%)" == case.text.splitlines()[0]


@pytest.mark.skipif(not FULL, reason="fifteen whole processes; LAYERMARK_TEST_FULL=1 runs it")
def test_what_cannot_take_turns_is_measured_in_whole_processes(gate):
    done = gate(slowdown=1.05, most=1)
    assert 1 == done.status, done.stdout
    assert "a process at a time, not in alternation (dense on paced: RuntimeError: one program is enough" in done.stderr
    assert "! dense infer batch 32 on paced: slower -4." in done.stdout
