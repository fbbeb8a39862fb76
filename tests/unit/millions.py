"""A store of a million results: one session, written as always, and then doubled inside the database."""

from layermark import stats
from layermark.spec import Protocol
from layermark.store import open_store

from .samples import a_run, a_spec

RESULTS = 16
DOUBLINGS = 16
"""16 results doubled 16 times are a million, in 65,536 sessions; 7 GB."""

# `{s}` and `{o}` are how many sessions and outcomes there are.
_DOUBLE = (
    "INSERT INTO sessions SELECT number + {s}, 'm' || CAST(number + {s} AS TEXT), created, command, specs, protocol, "
    "environment, fingerprint FROM sessions",
    "INSERT INTO outcomes SELECT number + {o}, session + {s}, comparison, attempt, spec, rank, created, command, "
    "noise_floor, record FROM outcomes",
    "INSERT INTO samples SELECT outcome + {o}, format, data FROM samples",
    "INSERT INTO finished SELECT session + {s}, comparison, attempt FROM finished",
    "INSERT INTO documents SELECT outcome + {o}, version, document FROM documents",
    "INSERT INTO summaries SELECT outcome + {o}, session + {s}, workload, backend, spec, status, throughput, low, "
    "high, unit, efficiency, created FROM summaries",
    "UPDATE measurements SET session = session + {s}",
)


def fill(store, doublings=DOUBLINGS):
    """Write the results into a store (open, or a URL) and return how many there are."""
    if isinstance(store, str):
        with open_store(store) as found:
            return fill(found, doublings)
    store.begin(
        "m1",
        command="c",
        specs=[],
        protocol=Protocol(),
        environment={"cpu": "some"},
        fingerprint="machine",
    )
    for number in range(RESULTS):
        run = a_run(spec=a_spec(workload="lstm" if number % 2 else "gru", batch_size=number + 1))
        store.append("m1", run, stats.document(run, session="m1"))
        store.finish_group("m1", run.spec.group)
    for step in range(doublings):
        with store._engine.writing() as db:
            for sql in _DOUBLE:
                db.exec_driver_sql(sql.format(s=2**step, o=RESULTS * 2**step))
    if store._engine.name == "postgresql":
        with store._engine.writing() as db:
            db.exec_driver_sql("ANALYZE")
    return RESULTS * 2**doublings
