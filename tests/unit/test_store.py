"""Results survive: append-only, whole groups, any release, and never a stack trace for a wrong path."""

import dataclasses
import json
import multiprocessing
import sqlite3
import zlib
from pathlib import Path
from time import sleep

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layermark import stats, store
from layermark.errors import UserError
from layermark.outcome import Failed, Skipped
from layermark.spec import Protocol
from layermark.store import blob, default_url, migrate, open_store, postgresql, rows

from .conftest import postgresql_url
from .samples import a_run, a_spec

PROTOCOL = Protocol(precision_goal=0.05, time_box=3.0)


def begin(found, session="s1", specs=(), fingerprint="machine"):
    found.begin(
        session,
        command="layermark run lstm",
        specs=specs,
        protocol=PROTOCOL,
        environment={"cpu": "some"},
        fingerprint=fingerprint,
    )


def append(found, outcome, session="s1", **more):
    found.append(session, outcome, stats.document(outcome, session=session, **more))


def ask(found, sql, *values):
    """Ask past the store's interface, as another program would."""
    with found._engine.writing() as db:
        answer = db.exec_driver_sql(sql, values)
        return answer.fetchall() if answer.returns_rows else None


@pytest.fixture
def path(tmp_path):
    """A SQLite file, where the engine matters."""
    return str(tmp_path / "folder" / "results.db")


@pytest.fixture
def opened(store_url):
    with open_store(store_url) as found:
        begin(found, specs=[a_spec(), a_spec(backend="jax")])
        yield found


def test_outcomes_come_back_as_they_were(opened):
    outcomes = [
        a_run(),
        Skipped(spec=a_spec(backend="jax"), reason="no"),
        Failed(spec=a_spec(mode="train"), reason="x"),
    ]
    for outcome in outcomes:
        append(opened, outcome)
    assert outcomes == opened.outcomes("s1")


def test_documents_come_back_as_they_were(opened):
    document = stats.document(a_run(), session="s1", rank=0, command="c")
    opened.append("s1", a_run(), document)
    assert [document] == opened.documents("s1")


def test_results_outlive_the_process(store_url, opened):
    append(opened, a_run())
    opened.close()
    with open_store(store_url) as again:
        assert [a_run()] == again.outcomes("s1")


def test_a_session_says_what_it_was_asked_for(opened):
    append(opened, a_run())
    opened.finish_group("s1", a_spec().group)
    record = opened.session("s1")
    assert (a_spec(), a_spec(backend="jax")) == record.specs
    assert ("s1", "layermark run lstm", PROTOCOL, "machine") == (
        record.id,
        record.command,
        record.protocol,
        record.fingerprint,
    )
    assert ({"cpu": "some"}, {a_spec().group}) == (record.environment, record.finished_groups)


def test_sessions_are_newest_first_and_latest_is_one_of_them(opened):
    for name in ("s3", "s2"):
        begin(opened, name)
    assert ["s2", "s3", "s1"] == [record.id for record in opened.sessions()]
    assert "s2" == opened.session("latest").id


def test_an_unknown_session_names_the_near_and_the_latest(opened):
    begin(opened, "20260101-abcd")
    with pytest.raises(UserError, match=r"'20260101-abce'; did you mean 20260101-abcd\? latest: 20260101-abcd, s1"):
        opened.session("20260101-abce")


@pytest.mark.parametrize("call", ["session", "outcomes", "documents"])
def test_an_empty_store_says_so(store_url, call):
    with open_store(store_url) as found, pytest.raises(UserError, match="holds no session yet"):
        getattr(found, call)("latest")


def test_a_session_begins_once(opened):
    with pytest.raises(UserError, match="exists already"):
        begin(opened)
    with pytest.raises(UserError, match="exists already"):
        begin(opened, "latest")


