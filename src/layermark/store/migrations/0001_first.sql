-- Append-only results: what was asked, what came of it, and the raw samples apart from both.

CREATE TABLE sessions (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    created TEXT NOT NULL,
    command TEXT NOT NULL,
    specs TEXT NOT NULL,
    protocol TEXT NOT NULL,
    environment TEXT NOT NULL,
    fingerprint TEXT NOT NULL
);

CREATE TABLE outcomes (
    number INTEGER PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES sessions (number),
    comparison TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    spec TEXT NOT NULL,
    rank INTEGER NOT NULL,
    created TEXT NOT NULL,
    command TEXT NOT NULL,
    noise_floor REAL,
    record TEXT NOT NULL
);

CREATE INDEX outcomes_by_session ON outcomes (session, comparison, attempt);

-- Format 1: zlib-compressed UTF-8 JSON, a list with one object per block (see store/blob.py).
CREATE TABLE samples (
    outcome INTEGER PRIMARY KEY REFERENCES outcomes (number),
    format INTEGER NOT NULL,
    data BLOB NOT NULL
);

-- A comparison group whose attempt was measured to the end.
CREATE TABLE finished (
    session INTEGER NOT NULL REFERENCES sessions (number),
    comparison TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    PRIMARY KEY (session, comparison, attempt)
);

-- A cache: documents derived from outcomes and samples, without the list of samples.
CREATE TABLE documents (
    outcome INTEGER PRIMARY KEY REFERENCES outcomes (number),
    version INTEGER NOT NULL,
    document TEXT NOT NULL
);

-- How far starts of one program were apart on a machine.
CREATE TABLE spreads (
    number INTEGER PRIMARY KEY,
    created TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    spread REAL NOT NULL
);

CREATE INDEX spreads_by_fingerprint ON spreads (fingerprint);

-- [sqlite]
CREATE TRIGGER sessions_stay BEFORE UPDATE ON sessions BEGIN SELECT RAISE(ABORT, 'sessions are append-only'); END;
CREATE TRIGGER sessions_keep BEFORE DELETE ON sessions BEGIN SELECT RAISE(ABORT, 'sessions are append-only'); END;
CREATE TRIGGER outcomes_stay BEFORE UPDATE ON outcomes BEGIN SELECT RAISE(ABORT, 'outcomes are append-only'); END;
CREATE TRIGGER outcomes_keep BEFORE DELETE ON outcomes BEGIN SELECT RAISE(ABORT, 'outcomes are append-only'); END;
CREATE TRIGGER samples_stay BEFORE UPDATE ON samples BEGIN SELECT RAISE(ABORT, 'samples are append-only'); END;
CREATE TRIGGER samples_keep BEFORE DELETE ON samples BEGIN SELECT RAISE(ABORT, 'samples are append-only'); END;
CREATE TRIGGER finished_stay BEFORE UPDATE ON finished BEGIN SELECT RAISE(ABORT, 'finished groups are append-only'); END;
CREATE TRIGGER finished_keep BEFORE DELETE ON finished BEGIN SELECT RAISE(ABORT, 'finished groups are append-only'); END;

-- [postgresql]
CREATE FUNCTION append_only() RETURNS trigger AS
    'BEGIN RAISE restrict_violation USING MESSAGE = TG_TABLE_NAME || '' are append-only''; END' LANGUAGE plpgsql;
CREATE TRIGGER sessions_stay BEFORE UPDATE OR TRUNCATE ON sessions EXECUTE FUNCTION append_only();
CREATE TRIGGER sessions_keep BEFORE DELETE ON sessions FOR EACH ROW EXECUTE FUNCTION append_only();
CREATE TRIGGER outcomes_stay BEFORE UPDATE OR TRUNCATE ON outcomes EXECUTE FUNCTION append_only();
CREATE TRIGGER outcomes_keep BEFORE DELETE ON outcomes FOR EACH ROW EXECUTE FUNCTION append_only();
CREATE TRIGGER samples_stay BEFORE UPDATE OR TRUNCATE ON samples EXECUTE FUNCTION append_only();
CREATE TRIGGER samples_keep BEFORE DELETE ON samples FOR EACH ROW EXECUTE FUNCTION append_only();
CREATE TRIGGER finished_stay BEFORE UPDATE OR TRUNCATE ON finished EXECUTE FUNCTION append_only();
CREATE TRIGGER finished_keep BEFORE DELETE ON finished FOR EACH ROW EXECUTE FUNCTION append_only();
