"""Results travel between stores: nothing lost, nothing twice, and nothing of what is not right."""

import json

import pytest

from layermark import stats
from layermark.errors import UserError
from layermark.outcome import Failed, Skipped
from layermark.spec import Protocol
from layermark.store import Imported, open_store
from layermark.store.transfer import content

from .samples import a_run, a_spec

INJECTION = "x'); DROP TABLE outcomes; --"


def filled(found, session="s1", *outcomes, command="layermark run lstm"):
    found.begin(
        session,
        command=command,
        specs=[a_spec()],
        protocol=Protocol(),
        environment={"cpu": "other"},
        fingerprint="machine",
    )
    for outcome in outcomes:
        found.append(session, outcome, stats.document(outcome, session=session))
    return found


def numbered(lines):
    return [(f"a.jsonl:{number}", json.loads(json.dumps(line))) for number, line in enumerate(lines, 1)]


@pytest.fixture
def origin():
    """Another machine's store, with a run, a skip and a failure, of which the run's group is complete."""
    with open_store(":memory:") as found:
        filled(
            found,
            "s1",
            a_run(),
            Skipped(spec=a_spec(mode="train"), reason="no"),
            Failed(spec=a_spec(ring=8), reason="x"),
        )
        found.finish_group("s1", a_spec().group)
        yield found


@pytest.fixture
def here(store_url):
    with open_store(store_url) as found:
        yield found


def test_everything_arrives(origin, here):
    assert Imported(sessions=1, outcomes=3, known=0) == here.take_in(numbered(origin.lines(["s1"])))
    assert origin.outcomes("s1") == here.outcomes("s1")
    assert origin.documents("s1") == here.documents("s1")
    assert origin.session("s1") == here.session("s1")


def test_infinities_do_not_travel(here):
    run = a_run(settings={"execution": "eager", "losses": [1.0, float("nan"), float("inf")]})
    with open_store(":memory:") as origin:
        filled(origin, "s1", run)
        lines = list(origin.lines(["s1"]))
        assert Imported(sessions=0, outcomes=0, known=1) == origin.take_in(numbered(lines))
    json.dumps(lines, allow_nan=False)
    here.take_in(numbered(lines))
    assert [1.0, None, None] == here.outcomes("s1")[0].settings["losses"]


def test_what_is_here_is_known_by_its_content(origin, here):
    lines = numbered(origin.lines(["s1"]))
    here.take_in(lines)
    assert Imported(sessions=0, outcomes=0, known=3) == here.take_in(lines)
    assert 3 == len(here.outcomes("s1"))


def test_a_store_knows_its_own(origin):
    assert Imported(sessions=0, outcomes=0, known=3) == origin.take_in(numbered(origin.lines(["s1"])))


def test_one_file_may_hold_a_record_twice(origin, here):
    lines = numbered(origin.lines(["s1"]))
    assert Imported(sessions=1, outcomes=3, known=3) == here.take_in([*lines, *lines[1:]])


def test_a_session_that_went_on_elsewhere_goes_on_here(origin, here):
    here.take_in(numbered(origin.lines(["s1"])))
    origin.append("s1", a_run(12.0, spec=a_spec(batch_size=8)), stats.document(a_run(), session="s1"))
    assert Imported(sessions=0, outcomes=1, known=3) == here.take_in(numbered(origin.lines(["s1"])))
    assert origin.outcomes("s1") == here.outcomes("s1")


def test_an_attempt_that_was_repeated_elsewhere_counts_here(origin, here):
    here.take_in(numbered(origin.lines(["s1"])))
    origin.append("s1", a_run(12.0), stats.document(a_run(12.0), session="s1"))
    origin.finish_group("s1", a_spec().group)
    here.take_in(numbered(origin.lines(["s1"])))
    assert a_run(12.0) in here.outcomes("s1")
    assert a_run() not in here.outcomes("s1")


def test_two_sessions_of_one_name_stay_separate(origin, here):
    filled(here, "s1", a_run(20.0), command="another")
    lines = numbered(origin.lines(["s1"]))
    for expected in (Imported(sessions=1, outcomes=3, known=0), Imported(sessions=0, outcomes=0, known=3)):
        assert expected == here.take_in(lines)
    other = f"s1-{content(lines[0][1])[:8]}"
    assert {"s1", other} == {each.id for each in here.sessions()}
    assert [a_run(20.0)] == here.outcomes("s1")
    assert origin.outcomes("s1") == here.outcomes(other)


def without(line, name):
    return {key: value for key, value in line.items() if key != name}


