"""Measure many specs: group by group, each stored as soon as it is complete."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layermark.axes import complete
from layermark.launch.checkpoints import make_readable
from layermark.launch.process import Crew
from layermark.outcome import Outcome, Skipped
from layermark.session.balance import balanced
from layermark.session.deadline import Deadline
from layermark.session.failure import BUDGET
from layermark.session.known_trials import Choice, KnownTrials
from layermark.session.listener import Listener
from layermark.session.ranks import check_plan
from layermark.session.resources import Resources
from layermark.session.second_look import Measured, look_again
from layermark.session.shares import SHORT_SHARE_S, Share, Shares, timed_seconds
from layermark.session.team import Team
from layermark.session.until_settled import measure_until_settled
from layermark.session.writer import SessionWriter
from layermark.spec import Protocol, Spec
from layermark.store import SessionRecord, Store, open_store


class Interrupted(KeyboardInterrupt):
    """Somebody pressed Ctrl-C; what was complete by then is in the store and in `documents`."""

    def __init__(self, session_id: str, documents: list[dict[str, Any]]) -> None:
        super().__init__(session_id)
        self.session_id = session_id
        self.documents = documents


def measure(spec: Spec, protocol: Protocol | None = None, *, store: Store | None = None) -> dict[str, Any]:
    """Measure one spec and return its document; nothing is kept on disk unless a store is given."""
    return run_session([complete(spec)], protocol or Protocol(), store=store or open_store(":memory:"))[0]


def run_session(
    specs: Sequence[Spec],
    protocol: Protocol,
    *,
    store: Store,
    budget_s: float | None = None,
    command: str = "",
    resume: SessionRecord | None = None,
    listener: Listener | None = None,
    profiles: Path | None = None,
    second_look: bool = True,
) -> list[dict[str, Any]]:
    """Measure every spec and return one document each; with `resume`, go on with a session that was interrupted.

    With `profiles`, every program is profiled after its timing; traces and summaries appear in that folder. With
    `second_look`, what is left of a budget goes to the widest intervals, unless they have been profiled.
    """
    listener, deadline = listener or Listener(), Deadline(budget_s)
    finished = resume.finished_groups if resume else ()
    wanted, uncut = balanced(resume.specs if resume else specs, protocol.timeout, listener, finished)
    for spec in wanted:
        check_plan(spec)
    writer = SessionWriter(store, wanted, protocol, command=command, resume=resume, listener=listener)
    todo = {group: members for group, members in groups(wanted).items() if group not in writer.finished_groups}
    count = sum(map(len, todo.values()))
    listener.started(count)
    _note_short_shares(todo, budget_s, listener)
    looks_again, trials = second_look and budget_s is not None and profiles is None, KnownTrials(store, protocol)
    try:
        with Crew() as crew:
            make_readable(crew, [spec for members in todo.values() for spec in members], protocol.timeout)
            resources = Resources.of(crew, deadline, protocol.timeout, protocol.memory_limit, profiles=profiles)
            shares = Shares(deadline, protocol, count - len(uncut))
            every = []
            for group, members in todo.items():
                found = _measured(group, members, uncut, resources, shares, trials, listener)
                _keep(found, writer, hold=looks_again and found.widest > 0)
                every.append(found)
            if looks_again:
                look_again(every, shares, lambda runs, share: _outcomes(runs, share, resources, listener), writer)
    except KeyboardInterrupt:
        raise Interrupted(writer.id, writer.documents) from None
    finally:
        writer.release()
    return writer.documents


def groups(specs: Sequence[Spec]) -> dict[str, list[Spec]]:
    """Return specs by comparison group, in the order of their first members."""
    found: dict[str, list[Spec]] = {}
    for spec in specs:
        found.setdefault(spec.group, []).append(spec)
    return found


def _measured(
    group: str,
    specs: Sequence[Spec],
    uncut: Mapping[str, Outcome],
    resources: Resources,
    shares: Shares,
    trials: KnownTrials,
    listener: Listener,
) -> Measured:
    """Measure one comparison group in its share of the budget; those of `uncut` have their outcome."""
    others = [uncut[spec.key] for spec in specs if spec.key in uncut]
    members = [spec for spec in specs if spec.key not in uncut]
    if not members:
        return Measured(group=group, choices=(), outcomes=(), others=others, box_s=0.0, overhead_s=0.0)
    share, began = shares.next(len(members)), time.monotonic()
    choices: list[Choice] = []
    if resources.deadline.left() == 0:
        reason = "not measured: the budget was used up"
        outcomes: list[Outcome] = [Skipped(spec=spec, reason=reason, code=BUDGET) for spec in members]
    else:
        choices = [trials.choose(spec, time_to_try=share.trials) for spec in members]
        outcomes = _outcomes(choices, share, resources, listener)
        shares.used(outcomes, time.monotonic() - began)
    overhead_s = max(0.0, time.monotonic() - began - timed_seconds(outcomes))
    return Measured(
        group=group, choices=choices, outcomes=outcomes, others=others, box_s=share.box_s, overhead_s=overhead_s
    )


def _keep(found: Measured, writer: SessionWriter, *, hold: bool) -> None:
    outcomes = [*found.others, *found.outcomes]
    for outcome in outcomes:
        writer.append(outcome, hold=hold)
    if not all(isinstance(each, Skipped) and each.code == BUDGET for each in outcomes):
        writer.finish_group(found.group)


def _outcomes(choices: Sequence[Choice], share: Share, resources: Resources, listener: Listener) -> list[Outcome]:
    """Measure the members of a group; the probes of their runtimes judge them."""
    resources.ceilings.among = {choice.runs.backend for choice in choices}
    teams = [Team(choice.runs, resources, listener) for choice in choices]
    with resources.deadline.within(share.limit_s):
        outcomes = measure_until_settled(
            teams,
            share.protocol,
            resources.deadline,
            box_s=share.box_s,
            least_blocks=share.least_blocks,
            listener=listener,
        )
    return [choice.outcome(outcome) for outcome, choice in zip(outcomes, choices, strict=True)]


def _note_short_shares(todo: Mapping[str, Sequence[Spec]], budget_s: float | None, listener: Listener) -> None:
    count = sum(map(len, todo.values()))
    if budget_s is not None and count and budget_s / count < SHORT_SHARE_S:
        listener.note(
            f"{count} measurements share a budget of {budget_s:g} s, about {budget_s / count:.1f} s each: "
            "plain executions in place of trials, and shorter time boxes"
        )
