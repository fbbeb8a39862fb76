"""Ranks in other instances of a job: instance 0 gives orders, the others carry them out with workers of their own."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from layermark.devices import cpu
from layermark.errors import Unsupported, UserError, WorkerFailed
from layermark.launch.ports import Ports, own_address
from layermark.launch.process import Alarm, Crew, Worker, await_all, worker_environment
from layermark.launch.ranks import JobPlace
from layermark.launch.rendezvous import PeerLost, Rendezvous
from layermark.launch.stuck import look
from layermark.session.deadline import Deadline
from layermark.session.ranks import memory_share, own_device
from layermark.session.resources import Resources, least_wait_s
from layermark.spec import LOOPBACK, Group, Spec

T = TypeVar("T")
ANY_TIME_S = 7 * 86_400.0
"""Who follows waits for the next order however long it takes; that instance 0 is gone shows at once."""
_GRACE_S = 30.0
"""How much longer than its time-out an answer of another instance may take: it has to time out there first."""


class Peers:
    """The other instances, as instance 0 sees them. Every order is carried out by all of them at the same time."""

    def __init__(self, meeting: Rendezvous, place: JobPlace) -> None:
        self.size = place.size
        self.over = ""
        """Why the job has ended; empty as long as it has not."""
        self._meeting, self._host = meeting, place.master_address
        found = meeting.gather(_host(), name="hosts") or []
        self.one_clock = len({each["kernel"] for each in found}) == 1
        """Whether all instances share a machine, and so its clock."""
        self.neighbours = [[other["kernel"] for other in found].count(each["kernel"]) for each in found]
        """Of every instance, how many there are on its machine."""
        self._one_network = len({(each["kernel"], each["network"]) for each in found}) == 1

    @property
    def alarm(self) -> Alarm:
        """What tells that another instance has failed, while nobody waits for it."""
        return self._meeting

    def ask(self, do: str, own: Callable[[], T], timeout: float, **given: Any) -> tuple[T, list[dict[str, Any]]]:
        """Give an order, do the own part meanwhile, and return it with the answers of everybody else.

        A failure of the own worker ends all instances at once. What only cannot be done, or not in time, leaves them in
        order: the others have the same time-out, so their answers come soon.
        """
        if self.over:
            raise PeerLost(self.over)
        self._meeting.broadcast({"do": do, "given": given, "timeout": timeout}, timeout=timeout + _grace_s())
        try:
            mine = own()
        except (Unsupported, UserError, WorkerFailed) as error:
            if isinstance(error, WorkerFailed) and error.code != "hung":
                self.fail(error.reason)
                raise
            with contextlib.suppress(Unsupported, UserError, WorkerFailed):
                self._answers(timeout)
            raise
        return mine, self._answers(timeout)

    def addresses(self, own: Ports, timeout: float) -> list[str]:
        """Have every instance keep as many ports as this one, and return the addresses of all, by instance."""
        towards = LOOPBACK if self._one_network else self._host
        count = len(own.numbers)
        mine, others = self.ask("ports", lambda: own.addresses(towards), timeout, count=count, towards=towards)
        return mine + [each["address"] for each in others]

    def say(self, line: str) -> None:
        """Have every other instance print a line; raises `PeerLost` where one cannot."""
        if not self.over:
            self._tell({"do": "say", "line": line})

    def end(self, status: int) -> None:
        """Let the others end with this status; raises `PeerLost` where one cannot."""
        if not self.over:
            self._tell({"do": "end", "status": status})
            self.over = "it was told to end"

    def fail(self, reason: str) -> None:
        """End the others with a reason."""
        if not self.over:
            self.over = reason
            self._meeting.close(reason)

    def _tell(self, order: Mapping[str, Any]) -> None:
        """Give an order without an answer. Everybody waits for it, so who does not take it soon is stopped."""
        try:
            self._meeting.broadcast(order, timeout=least_wait_s())
        except PeerLost as failure:
            self.fail(failure.reason)
            raise

    def _answers(self, timeout: float) -> list[dict[str, Any]]:
        gathered = self._meeting.gather(None, timeout=timeout + _grace_s()) or []
        found: list[dict[str, Any]] = []
        for instance, answer in list(enumerate(gathered))[1:]:
            if "error" in answer:
                raise _error(answer["error"], f"instance {instance}: ")
            found += answer["ok"]
        return found


class Follower:
    """An instance other than the first: carries out orders until it is told to end."""

    def __init__(self, meeting: Rendezvous, crew: Crew) -> None:
        self._meeting, self._crew = meeting, crew
        self._resources = Resources.of(crew, Deadline(None), ANY_TIME_S)
        self._spec: Spec | None = None
        self._workers: list[Worker] = []
        self._ports = Ports(0)
        self._connected = False
        self._following: list[Worker] = []
        """Workers that do what the first rank of the job says; nobody here asks them anything."""

    def follow(self) -> int:
        """Carry out orders and return the status to end with."""
        self._meeting.gather(_host(), name="hosts")
        while True:
            order = self._order()
            if order["do"] == "end":
                return int(order["status"])
            if order["do"] == "say":
                print(order["line"], flush=True)
                continue
            self._meeting.gather(self._carried_out(order), timeout=order["timeout"] + _grace_s())

    def _order(self) -> Any:
        if not self._following:
            return self._meeting.broadcast(timeout=ANY_TIME_S)
        return self._meeting.broadcast(timeout=ANY_TIME_S, watch=self._watch)

    def _watch(self, line: int) -> None:
        """Wait for the next order; a worker that fails meanwhile is known to all instances at once."""
        with selectors.DefaultSelector() as selector:
            selector.register(line, selectors.EVENT_READ, None)
            for worker in self._following:
                selector.register(worker.fileno(), selectors.EVENT_READ, worker)
            while True:
                told = [key.data for key, _ in selector.select()]
                if None in told:  # instance 0 comes first: it may say why workers fail here
                    return
                for worker in filter(None, told):
                    worker.finish(1.0)  # who was let go says so, who failed says why
                    selector.unregister(worker.fileno())
                    self._following.remove(worker)

    def _carried_out(self, order: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {"ok": self._answers(order["do"], dict(order["given"]), float(order["timeout"]))}
        except (Unsupported, UserError, WorkerFailed) as error:
            if isinstance(error, PeerLost) or (self._connected and isinstance(error, WorkerFailed)):
                raise  # ranks of other instances wait for the one that is gone: its end must be known at once
            more = {name: getattr(error, name, "") for name in ("code", "instead")}
            return {"error": {"kind": type(error).__name__, "reason": str(error), **more}}

    def _answers(self, do: str, given: dict[str, Any], timeout: float) -> list[dict[str, Any]]:
        if do == "ports":
            self._ports.close()
            self._ports = Ports(given["count"])
            host = given["towards"] if given["towards"] == LOOPBACK else own_address(given["towards"])
            return [{"address": each} for each in self._ports.addresses(host)]
        if do == "prepare":
            return self._prepare(given, timeout)
        if do == "follow":
            for worker in self._workers:
                worker.begin("follow")
            self._following = list(self._workers)
            return []
        if do == "dismiss":
            self._dismiss()
            return []
        if do == "look":
            pids = [worker.pid for worker in self._workers]
            return [look(pids, self._meeting.rank * len(pids)).to_json()]
        if do == "ceiling":
            spec = Spec.from_json(given.pop("spec"))
            return [self._resources.ceilings.reading(spec, **given)]
        if do == "verify" and self._spec is not None and not Path(given["oracle"]).exists():
            given["oracle"] = str(self._resources.oracle.answer(self._spec))
        if do == "rest":
            cpu.wait_until_quiet(self._crew.others(*self._workers))
            return []
        return ask_all(self._workers, do, timeout, self._meeting, **given)

    def _prepare(self, order: Mapping[str, Any], timeout: float) -> list[dict[str, Any]]:
        self._dismiss()
        self._spec, count = Spec.from_json(order["spec"]), order["count"]
        self._connected = bool(order["addresses"])
        share = memory_share(count * order["neighbours"][self._meeting.rank])
        variables = {**worker_environment(self._spec), **order["variables"], **share}
        first = self._meeting.rank * count
        own = [own_device(order["variables"], first + rank) for rank in range(count)]
        self._workers = [self._crew.hire(variables | each) for each in own]
        begin_prepare(self._workers, self._spec, order["addresses"], order["stages"], first=first)
        return await_all(self._workers, timeout, self._meeting)

    def _dismiss(self) -> None:
        for worker in self._workers:
            if self._connected:
                worker.kill()
            self._crew.dismiss(worker)
        self._workers, self._following = [], []


def ask_all(
    workers: Sequence[Worker], do: str, timeout: float, alarm: Alarm | None = None, /, **given: Any
) -> list[dict[str, Any]]:
    """Tell all workers to do something at the same time and return their answers."""
    for worker in workers:
        worker.begin(do, **given)
    return await_all(workers, timeout, alarm)


def begin_prepare(
    workers: Sequence[Worker], spec: Spec, addresses: Sequence[str], stages: int = 1, *, first: int = 0
) -> None:
    """Let ranks build their programs; where they have addresses each is told its `Group`, from rank `first` on."""
    for index, worker in enumerate(workers):
        place = Group(rank=first + index, addresses=tuple(addresses), stages=stages) if addresses else None
        worker.begin("prepare", spec=spec.brief(), **({"group": place.to_json()} if place else {}))


def head_start_ns(peers: Peers | None) -> int:
    """Return the time of the monotonic clock at which ranks that were told now begin; 0 where clocks differ."""
    if peers is None:
        return time.perf_counter_ns() + 2_000_000
    return time.perf_counter_ns() + 20_000_000 if peers.one_clock else 0


def _grace_s() -> float:
    return min(_GRACE_S, least_wait_s())


def _host() -> dict[str, str]:
    """What instances have in common that share a clock and memory, and addresses: the kernel, and its network."""
    found = {"kernel": "", "network": ""}
    with contextlib.suppress(OSError):
        found["kernel"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        found["network"] = os.readlink("/proc/self/ns/net")
    return found


def _error(doc: Mapping[str, Any], where: str) -> Exception:
    words = where + doc["reason"]
    if doc["kind"] == Unsupported.__name__:
        return Unsupported(words, code=doc["code"], instead=doc["instead"])
    return UserError(words) if doc["kind"] == UserError.__name__ else WorkerFailed(words, code=doc["code"] or "error")
