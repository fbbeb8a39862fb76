"""Measurements over sessions: what counts, on which machine, derived by today's rules."""

import pytest

from layermark import stats
from layermark.outcome import Failed
from layermark.spec import Protocol
from layermark.store import open_store, rows

from .samples import a_run, a_spec


def session(found, name, *outcomes, environment=None, finish=True):
    found.begin(
        name,
        command="c",
        specs=[],
        protocol=Protocol(),
        environment=environment or {"cpu": "some"},
        fingerprint="machine",
    )
    for outcome in outcomes:
        found.append(name, outcome, stats.document(outcome, session=name))
        if finish:
            found.finish_group(name, outcome.spec.group)


@pytest.fixture
def opened(store_url):
    with open_store(store_url) as found:
        yield found


def rates(series):
    return [None if each.throughput is None else round(each.throughput) for each in series.points]


def test_a_measurement_over_sessions_is_oldest_first(opened):
    for number, time in enumerate((10.0, 20.0, 40.0)):
        session(opened, f"s{number}", a_run(time))
    (series,) = opened.series()
    assert ("some", a_spec()) == (series.machine, series.spec)
    assert [400, 200, 100] == rates(series)
    assert ["s0", "s1", "s2"] == [point.session for point in series.points]
    assert pytest.approx([0.1, 0.05, 0.025]) == [point.efficiency for point in series.points]
    assert {"ok"} == {point.status for point in series.points}


def test_what_was_measured_last_comes_first(opened):
    session(opened, "s1", a_run())
    session(opened, "s2", a_run(spec=a_spec(workload="gru")))
    assert ["gru", "lstm"] == [each.spec.workload for each in opened.series()]
    assert ["gru"] == [each.spec.workload for each in opened.series(most=1)]


def test_workload_backend_and_key_choose(opened):
    session(opened, "s1", a_run(), a_run(spec=a_spec(backend="jax")), a_run(spec=a_spec(workload="gru")))
    assert ["jax", "torch"] == sorted(each.spec.backend for each in opened.series(["lstm"]))
    assert ["jax"] == [each.spec.backend for each in opened.series(["lstm", "gru"], backends=["jax"])]
    assert ["gru"] == [each.spec.workload for each in opened.series(key=a_spec(workload="gru").key[:6])]
    assert [] == opened.series(["nothing"])


def test_only_the_last_sessions_are_read(opened):
    for number in range(5):
        session(opened, f"s{number}", a_run(10.0 + number))
    (series,) = opened.series(last=2)
    assert ["s3", "s4"] == [point.session for point in series.points]


def test_of_a_session_the_complete_attempt_counts(opened):
    session(opened, "s1", a_run(10.0))
    opened.append("s1", a_run(20.0), stats.document(a_run(20.0), session="s1"))
    session(opened, "s2", a_run(10.0), a_run(40.0), finish=False)
    (series,) = opened.series()
    assert [400, 100] == rates(series)


def test_every_machine_has_a_series_of_its_own(opened):
    for number, cpu in enumerate(("old", "new", "old")):
        session(opened, f"s{number}", a_run(10.0), environment={"cpu": cpu, "cores": 2})
    assert [("new, 2 CPUs", 1), ("old, 2 CPUs", 2)] == sorted(
        (each.machine, len(each.points)) for each in opened.series()
    )


def test_a_failure_is_a_point_without_numbers(opened):
    session(opened, "s1", a_run(10.0))
    session(opened, "s2", Failed(spec=a_spec(), reason="crashed"))
    (series,) = opened.series()
    assert [400, None] == rates(series)
    assert ["ok", "failed"] == [point.status for point in series.points]


def test_ranks_are_one_measurement(opened):
    session(opened, "s1", a_run(10.0))
    opened.append("s1", a_run(20.0), stats.document(a_run(20.0), session="s1", rank=1))
    (series,) = opened.series()
    assert [400] == rates(series)


def test_what_older_rules_derived_is_derived_again(opened, monkeypatch):
    session(opened, "s1", finish=False)
    opened.append("s1", a_run(10.0), stats.document(a_run(99.0), session="s1"))
    opened.finish_group("s1", a_spec().group)
    assert [40] == rates(opened.series()[0])
    monkeypatch.setattr(stats, "DERIVED_VERSION", stats.DERIVED_VERSION + 1)
    assert [400] == rates(opened.series()[0])
    assert [400] == rates(opened.series()[0])


DAYS = ("2026-01-01T12:00:00+00:00", "2026-01-02T12:00:00+00:00", "2026-01-03T12:00:00+00:00")


@pytest.fixture
def on(monkeypatch):
    """Keep a session that is created at a time."""

    def kept(found, created, name, *outcomes):
        monkeypatch.setattr(rows, "now", lambda: created)
        session(found, name, *outcomes)

    return kept


def brought(found, on, created, name, *outcomes, said=None):
    """Import a session that was created elsewhere, at a time that its record says in another way."""
    with open_store(":memory:") as origin:
        on(origin, created, name, *outcomes)
        first, *others = origin.lines([name])
    found.take_in([("here", first | {"created": said or created}), *(("here", each) for each in others)])


def test_what_is_imported_stands_at_its_time(opened, on):
    on(opened, DAYS[1], "second", a_run(20.0))
    on(opened, DAYS[2], "third", a_run(40.0))
    brought(opened, on, DAYS[0], "first", a_run(10.0))
    (series,) = opened.series()
    assert (["first", "second", "third"], [400, 200, 100]) == ([each.session for each in series.points], rates(series))
    assert ["second", "third"] == [each.session for each in opened.series(last=2)[0].points]
    assert ["third", "second", "first"] == [record.id for record in opened.sessions()]
    assert "third" == opened.session("latest").id
    assert ["third", "second", "first"] == [name for name, _ in opened.settings(a_spec().key, "machine")]


def test_what_is_imported_was_not_measured_last(opened, on):
    on(opened, DAYS[1], "second", a_run())
    brought(opened, on, DAYS[0], "first", a_run(), a_run(spec=a_spec(workload="gru")))
    assert ["lstm", "gru"] == [each.spec.workload for each in opened.series()]
    opened.prune(["second"])
    assert {"first"} == {point.session for each in opened.series() for point in each.points}
    assert ["gru"] == [each.spec.workload for each in opened.series(["gru"], most=1)]


def test_times_of_other_zones_are_put_in_order_and_known_again(opened, on):
    on(opened, DAYS[0], "noon", a_run(20.0))
    said = "2026-01-01T12:30:00.5+02:00"  # half past ten
    for _ in range(2):
        brought(opened, on, DAYS[0], "morning", a_run(10.0), said=said)
    assert ["morning", "noon"] == [point.session for point in opened.series()[0].points]
    assert "2026-01-01T10:30:00+00:00" == opened.session("morning").created
