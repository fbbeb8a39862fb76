"""Where the time goes in a torch program: torch's own profiler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, supported_activities

from layermark.backends.base import TRACE_FILE, OperatorTime


def profiled(work: Callable[[], object], folder: Path) -> list[OperatorTime]:
    """Do the work under the profiler; operators are charged with their own time, without what they call."""
    wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA} & set(supported_activities())
    with profile(activities=list(wanted)) as found:
        work()
    found.export_chrome_trace(str(folder / TRACE_FILE))
    return [
        OperatorTime(str(each.key), int(each.count), each.self_cpu_time_total / 1e6) for each in found.key_averages()
    ]
