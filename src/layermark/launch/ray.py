"""The machines of a Ray cluster: one that exists, or one on this machine that lives as long as the work."""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout
from typing import Any, TextIO, cast

from layermark.environment import NODE
from layermark.errors import UserError
from layermark.launch.machines import Answer, Machine, Machines, Work

LOCAL = "local"
"""The address that stands for a cluster of this machine alone, started now and stopped afterwards."""

_CONNECT_S = 5.0
_OBJECT_STORE_BYTES = 80 << 20
"""What crosses is a few kilobytes of JSON; Ray takes no less."""
_ID_SHOWN = 8

_EVERYWHERE = {"RAY_USAGE_STATS_ENABLED": "0"}
_OWN_CLUSTER = {
    # Ray's own switch for addresses: all of it listens on loopback alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Ray's workers are nice by 15, and so would be what is measured.
    "RAY_worker_niceness": "0",
}


class Holder:
    """Lives on a machine for as long as that is held, with all its CPUs and GPUs to its name."""

    def __init__(self, name: str) -> None:
        os.environ[NODE] = name
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it; a measurement has a number of threads of its own

    def do(self, work: Work, text: str) -> str:
        """Do one piece of work."""
        return work(text)


class RayMachines(Machines):
    """The nodes of the cluster that this process is connected to; an actor with all their CPUs holds each."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._holders: dict[str, Any] = {}
        self._doing: dict[Any, Machine] = {}

    def present(self) -> Sequence[Machine]:
        """Return the live nodes that offer a CPU; the head of a large cluster often offers none."""
        nodes = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
        names = machine_names(nodes)
        return [
            Machine(
                id=node["NodeID"],
                name=names[node["NodeID"]],
                cpus=node["Resources"]["CPU"],
                gpus=node["Resources"].get("GPU", 0),
            )
            for node in nodes
        ]

    def hold(self, machine: Machine) -> None:
        """Ask for all CPUs and GPUs of a node; Ray grants them once they are free."""
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        there = strategies.NodeAffinitySchedulingStrategy(machine.id, soft=False)
        options = {"num_cpus": machine.cpus, "num_gpus": machine.gpus, "scheduling_strategy": there, "max_restarts": 0}
        self._holders[machine.id] = self._ray.remote(Holder).options(**options).remote(machine.name)

    def begin(self, machine: Machine, work: Work, text: str) -> None:
        """Give work to the actor that holds a node."""
        self._doing[self._holders[machine.id].do.remote(work, text)] = machine

    def wait(self, seconds: float | None) -> Sequence[Answer]:
        """Sleep until one of the actors has answered or died."""
        ready, _ = self._ray.wait(list(self._doing), num_returns=1, timeout=seconds)
        return [self._answer(each) for each in ready]

    def release(self, machine: Machine) -> None:
        """End the actor that holds a node, and all that it started."""
        self._doing = {reference: each for reference, each in self._doing.items() if each.id != machine.id}
        holder = self._holders.pop(machine.id, None)
        if holder is not None:
            self._ray.kill(holder)

    def _answer(self, reference: Any) -> Answer:
        machine = self._doing.pop(reference)
        try:
            return Answer(machine=machine, text=self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            self.release(machine)
            return Answer(machine=machine, failure=self._reason(machine, error))

    def _reason(self, machine: Machine, error: Exception) -> str:
        if machine.id not in {each.id for each in self.present()}:
            return "it left the cluster"
        # Seen before the cluster has noticed that a node is gone; work is never begun a second time on a doubtful one.
        if isinstance(error, self._ray.exceptions.ActorUnavailableError):
            return "the connection to it broke"
        cause = getattr(error, "cause", None) or error
        lines = str(cause).strip().splitlines() or ["no reason given"]
        return f"{type(cause).__name__}: {lines[-1].strip()}"


@contextmanager
def ray_machines(address: str = LOCAL) -> Iterator[RayMachines]:
    """Connect to a cluster, or start one on this machine; leaving the block lets go of it, or stops it."""
    own = address == LOCAL
    with ExitStack() as stack:
        stack.enter_context(_variables({**_EVERYWHERE, **(_OWN_CLUSTER | _token() if own else {})}))
        ray = _imported()
        how = _new_cluster(stack) if own else _existing(address)
        stack.callback(ray.shutdown)
        stack.enter_context(own_lines_only())
        with _own_signals():
            _connect(ray, how, address)
        yield RayMachines(ray)


def machine_names(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return a name for every node: the one that it was given, else its host's, told apart by the node's id if need be.

    >>> two = [{"NodeID": name * 20, "NodeName": "10.0.0.1", "NodeManagerAddress": "10.0.0.1",
    ...         "NodeManagerHostname": "box"} for name in "ab"]
    >>> list(machine_names(two).values()), list(machine_names(two[:1]).values())
    (['box-aaaaaaaa', 'box-bbbbbbbb'], ['box'])
    >>> list(machine_names([two[0] | {"NodeName": "left"}, two[1]]).values())
    ['left', 'box']
    """
    plain = {node["NodeID"]: _given_name(node) or node["NodeManagerHostname"] for node in nodes}
    counts = Counter(plain.values())
    return {key: name if counts[name] == 1 else f"{name}-{key[:_ID_SHOWN]}" for key, name in plain.items()}


