"""The commands on top of the store: history, export, import, replay, prune."""

import argparse
import contextlib
import csv
import io
import json
import sqlite3
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy

from layermark import cli, session, stats
from layermark.outcome import Failed, Skipped
from layermark.spec import Protocol
from layermark.store import open_store

from .samples import a_run, a_spec


class Finished:
    """How a command ended and what it printed."""

    def __init__(self, status, captured):
        self.status, self.out, self.err = status, captured.out, captured.err


@pytest.fixture
def url(tmp_path, monkeypatch):
    """The store of the commands, by default."""
    monkeypatch.setenv("LAYERMARK_STORE", str(tmp_path / "results.db"))
    return str(tmp_path / "results.db")


@pytest.fixture
def ask(url, capsys):
    return lambda *argv: Finished(cli.main(list(map(str, argv))), capsys.readouterr())


def fill(url, *sessions, environments=()):
    """Sessions s0, s1, ... with these outcomes."""
    with open_store(url) as found:
        for number, outcomes in enumerate(sessions):
            environment = environments[number] if environments else {"cpu": "some", "cores": 2}
            found.begin(
                f"s{number}",
                command="layermark run",
                specs=[],
                protocol=Protocol(time_box=2.0),
                environment=environment,
                fingerprint="machine",
            )
            for outcome in outcomes:
                found.append(f"s{number}", outcome, stats.document(outcome, session=f"s{number}"))


STEP = [[a_run(time)] for time in (10.0, 10.02, 9.98, 10.01, 9.99, 12.5, 12.52, 12.48, 12.51, 12.49)]


def test_one_measurement_is_shown_in_full_with_its_change(ask, url):
    environments = [{"cpu": "some", "versions": {"torch": "2.12" if number < 5 else "2.13"}} for number in range(10)]
    fill(url, *STEP, environments=environments)
    lines = ask("history").out.splitlines()
    assert f"lstm infer batch 4 on torch  key {a_spec().key[:8]}" == lines[0]
    assert ["s0", "400", "sequences/s", "10.0%"] == [lines[4].split()[index] for index in (0, 3, 4, 6)]
    assert "changed by -20.0% with session s5; what else changed: versions.torch 2.12 -> 2.13" == lines[-1]
    rate, ratio = lines.index("rate"), lines.index("ratio to the ceiling")
    assert lines[rate + 1].startswith("401 |") and "319 |     *****" in lines[rate:ratio]
    assert 20 == sum(line.count("*") for line in lines)


def test_several_measurements_are_a_line_each(ask, url):
    fill(url, *([run[0], a_run(20.0, spec=a_spec(batch_size=8))] for run in STEP))
    lines = ask("history", "--backend", "torch", "lstm").out.splitlines()
    assert "key" == lines[0].split()[0]
    (line,) = [each for each in lines if "batch-size" not in each and "batch 4 on torch" in each]
    assert ["10", "320", "sequences/s", "-19.9%", "8.0%", "1", "#####_____"] == line.split()[-7:]
    assert "on some, 2 CPUs" in lines


def test_a_history_as_json(ask, url):
    fill(url, *STEP)
    (found,) = map(json.loads, ask("history", "lstm", "--json", "--last", 9).out.splitlines())
    assert a_spec().to_json() == found["spec"]
    assert [f"s{number}" for number in range(1, 10)] == [point["session"] for point in found["points"]]
    assert ["s5"] == [change["session"] for change in found["changes"]]


def test_a_history_without_ceilings_looks_at_the_rate(ask, url):
    fill(url, *([a_run(blocks=run[0].blocks, ceiling=None)] for run in STEP))
    out = ask("history").out
    assert "changed by -20.0%" in out
    assert "ratio to the ceiling" not in out


def halved(with_ceiling):
    """Twenty sessions whose rate halves in the middle; those with these numbers have a ceiling."""
    runs = [a_run(10.0 if number < 10 else 20.0) for number in range(20)]
    return [
        [run if number in with_ceiling else a_run(blocks=run.blocks, ceiling=None)] for number, run in enumerate(runs)
    ]


