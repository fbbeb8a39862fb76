"""How work reaches other processes: worker processes, their alternation, and the session's helpers."""