def _given_name(node: Mapping[str, Any]) -> str:
    """The name of `ray start --node-name`; without it Ray gives the address for one."""
    name = str(node.get("NodeName") or "")
    return "" if name == node["NodeManagerAddress"] else name


def _imported() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise UserError("--on ray needs Ray; install it with: pip install 'layermark[ray]'") from None


def _token() -> dict[str, str]:
    """A secret of this cluster's own, unless the user has one: otherwise Ray writes one into the user's home."""
    if any(name in os.environ for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        return {}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _new_cluster(stack: ExitStack) -> dict[str, Any]:
    # Ray's sockets lie in it, and the path of a socket may not be long, as the user's own folder may be.
    folder = tempfile.TemporaryDirectory(prefix="layermark-ray-", dir="/tmp", ignore_cleanup_errors=True)
    stack.enter_context(folder)
    small = {"object_store_memory": _OBJECT_STORE_BYTES, "include_dashboard": False}
    return {"address": LOCAL, "_temp_dir": folder.name, **small}


def _existing(address: str) -> dict[str, Any]:
    """Return how to connect to a cluster that somebody answers for."""
    if "://" in address:
        raise UserError(
            f"--ray-address {address}: expected HOST:PORT of the cluster's head, or auto, "
            "typed on a machine of the cluster"
        )
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit():
        try:
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        except (OSError, OverflowError) as error:
            raise UserError(f"--ray-address {address}: no answer ({error}); is Ray running there?") from None
    elif address != "auto":
        raise UserError(f"--ray-address {address}: expected HOST:PORT of the cluster's head, or auto")
    return {"address": address}


def _connect(ray: Any, how: Mapping[str, Any], address: str) -> None:
    try:
        ray.init(**how, configure_logging=False, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"--ray-address {address}: cannot connect: {lines[0]}") from None


class _OwnLines:
    """A stream that passes over what Ray's threads write to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write what is ours."""
        return len(text) if threading.current_thread().name.startswith("ray_") else self._stream.write(text)


def own_lines_only() -> AbstractContextManager[Any]:
    """Keep Ray's messages from standard output, where programs read JSON; no switch of Ray's turns them off.

    What they say, that a node is dead, is told by whoever lost its work.
    """
    return redirect_stdout(cast(TextIO, _OwnLines(sys.stdout)))


@contextmanager
def _variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """Variables of this process's environment, for a while; what the user has set stays as it is."""
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself when it connects; a command that is terminated keeps what it has measured."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