def test_only_the_last_attempt_of_an_interrupted_group_counts(store_url, opened):
    append(opened, a_run(11.0))
    opened.close()
    with open_store(store_url) as again:
        # The order differs, so that only the new process tells the attempts apart.
        second = [a_run(12.0, spec=a_spec(backend="jax")), a_run(13.0)]
        for outcome in second:
            append(again, outcome)
        again.finish_group("s1", a_spec().group)
        assert second == again.outcomes("s1")


def test_a_spec_that_comes_again_begins_an_attempt(opened):
    for outcome in (a_run(11.0), a_run(12.0)):
        append(opened, outcome)
    assert [a_run(12.0)] == opened.outcomes("s1")


def test_an_interrupted_repetition_leaves_the_complete_attempt(opened):
    complete = [a_run(11.0), a_run(12.0, spec=a_spec(backend="jax"))]
    for outcome in complete:
        append(opened, outcome)
    opened.finish_group("s1", a_spec().group)
    append(opened, a_run(13.0))
    assert complete == opened.outcomes("s1")


def test_a_later_complete_attempt_replaces_an_earlier_one(opened):
    for time in (11.0, 12.0):
        append(opened, a_run(time))
        opened.finish_group("latest", a_spec().group)
    assert [a_run(12.0)] == opened.outcomes("s1")


def test_ranks_of_one_spec_stand_side_by_side(opened):
    for rank in (0, 1):
        append(opened, a_run(), rank=rank)
    assert [0, 1] == [document["rank"] for document in opened.documents("s1")]


def test_groups_and_sessions_are_separate(opened):
    begin(opened, "s2")
    append(opened, a_run(11.0))
    append(opened, a_run(12.0, spec=a_spec(batch_size=8)))
    append(opened, a_run(13.0), session="s2")
    assert [a_run(11.0), a_run(12.0, spec=a_spec(batch_size=8))] == opened.outcomes("s1")
    assert [a_run(13.0)] == opened.outcomes("s2")


def test_a_group_without_outcomes_cannot_be_complete(opened):
    with pytest.raises(UserError, match="no outcomes"):
        opened.finish_group("s1", "nothing")


def test_documents_of_another_version_are_derived_again(opened, monkeypatch):
    blocks = a_run(*[10.0, 10.4, 9.8, 10.1, 10.2, 9.9] * 2).blocks
    run = a_run(blocks=blocks, precision_goal=None)
    fresh = stats.document(run, session="s1", rank=2, command="c")
    opened.append("s1", run, {**fresh, "throughput": "stale"})
    assert "stale" == opened.documents("s1")[0]["throughput"]
    monkeypatch.setattr(stats, "DERIVED_VERSION", stats.DERIVED_VERSION + 1)
    assert [fresh] == opened.documents("s1")
    ((version, text),) = ask(opened, "SELECT version, document FROM documents")
    assert stats.DERIVED_VERSION == version
    assert "stale" not in text


def test_an_append_is_all_or_nothing(opened, monkeypatch):
    def broken(blocks):
        raise RuntimeError("disk on fire")

    monkeypatch.setattr(blob, "pack", broken)
    with pytest.raises(RuntimeError):
        append(opened, a_run())
    assert [] == opened.outcomes("s1")


@pytest.mark.parametrize("table", ["sessions", "outcomes", "samples", "finished"])
@pytest.mark.parametrize("statement", ["DELETE FROM {}", "UPDATE {} SET {} = {} + 1"])
def test_nothing_measured_is_changed_or_deleted(opened, table, statement):
    append(opened, a_run())
    opened.finish_group("s1", a_spec().group)
    column = {"sessions": "number", "outcomes": "rank", "samples": "format", "finished": "attempt"}[table]
    with pytest.raises(UserError, match="append-only"):
        ask(opened, statement.format(table, column, column))


def test_samples_belong_to_an_outcome(opened):
    append(opened, a_run())
    with pytest.raises(UserError, match=r"(?i)foreign key"):
        ask(opened, "INSERT INTO samples SELECT 99, 1, data FROM samples")