@pytest.mark.parametrize("with_ceiling", [{0}, {19}, set(range(10)), set(range(10, 20)), set(range(17)), set()])
def test_few_ceilings_hide_no_change_of_the_rate(ask, url, with_ceiling):
    fill(url, *halved(with_ceiling))
    (found,) = map(json.loads, ask("history", "--json").out.splitlines())
    assert [("s10", 0.5)] == [(each["session"], round(each["ratio"], 2)) for each in found["changes"]]
    assert "changed by -50.0% with session s10" in ask("history").out


def test_a_missing_ceiling_or_two_leave_the_ratio_in_its_place(ask, url):
    fill(url, *halved(set(range(20)) - {3, 12}))
    (found,) = map(json.loads, ask("history", "--json").out.splitlines())
    assert [("s10", 0.1, 0.05)] == [
        (each["session"], *(round(each[side], 3) for side in ("before", "after"))) for each in found["changes"]
    ]


def test_stored_sessions_and_files_are_compared_alike(ask, url, tmp_path):
    other = a_run(*[12.5, 12.51, 12.49] * 4, environment={"cpu": "other"})
    fill(url, [a_run()], [other])
    for number in (0, 1):
        ask("export", f"s{number}", "--output", tmp_path / f"{number}.jsonl")
    by_name = ask("compare", "s0", "s1")
    assert "slower" in by_name.out and by_name.out.endswith("\n    differs: cpu some -> other\n")
    by_file = ask("compare", tmp_path / "0.jsonl", tmp_path / "1.jsonl", "--json")
    found = json.loads(by_file.out)
    assert ("slower", ["cpu some -> other"]) == (found["answer"], found["differences"])
    (tmp_path / "run.jsonl").write_text(json.dumps(stats.document(other, session="s")) + "\n")
    assert "slower" == json.loads(ask("compare", "s0", tmp_path / "run.jsonl", "--json").out)["answer"]


def test_what_cannot_be_compared_is_told(ask, url):
    first, second, third = (a_run(spec=a_spec(batch_size=size)) for size in (1, 2, 3))
    failed = Failed(spec=a_spec(batch_size=2), reason="crashed")
    fill(url, [a_run(), first, second], [a_run(), failed, third])
    done = ask("compare", "s0", "s1")
    assert "lstm infer batch 1 on torch auto:\ncannot tell: B has no such result; measure it there, too\n" in done.out
    assert "lstm infer batch 2 on torch auto:\ncannot tell: not measured in B: crashed\n" in done.out
    assert "layermark: note: new in B, nothing to compare it with: lstm infer batch 3 on torch\n" == done.err
    told = [json.loads(line) for line in ask("compare", "s0", "s1", "--json").out.splitlines()]
    assert ["not_measured", "unpaired"] == sorted(each["code"] for each in told if "code" in each)
    assert {"cannot tell"} == {each["answer"] for each in told}


def test_failures_are_in_the_table_and_not_in_the_plot(ask, url):
    fill(url, [a_run()], [Failed(spec=a_spec(), reason="x")], [Skipped(spec=a_spec(workload="gru"), reason="no")])
    assert "failed" in ask("history", "lstm").out
    assert "skipped" in ask("history", "gru").out


def test_names_cannot_move_the_cursor(ask, url):
    fill(url, [a_run(spec=a_spec(workload="\x1b[2Jx"))])
    assert "\x1b" not in ask("history").out


EVIL = "\x1b[2Jold\x9b2J\nlstm: faster"


def test_environments_cannot_move_the_cursor(ask, url):
    environments = [{"cpu": "\x1b[2Jsome", "kernel": EVIL if number < 5 else "new"} for number in range(10)]
    fill(url, *STEP, environments=environments)
    assert ask("history").out.endswith("what else changed: kernel old2J lstm: faster -> new\n")


def test_machines_cannot_move_the_cursor(ask, url):
    fill(url, [a_run(), a_run(spec=a_spec(workload="gru"))], environments=[{"cpu": EVIL}])
    out = ask("history").out
    assert "\non ?[2Jold?2J?lstm: faster\n" in out and not {"\x1b", "\x9b"} & set(out)


