"""Work spread over machines that come, go and die; and which machine of many is sick."""

import json
import threading

import numpy as np
import pytest

from layermark import __version__, cli, environment, stats
from layermark.errors import Unsupported, UserError, WorkerFailed
from layermark.launch.machines import Answer, Machine, Machines
from layermark.launch.ray import own_lines_only
from layermark.outcome import Failed, to_json
from layermark.session import Interrupted, Listener, fleet_worker
from layermark.session.fleet import FleetRequest, run_fleet
from layermark.session.fleet_worker import describe_machine, measure_here, unusable_because
from layermark.spec import Plan, Protocol
from layermark.stats.fleet import LEAST_COMMON, fleet_health, judge_rates, status
from layermark.store import open_store

from .samples import a_run, a_spec

SPECS = [a_spec(batch_size=size) for size in range(1, 9)]


class Scripted(Machines):
    """Machines that answer in turn; `fates` says after how many answers each dies, by name (None: never)."""

    def __init__(self, *names, version=__version__, interrupt_after=None, **fates):
        self.machines = {name: Machine(id=f"id-{name}", name=name) for name in names}
        self.fates = {name: fates.get(name) for name in names}
        self.version, self.interrupt_after = version, interrupt_after
        self.held, self.queue, self.answered = {}, [], 0
        self.lacking = ()

    def present(self):
        return list(self.machines.values())

    def hold(self, machine):
        assert machine.name not in self.held
        self.held[machine.name] = []

    def begin(self, machine, work, text):
        assert machine.name not in [name for name, _, _ in self.queue], "two pieces of work at once"
        self.queue.append((machine.name, work, text))

    def wait(self, seconds):
        if self.interrupt_after is not None and self.answered >= self.interrupt_after:
            raise KeyboardInterrupt
        if not self.queue:
            return []
        name, work, text = self.queue.pop(0)
        machine, self.answered = self.machines[name], self.answered + 1
        if self.fates[name] is not None and self.fates[name] <= 0:
            del self.machines[name], self.held[name]
            return [Answer(machine=machine, failure="it left the cluster")]
        if work is describe_machine:
            facts = json.loads(describe_machine(text)) | {"version": self.version, "threads": SPECS[0].threads}
            facts["environment"] = {**facts["environment"], "node": name}
            return [Answer(machine=machine, text=json.dumps(facts))]
        assert work is measure_here
        self.fates[name] = None if self.fates[name] is None else self.fates[name] - 1
        return [Answer(machine=machine, text=self.measured(name, json.loads(text)))]

    def measured(self, name, asked):
        self.held[name].append(asked)
        specs = [type(SPECS[0]).from_json(each) for each in asked["specs"]]
        runs = [a_run(spec=spec, environment={"cpu": "some", "cores": 2, "node": name}) for spec in specs]
        if name in self.lacking:
            runs = [Failed(spec=spec, reason=f"no weights on {name}", code="wrong_request") for spec in specs]
        return json.dumps({"outcomes": [to_json(each) for each in runs], "notes": []})

    def release(self, machine):
        self.held.pop(machine.name, None)
        self.queue = [each for each in self.queue if each[0] != machine.name]


class Heard(Listener):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def asked():
    with open_store(":memory:") as store:
        yield FleetRequest(specs=SPECS, protocol=Protocol(), store=store, listener=Heard())


def nodes(documents):
    return {document["environment"]["node"] for document in documents}


def test_what_one_machine_lacks_is_measured_on_another_that_has_it(asked):
    machines = Scripted("a", "b")
    machines.lacking = ("a",)
    documents = run_fleet(asked, machines)
    assert len(SPECS) == len(documents) and {"b"} == nodes(documents)
    assert "machine a: no weights on a; it is tried elsewhere" in asked.listener.notes
    assert {"ok"} == {document["status"] for document in documents}


@pytest.mark.parametrize("fates", [{}, {"b": 0}])
def test_what_every_machine_lacks_fails_with_the_reason(asked, fates):
    machines = Scripted("a", "b", **fates)
    machines.lacking = ("a", "b")
    documents = run_fleet(asked, machines)
    assert len(SPECS) == len(documents) and {"failed"} == {document["status"] for document in documents}
    assert all(document["reason"].startswith("no weights on ") for document in documents)


def test_everything_is_measured_once_and_nobody_is_held_afterwards(asked):
    machines = Scripted("left", "right")
    documents = run_fleet(asked, machines)
    assert sorted(each.key for each in SPECS) == sorted(
        type(SPECS[0]).from_json(document["spec"]).key for document in documents
    )
    assert ({"left", "right"}, {}) == (nodes(documents), machines.held)
    record = asked.store.session("latest")
    assert {spec.group for spec in SPECS} == record.finished_groups
    assert documents == asked.store.documents(record.id)


