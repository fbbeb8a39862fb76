"""`poprun` on both launchers: lines, places, and what happens when an instance ends as it should not."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contract.covering import FULL
from layermark.launch import topology
from layermark.launch.process import Crew

SOON_S = 10
"""Within which everybody must have ended; a bound, not a speed."""

TIMES = 50 if FULL else 1
NO_MPIRUN = "mpirun is not on the path; apt-get install openmpi-bin"

INSTANCE = """
import os, sys, time
from pathlib import Path
from layermark.errors import UserError, WorkerFailed
from layermark.launch.ranks import from_environment
from layermark.launch.rendezvous import Rendezvous

phase, how = sys.argv[1:]
ranks = from_environment()

def fall(here):
    if here == phase and ranks.rank == ranks.size - 1:
        Path(f"fell.{os.getpid()}").touch()
        {"kill": lambda: os.kill(os.getpid(), 9), "exit": lambda: sys.exit(3), "raise": lambda: 1 / 0,
         "wait": lambda: time.sleep(600)}[how]()

try:
    fall("start")
    with Rendezvous(ranks, join_s=60, silence_s=4) as meeting:
        print("joined", ranks.rank, flush=True)
        fall("barrier")
        meeting.barrier("timed", timeout=2 if how == "wait" else 60)
        values = meeting.gather(ranks.rank * 10)
        fall("end")
        meeting.barrier("end")
    print("done", ranks.rank, values, flush=True)
    Path(f"done.{ranks.rank}").write_text(str(values))
except (UserError, WorkerFailed) as error:
    print("instance", ranks.rank, "says:", error, file=sys.stderr, flush=True)
    sys.exit(1)
"""


@pytest.fixture(params=["mpirun", "builtin"])
def poprun(request, tmp_path):
    """Start the command on this launcher; afterwards no process, no temporary file may be left."""
    if request.param == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip(NO_MPIRUN)
    (tmp_path / "instance.py").write_text(INSTANCE)
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary"), "MARK": str(tmp_path)}

    def start(*argv, instances=2, **more):
        count = ["--num-instances", str(instances), "--num-replicas", str(instances)]
        command = [sys.executable, "-P", "-m", "layermark", "launch", "--launcher", request.param, *count, *argv]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
        return subprocess.Popen(command, env=environment | more.pop("env", {}), **(pipes | more))

    yield start
    assert [] == marked(tmp_path)
    assert [] == list((tmp_path / "temporary").iterdir())


def marked(folder):
    """The processes whose environment carries this test's mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            held = f"MARK={folder}\0".encode() in path.read_bytes()
        except OSError:
            continue
        found += [path.parent.name] if held else []
    return found


def finished(process, timeout=60):
    """Status, output and errors; without the notice of shared CPUs, which depends on the machine."""
    stdout, stderr = process.communicate(timeout=timeout)
    return process.returncode, stdout, re.sub(r"poprun: \d+ instances share .*\n", "", stderr)


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


TAGGED = "--mpi-global-args=--allow-run-as-root --tag-output"


def test_no_line_is_torn_or_lost_and_each_rank_keeps_its_order(poprun, tmp_path):
    (tmp_path / "talk.py").write_text(
        "import os\n"
        "rank = os.environ['RANK']\n"
        "for line in range(10_000):\n"
        "    print(rank, line, 'x' * (line * 37 % 211))\n"
    )
    status, stdout, _ = finished(poprun(TAGGED, sys.executable, "talk.py"))
    assert 0 == status
    found = {"0": [], "1": []}
    for line in stdout.splitlines():
        tag, rank, number, rest = re.fullmatch(r"\[1,(\d)\]<stdout>:(\d) (\d+) (x*)", line).groups()
        assert tag == rank and len(rest) == int(number) * 37 % 211
        found[rank].append(int(number))
    assert {"0": list(range(10_000)), "1": list(range(10_000))} == found


def test_streams_are_tagged_by_their_names_and_last_lines_need_no_end(poprun):
    status, stdout, stderr = finished(poprun(TAGGED, "sh", "-c", "printf out; echo err > /dev/stderr"))
    assert 0 == status
    assert ["[1,0]<stdout>:out", "[1,1]<stdout>:out"] == sorted(stdout.splitlines())
    assert ["[1,0]<stderr>:err", "[1,1]<stderr>:err"] == sorted(stderr.splitlines())


def test_without_tags_lines_are_as_they_were_written(poprun):
    assert (0, "hello\nhello\n", "") == finished(poprun("echo", "hello"))


def test_a_program_ends_quietly_when_its_reader_leaves(poprun):
    assert (0, "y\ny\n", "") == finished(poprun("sh", "-c", "yes | head -1"))


