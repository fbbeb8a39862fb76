"""Orders between the instances of a job: who follows lends its workers, and the first failure ends everybody."""

import dataclasses
import queue
import socket
import threading
import time

import pytest

from layermark.devices import cpu
from layermark.errors import Unsupported, WorkerFailed
from layermark.launch.ports import Ports
from layermark.launch.ranks import JobPlace
from layermark.launch.rendezvous import PeerLost
from layermark.outcome import Failed, Run, Skipped
from layermark.session import peers
from layermark.session.budget import StepPlan
from layermark.session.fixed_steps import StepListener, measure_fixed_steps
from layermark.session.memory import admit, needed_bytes, probe_bytes
from layermark.session.peers import Follower, Peers
from layermark.session.ranks import check_plan
from layermark.session.team import Team
from layermark.spec import Plan, Spec

from .crew import DEAD, MS, WRONG, Clock, FakeCeilings, FakeCrew, a_block, resources
from .test_rendezvous import meet

SPEC = Spec(
    workload="dense", backend="null", batch_size=4, threads=2, params={"size": 8}, plan=Plan(instances=2, replicas=2)
)
JOB = JobPlace(
    rank=0,
    size=2,
    local_rank=0,
    local_size=2,
    local_replicas=1,
    total_replicas=2,
    devices_per_replica=1,
    master_address="127.0.0.1",
    master_port=1,
    launcher="poprun",
)


class Meeting:
    """The two ends of a rendezvous in one process."""

    def __init__(self, **differs):
        self.orders, self.answers, self.said = queue.Queue(), queue.Queue(), []
        self.reason, self.differs = "", differs
        self.alarms = [socket.socketpair(), socket.socketpair()]

    def leader(self):
        return End(self, 0, self._say, lambda value: [value, self.answers.get(timeout=20)])

    def follower(self):
        return End(self, 1, lambda value: self._order(), lambda value: self.answers.put(value))

    def lose(self, rank, reason):
        """Let an instance learn that the other one is gone."""
        self.reason = reason
        self.alarms[rank][1].send(b"!")

    def _say(self, value):
        self.said.append(value["do"])
        self.orders.put(value)
        return value

    def _order(self):
        order = self.orders.get(timeout=20)
        if order is None:
            raise PeerLost(self.reason)
        return order


class End:
    def __init__(self, meeting, rank, broadcast, gather):
        self.rank, self._meeting, self._broadcast, self._gather = rank, meeting, broadcast, gather

    def broadcast(self, value=None, *, name="", timeout=0):
        return self._broadcast(value)

    def gather(self, value, *, name="", timeout=0):
        return self._gather({**value, **self._meeting.differs} if name == "hosts" and self.rank else value)

    def fileno(self):
        return self._meeting.alarms[self.rank][0].fileno()

    def raise_alarm(self):
        raise PeerLost(self._meeting.reason)

    def close(self, reason=""):
        self._meeting.lose(1, reason)
        self._meeting.orders.put(None)


class Instance:
    """A second instance, in a thread."""

    def __init__(self, *, host=None, place=JOB, **difference):
        self.meeting, self.crew = Meeting(**(host or {})), FakeCrew(difference)
        self.status, self.failure = None, None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.peers = Peers(self.meeting.leader(), place)

    def _run(self):
        follower = Follower(self.meeting.follower(), self.crew)
        follower._resources = resources(ceilings=FakeCeilings(3e12, 3e12))
        try:
            self.status = follower.follow()
        except PeerLost as error:
            self.failure = str(error)

    def ended(self):
        self._thread.join(20)
        return not self._thread.is_alive()


def team(instance, **difference):
    shared = resources(difference)
    object.__setattr__(shared, "peers", instance.peers)
    return Team(SPEC, shared)


def measured(instance, **difference):
    made = team(instance, **difference)
    deadline = made._resources.deadline
    return measure_fixed_steps(made, StepPlan(steps=2, batches=5), deadline, StepListener())


def test_both_instances_measure_at_once():
    slow = {"step": {"block": a_block((12,)), "began_ns": 5 * MS}}
    other = Instance(**slow)
    found = measured(other)
    assert isinstance(found, Run) and not found.faults
    assert (8, {(10 * MS, 12 * MS)}) == (found.items_per_batch, {each.ranks_ns[0] for each in found.blocks})
    assert {17 * MS} == {each.samples_ns[0] for each in found.blocks}
    assert 4e12 == found.ceiling.flops_per_s[0]  # 1e12 here and 3e12 there
    assert 200 == found.memory["peak_rss_bytes"] and found.alone
    other.peers.end(0)
    assert other.ended() and 0 == other.status
    given = other.crew.workers[0].asked[0][1]["spec"]
    assert (1, 1) == (given["threads"], given["plan"]["instances"])