def test_the_spread_of_a_machine_is_the_root_mean_square(opened):
    assert opened.spread("machine") is None
    for spread in (0.03, 0.04, None):
        opened.record_spread("machine", spread)
    opened.record_spread("other", 1.0)
    assert pytest.approx(0.035355339) == opened.spread("machine")


def test_old_spreads_fade(opened):
    opened.record_spread("machine", 1.0)
    for _ in range(20):
        opened.record_spread("machine", 0.01)
    assert pytest.approx(0.01) == opened.spread("machine")


json_numbers = st.integers(0, 2**62) | st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.dictionaries(st.text(max_size=5), st.lists(json_numbers, max_size=5), max_size=3), max_size=4))
@settings(max_examples=50, deadline=None)
def test_samples_survive_packing(blocks):
    assert blocks == blob.unpack(blob.FORMAT, blob.pack(blocks))


@pytest.mark.parametrize(
    ("format", "data", "message"),
    [(2, b"", "format 2"), (1, b"no", "damaged"), (1, zlib.compress(b"{"), "damaged")],
)
def test_samples_that_cannot_be_read_say_why(format, data, message):
    with pytest.raises(UserError, match=message):
        blob.unpack(format, data)


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}"])
def test_paths_and_urls_open_the_same_file(path, form):
    with open_store(form.format(path)) as found:
        begin(found)
    with open_store(path) as found:
        assert "s1" == found.session("latest").id


@pytest.mark.parametrize("url", [":memory:", "sqlite://", "sqlite:///:memory:"])
def test_memory_leaves_nothing_behind(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_store(url) as found:
        begin(found)
    assert [] == list(tmp_path.iterdir())


def test_a_relative_url_is_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    open_store("sqlite:///x.db").close()
    assert (tmp_path / "x.db").exists()


def test_the_default_place(monkeypatch, tmp_path):
    monkeypatch.delenv("LAYERMARK_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert str(tmp_path / "layermark" / "results.db") == default_url()
    monkeypatch.setenv("LAYERMARK_STORE", "elsewhere.db")
    assert "elsewhere.db" == default_url()


def test_without_a_url_the_default_place_is_opened(monkeypatch, tmp_path):
    monkeypatch.setenv("LAYERMARK_STORE", str(tmp_path / "mine.db"))
    with store.open_store() as found:
        assert str(tmp_path / "mine.db") == found.url


def foreign(path):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE theirs (x)")


def newer(path):
    open_store(str(path)).close()
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO migrations (number, name) VALUES (9999, 'future')")


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: path.mkdir(), "this is a folder"),
        (lambda path: path.write_text("not a database, but long enough to be taken for one" * 30), "not a SQLite"),
        (foreign, "belongs to another program"),
        (newer, "written by a newer layermark .schema 9999"),
    ],
)
def test_what_is_not_a_store_is_refused_in_one_line(tmp_path, prepare, message):
    path = tmp_path / "x.db"
    prepare(path)
    with pytest.raises(UserError, match=message) as caught:
        open_store(str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_foreign_database_is_left_alone(tmp_path):
    foreign(tmp_path / "x.db")
    before = (tmp_path / "x.db").read_bytes()
    with pytest.raises(UserError):
        open_store(str(tmp_path / "x.db"))
    assert before == (tmp_path / "x.db").read_bytes()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("/dev/null/x.db", "its folder cannot be created"),
        ("/proc/x.db", "cannot be created or opened"),
        ("mysql://host/db", "unknown kind; expected a path, sqlite:///path, :memory: or postgresql://"),
        ("postgresql://u:secret@127.0.0.1:1/db", r"postgresql://u:\*\*\*@127.0.0.1:1/db: .*is the server running"),
        ("postgresql://h/db?sslmod=require", "unknown option 'sslmod'; known: host, port, schema, sslmode"),
        ("postgresql://h/db?sslmode=maybe", "sslmode maybe: expected one of disable, require, verify-full"),
        ("postgresql://h:port/db", "no PostgreSQL URL; expected postgresql://USER"),
        ("postgresql:///db?port=x", "port x: expected a number"),
    ],
)
def test_what_cannot_be_created_is_refused_in_one_line(url, message):
    with pytest.raises(UserError, match=message):
        open_store(url)


