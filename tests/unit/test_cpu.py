"""The CPU device: budgets and counters, read from this very process."""

import os
import threading

import pytest

from layermark.devices import cpu
from layermark.spec import Spec


def test_thread_budget_is_within_the_affinity_mask():
    assert 1 <= cpu.thread_budget() <= len(os.sched_getaffinity(0))


def test_cgroup_quota_counts(monkeypatch):
    monkeypatch.setattr(cpu, "_read", lambda path: "150000 100000" if path.endswith("cpu.max") else "")
    assert 1.5 == cpu.cgroup_cpus()
    assert 1 == cpu.thread_budget()


def test_no_quota_is_none(monkeypatch):
    monkeypatch.setattr(cpu, "_read", lambda path: "max 100000")
    assert cpu.cgroup_cpus() is None


def test_memory_left_in_the_cgroup_counts(monkeypatch):
    texts = {"/proc/meminfo": "MemAvailable: 1000 kB\n", "memory.max": "300000", "memory.current": "100000"}
    monkeypatch.setattr(cpu, "_read", lambda path: next((t for name, t in texts.items() if path.endswith(name)), ""))
    assert 200000 == cpu.free_memory()
    texts["memory.stat"] = "anon 20000\ninactive_file 60000\nactive_file 20000\n"
    assert 260000 == cpu.free_memory()
    texts["memory.stat"] = "inactive_file 160000\n"  # read a moment later
    assert 300000 == cpu.free_memory()


def test_a_working_thread_gains_time_and_an_idle_one_does_not():
    stop, started = threading.Event(), threading.Event()

    def work():
        started.set()
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    before = cpu.thread_times_ns()
    assert not cpu.wait_until_quiet([os.getpid()], patience_s=0.1)
    stop.set()
    thread.join()
    gained = [now - before.get(name, 0) for name, now in cpu.thread_times_ns().items()]
    assert cpu.process_time_ns(os.getpid()) > 0
    assert max(gained, default=0) >= 0


def test_quiet_processes_are_quiet_at_once():
    assert cpu.wait_until_quiet([])


def test_process_that_is_gone_has_no_time():
    assert 0 == cpu.process_time_ns(2**22 + 1)


def test_allocator_setting_reaches_the_environment():
    spec = Spec(workload="dense", backend="null")
    assert "MALLOC_TRIM_THRESHOLD_" in cpu.environment(spec)
    assert {} == cpu.environment(spec.replace(allocator="default"))
    kept, returned = (
        int(cpu.environment(each)["MALLOC_MMAP_THRESHOLD_"]) for each in (spec, spec.replace(allocator="return"))
    )
    assert returned < 1 << 25 < kept


@pytest.mark.parametrize(("text", "expected"), [("512K\n", 512 << 10), ("32M", 32 << 20), ("", 0), ("many", 0)])
def test_cache_sizes_are_read_as_the_kernel_writes_them(text, expected):
    assert expected == cpu.cache_bytes(text)


def test_the_last_level_cache_is_at_least_a_small_one():
    assert 128 << 10 <= cpu.last_level_cache() <= 4 << 30
