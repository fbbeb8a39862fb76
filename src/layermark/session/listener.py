"""Who hears of a session's progress. This one hears nothing; the command line's shows a bar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layermark.spec import Spec


class Listener:
    """Told what is going on, in this order: started, then phases and documents, notes at any time."""

    def started(self, total: int) -> None:
        """So many measurements are to be made."""

    def phase(self, spec: Spec, text: str) -> None:
        """This is being done for this measurement now."""

    def finished(self, document: Mapping[str, Any]) -> None:
        """One measurement has its result."""

    def note(self, text: str) -> None:
        """Something that a person should know."""
