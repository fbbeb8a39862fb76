"""A program of the seeds under a launcher: its threads, what it says of the job, and what is left when the job ends."""

import signal

import pytest

from layermark.devices import cpu
from layermark.launch.ranks import from_environment
from layermark.outcome import Block
from layermark.seeds import entry, job
from layermark.seeds.cnns.inference import InferenceRequest
from layermark.seeds.cnns.logs import Log
from layermark.seeds.cnns.printing import InferencePrinter, table
from layermark.seeds.run import run
from layermark.session.budget import StepPlan
from layermark.spec import Plan, Spec

from .samples import MS

POPRUN = {
    "POPDIST_INSTANCE_INDEX": "0",
    "POPDIST_NUM_INSTANCES": "8",
    "POPDIST_LOCAL_INSTANCE_INDEX": "0",
    "POPDIST_NUM_LOCAL_REPLICAS": "1",
    "POPDIST_NUM_TOTAL_REPLICAS": "8",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_PORT": "1",
}
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "1"}
MPIRUN = {f"OMPI_COMM_WORLD_{name}": value for name, value in {"RANK": "0", "SIZE": "8", "LOCAL_SIZE": "2"}.items()}


@pytest.fixture
def launched(monkeypatch):
    """Set the variables of a launcher on a host of some CPUs, of which this process may use some."""

    def begin(variables, *, host=8, allowed=8):
        for name in (*POPRUN, *TORCHRUN, *MPIRUN, "OMP_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(cpu, "host_cpus", lambda: host)
        monkeypatch.setattr(cpu, "thread_budget", lambda: allowed)

    return begin


@pytest.mark.parametrize("variables", [POPRUN, TORCHRUN, MPIRUN], ids=["poprun", "torchrun", "mpirun"])
def test_a_launcher_tells_how_many_instances_a_host_has(variables):
    assert 2 == from_environment(variables).local_size
    short = {name: value for name, value in variables.items() if "LOCAL_" not in name or "REPLICAS" in name}
    assert 8 == from_environment(short).local_size


@pytest.mark.parametrize(
    ("host", "allowed", "asked", "threads"),
    [(8, 8, "", 4), (8, 2, "", 2), (8, 8, "3", 3), (8, 8, "6", 4), (1, 1, "", 1), (8, 8, "no", 4)],
)
def test_an_instance_has_its_share_of_the_host(launched, host, allowed, asked, threads):
    launched(TORCHRUN | ({"OMP_NUM_THREADS": asked} if asked else {}), host=host, allowed=allowed)
    assert threads == job.own_threads()


def test_without_a_launcher_a_program_has_all(launched):
    launched({"OMP_NUM_THREADS": "1"}, allowed=7)
    assert (7, "", []) == (job.own_threads(), job.tag(), job.job_notes(2, 7, typed=True))


def test_shared_cpus_are_those_of_this_host(launched):
    launched(POPRUN, host=4)
    assert [] == job.job_notes(1, 2, typed=False)  # two instances here, the other six elsewhere
    assert ["2 instances of 3 threads each share the 4 CPUs of this host"] == job.job_notes(1, 3, typed=False)


def printer(**changes):
    spec = Spec(workload="resnet50", backend="null", batch_size=16, data="generated", plan=Plan(**changes))
    return InferencePrinter(
        InferenceRequest(spec=spec, steps=StepPlan(steps=5, batches=8), recorded={}, folder=None), Log(None)
    )


def test_a_call_has_the_rate_and_latencies_of_this_instance_and_the_end_those_of_all(launched, capsys):
    launched(POPRUN)
    made = printer(instances=2, replicas=4)
    latencies = tuple(each * MS for each in (1, 2, 3, 4, 50, 60, 70, 80))
    ranks = ((500 * MS, 1000 * MS, 2000 * MS, 1500 * MS),)
    made.step(Block(calls=1, batches=8, samples_ns=(2000 * MS,), latencies_ns=latencies, ranks_ns=ranks), 512)
    made.end({"settings": {}, "spec": {"backend": "null"}})
    lines = capsys.readouterr().out.splitlines()
    assert "[INFO] [instance1/8] Throughput: 256.0 imgs/sec; Latency range: 1.0..4.0 ms" == lines[0]
    assert "min=256.00 imgs/s, max=256.00" in lines[2]  # 512 pictures in the two seconds of the slowest
    assert "[INFO] Latency: min=1.00 ms, max=80.00 ms, mean=33.75 ms." == lines[3]


class Patient:
    """A meeting that notes how long it would wait for the others."""

    waits: list[float] = []

    def __init__(self, place):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def gather(self, value, *, timeout=0.0):
        self.waits.append(timeout)
        return [value, value]

    def barrier(self, name, *, timeout=0.0):
        self.waits.append(timeout)


def test_the_first_that_has_read_waits_for_the_slowest_however_long_it_takes(launched, monkeypatch):
    launched(POPRUN)
    monkeypatch.setattr(job, "Rendezvous", Patient)
    Patient.waits.clear()
    with job.gathered() as rates:
        assert [5.0, 5.0] == rates(5.0)
    assert 2 == len(Patient.waits) and min(Patient.waits) > 86_400


@pytest.mark.parametrize(("ignored", "status"), [(False, 130), (True, 0)])
def test_a_closed_terminal_ends_a_script_unless_it_was_started_to_outlive_it(monkeypatch, ignored, status):
    def hang_up(*_):
        signal.raise_signal(signal.SIGHUP)
        return 0

    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setattr(entry, "_run", hang_up)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
        assert status == entry.main("tensorflow/lstm", "lstm.py", [])
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class Ended:
    """The peers of a job that has ended."""

    size, over = 1, "instance 1: killed by signal SIGKILL"


def test_what_follows_a_lost_instance_is_skipped_with_the_reason(tmp_path, capsys):
    made = printer()
    object.__setattr__(made._request, "store", str(tmp_path / "results.db"))
    assert 0 == run(made._request, made, "command", peers=Ended())
    assert "skipped" == made.document["status"]
    assert "the job had ended: instance 1: killed by signal SIGKILL" in "\n".join(table([made]))
    assert "Compiling" not in capsys.readouterr().out
