-- What a history reads of every document, in columns with an index, and a door through which whole sessions may leave.

-- A cache, as documents are. Only rank 0: the other ranks repeat its measurement.
CREATE TABLE summaries (
    outcome INTEGER PRIMARY KEY REFERENCES outcomes (number),
    session INTEGER NOT NULL,
    workload TEXT NOT NULL,
    backend TEXT NOT NULL,
    spec TEXT NOT NULL,
    status TEXT NOT NULL,
    throughput REAL,
    low REAL,
    high REAL,
    unit TEXT,
    efficiency REAL
);

CREATE INDEX summaries_by_spec ON summaries (spec, session);

-- A cache as well: every spec once, with the newest session that measured it, so that a million results are not
-- looked through for what was measured last.
CREATE TABLE measurements (
    spec TEXT PRIMARY KEY,
    workload TEXT NOT NULL,
    backend TEXT NOT NULL,
    session INTEGER NOT NULL REFERENCES sessions (number)
);

CREATE INDEX measurements_by_session ON measurements (session);
CREATE INDEX measurements_by_workload ON measurements (workload, session);

-- The sessions that the running transaction removes; empty outside of it.
CREATE TABLE pruning (session INTEGER PRIMARY KEY);

-- [sqlite]
-- Stores of the first schema were all SQLite.
INSERT INTO summaries
    SELECT o.number, o.session,
        json_extract(d.document, '$.spec.workload'), json_extract(d.document, '$.spec.backend'), o.spec,
        json_extract(d.document, '$.status'), json_extract(d.document, '$.throughput.value'),
        json_extract(d.document, '$.throughput.low'), json_extract(d.document, '$.throughput.high'),
        json_extract(d.document, '$.throughput.unit'), json_extract(d.document, '$.efficiency')
    FROM outcomes o JOIN documents d ON d.outcome = o.number WHERE o.rank = 0;

INSERT INTO measurements SELECT spec, min(workload), min(backend), max(session) FROM summaries GROUP BY spec;

DROP TRIGGER sessions_keep;
DROP TRIGGER outcomes_keep;
DROP TRIGGER samples_keep;
DROP TRIGGER finished_keep;
CREATE TRIGGER sessions_keep BEFORE DELETE ON sessions
    WHEN OLD.number NOT IN (SELECT session FROM pruning)
    BEGIN SELECT RAISE(ABORT, 'sessions are append-only'); END;
CREATE TRIGGER outcomes_keep BEFORE DELETE ON outcomes
    WHEN OLD.session NOT IN (SELECT session FROM pruning)
    BEGIN SELECT RAISE(ABORT, 'outcomes are append-only'); END;
CREATE TRIGGER samples_keep BEFORE DELETE ON samples
    WHEN (SELECT session FROM outcomes WHERE number = OLD.outcome) NOT IN (SELECT session FROM pruning)
    BEGIN SELECT RAISE(ABORT, 'samples are append-only'); END;
CREATE TRIGGER finished_keep BEFORE DELETE ON finished
    WHEN OLD.session NOT IN (SELECT session FROM pruning)
    BEGIN SELECT RAISE(ABORT, 'finished groups are append-only'); END;

-- [postgresql]
CREATE FUNCTION pruned_only() RETURNS trigger AS '
    DECLARE owner BIGINT;
    BEGIN
        CASE TG_TABLE_NAME
            WHEN ''sessions'' THEN owner := OLD.number;
            WHEN ''samples'' THEN SELECT session INTO owner FROM outcomes WHERE number = OLD.outcome;
            ELSE owner := OLD.session;
        END CASE;
        IF EXISTS (SELECT 1 FROM pruning WHERE session = owner) THEN RETURN OLD; END IF;
        RAISE restrict_violation USING MESSAGE = TG_TABLE_NAME || '' are append-only'';
    END' LANGUAGE plpgsql;
DROP TRIGGER sessions_keep ON sessions;
DROP TRIGGER outcomes_keep ON outcomes;
DROP TRIGGER samples_keep ON samples;
DROP TRIGGER finished_keep ON finished;
CREATE TRIGGER sessions_keep BEFORE DELETE ON sessions FOR EACH ROW EXECUTE FUNCTION pruned_only();
CREATE TRIGGER outcomes_keep BEFORE DELETE ON outcomes FOR EACH ROW EXECUTE FUNCTION pruned_only();
CREATE TRIGGER samples_keep BEFORE DELETE ON samples FOR EACH ROW EXECUTE FUNCTION pruned_only();
CREATE TRIGGER finished_keep BEFORE DELETE ON finished FOR EACH ROW EXECUTE FUNCTION pruned_only();
