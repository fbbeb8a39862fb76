"""`--compile-only`: the program is built as a run would build it, and nothing is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from layermark.launch.checkpoints import make_readable
from layermark.launch.process import Crew
from layermark.outcome import Failed, Run
from layermark.seeds.run import TIMEOUT_S
from layermark.session.deadline import Deadline
from layermark.session.peers import Peers
from layermark.session.resources import Resources
from layermark.session.team import Team
from layermark.spec import Spec


def build_only(
    spec: Spec,
    deadline: Deadline,
    say: Callable[[str], None],
    *,
    variables: Mapping[str, str] | None = None,
    peers: Peers | None = None,
) -> int:
    """Build the program on every rank, say how long it took, and stop; return 1 if it failed."""
    with Crew() as crew:
        make_readable(crew, [spec], deadline.timeout(TIMEOUT_S))
        team = Team(spec, Resources.of(crew, deadline, TIMEOUT_S, variables=variables, peers=peers))
        if team.prepare():
            say(f"Compiled in {team.compile_s:.3f} seconds")
            return 0
        outcome = team.finish()
    say(f"Not built: {outcome.reason}" if not isinstance(outcome, Run) else "Not built")
    return int(isinstance(outcome, Failed))
