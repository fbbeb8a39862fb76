"""A program of the seeds as one of several instances: instance 0 measures, the others lend it their workers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from layermark.devices import cpu
from layermark.launch.process import Crew
from layermark.launch.ranks import JobPlace, from_environment
from layermark.launch.rendezvous import Rendezvous
from layermark.seeds.stages import check_stages
from layermark.session.peers import ANY_TIME_S, Follower, Peers
from layermark.spec import Spec


def led(program: Callable[[Peers | None], int], place: JobPlace | None = None) -> int:
    """Run a program and return its status: alone, as instance 0 of a job, or as one that follows instance 0."""
    place = place or from_environment()
    if place is None or place.size == 1:
        return program(None)
    with Rendezvous(place) as meeting:
        if place.rank:
            with Crew() as crew:
                return Follower(meeting, crew).follow()
        peers = Peers(meeting, place)
        status = program(peers)
        peers.end(status)
        return status


@contextmanager
def gathered() -> Iterator[Callable[[float], Sequence[float]]]:
    """Yield what gathers a rate from all instances: the rate of each on instance 0, nothing on the others.

    It also holds everybody until all have come there, so that the next thing is measured at the same time. The first
    waits for the last however long its own part takes; one that is gone shows at once.
    """
    place = from_environment()
    if place is None or place.size == 1:
        yield lambda rate: [rate]
        return
    with Rendezvous(place) as meeting:

        def rates(rate: float) -> Sequence[float]:
            found = meeting.gather(rate, timeout=ANY_TIME_S)
            meeting.barrier("next", timeout=ANY_TIME_S)
            return found or []

        yield rates


def placed(spec: Spec, stages: int = 1) -> Spec:
    """Return a spec as the job carries it out: its replicas and threads are those of all instances together."""
    place = from_environment()
    if place is None:
        return spec
    check_stages(place.devices_per_replica, stages)
    plan = dataclasses.replace(spec.plan, instances=place.size, replicas=place.total_replicas)
    return spec.replace(plan=plan, threads=spec.threads * place.size)


def replicas_here(typed: int) -> int:
    """Return how many replicas run on this host: what was typed, or what a launcher says."""
    place = from_environment()
    return typed if place is None else place.local_replicas * place.local_size


def total_replicas(typed: int) -> int:
    """Return how many replicas the whole job has: what was typed, or what a launcher says."""
    place = from_environment()
    return typed if place is None else place.total_replicas


def own_threads(on_host: int | None = None) -> int:
    """Return how many threads this process has unless told otherwise: in a job, an equal share of the host.

    `on_host` is how many instances share it, where the job is told by something else than a launcher.
    """
    sharing = _on_host(on_host)
    if sharing is None:
        return cpu.thread_budget()
    words = os.environ.get("OMP_NUM_THREADS", "")
    wanted = int(words) if words.isdigit() and int(words) else cpu.host_cpus()
    return max(1, min(cpu.thread_budget(), cpu.host_cpus() // sharing, wanted))


def _on_host(told: int | None) -> int | None:
    """How many instances of the job share this host: as was told, or as a launcher says; None without a job."""
    place = from_environment()
    return told or (place.local_size if place else None)


def tag() -> str:
    """Return how a line names the instance that it is about, counted from one; nothing without a launcher."""
    place = from_environment()
    return f"[instance{place.rank + 1}/{place.size}] " if place else ""


def job_notes(replicas: int, threads: int, *, typed: bool) -> list[str]:
    """Return what the user should know about the job: replaced replicas, and instances that share CPUs.

    `threads` are those of one instance.
    """
    place = from_environment()
    if place is None:
        return []
    notes = shared_cpus(threads)
    if typed and replicas != place.total_replicas:
        notes.append(
            f"--replicas {replicas} is replaced by {place.local_replicas} in each of {place.size} instances "
            f"({place.total_replicas} in all), as the launcher says"
        )
    return notes


def shared_cpus(threads: int, on_host: int | None = None) -> list[str]:
    """Return a line where the instances of this host, of so many threads each, have more of them than it has CPUs."""
    sharing = _on_host(on_host)
    if sharing is None or sharing * threads <= cpu.host_cpus():
        return []
    each = "one thread" if threads == 1 else f"{threads} threads"
    return [f"{sharing} instances of {each} each share the {cpu.host_cpus()} CPUs of this host"]
