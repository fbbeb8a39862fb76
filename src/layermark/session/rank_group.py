"""The processes of a team's ranks, in this instance and in others: how they are started, asked and ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layermark import environment
from layermark.devices import cpu
from layermark.errors import Unsupported, UserError, WorkerFailed
from layermark.launch.ports import Ports
from layermark.launch.process import Alarm, Blame, Worker, await_all, await_lead, worker_environment
from layermark.launch.stuck import Seen, look, who_hangs
from layermark.outcome import Block
from layermark.session.peers import Peers, ask_all, begin_prepare
from layermark.session.ranks import memory_share, own_cpus, own_device, rank_specs
from layermark.session.resources import Resources
from layermark.spec import Spec

_FACTS_S = 30.0
_LEAST_FACTS_S = 5.0
"""So long is waited in any case, also where a budget has ended: it takes milliseconds."""
_LOOK_S = 10.0
_REST_S = 0.2
"""How long it usually takes until others rest, which are waited for at most a second."""
_UPDATES_TOLD = 40
"""What replicas find out about their communication takes about as long as so many updates, at most."""


class RankGroup:
    """All ranks of a spec. What is asked of them is asked of all at the same time, wherever they run."""

    def __init__(self, spec: Spec, resources: Resources) -> None:
        self.specs = rank_specs(spec)
        self.peers: Peers | None = resources.peers if spec.plan.instances > 1 else None
        self.local = len(self.specs) // spec.plan.instances
        """How many of them run in this instance."""
        self.workers: list[Worker] = []
        self.connected = spec.connected
        """Whether the ranks talk to each other while they work."""
        self._stages, self._ports = spec.ranks // spec.plan.replicas, Ports(0)
        threads = spec.threads // spec.plan.instances
        self.at_once = min(self.local, max(1, threads // self.specs[0].threads))
        """How many of them have threads of their own at the same time, in this instance."""
        self._resources = resources
        self._variables = dict(resources.variables)

    def hire(self, runtime: str = "") -> None:
        """Start the ranks of this instance; with a runtime they import it at once."""
        for rank, spec in enumerate(self.specs[: self.local]):
            variables = {**worker_environment(spec), **self._variables}
            variables |= own_cpus(rank, self.local, spec.threads) | own_device(self._resources.variables, rank)
            variables |= memory_share(self.local * (self.peers.neighbours[0] if self.peers else 1))
            limit = self._resources.memory_limit
            self.workers.append(self._resources.crew.hire(variables, memory_limit=limit, runtime=runtime))

    def begin_build(self) -> None:
        """Let the ranks build their programs; other instances are told when somebody waits for them."""
        if self.peers is None:
            begin_prepare(self.workers, self.specs[0], self._addresses(), self._stages)

    def built(self) -> list[dict[str, Any]]:
        """Wait until every rank has built its program."""
        found = self._built()
        if self.connected:
            self._let_follow()
        return found

    def _built(self) -> list[dict[str, Any]]:
        patience = self.patience()
        if self.peers is None:
            return await_all(self.workers, patience, blame=self._blame)
        addresses = self._addresses()
        order = {"spec": self.specs[0].to_json(), "count": self.local, "variables": self._variables}
        order |= {"neighbours": self.peers.neighbours}
        own, others = self.peers.ask(
            "prepare",
            lambda: self._prepared(addresses, patience),
            patience,
            addresses=addresses,
            stages=self._stages,
            **order,
        )
        return own + others

    def _let_follow(self) -> None:
        """Have every rank but the first do what that one says, until it lets go."""

        def follow() -> None:
            for worker in self.workers[1:]:
                worker.begin("follow")

        if self.peers is None:
            follow()
        else:
            self.peers.ask("follow", follow, self.patience())

    def _prepared(self, addresses: list[str], patience: float) -> list[dict[str, Any]]:
        begin_prepare(self.workers, self.specs[0], addresses, self._stages)
        return await_all(self.workers, patience, self._alarm, self._blame)

    @property
    def _blame(self) -> Blame | None:
        """What tells which of the ranks hangs, where they wait for each other."""
        return self._who_hangs if self.connected else None

    def _who_hangs(self) -> str:
        pids = [worker.pid for worker in self.workers]
        if self.peers is None:
            return who_hangs([look(pids)])
        try:
            own, others = self.peers.ask("look", lambda: look(pids), _LOOK_S)
        except (Unsupported, UserError, WorkerFailed):
            return who_hangs([look(pids)])
        found = who_hangs([own, *(Seen.from_json(each) for each in others)])
        # Before ranks are ended here: those of other instances fail of it, and theirs would be the reason that is told.
        self.peers.fail(f"hung: {found or 'no rank has answered in time'}")
        return found

    @property
    def _alarm(self) -> Alarm | None:
        """What ends the waiting for ranks here when another instance is gone: there will be no result."""
        return self.peers.alarm if self.peers is not None else None

    def _addresses(self) -> list[str]:
        """Keep a port for every rank that talks to others, and return where they are."""
        if not self.connected:
            return []
        self._ports.close()
        self._ports = Ports(self.local)
        if self.peers is None:
            return self._ports.addresses()
        return self.peers.addresses(self._ports, self.patience())

    def patience(self, expected_s: float | None = None) -> float:
        """Return how long an answer may take that should take this long; None for something of unknown length."""
        return self._resources.deadline.timeout(self._resources.wait_s(expected_s))

    def all(self, do: str, expected_s: float | None = None, **given: Any) -> list[dict[str, Any]]:
        """Have all ranks do something and return their answers; ranks that follow the first do it with that one."""
        patience = self.patience(expected_s)
        if self.connected:
            return [self.lead(do, patience, **given)]
        if self.peers is None:
            return ask_all(self.workers, do, patience, **given)
        own, others = self.peers.ask(
            do, lambda: ask_all(self.workers, do, patience, self._alarm, **given), patience, **given
        )
        return own + others

    def first(self, do: str, **given: Any) -> dict[str, Any]:
        """Have the first rank alone do something and return its answer."""
        return self.lead(do, self.patience(), **given)

    def lead(self, do: str, timeout: float, **given: Any) -> dict[str, Any]:
        """Have the first rank do something and return its answer, which may take until the time-out.

        Where the others follow it, the first that fails ends all of them.
        """
        self.workers[0].begin(do, **given)
        if not self.connected:
            return await_all(self.workers[:1], timeout, self._alarm)[0]
        return await_lead(self.workers, timeout, self._alarm, self._blame)

    def facts(self) -> dict[str, Any]:
        """Return what the ranks know at the end; where they are gone, what the parent knows."""
        try:
            with self._resources.deadline.at_least(_LEAST_FACTS_S):
                found = self._facts()
        except (Unsupported, WorkerFailed) as failure:
            return {"memory": {}, "environment": environment.record(), "missing": str(failure)}
        peak = sum(each["memory"].get("peak_rss_bytes", 0) for each in found)
        return found[0] | {"memory": {**found[0]["memory"], "peak_rss_bytes": peak}}

    def _facts(self) -> list[dict[str, Any]]:
        if self.connected:
            return [self.lead("facts", self._resources.deadline.timeout(_FACTS_S))]
        return self.all("facts", _FACTS_S)

    def rank_stats(self, blocks: Sequence[Block]) -> dict[str, Any]:
        """Return when stages were at work, and what it takes replicas to share gradients; nothing for lone ranks.

        Raises `WorkerFailed` where a rank dies of it.
        """
        if not self.connected:
            return {}
        batches = _UPDATES_TOLD * self.specs[0].update.micro_batches
        known = [batches * block.samples_ns[0] / 1e9 / block.batches for block in blocks[-1:]]
        try:
            return self.lead("rank_stats", self._resources.wait_s(max(known, default=None)))
        except Unsupported:
            return {}

    def wait_until_others_rest(self) -> None:
        """Wait until the other processes of the session have come to rest, in every instance."""

        def rest() -> None:
            cpu.wait_until_quiet(self._resources.crew.others(*self.workers))

        if self.peers is None:
            rest()
        else:
            self.peers.ask("rest", rest, self.patience(_REST_S))

    def dismiss(self) -> None:
        """End the ranks of this instance: the first lets go of those that follow it."""
        for index, worker in enumerate(self.workers):
            if self.connected and index:
                worker.kill()
            self._resources.crew.dismiss(worker)
        self.workers = []
        self._ports.close()