MALFORMED = [
    (lambda session, outcome: [{"throughput": 1}], "a.jsonl:1: not a record of `layermark export"),
    (lambda session, outcome: [session, session | {"format": 2}], "a.jsonl:2: format 2: this release reads up to 1"),
    (lambda session, outcome: [outcome], "a.jsonl:1: session 's1': its own record must come first"),
    (lambda session, outcome: [without(session, "specs")], "a.jsonl:1: 'specs': expected a list, received nothing"),
    (lambda session, outcome: [session | {"id": "latest"}], "a.jsonl:1: session 'latest': not a name"),
    (lambda session, outcome: [session | {"id": "a\x1b[2J"}], "a.jsonl:1: .*not a name"),
    (lambda session, outcome: [session | {"created": "soon"}], "a.jsonl:1: malformed record"),
    (lambda session, outcome: [session | {"created": "2026-01-01"}], "a.jsonl:1: 'created': expected a time with"),
    (lambda session, outcome: [session, outcome | {"rank": True}], "a.jsonl:2: 'rank': expected a whole number"),
    (lambda session, outcome: [session, outcome | {"record": {}}], "a.jsonl:2: malformed record"),
    (
        lambda session, outcome: [session, outcome, outcome | {"record": outcome["record"] | {"schema": 99}}],
        "a.jsonl:3: result of schema 99: .*upgrade layermark",
    ),
    (
        lambda session, outcome: [session, outcome, outcome | {"record": outcome["record"] | {"kind": "Walk"}}],
        "a.jsonl:3: malformed record",
    ),
    (
        lambda session, outcome: [session, outcome | {"record": outcome["record"] | {"blocks": [{"samples_ns": "x"}]}}],
        "a.jsonl:2: malformed record",
    ),
    (
        lambda session, outcome: [session, outcome | {"record": outcome["record"] | {"spec": {"workload": 1}}}],
        "a.jsonl:2: malformed record",
    ),
    (lambda session, outcome: [session | {"command": "\ud800"}], "a.jsonl:1: malformed record"),
    (lambda session, outcome: [session | {"command": "\0"}], "a.jsonl:1: expected a text without zero bytes"),
    (
        lambda session, outcome: [session, outcome | {"record": outcome["record"] | {"item": "\0"}}],
        "a.jsonl:2: expected a text without zero bytes",
    ),
]


@pytest.mark.parametrize(("lines", "message"), MALFORMED)
def test_what_is_malformed_is_refused_with_its_line_and_nothing_is_kept(origin, here, lines, message):
    session, outcome, *_ = origin.lines(["s1"])
    made = numbered(lines(session, outcome))
    with pytest.raises(UserError, match=message) as caught:
        here.take_in(made)
    assert "nothing was imported" in str(caught.value)
    assert [] == here.sessions()


def test_sql_in_names_is_only_a_name(here):
    spec = a_spec(workload=INJECTION, backend=INJECTION)
    with open_store(":memory:") as origin:
        filled(origin, INJECTION, a_run(spec=spec), command=INJECTION)
        here.take_in(numbered(origin.lines([INJECTION])))
    assert [a_run(spec=spec)] == here.outcomes(INJECTION)
    assert [INJECTION] == [each.spec.workload for each in here.series([INJECTION], backends=[INJECTION])]
    assert [] == here.series(key="%' OR 1=1 --")
    here.prune([INJECTION])
    assert [] == here.sessions()


def test_pruning_removes_whole_sessions_and_nothing_else(here):
    for name, time in (("s1", 10.0), ("s2", 11.0), ("s3", 12.0)):
        filled(here, name, a_run(time))
        here.finish_group(name, a_spec().group)
    here.prune(["s2", "s1"])
    assert ["s3"] == [record.id for record in here.sessions()]
    assert [a_run(12.0)] == here.outcomes("s3")
    with here._engine.reading() as db:
        tables = ("sessions", "outcomes", "samples", "finished", "documents", "summaries", "measurements", "pruning")
        counts = {table: db.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() for table in tables}
    assert {**dict.fromkeys(tables, 1), "pruning": 0} == counts


def test_a_history_goes_on_with_what_is_left(here):
    for name, time in (("s1", 10.0), ("s2", 20.0)):
        filled(here, name, a_run(time))
    filled(here, "s3", a_run(10.0, spec=a_spec(workload="gru")))
    here.prune(["s3", "s2"])
    (series,) = here.series()
    assert ("lstm", ["s1"]) == (series.spec.workload, [point.session for point in series.points])


def test_pruning_is_all_or_nothing(here):
    filled(here, "s1", a_run())
    with pytest.raises(UserError, match="unknown session 's9'"):
        here.prune(["s1", "s9"])
    assert [a_run()] == here.outcomes("s1")


def test_a_pruned_session_may_come_back(origin, here):
    lines = numbered(origin.lines(["s1"]))
    here.take_in(lines)
    here.prune(["s1"])
    assert Imported(sessions=1, outcomes=3, known=0) == here.take_in(lines)