def test_everything_goes_out_and_comes_in_again(ask, url, tmp_path):
    fill(url, *STEP)
    assert 0 == ask("export", "--output", tmp_path / "all.jsonl").status
    other = tmp_path / "other.db"
    expected = "imported 10 results, 10 new sessions; 0 results were here already\n"
    assert expected == ask("import", tmp_path / "all.jsonl", "--store", other).out
    assert "imported 0 results, 0 new" in ask("import", tmp_path / "all.jsonl", "--store", other).out
    assert (tmp_path / "all.jsonl").read_text() == ask("export", "--store", other).out


class Slow(io.BytesIO):
    """A pipe beside which another process writes into the store."""

    def __init__(self, content, url):
        super().__init__(content)
        self.url, self.reads = url, 0

    def _beside(self):
        with contextlib.closing(sqlite3.connect(self.url, timeout=0, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute("ROLLBACK")
        self.reads += 1

    def read(self, *size):
        self._beside()
        return super().read(*size)

    def __next__(self):
        self._beside()
        return super().__next__()


def test_nobody_waits_for_a_slow_pipe(ask, url, monkeypatch):
    fill(url, *STEP[:2])
    pipe = Slow(ask("export").out.encode(), url)
    monkeypatch.setattr("sys.stdin", argparse.Namespace(buffer=pipe))
    done = ask("import", "-")
    assert (0, "imported 0 results, 0 new sessions; 2 results were here already\n") == (done.status, done.out)
    assert pipe.reads > 0


def test_a_pipe_is_refused_with_its_line_and_as_a_whole(ask, url, tmp_path, monkeypatch):
    fill(url, *STEP[:2])
    lines = [*ask("export").out.splitlines(), "{"]
    monkeypatch.setattr("sys.stdin", argparse.Namespace(buffer=io.BytesIO("\n".join(lines).encode())))
    done = ask("import", "-", "--store", tmp_path / "new.db")
    assert (2, 1) == (done.status, done.err.count("\n")) and "-:5: not JSON" in done.err
    with open_store(str(tmp_path / "new.db")) as found:
        assert [] == found.sessions()


def test_csv_has_a_row_per_result(ask, url):
    fill(url, [a_run(), Skipped(spec=a_spec(backend="jax"), reason='a "quoted", reason')])
    first, second = csv.DictReader(io.StringIO(ask("export", "latest", "--format", "csv").out))
    assert ("lstm", "torch", a_spec().key, "sequences/s") == tuple(
        first[name] for name in ("workload", "backend", "key", "unit")
    )
    assert (400.0, '{"hidden_size": 64}', "True") == (
        float(first["throughput"]),
        first["params"],
        first["verified"],
    )
    assert ('a "quoted", reason', "", "skipped") == (second["reason"], second["throughput"], second["status"])


def test_csv_of_an_export_holds_no_formulas(ask, url):
    evil = "=HYPERLINK(1)"
    fill(url, [a_run(spec=a_spec(workload=evil)), Skipped(spec=a_spec(backend="+1+1"), reason="@SUM(A1)")])
    first, second = csv.DictReader(io.StringIO(ask("export", "--format", "csv").out))
    assert ("'=HYPERLINK(1)", "'+1+1", "'@SUM(A1)") == (first["workload"], second["backend"], second["reason"])
    assert 400.0 == float(first["throughput"])


def test_parquet_has_the_same_rows_with_types(ask, url, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs the extra `parquet`")
    fill(url, *STEP)
    assert 0 == ask("export", "--output", tmp_path / "x.parquet").status
    found = parquet.read_table(tmp_path / "x.parquet").to_pylist()
    rows = list(csv.DictReader(io.StringIO(ask("export", "--format", "csv").out)))
    assert [float(row["throughput"]) for row in rows] == [row["throughput"] for row in found]
    assert (4, True) == (found[0]["batch_size"], found[0]["verified"])


def test_parquet_without_pyarrow_is_one_line(ask, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = ask("export", "--output", "x.parquet")
    assert (2, "layermark: error: Parquet needs pyarrow; type: pip install 'layermark[parquet]'\n") == (
        done.status,
        done.err,
    )


def test_an_export_that_fails_leaves_what_was_there(ask, url, tmp_path):
    (tmp_path / "x.jsonl").write_text("before")
    fill(url, *STEP)
    assert 2 == ask("export", "s0", "nothing", "--output", tmp_path / "x.jsonl").status
    assert "before" == (tmp_path / "x.jsonl").read_text()
    assert [] == list(tmp_path.glob("*.part"))


WRONG = [
    ("compare s0 s1", "holds no session yet; begin with: layermark run"),
    ("compare no.jsonl dense", "cannot compare a setting with a stored session"),
    ("compare s0 s1 --batch-size 3", "leave the settings out"),
    ("history", "holds no measurement yet; begin with: layermark run --suite quick"),
    ("history lstm", "no such measurement"),
    ("history --last 0", "--last 0: expected a whole number of at least 1"),
    ("export --format xml", "--format xml: expected one of jsonl, csv, parquet"),
    ("export --format parquet", "add --output FILE.parquet"),
    ("export --output /dev/null/x", "--output /dev/null/x: "),
    ("export nothing", "holds no session yet; begin with: layermark run"),
    ("import missing.jsonl", "missing.jsonl: No such file"),
    ("import", "the following arguments are required: FILE"),
    ("prune", "nothing to remove; type --keep N"),
    ("prune --keep few", "--keep few: expected a whole number"),
    ("prune --older-than soon", "--older-than soon: expected an age such as 90d"),
    ("replay nothing", "holds no session yet; begin with: layermark run"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line for line, _ in WRONG])
def test_a_wrong_request_is_one_line_and_status_2(ask, line, message):
    done = ask(*line.split())
    assert (2, "", 1) == (done.status, done.out, done.err.count("\n"))
    assert message in done.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "x.jsonl:2: not JSON"),
        (b"[1]", "x.jsonl:2: expected an object, received list"),
        (b"[" * 100_000, "x.jsonl:2: not JSON"),
        (b"\xff", "x.jsonl:2: not JSON"),
        (b'{"schema": 1, "status": "ok"}', "x.jsonl:2: not a record of `layermark export"),
        (b'{"efficiency": NaN}', "x.jsonl:2: not JSON (NaN is not a finite number); nothing was imported"),
        (b'{"efficiency": [-Infinity]}', "x.jsonl:2: not JSON (-Infinity is not a finite number)"),
        (b'{"efficiency": 1e999}', "x.jsonl:2: not JSON (1e999 is not a finite number)"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(ask, url, tmp_path, text, message):
    fill(url, *STEP[:1])
    (tmp_path / "x.jsonl").write_bytes(ask("export").out.splitlines()[0].encode() + b"\n" + text + b"\n")
    done = ask("import", tmp_path / "x.jsonl", "--store", tmp_path / "new.db")
    assert (2, 1) == (done.status, done.err.count("\n"))
    assert message in done.err
    with open_store(str(tmp_path / "new.db")) as found:
        assert [] == found.sessions()


def test_the_newest_are_kept(ask, url):
    fill(url, *STEP)
    assert ["s1", "s0", "would remove 2 sessions"] == ask("prune", "--keep", 8, "--dry-run").out.splitlines()
    assert "removed 2 sessions" == ask("prune", "--keep", 8).out.splitlines()[-1]
    with open_store(url) as found:
        assert [f"s{number}" for number in range(9, 1, -1)] == [record.id for record in found.sessions()]


def test_what_is_older_goes(ask, url):
    fill(url, *STEP[:3])
    old = (datetime.now(UTC) - timedelta(days=100)).isoformat()
    with open_store(url) as found, found._engine.writing() as db:
        db.exec_driver_sql("DROP TRIGGER sessions_stay")
        db.execute(sqlalchemy.text("UPDATE sessions SET created = :old WHERE id <> 's2'"), {"old": old})
    assert "removed 0 sessions" == ask("prune", "--older-than", "101d").out.strip()
    assert ["s0", "removed 1 sessions"] == ask("prune", "--older-than", "12w", "--keep", 2).out.splitlines()
    assert ["s1", "removed 1 sessions"] == ask("prune", "--older-than", "90d").out.splitlines()


def test_what_was_removed_is_removed_though_its_room_stays(ask, url):
    fill(url, *STEP[:2])
    with open_store(url) as found:
        engine = type(found._engine)
    with pytest.MonkeyPatch.context() as patch:
        # What takes the file between the removal and the rewriting of it.
        removed, taken = engine.compact, []

        def compact(self):
            other = sqlite3.connect(url, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            taken.append(other)
            with self._sql.connect() as db:
                db.connection.driver_connection.execute("PRAGMA busy_timeout = 0")
            removed(self)

        patch.setattr(engine, "compact", compact)
        done = ask("prune", "--keep", 1)
        taken[0].close()
    assert (0, "s0\nremoved 1 sessions\n") == (done.status, done.out)
    note = f"layermark: note: store {url}: its file keeps its size until another prune (database is locked)\n"
    assert note == done.err
    with open_store(url) as found:
        assert ["s1"] == [record.id for record in found.sessions()]


@pytest.fixture
def measuring(monkeypatch):
    """A session that measures at once what it is told."""

    def prepare(*outcomes):
        def run_session(specs, protocol, *, store, **more):
            assert (Protocol(time_box=2.0), [each.spec for each in outcomes]) == (protocol, list(specs))
            return [stats.document(outcome, session="again", command=more["command"]) for outcome in outcomes]

        monkeypatch.setattr(session, "run_session", run_session)

    return prepare


def test_a_result_that_comes_out_the_same_is_reproduced(ask, url, measuring):
    fill(url, [a_run(10.0, 10.01, 9.99, 10.0)])
    measuring(a_run(10.05, 10.04, 10.06, 10.05))
    done = ask("replay", "latest")
    assert 0 == done.status
    assert done.out.startswith(
        "reproduced: lstm infer batch 4 on torch: 400 then, 398 sequences/s now (-0.5%), within +-1."
    )


def test_a_result_that_comes_out_otherwise_is_not_and_says_what_else_changed(ask, url, measuring):
    fill(url, [a_run(10.0, 10.01, 9.99, 10.0), a_run(spec=a_spec(batch_size=8))])
    measuring(a_run(12.5, 12.51, 12.49, 12.5, environment={"cpu": "other"}))
    done = ask("replay", f"s0/{a_spec().key[:6]}")
    assert 1 == done.status
    assert "(-20.0%)" in done.out and "what else changed: cpu some -> other" in done.out
    assert done.out.startswith("not reproduced: ")


def test_a_result_that_fails_now_is_not_reproduced(ask, url, measuring):
    fill(url, [a_run()])
    measuring(Failed(spec=a_spec(), reason="crashed"))
    done = ask("replay", "s0", "--json")
    assert (1, False, "crashed") == (done.status, json.loads(done.out)["reproduced"], json.loads(done.out)["reason"])


def test_what_a_replay_finds_cannot_move_the_cursor(ask, url, measuring):
    fill(url, [a_run(10.0, 10.01, 9.99, 10.0)])
    measuring(a_run(12.5, 12.51, 12.49, 12.5, environment={"cpu": EVIL}))
    assert ask("replay", "s0").out.endswith("what else changed: cpu some -> old2J lstm: faster\n")
    measuring(Failed(spec=a_spec(), reason=EVIL))
    assert "not reproduced: lstm infer batch 4 on torch: old2J lstm: faster\n" == ask("replay", "s0").out


def test_only_what_was_measured_can_be_replayed(ask, url):
    fill(url, [Skipped(spec=a_spec(), reason="no")], [a_run()])
    assert "holds no result that was measured" in ask("replay", "s0").err
    assert f"its keys: {a_spec().key[:8]}" in ask("replay", "s1/zzz").err