def test_lines_are_printed_everywhere(capsys):
    other = Instance()
    other.peers.say("a line")
    other.peers.end(3)
    assert other.ended() and 3 == other.status
    assert "a line\n" == capsys.readouterr().out


@pytest.mark.parametrize("phase", ["prepare", "verify", "batch_seconds", "step"])
def test_a_worker_that_dies_there_is_the_outcome_and_ends_all(phase):
    other = Instance(**{phase: DEAD})
    found = measured(other)
    assert (Failed, "instance 1: killed by signal SIGKILL", "died") == (type(found), found.reason, found.code)
    assert other.ended() and "instance 1: killed by signal SIGKILL" == other.failure


@pytest.mark.parametrize("phase", ["prepare", "verify", "batch_seconds", "step"])
def test_a_worker_that_dies_here_ends_the_others_at_once(phase):
    other = Instance()
    found = measured(other, **{phase: DEAD})
    assert isinstance(found, Failed)
    assert other.ended() and "killed by signal SIGKILL" == other.failure


def test_what_cannot_be_done_leaves_everybody_in_order():
    refusal = Unsupported("no fused cell", code="cell", instead={"cell": "loop"})
    for here, there in (({"prepare": refusal}, {}), ({}, {"prepare": refusal})):
        other = Instance(**there)
        found = measured(other, **here)
        assert isinstance(found, Skipped) and {"cell": "loop"} == found.instead
        other.peers.end(0)
        assert other.ended() and 0 == other.status


def test_when_the_budget_ends_everybody_ends_in_order():
    clock = Clock()
    late = clock.wait(100, WorkerFailed("hung: no answer", code="hung"))
    other = Instance(step=WorkerFailed("hung: no answer", code="hung"))
    shared = resources({"step": late}, clock=clock, budget_s=50)
    object.__setattr__(shared, "peers", other.peers)
    found = measure_fixed_steps(Team(SPEC, shared), StepPlan(steps=2, batches=5), shared.deadline, StepListener())
    assert isinstance(found, Skipped) and "budget" == found.code
    other.peers.end(0)
    assert other.ended() and 0 == other.status


def test_a_wrong_result_anywhere_is_a_wrong_result():
    other = Instance(verify=WRONG)
    found = measured(other)
    assert isinstance(found, Run) and not found.verified.ok and not found.blocks
    other.peers.end(1)
    assert other.ended() and 1 == other.status


def test_a_ceiling_that_cannot_be_read_ends_nobody():
    other = Instance()
    made = team(other)
    made._resources.ceilings.failure = WorkerFailed("no probe")
    assert made.prepare() and not made.ceiling.read()
    assert ["no_ceiling"] == [each.code for each in made.ceiling.warnings]
    other.peers.end(0)
    assert other.ended() and 0 == other.status


def test_a_later_reading_of_the_ceilings_waits_as_long_as_what_is_short(monkeypatch):
    other = Instance()
    made, waits, ask = team(other), [], other.peers.ask
    assert made.prepare()
    monkeypatch.setattr(
        other.peers, "ask", lambda do, own, timeout, **given: waits.append(timeout) or ask(do, own, timeout, **given)
    )
    assert made.ceiling.read() and made.ceiling.read()
    assert [600.0, 60.0] == waits  # before the first, probes have to start
    other.peers.end(0)


def test_an_instance_that_is_lost_while_ceilings_are_read_ends_the_measurement(monkeypatch):
    other = Instance()
    made = team(other)
    monkeypatch.setattr(made.ceiling, "_reading", lost)
    found = measure_fixed_steps(made, StepPlan(steps=2, batches=5), made._resources.deadline, StepListener())
    assert (Failed, "instance 1 is gone") == (type(found), found.reason)
    assert other.ended() and "instance 1 is gone" == other.failure


def lost():
    raise PeerLost("instance 1 is gone")


def test_a_line_is_not_waited_for_longer_than_what_is_short(monkeypatch):
    """The second line: the first was taken before the instance was stopped."""
    monkeypatch.setenv("LAYERMARK_LEAST_WAIT", "0.3")
    found = []

    def do(rank, meeting):
        if rank:
            meeting.gather(peers._host(), name="hosts")
            meeting.broadcast()
            return time.sleep(1.0)
        told = Peers(meeting, JOB)
        told.say("first")
        for again in (lambda: told.say("second"), lambda: told.ask("rest", int, 600.0)):
            with pytest.raises(PeerLost) as failure:
                again()
            found.append(str(failure.value))
        return told.say("third")

    meet(2, do)
    assert ["instance 1 did not reach broadcast within 0.3 s"] * 2 == found