def test_only_one_instance_is_shown(poprun):
    assert (0, "1\n", "") == finished(poprun("--only-output-from-instance", "1", "sh", "-c", "echo $RANK"))


def test_instance_0_reads_the_input(poprun):
    process = poprun("sh", "-c", "test $RANK = 1 || cat", stdin=subprocess.PIPE)
    assert "to 0\n" == process.communicate("to 0\n", timeout=60)[0]


def test_variables_are_passed_on(poprun):
    argv = ["--mpi-local-args=-x GIVEN=5 -x UNSET", "sh", "-c", 'echo "$GIVEN ${UNSET-unset} $KNOWN"']
    assert (0, "5 unset yes\n" * 2, "") == finished(poprun(*argv, env={"KNOWN": "yes"}))


def test_the_topology_is_what_an_instance_saw(poprun):
    look = "import os; print(os.environ['RANK'], sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"
    status, stdout, stderr = finished(poprun("--print-topology", sys.executable, "-c", look))
    assert 0 == status
    for line in stdout.splitlines():
        rank, cpus, threads = re.fullmatch(r"(\d) \[(.*)\] (\d+)", line).groups()
        seen = topology.as_list(map(int, cpus.split(", ")))
        where, limit = rf"{len(cpus.split())} CPUs? \({seen}\)", rf"thread limit {threads} \(OMP_NUM_THREADS\)"
        assert re.search(rf"instance {rank} on \S+: pid \d+, {where}, {limit}, memory node", stderr)


def test_more_instances_than_cpus_share_them_and_it_is_said(poprun):
    cpus = len(os.sched_getaffinity(0))
    process = poprun("sh", "-c", "echo $OMP_NUM_THREADS", instances=cpus + 1)
    stdout, stderr = process.communicate(timeout=60)
    assert (0, ["1"] * (cpus + 1)) == (process.returncode, stdout.split())
    assert f"{cpus + 1} instances share {cpus} CPU" in stderr


def test_a_dry_run_starts_nothing(poprun, tmp_path):
    status, stdout, _ = finished(poprun("--dry-run", "touch", "started"))
    assert 0 == status and "program: touch started" in stdout
    assert not (tmp_path / "started").exists()


def test_instances_meet(poprun):
    status, stdout, _ = finished(poprun(sys.executable, "instance.py", "never", "exit", instances=3))
    assert 0 == status
    assert {"done 0 [0, 10, 20]", "done 1 None", "done 2 None"} < set(stdout.splitlines())


def test_a_file_of_the_working_folder_is_taken_for_no_module_of_the_launchers(poprun, tmp_path):
    (tmp_path / "json.py").write_text("print('mine')")
    assert (0, "mine\nmine\n", "") == finished(poprun(sys.executable, "-c", "import json"))