def test_a_store_that_can_only_be_read_is_read_and_not_written(path):
    with open_store(path) as found:
        begin(found)
        append(found, a_run())
        with found._engine.reading() as db:
            db.exec_driver_sql("PRAGMA query_only = ON")
        assert [a_run()] == found.outcomes("s1")
        with pytest.raises(UserError, match=r"store .*readonly"):
            begin(found, "s2")


def test_migrations_are_recorded_once(store_url):
    for _ in range(2):
        open_store(store_url).close()
    with open_store(store_url) as found:
        numbers = [row[0] for row in ask(found, "SELECT number FROM migrations ORDER BY number")]
    assert [step.number for step in migrate.migrations()] == numbers == list(range(1, len(numbers) + 1))


def test_a_migration_that_breaks_leaves_the_database_as_it_was(store_url, monkeypatch):
    steps = migrate.migrations()
    open_store(store_url).close()
    bad = migrate.Migration(len(steps) + 1, "bad.sql", "CREATE TABLE half (x INTEGER);\nnonsense;\n")
    with monkeypatch.context() as patch:
        patch.setattr(migrate, "migrations", lambda: [*steps, bad])
        with pytest.raises(UserError, match="syntax error"):
            open_store(store_url)
    with open_store(store_url) as found:
        assert [] == ask(found, "SELECT * FROM migrations WHERE name = 'bad.sql'")
        with pytest.raises(UserError, match="half"):
            ask(found, "SELECT * FROM half")


def test_a_new_migration_is_applied_to_an_old_store(store_url, monkeypatch):
    steps = migrate.migrations()
    with open_store(store_url) as found:
        begin(found)
        append(found, a_run())
    more = migrate.Migration(len(steps) + 1, "more.sql", "CREATE TABLE more (x INTEGER);\n")
    monkeypatch.setattr(migrate, "migrations", lambda: [*steps, more])
    with open_store(store_url) as found:
        assert [a_run()] == found.outcomes("s1")
        assert [(0,)] == ask(found, "SELECT count(*) FROM more")


def test_a_section_is_for_its_engine_and_a_body_stays_whole():
    sql = "-- why\nA;\n-- [sqlite]\nB\n  'x;\n  y';\n-- [postgresql]\nC;\n"
    assert ["A;\n", "B\n  'x;\n  y';\n"] == list(migrate.statements(sql, "sqlite"))
    assert ["A;\n", "C;\n"] == list(migrate.statements(sql, "postgresql"))


RECORDED = sorted((Path(__file__).parent.parent / "data").glob("store_v*.sql"))


def test_every_schema_but_the_newest_has_a_recorded_store():
    assert [f"store_v{number}.sql" for number in range(1, len(migrate.migrations()))] == [
        each.name for each in RECORDED
    ]


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.stem)
def test_an_older_store_is_migrated(tmp_path, recorded):
    file = tmp_path / "old.db"
    with sqlite3.connect(file) as db:
        db.executescript(recorded.read_text())
    with open_store(str(file)) as found:
        documents = found.documents("recorded")
        assert [("lstm", "ok"), ("dense", "skipped")] == [
            (each["spec"]["workload"], each["status"]) for each in documents
        ]
        (series,) = found.series(["lstm"])
        assert [documents[0]["throughput"]["value"]] == [point.throughput for point in series.points]
        assert 0.02 == found.spread("machine")