def test_a_plan_must_be_that_of_the_job():
    check_plan(SPEC, instances=2)
    with pytest.raises(Exception, match="plan instances=2: not carried out"):
        check_plan(SPEC)


def test_who_shares_a_kernel_but_no_network_needs_addresses_of_its_own(monkeypatch):
    monkeypatch.setattr(peers, "own_address", lambda towards: "own")
    other = Instance(host={"network": "net:[2]"}, place=dataclasses.replace(JOB, master_address="10.0.0.1"))
    assert other.peers.one_clock and [2, 2] == other.peers.neighbours
    with Ports(1) as own:
        addresses = other.peers.addresses(own, 10.0)
    assert ["10.0.0.1", "own"] == [each.rpartition(":")[0] for each in addresses]
    other.peers.end(0)


def test_another_host_has_a_clock_and_memory_of_its_own():
    other = Instance(host={"kernel": "another"})
    assert not other.peers.one_clock and [1, 1] == other.peers.neighbours
    other.peers.end(0)


@pytest.mark.parametrize(("host", "instances"), [({}, 2), ({"kernel": "another"}, 1)])
def test_instances_share_the_memory_of_their_own_host(host, instances):
    other = Instance(host=host)
    made = team(other)
    assert made.prepare()
    share = {"LAYERMARK_MEMORY_SHARE": str(cpu.total_memory() // instances)} if instances > 1 else {}
    for crew in (made._resources.crew, other.crew):
        assert share.items() <= crew.variables[0].items()
        assert share or "LAYERMARK_MEMORY_SHARE" not in crew.variables[0]
    other.peers.end(0)


@pytest.mark.parametrize(("host", "instances"), [({}, 2), ({"kernel": "another"}, 1)])
def test_of_instances_those_on_this_host_are_to_fit_into_its_memory(monkeypatch, host, instances):
    other = Instance(host=host)
    made = team(other)
    other.peers.end(0)
    one = needed_bytes(made.spec) // 2
    for free, fits in ((instances * one + probe_bytes(made.spec), True), (instances * one, False)):
        monkeypatch.setattr(cpu, "free_memory", lambda free=free: free)
        assert fits == bool(admit([made]))


def test_all_rest_before_they_are_given_a_time_to_begin(monkeypatch):
    waits = []
    monkeypatch.setattr(cpu, "wait_until_quiet", lambda pids: waits.append(threading.current_thread().name))
    other = Instance()
    assert isinstance(measured(other), Run)
    said = other.meeting.said
    steps = [index for index, do in enumerate(said) if do == "step"]
    assert steps and {"rest"} == {said[index - 1] for index in steps}
    assert said.count("rest") == len(waits) / 2  # for time alone, too
    other.peers.end(0)


def test_a_rank_that_begins_late_is_a_warning():
    for began_ms, codes in ((5, ["late_start"]), (0, [])):
        other = Instance(step={"block": a_block((10,)), "began_ns": began_ms * MS})
        found = measured(other)
        assert codes == [each.code for each in found.warnings if each.code == "late_start"]
        other.peers.end(0)


def test_single_batches_are_timed_on_all_ranks_at_once():
    other = Instance(latencies={"latencies_ns": [3 * MS, 4 * MS]})
    made = team(other, latencies={"latencies_ns": [MS, 2 * MS, 9 * MS]})
    assert made.prepare()
    assert (MS, 2 * MS, 3 * MS, 4 * MS) == made.step(5, latencies=(0.1, 100)).latencies_ns
    other.peers.end(0)


def silent(worker):
    """Let a worker take for ever."""
    worker._line, worker.other = socket.socketpair()


@pytest.mark.parametrize("do", ["step", "alone"])
def test_a_lost_instance_ends_a_long_step_here(do):
    other = Instance()
    made = team(other)
    assert made.prepare()
    silent(made._resources.crew.workers[0])
    other.meeting.lose(0, "instance 1 is gone")
    if do == "alone":
        made.time_alone(5)
    else:
        assert made.step(5) is None
    assert (Failed, "instance 1 is gone") == (type(made.outcome), made.outcome.reason)
    assert made._resources.crew.workers[0].ended and "instance 1 is gone" == other.peers.over


def test_a_lost_instance_ends_a_long_step_there():
    other = Instance()
    made = team(other)
    assert made.prepare()
    silent(other.crew.workers[0])
    other.meeting.orders.put({"do": "step", "given": {"batches": 5}, "timeout": 600.0})
    other.meeting.lose(1, "instance 0 is gone")
    assert other.ended() and "instance 0 is gone" == other.failure
    assert other.crew.workers[0].ended
