"""A fleet of two machines: two nodes of a real Ray cluster, each with addresses and processes of its own."""

import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from contract.covering import FULL

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is missing: pip install ray")
full = pytest.mark.skipif(not FULL, reason="starts more clusters; LAYERMARK_TEST_FULL=1 runs it")

RAY = str(Path(sys.executable).with_name("ray"))
START_S = 60
SIZES = ",".join(map(str, range(8, 18)))
SWEEP = ("run", "dense", "--size", SIZES, "--precision", "32.32,16.16", "--block", "5ms", "--time-box", "20ms")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Node:
    """One node; its processes are a session of the system's own."""

    def __init__(self, folder, environment, name, *arguments):
        common = ["--block", "--num-cpus", "1", "--object-store-memory", "80000000", "--node-name", name]
        self.log = folder / f"{name}.log"
        self.process = subprocess.Popen(
            [RAY, "start", *map(str, arguments), *common],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def await_start(self):
        until = time.monotonic() + START_S
        while "Ray runtime started" not in self.log.read_text():
            assert self.process.poll() is None and time.monotonic() < until, self.log.read_text()
            time.sleep(0.1)

    def pids(self):
        """Everybody of its session: workers have process groups of their own."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                state = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(state[3]) == self.process.pid and state[0] != "Z":
                found.append(int(folder.name))
        return found

    def kill(self):
        """As if the power had gone."""
        while found := self.pids():
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        self.process.wait()


@contextmanager
def cluster(layermark, **changes):
    """Nodes `left` and `right`, and the address of their cluster; `changes` are variables of a node's environment."""
    # Loopback has many addresses: the nodes have two of them. A path of Ray's sockets must be short.
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    layermark.environment |= secret | quiet
    folder, address = Path(tempfile.mkdtemp(prefix="lm-ray-", dir="/tmp")), f"127.0.0.2:{free_port()}"
    head = ("--head", "--port", address.split(":")[1], "--node-ip-address", "127.0.0.2", "--include-dashboard", "false")
    head += ("--ray-client-server-port", free_port(), "--temp-dir", folder)
    member = ("--address", address, "--node-ip-address", "127.0.0.3")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        nodes = {}
        for name, arguments in (("left", head), ("right", member)):
            environment = {**layermark.environment, **changes.get(name, {})}
            nodes[name] = Node(folder, environment, name, *arguments)
            stack.callback(nodes[name].kill)
            nodes[name].await_start()
        yield address, nodes


def test_a_node_that_is_killed_halfway_is_named_and_nothing_is_missing(layermark):
    with cluster(layermark) as (address, nodes):
        command = layermark.start(*SWEEP, "--backend", "null", "--json", "--on", "ray", "--ray-address", address)
        seen = []
        for line in command.stdout:
            seen.append(json.loads(line)["environment"]["node"])
            if len(seen) == 8:
                nodes["right"].kill()
        _, errors = command.communicate(timeout=120)
    assert 0 == command.returncode, errors
    assert (20, {"left", "right"}) == (len(seen), set(seen))
    documents = layermark.kept()
    assert 20 == len({json.dumps(document["spec"]) for document in documents})
    assert {"ok"} == {document["status"] for document in documents}
    (note,) = [line for line in errors.splitlines() if "note" in line]
    # Which of the two is noticed first is a matter of milliseconds.
    reason = note.removeprefix("layermark: note: machine right is lost: ").removesuffix("; its work goes elsewhere")
    assert reason in ("it left the cluster", "the connection to it broke")


def test_an_address_where_nobody_answers_is_refused_at_once(layermark):
    address = f"127.0.0.1:{free_port()}"
    done = layermark("run", "dense", "--backend", "null", "--on", "ray", "--ray-address", address)
    assert (2, 1) == (done.status, done.stderr.count("\n")), done.stderr
    assert f"--ray-address {address}: no answer" in done.stderr


@full
def test_a_cluster_of_its_own_is_stopped_and_listens_on_loopback_alone(layermark):
    layermark.environment = {k: v for k, v in layermark.environment.items() if not k.startswith("RAY_")}
    layermark.environment["HOME"] = str(layermark.folder)
    arguments = ("run", "dense", "--backend", "null", "--size", "8,9", "--block", "5ms", "--json", "--on", "ray")
    command = layermark.start(*arguments, start_new_session=True)
    first = json.loads(command.stdout.readline())
    listening = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True).stdout.splitlines()
    ours = [line.split()[3] for line in listening if "raylet" in line or "gcs_server" in line]
    rest, errors = command.communicate(timeout=60)
    assert (0, "ok", 1) == (command.returncode, first["status"], rest.count("\n")), errors
    assert ours and all("127.0.0.1" in address for address in ours)
    assert not (layermark.folder / ".ray").exists()
    assert [] == Node.pids(type("Gone", (), {"process": command})())


@full
def test_a_node_that_is_a_fifth_slower_is_named_and_an_even_fleet_is_not_accused(layermark):
    sizes = ("dense", "--size", "64,80,96,112,128,144", "--backend", "uneven", "--block", "20ms", "--time-box", "200ms")
    everywhere = ("--on", "ray", "--everywhere", "--ray-address")
    with cluster(layermark) as (address, _):
        done = layermark("run", *sizes, *everywhere, address)
        assert (0, 2) == (done.status, done.stdout.count("6 results: 6 ok")), done.stderr
    found = layermark("fleet")
    assert (0, "2 machines, all fine") == (found.status, found.stdout.splitlines()[-1])
    with cluster(layermark, right={"LAYERMARK_TEST_SLOWER": "0.25"}) as (address, _):
        assert 0 == layermark("run", *sizes, *everywhere, address).status
    found = layermark("fleet", "--last", "2", "--json")
    ratios = {each["machine"]: (each["answer"], each["verdict"]["ratio"]) for each in found.documents}
    assert (1, "fine", "sick") == (found.status, ratios["left"][0], ratios["right"][0])
    assert pytest.approx(0.8, abs=0.02) == ratios["right"][1]


@full
def test_an_interruption_keeps_what_is_done_and_can_be_resumed(layermark):
    with cluster(layermark) as (address, nodes):
        fleet = ("--json", "--on", "ray", "--ray-address", address)
        command = layermark.start(*SWEEP, "--backend", "null", *fleet)
        for _ in range(4):
            command.stdout.readline()
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=60)
        assert 130 == command.returncode
        session = errors.rpartition("--resume ")[2].split()[0]
        assert 4 <= len(layermark.kept()) < 20
        done = layermark("run", "--resume", session, *fleet)
        assert (0, 20) == (done.status, len(done.documents)), done.stderr
        assert all(node.pids() for node in nodes.values())
