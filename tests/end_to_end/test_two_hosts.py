"""Two hosts: two network namespaces with a cable between them, which can be cut."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from layermark.launch import instance
from layermark.store import open_store
from needed import need

SILENCE_S = 4
SOON_S = 20
"""Within which everybody must have ended once the link is down; a bound, not a speed."""

INSTANCE = """
import os, sys, time
from pathlib import Path
from layermark.launch.ranks import from_environment
from layermark.launch.rendezvous import PeerLost, Rendezvous

late, ranks = int(sys.argv[1]), from_environment()
try:
    with Rendezvous(ranks, join_s=30, silence_s=4) as meeting:
        meeting.barrier("up")
        Path(f"up.{ranks.rank}").write_text(str(os.getpid()))
        time.sleep(600 if ranks.rank == late else 0)
        values = meeting.gather(ranks.rank, timeout=120)
    print("result", values, flush=True)
except PeerLost as error:
    print("lost:", error, file=sys.stderr, flush=True)
    sys.exit(1)
"""


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Hosts:
    """Host a and host b."""

    def __init__(self):
        mark = os.getpid() % 10_000
        self.names = {name: f"lm{mark}{name}" for name in "ab"}
        subnet = f"10.{200 + mark % 50}.{mark % 250}"
        self.addresses = {"a": f"{subnet}.1", "b": f"{subnet}.2"}

    def build(self):
        for name in self.names.values():
            ip("netns", "add", name)
        a, b = self.names["a"], self.names["b"]
        ip("link", "add", f"v{a}", "netns", a, "type", "veth", "peer", "name", f"v{b}", "netns", b)
        for host, name in self.names.items():
            ip("-n", name, "address", "add", f"{self.addresses[host]}/24", "dev", f"v{name}")
            ip("-n", name, "link", "set", f"v{name}", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def cut(self):
        """Pull the cable out of host b."""
        ip("-n", self.names["b"], "link", "set", f"v{self.names['b']}", "down")

    def on(self, host, *command):
        """A command on a host of its own name."""
        shell = 'hostname "$0"; exec "$@"'
        return [
            "ip",
            "netns",
            "exec",
            self.names[host],
            "unshare",
            "--uts",
            "sh",
            "-c",
            shell,
            f"host-{host}",
            *command,
        ]

    def remove(self):
        for name in self.names.values():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@pytest.fixture
def hosts():
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("needs ip and unshare (apt-get install iproute2 util-linux)")
    made = Hosts()
    try:
        made.build()
        subprocess.run(made.on("a", "true"), check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"network namespaces are not allowed here: {str(error.stderr).strip()}")
    yield made
    made.remove()


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "instance.py"
    path.write_text(INSTANCE)
    return path


def start(hosts, script, rank, late):
    """One instance by hand, with the variables that poprun would set."""
    address = hosts.addresses["a"]
    setting = instance.Setting(
        instances=2, replicas=2, devices_per_replica=1, master_address=address, master_port=23456
    )
    variables = instance.variables(setting, instance.Place(rank=rank, local_rank=0, local_size=1))
    return subprocess.Popen(
        hosts.on("ab"[rank], sys.executable, str(script), str(late)),
        env={**os.environ, **variables, "LAYERMARK_JOB_TOKEN": "secret"},
        cwd=script.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until_up(folder):
    end = time.monotonic() + 40
    while not all((folder / f"up.{rank}").exists() and (folder / f"up.{rank}").read_text() for rank in (0, 1)):
        assert time.monotonic() < end, "the instances did not meet"
        time.sleep(0.05)


REASONS = {0: "lost: instance 1 is gone", 1: "is gone during gather"}


@pytest.mark.parametrize("waiting", [0, 1])
@pytest.mark.parametrize("what", ["link", "peer"])
def test_who_waits_learns_that_the_other_is_gone(hosts, script, waiting, what):
    both = [start(hosts, script, rank, late=1 - waiting) for rank in (0, 1)]
    try:
        until_up(script.parent)
        if what == "link":
            hosts.cut()
        else:
            both[1 - waiting].kill()
        _, stderr = both[waiting].communicate(timeout=SOON_S)
    finally:
        for process in both:
            process.kill()
            process.communicate()
    assert 1 == both[waiting].returncode
    assert REASONS[waiting] in stderr


@pytest.fixture
def poprun(hosts, script):
    """Start poprun on host a for both hosts; host b has temporary files of its own, as another machine would."""
    need(shutil.which("mpirun"), "mpirun: apt-get install openmpi-bin")
    temporary = script.parent / "temporary"
    temporary.mkdir()
    agent = script.parent / "agent"
    agent.write_text(
        "#!/bin/sh\nshift\n"
        f"exec ip netns exec {hosts.names['b']} unshare --uts --mount sh -c"
        f' \'hostname host-b; mount -t tmpfs none {temporary}; exec sh -c "$0"\' "$*"\n'
    )
    agent.chmod(0o755)

    def begin(late=-1, program=()):
        own = ["--num-instances", "2", "--num-replicas", "2", "--host", ",".join(hosts.addresses.values())]
        mpi = f"--mpi-global-args=--allow-run-as-root --tag-output --mca plm_rsh_agent {agent}"
        command = [sys.executable, "-m", "layermark", "launch", *own, "--print-topology", mpi]
        return subprocess.Popen(
            hosts.on("a", *command, sys.executable, *(program or (str(script), str(late)))),
            env={**os.environ, "TMPDIR": str(temporary), "LAYERMARK_STORE": str(script.parent / "results.db")},
            cwd=script.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return begin


def test_one_job_on_two_hosts(poprun):
    process = poprun(late=-1)
    stdout, stderr = process.communicate(timeout=60)
    assert 0 == process.returncode, stderr
    assert ["[1,0]<stdout>:result [0, 1]", "[1,1]<stdout>:result None"] == sorted(stdout.splitlines())
    assert "instance 0 on host-a: " in stderr and "instance 1 on host-b: " in stderr


def test_a_job_ends_when_its_link_goes_down(poprun, hosts, script):
    process = poprun(late=1)
    until_up(script.parent)
    hosts.cut()
    _, stderr = process.communicate(timeout=2 * SOON_S)
    assert 0 != process.returncode
    assert "[1,0]<stderr>:lost: instance 1 is gone" in stderr or "lost communication with a remote daemon" in stderr
    assert [] == list((script.parent / "temporary").iterdir())


def test_a_job_ends_when_an_instance_on_the_other_host_is_killed(poprun, script):
    process = poprun(late=1)
    until_up(script.parent)
    os.kill(int((script.parent / "up.1").read_text()), signal.SIGKILL)
    _, stderr = process.communicate(timeout=SOON_S)
    assert 137 == process.returncode
    assert "poprun: error: instance 1 was killed by SIGKILL" in stderr


DENSE = [str(Path(__file__).parents[2] / "benchmarks" / "tensorflow" / "dense.py"), "--backend", "null"]
DENSE += ["--size", "64", "--batches-per-step", "200", "--steps"]


def test_a_program_on_two_hosts_has_one_result(poprun, script):
    process = poprun(program=[*DENSE, "3"])
    stdout, stderr = process.communicate(timeout=90)
    assert 0 == process.returncode, stdout + stderr
    assert 3 == sum("sec/itr" in line for line in stdout.splitlines() if line.startswith("[1,0]<stdout>:"))
    assert "[1,1]<stdout>:" not in stdout
    with open_store(str(script.parent / "results.db")) as store:
        (document,) = [each for session in store.sessions() for each in store.documents(session.id)]
    assert [0, 1] == [each["rank"] for each in document["ranks"]] and document["verified"]["ok"]


@pytest.mark.parametrize("what", ["link", "peer"])
def test_a_program_that_is_timed_on_two_hosts_ends_with_them(poprun, hosts, script, what):
    process = poprun(program=[*DENSE, "1000000"])
    while "sec/itr" not in process.stdout.readline():
        assert process.poll() is None, process.stderr.read()
    if what == "link":
        hosts.cut()
    else:
        os.kill(instance_1(script.parent), signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=2 * SOON_S)
    assert process.returncode in ((137,) if what == "peer" else range(1, 256))
    reasons = ("instance 1 was killed by SIGKILL", "instance 1 is gone", "lost communication with a remote daemon")
    assert any(reason in stdout + stderr for reason in reasons)
    assert [] == list((script.parent / "temporary").iterdir())


def instance_1(folder):
    """The process of the program on host b."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words, variables = ((path / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
        except OSError:
            continue
        if {b"RANK=1", f"TMPDIR={folder}/temporary".encode()} <= set(variables) and words[1:2] == [DENSE[0].encode()]:
            return int(path.name)
    raise AssertionError("there is no instance 1")
