"""The tables as SQLAlchemy sees them; the migrations create them."""

from __future__ import annotations

from sqlalchemy import Column, Float, Integer, LargeBinary, MetaData, Table, Text

METADATA = MetaData()

MIGRATIONS = Table("migrations", METADATA, Column("number", Integer, primary_key=True), Column("name", Text))

SESSIONS = Table(
    "sessions",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("id", Text),
    Column("created", Text),
    Column("command", Text),
    Column("specs", Text),
    Column("protocol", Text),
    Column("environment", Text),
    Column("fingerprint", Text),
)

OUTCOMES = Table(
    "outcomes",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("session", Integer),
    Column("comparison", Text),
    Column("attempt", Integer),
    Column("spec", Text),
    Column("rank", Integer),
    Column("created", Text),
    Column("command", Text),
    Column("noise_floor", Float(53)),
    Column("record", Text),
)

SAMPLES = Table(
    "samples",
    METADATA,
    Column("outcome", Integer, primary_key=True, autoincrement=False),
    Column("format", Integer),
    Column("data", LargeBinary),
)

FINISHED = Table(
    "finished",
    METADATA,
    Column("session", Integer, primary_key=True, autoincrement=False),
    Column("comparison", Text, primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
)

DOCUMENTS = Table(
    "documents",
    METADATA,
    Column("outcome", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer),
    Column("document", Text),
)

SUMMARIES = Table(
    "summaries",
    METADATA,
    Column("outcome", Integer, primary_key=True, autoincrement=False),
    Column("session", Integer),
    Column("workload", Text),
    Column("backend", Text),
    Column("spec", Text),
    Column("status", Text),
    Column("throughput", Float(53)),
    Column("low", Float(53)),
    Column("high", Float(53)),
    Column("unit", Text),
    Column("efficiency", Float(53)),
    Column("created", Text),
)

MEASUREMENTS = Table(
    "measurements",
    METADATA,
    Column("spec", Text, primary_key=True),
    Column("workload", Text),
    Column("backend", Text),
    Column("session", Integer),
    Column("created", Text),
)

SPREADS = Table(
    "spreads",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("created", Text),
    Column("fingerprint", Text),
    Column("spread", Float(53)),
)

PRUNING = Table("pruning", METADATA, Column("session", Integer, primary_key=True, autoincrement=False))