def test_nor_of_a_workers(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    with Crew() as crew:
        assert crew.hire({}).call("facts", 60.0)["memory"]


def test_a_program_that_closes_its_descriptors_has_not_ended(poprun):
    quiet = "import os, time; os.closerange(3, 256); time.sleep(6); print('done')"
    assert (0, "done\ndone\n", "") == finished(poprun(sys.executable, "-c", quiet))


def test_what_is_written_to_any_descriptor_ends_nothing(poprun):
    loud = "import os\nfor each in range(3, 256):\n try: os.write(each, b'x\\n')\n except OSError: pass\nprint('done')"
    status, stdout, _ = finished(poprun(sys.executable, "-u", "-c", loud))
    assert (0, "done\ndone\n") == (status, stdout)


def others():
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    yield ["mpirun", *root, "--oversubscribe", "-np", "2"]
    yield ["torchrun", "--standalone", "--nproc-per-node=2", "--no-python"]


@pytest.mark.parametrize("launcher", list(others()), ids=lambda command: command[0])
def test_instances_of_other_launchers_meet(launcher, tmp_path):
    found = shutil.which(launcher[0], path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if found is None:
        pytest.skip(f"{launcher[0]} is not on the path")
    (tmp_path / "instance.py").write_text(INSTANCE)
    command = [found, *launcher[1:], sys.executable, "instance.py", "never", "exit"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert 0 == ended.returncode, ended.stderr
    # From files, since mpirun's own output may tear lines.
    assert ["[0, 10]", "None"] == [(tmp_path / f"done.{rank}").read_text() for rank in (0, 1)]


@pytest.mark.parametrize("phase", ["start", "barrier", "end"])
@pytest.mark.parametrize("attempt", range(TIMES))
def test_a_killed_instance_ends_all(poprun, phase, attempt):
    port = free_port()
    process = poprun(sys.executable, "instance.py", phase, "kill", env={"MASTER_PORT": str(port)})
    status, stdout, stderr = finished(process)
    assert 137 == status
    assert "poprun: error: instance 1 was killed by SIGKILL" in stderr
    assert "done" not in stdout
    with socket.create_server(("127.0.0.1", port)):
        pass  # its port is free again


@pytest.mark.parametrize("phase", ["start", "barrier", "end"])
@pytest.mark.parametrize("attempt", range(TIMES))
def test_an_instance_killed_from_outside_ends_all_soon(poprun, tmp_path, phase, attempt):
    process = poprun(sys.executable, "instance.py", phase, "wait")
    until(lambda: list(tmp_path.glob("fell.*")))
    (fallen,) = tmp_path.glob("fell.*")
    os.kill(int(fallen.suffix[1:]), signal.SIGKILL)
    assert 137 == finished(process, SOON_S)[0]


@pytest.mark.parametrize("phase", ["start", "barrier", "end"])
@pytest.mark.parametrize("attempt", range(TIMES))
def test_the_status_of_the_first_that_failed_is_the_jobs(poprun, phase, attempt):
    status, _, stderr = finished(poprun(sys.executable, "instance.py", phase, "exit"))
    assert 3 == status
    assert "poprun: error: instance 1 exited with status 3" in stderr


def test_the_reason_of_the_first_is_shown_even_if_it_was_hidden(poprun):
    argv = ["--only-output-from-instance", "0", sys.executable, "instance.py", "barrier", "raise"]
    status, _, stderr = finished(poprun(*argv))
    assert 1 == status
    assert "poprun: instance 1: ZeroDivisionError: division by zero" in stderr
    assert "poprun: error: instance 1 exited with status 1" in stderr


def test_a_hang_at_the_barrier_ends_all(poprun):
    status, _, stderr = finished(poprun(sys.executable, "instance.py", "barrier", "wait"))
    assert 1 == status
    assert "instance 0 says: instance 1 did not reach barrier 'timed' within 2 s" in stderr


def test_a_taken_port_is_refused_before_anything_starts(poprun, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, stdout, stderr = finished(poprun("touch", "started", env={"MASTER_PORT": port}))
    assert (2, "", 1) == (status, stdout, len(stderr.splitlines()))
    assert f"MASTER_PORT {port} is not free" in stderr and not (tmp_path / "started").exists()


def test_a_port_that_is_taken_meanwhile_is_one_line_of_instance_0(poprun, tmp_path):
    (tmp_path / "late.py").write_text(
        "import os, socket, subprocess, sys\n"
        "if os.environ['RANK'] == '0':\n"
        "    taken = socket.create_server(('127.0.0.1', int(os.environ['MASTER_PORT'])))\n"
        "    sys.exit(subprocess.call([sys.executable, 'instance.py', 'never', 'exit']))\n"
        "os.execv(sys.executable, [sys.executable, 'instance.py', 'never', 'exit'])\n"
    )
    status, _, stderr = finished(poprun(sys.executable, "late.py"))
    assert 1 == status
    assert re.search(r"instance 0 says: cannot listen on MASTER_PORT \d+ .*; set MASTER_PORT to a free port", stderr)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_ends_all(poprun, tmp_path, ending):
    process = poprun(sys.executable, "instance.py", "end", "wait")
    until(lambda: list(tmp_path.glob("fell.*")))
    process.send_signal(ending)
    assert 130 == finished(process, SOON_S)[0]


def test_what_ignores_the_end_is_ended_with_all_that_it_started(poprun, tmp_path):
    stubborn = (
        "trap '' TERM INT; setsid sleep 600 & test $RANK = 1 && sleep 1 && exit 3; touch ready; sleep 600; sleep 600"
    )
    assert 3 == finished(poprun("sh", "-c", stubborn), SOON_S + 5)[0]


def test_instances_do_not_outlive_poprun(poprun, tmp_path):
    process = poprun(sys.executable, "instance.py", "end", "wait", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: list(tmp_path.glob("fell.*")))
    process.kill()
    process.wait()
    until(lambda: not marked(tmp_path), SOON_S)
    shutil.rmtree(tmp_path / "temporary")  # nobody is left who could
    (tmp_path / "temporary").mkdir()


def test_a_reader_that_leaves_ends_all(poprun):
    process = poprun("sh", "-c", "while echo line; do :; done")
    process.stdout.readline()
    process.stdout.close()
    assert 141 == process.wait(SOON_S)
    process.stderr.close()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]