def test_histories_of_an_older_store_are_put_in_the_order_of_time(tmp_path):
    file = tmp_path / "old.db"
    with sqlite3.connect(file) as db:
        db.executescript(RECORDED[-1].read_text())
        rest = "command, specs, protocol, environment, fingerprint FROM sessions"
        db.execute(f"INSERT INTO sessions SELECT 2, 'imported', '2020-01-01T00:00:00+00:00', {rest}")
        rest = "comparison, attempt, spec, rank, created, command, noise_floor, record FROM outcomes WHERE number = 1"
        db.execute(f"INSERT INTO outcomes SELECT 3, 2, {rest}")
        db.execute("INSERT INTO samples SELECT 3, format, data FROM samples")
        db.execute("INSERT INTO documents SELECT 3, version, document FROM documents WHERE outcome = 1")
        rest = "workload, backend, spec, status, throughput, low, high, unit, efficiency FROM summaries"
        db.execute(f"INSERT INTO summaries SELECT 3, 2, {rest} WHERE outcome = 1")
        db.execute("UPDATE measurements SET session = 2 WHERE workload = 'lstm'")
    with open_store(str(file)) as found:
        (series,) = found.series(["lstm"])
        assert ["imported", "recorded"] == [point.session for point in series.points]
        assert [(1, 1)] == ask(found, "SELECT min(session), max(session) FROM measurements")
        assert "recorded" == found.session("latest").id


def test_a_newer_schema_is_refused_on_both(store_url):
    with open_store(store_url) as found:
        ask(found, "INSERT INTO migrations (number, name) VALUES (9999, 'future')")
    with pytest.raises(
        UserError, match=r"written by a newer layermark \(schema 9999, this one knows \d+\); upgrade it"
    ):
        open_store(store_url)


def test_a_schema_of_another_program_is_left_alone(postgresql_socket):
    url = postgresql_url(postgresql_socket)
    theirs = postgresql.opened(url)
    with theirs.writing() as db:
        theirs.claim(db)
        db.exec_driver_sql("CREATE TABLE theirs (x INTEGER)")
    with pytest.raises(UserError, match="belongs to another program"):
        open_store(url)
    theirs.close()


def test_a_connection_that_broke_while_measuring_is_made_again(postgresql_socket):
    url = postgresql_url(postgresql_socket)
    with open_store(url) as found, open_store(url) as killer:
        begin(found)
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ask(killer, f"SELECT pg_terminate_backend(pid) {others}")
        while ask(killer, f"SELECT pid {others}"):  # the server ends them in its own time
            sleep(0.01)
        append(found, a_run())
        assert [a_run()] == found.outcomes("s1")


def write_many(url, name, count):
    with open_store(url) as found:
        begin(found, name)
        for time in range(count):
            append(found, a_run(10.0 + time, spec=a_spec(batch_size=time + 1)), session=name)
        found.finish_group(name, a_spec(batch_size=1).group)


def test_eight_writers_lose_nothing(store_url):
    names = [f"writer-{number}" for number in range(8)]
    context = multiprocessing.get_context("spawn")
    # All eight also race to create the store.
    processes = [context.Process(target=write_many, args=(store_url, name, 10)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [0] * 8 == [process.exitcode for process in processes]
    with open_store(store_url) as found:
        assert sorted(names) == sorted(record.id for record in found.sessions())
        expected = [a_run(10.0 + time, spec=a_spec(batch_size=time + 1)) for time in range(10)]
        assert [expected] * 8 == [found.outcomes(name) for name in names]


def test_documents_can_be_queried_and_hold_no_samples(opened):
    append(opened, a_run())
    ((text,),) = ask(opened, "SELECT document FROM documents")
    assert "samples" not in json.loads(text)


def test_a_protocol_of_another_release_still_loads():
    stored = {**dataclasses.asdict(PROTOCOL), "dropped_later": 1}
    assert PROTOCOL == rows.protocol(stored)