def test_the_work_of_a_lost_machine_goes_elsewhere_and_it_is_named(asked):
    documents = run_fleet(asked, Scripted("left", "right", right=2))
    assert (8, {"ok"}) == (len(documents), {document["status"] for document in documents})
    assert ["machine right is lost: it left the cluster; its work goes elsewhere"] == asked.listener.notes


def test_what_kills_one_machine_after_the_other_does_not_get_them_all(asked):
    machines = Scripted(*"abcd", a=0, b=0, c=0, d=None)
    machines.fates |= dict.fromkeys("abc", 0)
    machines.wait = _deadly(machines, SPECS[0])
    documents = run_fleet(asked, machines)
    (failed,) = [document for document in documents if document["status"] == "failed"]
    assert ("machine_lost", SPECS[0].to_json()) == (failed["reason_code"], failed["spec"])
    assert 3 == sum("is lost" in note for note in asked.listener.notes)
    assert SPECS[0].group not in asked.store.session("latest").finished_groups


def _deadly(machines, spec):
    """Everybody survives all but this one."""
    machines.fates = dict.fromkeys(machines.fates)
    plain = Scripted.wait.__get__(machines)

    def wait(seconds):
        name, work, text = machines.queue[0]
        if work is measure_here and json.loads(text)["specs"] == [spec.to_json()]:
            machines.fates[name] = 0
        return plain(seconds)

    return wait


def test_without_a_machine_left_the_rest_fails_and_can_be_resumed(asked):
    documents = run_fleet(asked, Scripted("left", "right", left=1, right=1))
    assert 2 == sum(document["status"] == "ok" for document in documents)
    (reason,) = {document["reason"] for document in documents if document["status"] == "failed"}
    assert "no machine is left: lost are left (it left the cluster), right (it left the cluster)" == reason
    again = FleetRequest(
        specs=SPECS, protocol=Protocol(), store=asked.store, resume=asked.store.session("latest"), listener=Heard()
    )
    machines = Scripted("other")
    documents = run_fleet(again, machines)
    assert (8, {"ok"}) == (len(documents), {document["status"] for document in documents})
    assert 6 == sum(document["environment"]["node"] == "other" for document in documents)


def test_a_machine_of_another_version_is_not_used(asked):
    documents = run_fleet(asked, Scripted("old", version="0.0.1"))
    assert {"no_machine"} == {document["reason_code"] for document in documents}
    assert [f"machine old is lost: it has layermark 0.0.1, this is {__version__}"] == asked.listener.notes


def test_no_machine_at_all_is_a_wrong_request(asked):
    with pytest.raises(UserError, match="no machine of the cluster offers a CPU"):
        run_fleet(asked, Scripted())


def test_an_interruption_keeps_what_is_done(asked):
    machines = Scripted("left", "right", interrupt_after=5)
    with pytest.raises(Interrupted) as stop:
        run_fleet(asked, machines)
    assert (3, {}) == (len(stop.value.documents), machines.held)
    assert stop.value.documents == asked.store.documents(stop.value.session_id)


def test_a_used_up_budget_skips_the_rest(asked):
    documents = run_fleet(asked, Scripted("left"), budget_s=0.0)
    assert {"budget"} == {document["reason_code"] for document in documents}


def test_a_budget_is_shared_by_the_machines(asked):
    machines = Scripted("left", "right")
    seen = []
    measured = machines.measured
    machines.measured = lambda name, asked: seen.append(asked["budget_s"]) or measured(name, asked)
    run_fleet(asked, machines, budget_s=80.0)
    assert pytest.approx(20.0, rel=0.1) == seen[0]
    assert max(seen) <= 80.0


def test_everywhere_is_a_session_for_every_machine(asked):
    documents = run_fleet(asked, Scripted("left", "right"), everywhere=True)
    assert 16 == len(documents)
    records = asked.store.sessions()
    assert {"left", "right"} == {record.environment["node"] for record in records}
    assert 2 == len({record.fingerprint for record in records})
    for record in records:
        assert nodes(asked.store.documents(record.id)) == {record.environment["node"]}


def test_everywhere_names_what_a_lost_machine_did_not_measure(asked):
    documents = run_fleet(asked, Scripted("left", "right", right=3), everywhere=True)
    statuses = [document["status"] for document in documents]
    assert (11, 5) == (statuses.count("ok"), statuses.count("failed"))
    assert {"machine_lost", "no_machine", None} == {document["reason_code"] for document in documents}
    assert ["machine right is lost: it left the cluster"] == asked.listener.notes


