-- Histories go by the time at which a session was created, not by the number under which it arrived: an import may
-- bring older sessions than those that are here. The store writes all times alike, so that their texts are in order.

ALTER TABLE summaries ADD COLUMN created TEXT NOT NULL DEFAULT '';
ALTER TABLE measurements ADD COLUMN created TEXT NOT NULL DEFAULT '';

UPDATE summaries SET created = (SELECT sessions.created FROM sessions WHERE sessions.number = summaries.session);

DELETE FROM measurements;
INSERT INTO measurements (spec, workload, backend, session, created)
    SELECT spec, workload, backend, session, created FROM (
        SELECT spec, workload, backend, session, created,
            row_number() OVER (PARTITION BY spec ORDER BY created DESC, session DESC) AS place
        FROM summaries
    ) AS ranked WHERE place = 1;

DROP INDEX measurements_by_workload;
CREATE INDEX sessions_by_created ON sessions (created, number);
CREATE INDEX summaries_by_created ON summaries (spec, created, session);
CREATE INDEX measurements_by_created ON measurements (created, session);
CREATE INDEX measurements_by_workload ON measurements (workload, created, session);
