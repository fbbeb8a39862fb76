PRAGMA application_id = 1280135755;
BEGIN TRANSACTION;
CREATE TABLE documents (
    outcome INTEGER PRIMARY KEY REFERENCES outcomes (number),
    version INTEGER NOT NULL,
    document TEXT NOT NULL
);
INSERT INTO "documents" VALUES(1,2,'{"schema": 1, "session": "recorded", "group": "5e4c0a79991af134", "rank": 0, "status": "ok", "reason": "", "spec": {"workload": "lstm", "backend": "torch", "params": {"hidden_size": 64}, "mode": "infer", "batch_size": 4, "precision": "32.32", "partials": "full", "device": "cpu", "data": "synthetic", "values": "random", "batches_per_step": 1, "execution": "auto", "formulation": "library", "loss": "target", "threads": 2, "ring": 4, "cache": "warm", "subnormals": "flush", "allocator": "retain", "learning_rate": 0.01, "seed": 42, "weights": "", "pipeline_splits": "", "loading": {"data_dir": "", "source": "auto", "split": "validation", "normalise": "full", "augment": false, "shuffle": false, "loader_workers": -1, "prefetch": 0, "loader_chunk": 0, "data_cache": 0.0, "skip_bad": false}, "plan": {"instances": 1, "replicas": 1, "stages": 1, "micro_batches": 1}}, "settings": {"layout": "NTC", "compute_type": null, "output_type": null, "clock": "perf_counter", "execution": "eager", "formulation": "library", "loss": "target", "subnormals": "flush", "allocator": "retain", "cell": null}, "throughput": {"value": 400.0, "low": 399.6003996003996, "high": 400.4004004004004, "unit": "sequences/s"}, "sustained": {"value": 399.99999999999994, "low": 399.8334027488546, "high": 400.1667361400583, "unit": "sequences/s"}, "latency_ms": {"p50": 10.0, "p90": 10.01, "p99": null}, "compile_s": 0.5, "timings_s": {"import": 1.0, "compile": 0.5, "first_step": 0.1, "warm_up": 0.2}, "memory": {"peak_rss_bytes": 1000}, "efficiency": 0.1, "impossible": false, "ceiling": {"flops_per_s": 1000000000.0, "bytes_per_s": 2000000000.0, "flops": 1000000, "bytes": 1000000, "intensity": 1.0, "bound": "arithmetic", "probe": "torch float32"}, "noise_floor": 0.0019980019980019303, "verified": {"ok": true, "max_error": 2e-06, "tolerance": 0.0001, "against": "numpy float64", "worst": "", "reason": ""}, "accuracy": {"against": null, "items": null, "relative_error": null, "top1_agreement": null}, "environment": {"cpu": "some"}, "command": "", "warnings": ["p99 is not given: 120 latencies, 300 needed"], "log": null}');
INSERT INTO "documents" VALUES(2,2,'{"schema": 1, "session": "recorded", "group": "c4338c12a26bf10c", "rank": 0, "status": "skipped", "reason": "no such thing", "spec": {"workload": "dense", "backend": "torch", "params": {}, "mode": "infer", "batch_size": 4, "precision": "32.32", "partials": "full", "device": "cpu", "data": "synthetic", "values": "random", "batches_per_step": 1, "execution": "auto", "formulation": "library", "loss": "target", "threads": 2, "ring": 4, "cache": "warm", "subnormals": "flush", "allocator": "retain", "learning_rate": 0.01, "seed": 42, "weights": "", "pipeline_splits": "", "loading": {"data_dir": "", "source": "auto", "split": "validation", "normalise": "full", "augment": false, "shuffle": false, "loader_workers": -1, "prefetch": 0, "loader_chunk": 0, "data_cache": 0.0, "skip_bad": false}, "plan": {"instances": 1, "replicas": 1, "stages": 1, "micro_batches": 1}}, "settings": {"layout": null, "compute_type": null, "output_type": null, "clock": null, "execution": "auto", "formulation": "library", "loss": "target", "subnormals": "flush", "allocator": "retain", "cell": null}, "throughput": {"value": null, "low": null, "high": null, "unit": null}, "sustained": {"value": null, "low": null, "high": null, "unit": null}, "latency_ms": {"p50": null, "p90": null, "p99": null}, "compile_s": null, "timings_s": null, "memory": {"peak_rss_bytes": null}, "efficiency": null, "impossible": false, "ceiling": {"flops_per_s": null, "bytes_per_s": null, "flops": null, "bytes": null, "intensity": null, "bound": null, "probe": null}, "noise_floor": null, "verified": {"ok": null, "max_error": null, "tolerance": null, "against": null, "worst": null, "reason": null}, "accuracy": {"against": null, "items": null, "relative_error": null, "top1_agreement": null}, "environment": null, "command": "", "warnings": [], "log": null}');
CREATE TABLE finished (
    session INTEGER NOT NULL REFERENCES sessions (number),
    comparison TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    PRIMARY KEY (session, comparison, attempt)
);
INSERT INTO "finished" VALUES(1,'5e4c0a79991af134',1);
INSERT INTO "finished" VALUES(1,'c4338c12a26bf10c',1);
CREATE TABLE migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP);
INSERT INTO "migrations" VALUES(1,'0001_first.sql','2026-11-18 08:05:46');
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
INSERT INTO "outcomes" VALUES(1,1,'5e4c0a79991af134',1,'91ae2476af6fe9e7',0,'2026-11-18T08:05:46+00:00','',1.99800199800193034604e-03,'{"schema": 1, "kind": "Run", "items_per_batch": 4, "item": "sequence", "settings": {"execution": "eager", "layout": "NTC"}, "environment": {"cpu": "some"}, "timings_s": {"import": 1.0, "compile": 0.5, "first_step": 0.1, "warm_up": 0.2}, "memory": {"peak_rss_bytes": 1000}, "clock": "perf_counter", "verified": {"ok": true, "max_error": 2e-06, "tolerance": 0.0001, "against": "numpy float64", "worst": "", "reason": ""}, "ceiling": {"flops_per_s": [900000000.0, 1000000000.0, 1100000000.0], "bytes_per_s": [1800000000.0, 2000000000.0, 2200000000.0], "flops": 1000000, "bytes": 1000000, "probe": "torch float32"}, "accuracy": null, "faults": [], "warnings": [], "spec": {"workload": "lstm", "backend": "torch", "params": {"hidden_size": 64}, "mode": "infer", "batch_size": 4, "precision": "32.32", "partials": "full", "device": "cpu", "data": "synthetic", "values": "random", "batches_per_step": 1, "execution": "auto", "formulation": "library", "loss": "target", "threads": 2, "ring": 4, "cache": "warm", "subnormals": "flush", "allocator": "retain", "learning_rate": 0.01, "seed": 42, "weights": "", "pipeline_splits": "", "loading": {"data_dir": "", "source": "auto", "split": "validation", "normalise": "full", "augment": false, "shuffle": false, "loader_workers": -1, "prefetch": 0, "loader_chunk": 0, "data_cache": 0.0, "skip_bad": false}, "plan": {"instances": 1, "replicas": 1, "stages": 1, "micro_batches": 1}}}');
INSERT INTO "outcomes" VALUES(2,1,'c4338c12a26bf10c',1,'91b5ec0ce200d09c',0,'2026-11-18T08:05:46+00:00','',NULL,'{"schema": 1, "kind": "Skipped", "reason": "no such thing", "spec": {"workload": "dense", "backend": "torch", "params": {}, "mode": "infer", "batch_size": 4, "precision": "32.32", "partials": "full", "device": "cpu", "data": "synthetic", "values": "random", "batches_per_step": 1, "execution": "auto", "formulation": "library", "loss": "target", "threads": 2, "ring": 4, "cache": "warm", "subnormals": "flush", "allocator": "retain", "learning_rate": 0.01, "seed": 42, "weights": "", "pipeline_splits": "", "loading": {"data_dir": "", "source": "auto", "split": "validation", "normalise": "full", "augment": false, "shuffle": false, "loader_workers": -1, "prefetch": 0, "loader_chunk": 0, "data_cache": 0.0, "skip_bad": false}, "plan": {"instances": 1, "replicas": 1, "stages": 1, "micro_batches": 1}}}');
CREATE TABLE samples (
    outcome INTEGER PRIMARY KEY REFERENCES outcomes (number),
    format INTEGER NOT NULL,
    data BLOB NOT NULL
);
INSERT INTO "samples" VALUES(1,1,X'789CED93C10A83300C86DF25E732748381BE8A48C9BA0E3B6A1DB69D13F1DD57D7093BECB0830771E9257FFE1E92FCF0150308D4DA429E3238A113958CDA627DD3D27213DA224DE2634B8B928146278D50F3A8E088C638F970900F706FB4370EDB9EDB4EBD97DB3350E6DB47D8BA56A669F905BD7693910407AF1F4E30AC93A8F9A477A113371FF59141178288CD2164E16DCF5DD54A3C4F33C791FD9A543A5FB8A8D85C525996BD0E5CA86E2E1F628E9823E688B9D52645CC1173C41C31B7C2A4FE97B9F209450D1A8D');
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
INSERT INTO "sessions" VALUES(1,'recorded','2026-11-18T08:05:46+00:00','layermark run lstm dense','[{"workload": "lstm", "backend": "torch", "params": {"hidden_size": 64}, "mode": "infer", "batch_size": 4, "precision": "32.32", "partials": "full", "device": "cpu", "data": "synthetic", "values": "random", "batches_per_step": 1, "execution": "auto", "formulation": "library", "loss": "target", "threads": 2, "ring": 4, "cache": "warm", "subnormals": "flush", "allocator": "retain", "learning_rate": 0.01, "seed": 42, "weights": "", "pipeline_splits": "", "loading": {"data_dir": "", "source": "auto", "split": "validation", "normalise": "full", "augment": false, "shuffle": false, "loader_workers": -1, "prefetch": 0, "loader_chunk": 0, "data_cache": 0.0, "skip_bad": false}, "plan": {"instances": 1, "replicas": 1, "stages": 1, "micro_batches": 1}}, {"workload": "dense", "backend": "torch", "params": {}, "mode": "infer", "batch_size": 4, "precision": "32.32", "partials": "full", "device": "cpu", "data": "synthetic", "values": "random", "batches_per_step": 1, "execution": "auto", "formulation": "library", "loss": "target", "threads": 2, "ring": 4, "cache": "warm", "subnormals": "flush", "allocator": "retain", "learning_rate": 0.01, "seed": 42, "weights": "", "pipeline_splits": "", "loading": {"data_dir": "", "source": "auto", "split": "validation", "normalise": "full", "augment": false, "shuffle": false, "loader_workers": -1, "prefetch": 0, "loader_chunk": 0, "data_cache": 0.0, "skip_bad": false}, "plan": {"instances": 1, "replicas": 1, "stages": 1, "micro_batches": 1}}]','{"precision_goal": 0.01, "time_box": 10.0, "block": 0.3, "min_blocks": 6, "min_steps": 5, "timeout": 600.0, "memory_limit": 0}','{"cpu": "some", "cores": 2, "memory_bytes": 8000000000}','machine');
CREATE TABLE spreads (
    number INTEGER PRIMARY KEY,
    created TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    spread REAL NOT NULL
);
INSERT INTO "spreads" VALUES(1,'2026-11-18T08:05:46+00:00','machine',0.02);
CREATE INDEX outcomes_by_session ON outcomes (session, comparison, attempt);
CREATE INDEX spreads_by_fingerprint ON spreads (fingerprint);
CREATE TRIGGER sessions_stay BEFORE UPDATE ON sessions BEGIN SELECT RAISE(ABORT, 'sessions are append-only'); END;
CREATE TRIGGER sessions_keep BEFORE DELETE ON sessions BEGIN SELECT RAISE(ABORT, 'sessions are append-only'); END;
CREATE TRIGGER outcomes_stay BEFORE UPDATE ON outcomes BEGIN SELECT RAISE(ABORT, 'outcomes are append-only'); END;
CREATE TRIGGER outcomes_keep BEFORE DELETE ON outcomes BEGIN SELECT RAISE(ABORT, 'outcomes are append-only'); END;
CREATE TRIGGER samples_stay BEFORE UPDATE ON samples BEGIN SELECT RAISE(ABORT, 'samples are append-only'); END;
CREATE TRIGGER samples_keep BEFORE DELETE ON samples BEGIN SELECT RAISE(ABORT, 'samples are append-only'); END;
CREATE TRIGGER finished_stay BEFORE UPDATE ON finished BEGIN SELECT RAISE(ABORT, 'finished groups are append-only'); END;
CREATE TRIGGER finished_keep BEFORE DELETE ON finished BEGIN SELECT RAISE(ABORT, 'finished groups are append-only'); END;
COMMIT;