def test_what_a_machine_says_of_itself(monkeypatch):
    monkeypatch.setenv(environment.NODE, "left")
    facts = json.loads(describe_machine("{}"))
    assert "left" == facts["environment"]["node"]
    assert ("", []) == unusable_because(facts, 1)
    _, (few, nice) = unusable_because(facts | {"nice": 19}, 1000)
    assert "1000 threads are asked for" in few and "nice 19" in nice


@pytest.mark.parametrize(
    ("raised", "kind", "code", "reason"),
    [
        (ZeroDivisionError("planted\nin two lines"), "Failed", "error", "ZeroDivisionError: planted in two lines"),
        (WorkerFailed("killed by signal SIGKILL", code="died"), "Failed", "died", "killed by signal SIGKILL"),
        (Unsupported("no such device", code="device"), "Skipped", "device", "no such device"),
        (UserError("no weights"), "Failed", "wrong_request", "no weights"),
    ],
)
def test_whatever_a_group_runs_into_is_answered_by_a_machine_that_goes_on(monkeypatch, raised, kind, code, reason):
    def run_session(*_, **more):
        raise raised

    monkeypatch.setattr(fleet_worker, "run_session", run_session)
    work = {"specs": [SPECS[0].to_json(), SPECS[1].to_json()], "protocol": Protocol().to_json(), "budget_s": None}
    told = json.loads(measure_here(json.dumps(work)))["outcomes"]
    assert [(kind, code, reason)] * 2 == [(each["kind"], each["code"], each["reason"]) for each in told]


def test_stages_that_each_machine_would_cut_in_its_own_way_are_refused():
    auto = SPECS[0].replace(pipeline_splits="auto", plan=Plan(stages=2))
    with open_store(":memory:") as store, pytest.raises(UserError, match="name the stages: --pipeline-splits"):
        FleetRequest(specs=[*SPECS, auto], protocol=Protocol(), store=store)


def fleet(rng, machines, measurements, noise=0.01, loss=None, **changes):
    """Documents of machines of one kind; `loss` is what the first one lacks."""
    base = stats.document(a_run(), session="s")
    found = []
    for number in range(measurements):
        spec = a_spec(batch_size=number + 1).to_json()
        for machine in range(machines):
            rate = 100 * (number + 1) * np.exp(noise * rng.normal()) * (1 - (loss or 0) * (machine == 0))
            where = {"host": f"m{machine}", "cpu": "some", "cores": 8, **changes.get(f"m{machine}", {})}
            throughput = {**base["throughput"], "value": float(rate)}
            found.append({**base, "spec": spec, "environment": where, "throughput": throughput})
    return found


def answers(documents, tolerated=0.05):
    return {each.machine: each.answer for each in fleet_health(documents, tolerated)}


def rates(rng, machines, measurements, noise, loss=0.0):
    """Logarithms of rates, each machine's own; the first one lacks something."""
    return {
        f"m{machine}": dict(enumerate(noise * rng.normal(size=measurements) + np.log(1 - loss * (machine == 0))))
        for machine in range(machines)
    }


def sick(found, tolerated=0.05):
    return [each.machine for each in judge_rates(found, dict.fromkeys(found, "k"), tolerated) if each.answer == "sick"]


SIZES = [(2, LEAST_COMMON), (2, 20), (4, 7), (12, 10)]


@pytest.mark.parametrize(("machines", "measurements"), SIZES)
@pytest.mark.parametrize("noise", [0.005, 0.03, 0.1])
def test_an_even_fleet_is_hardly_ever_accused(machines, measurements, noise):
    rng = np.random.default_rng(7)
    # Nothing is tolerated here but noise: what is left are the false alarms of the interval alone.
    accused = sum(bool(sick(rates(rng, machines, measurements, noise), 1e-9)) for _ in range(400))
    assert accused <= 10


@pytest.mark.parametrize(("machines", "measurements"), SIZES)
def test_a_machine_that_lacks_a_fifth_is_named_and_nobody_else(machines, measurements):
    rng = np.random.default_rng(8)
    named = [sick(rates(rng, machines, measurements, noise=0.015, loss=0.2)) for _ in range(200)]
    assert named.count(["m0"]) >= 199


def test_a_restless_fleet_cannot_be_told():
    found = fleet_health(fleet(np.random.default_rng(9), 2, LEAST_COMMON, noise=0.2))
    assert (3, {"cannot tell"}) == (status(found), {each.answer for each in found})


def test_few_measurements_in_common_cannot_be_told():
    found = fleet_health(fleet(np.random.default_rng(9), 2, LEAST_COMMON - 1, loss=0.5))
    assert (3, {"4 measurements in common with others, 5 are needed"}) == (status(found), {e.reason for e in found})


def test_another_kind_of_machine_is_slower_and_not_sick():
    rng = np.random.default_rng(10)
    found = fleet_health(fleet(rng, 3, 8, loss=0.5, m0={"cpu": "older"}))
    assert ["cannot tell", "fine", "fine"] == [each.answer for each in found]
    assert "no other machine of its kind has a result" == found[0].reason


def test_a_sick_machine_is_explained():
    rng = np.random.default_rng(11)
    documents = fleet(rng, 3, 8, loss=0.2, m0={"governor": "powersave"}, m1={"governor": "p"}, m2={"governor": "p"})
    documents[0]["throughput"]["value"] /= 2
    first = fleet_health(documents)[0]
    assert ("governor p -> powersave",) == first.differences
    assert 1 == first.slowest[0][0].batch_size and first.slowest[0][1] < 0.5


def test_several_sessions_count_by_their_median():
    rng = np.random.default_rng(12)
    once = fleet(rng, 2, 6, noise=0.01, loss=0.6)
    assert "sick" == answers(once)["m0"]
    assert "fine" == answers(once + fleet(rng, 2, 6) + fleet(rng, 2, 6))["m0"]


@pytest.fixture
def ask(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LAYERMARK_STORE", str(tmp_path / "results.db"))
    with open_store() as store:
        store.begin("none", command="c", specs=[], protocol=Protocol(), environment={}, fingerprint="m")
        for name, time in (("one", 10.0), ("two", 10.01), ("slow", 12.5), ("few", 10.0)):
            store.begin(name, command="c", specs=[], protocol=Protocol(), environment={}, fingerprint="m")
            for size in range(1, 4 if name == "few" else 7):
                where = {"host": "box", "node": name, "cpu": "some", "cores": 2}
                run = a_run(*[time, time * 1.001] * 3, spec=a_spec(batch_size=size), environment=where)
                store.append(name, run, stats.document(run, session=name))

    def typed(line):
        return cli.main(line.split()), capsys.readouterr()

    return typed


@pytest.mark.parametrize(
    ("line", "expected", "last"),
    [
        ("fleet one two", 0, "2 machines, all fine"),
        ("fleet one two slow", 1, "sick: slow"),
        ("fleet --last 3 --fail-if-slower 40%", 3, "cannot tell: few"),
        ("fleet", 1, "sick: slow"),
        ("fleet one", 3, "cannot tell: one"),
    ],
)
def test_the_status_is_that_of_the_worst(ask, line, expected, last):
    done, captured = ask(line)
    assert (expected, last) == (done, captured.out.splitlines()[-1])


def test_machines_as_json(ask):
    done, captured = ask("fleet one two slow --json")
    found = {each["machine"]: each for each in map(json.loads, captured.out.splitlines())}
    assert (1, {"one", "two", "slow"}) == (done, set(found))
    assert pytest.approx(0.8, abs=0.01) == found["slow"]["verdict"]["ratio"]
    assert "lstm" == found["slow"]["slowest"][0]["spec"]["workload"]


WRONG = [
    ("fleet nobody", "unknown session 'nobody'"),
    ("fleet one --last 3", "expected sessions or --last N, received both"),
    ("fleet --last 0", "--last 0: expected a whole number"),
    ("fleet --fail-if-slower much", "expected a share between 0 and 100%"),
    ("fleet none", "no result in 1 sessions names its machine"),
    ("run dense --on slurm", "--on slurm: expected ray"),
    ("run dense --everywhere", "--everywhere goes with --on ray; add it"),
    ("run dense --ray-address x:1", "--ray-address goes with --on ray; add it"),
    ("run dense --on ray --profile", "--profile writes files where it is made"),
    ("run --on ray --everywhere --resume x", "leave out --resume"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line for line, _ in WRONG])
def test_a_wrong_request_is_one_line_and_status_2(ask, line, message):
    done, captured = ask(line)
    assert (2, "", 1) == (done, captured.out, captured.err.count("\n"))
    assert message in captured.err


def test_what_a_thread_of_ray_prints_is_not_mixed_into_the_documents(capsys):
    with own_lines_only():
        print("ours")
        noise = threading.Thread(target=print, args=["a node is dead"], name="ray_listen_error_messages")
        noise.start()
        noise.join()
        print("ours, too")
    assert "ours\nours, too\n" == capsys.readouterr().out
