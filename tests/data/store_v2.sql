PRAGMA application_id = 1280135755;
BEGIN TRANSACTION;
CREATE TABLE documents (
    outcome INTEGER PRIMARY KEY REFERENCES outcomes (number),
    version INTEGER NOT NULL,
    document TEXT NOT NULL
);
INSERT INTO "documents" VALUES(1,7,'{"schema": 2, "session": "recorded", "group": "5e4c0a79991af134", "rank": 0, "status": "ok", "reason": "", "reason_code": null, "instead": {}, "spec": {"workload": "lstm", "backend": "torch", "params": {"hidden_size": 64}, "mode": "infer", "batch_size": 4, "precision": "32.32", "partials": "full", "norms": "own", "device": "cpu", "data": "synthetic", "values": "random", "batches_per_step": 1, "execution": "auto", "formulation": "library", "loss": "target", "threads": 2, "ring": 4, "cache": "warm", "subnormals": "flush", "allocator": "retain", "learning_rate": 0.01, "seed": 42, "weights": "", "pipeline_splits": "", "pipeline_schedule": "Interleaved", "bucket_bytes": 10485760, "loading": {"data_dir": "", "source": "auto", "split": "validation", "normalise": "full", "augment": false, "shuffle": false, "loader_workers": -1, "prefetch": 0, "loader_chunk": 0, "data_cache": 0.0, "skip_bad": false}, "plan": {"instances": 1, "replicas": 1, "stages": 1, "micro_batches": 1}, "update": {"optimiser": "sgd", "momentum": 0.9, "rmsprop_decay": 0.9, "rmsprop_epsilon": 0.001, "lars_eeta": 0.001, "lars_epsilon": 0.0, "lars_skip": ["beta", "gamma", "bias"], "weight_decay": 0.0, "decay_per": "update", "label_smoothing": 0.0, "loss_scaling": 1.0, "dynamic_scaling": false, "clip_norm": 0.0, "accumulation": 1, "statistics_per": "micro-batch", "variable_filter": [], "replicas": 1}, "mixing": {"mixup_alpha": 0.0, "cutmix_lambda": 1.0, "cutmix_version": 1, "mixing_place": "device"}}, "settings": {"layout": "NTC", "compute_type": null, "output_type": null, "clock": "perf_counter", "execution": "eager", "formulation": "library", "loss": "target", "subnormals": "flush", "allocator": "retain", "cell": null}, "throughput": {"value": 400.0, "low": 399.6003996003996, "high": 400.4004004004004, "unit": "sequences/s"}, "sustained": {"value": 399.99999999999994, "low": 399.8334027488546, "high": 400.1667361400583, "unit": "sequences/s"}, "mean_rate": {"value": 400.0002909093818, "unit": "sequences/s"}, "ranks": [], "scaling": {"alone": null, "efficiency": null}, "pipeline": null, "communication": null, "lanes": null, "latency_ms": {"p50": 10.0, "p90": 10.01, "p99": null}, "compile_s": 0.5, "timings_s": {"import": 1.0, "compile": 0.5, "first_step": 0.1, "warm_up": 0.2}, "wall_s": null, "memory": {"peak_rss_bytes": 1000}, "efficiency": 0.1, "impossible": false, "ceiling": {"flops_per_s": 1000000000.0, "bytes_per_s": 2000000000.0, "flops": 1000000, "bytes": 1000000, "intensity": 1.0, "bound": "arithmetic", "probe": "torch float32"}, "noise_floor": 0.0019980019980019303, "verified": {"ok": true, "max_error": 2e-06, "tolerance": 0.0001, "against": "numpy float64", "worst": "", "reason": ""}, "accuracy": {"against": null, "items": null, "relative_error": null, "top1_agreement": null}, "profile": null, "environment": {"cpu": "some"}, "command": "", "warnings": ["p99 is not given: 120 latencies, 300 needed"], "warning_codes": ["few_latencies"], "log": null}');
INSERT INTO "documents" VALUES(2,7,'{"schema": 2, "session": "recorded", "group": "c4338c12a26bf10c", "rank": 0, "status": "skipped", "reason": "no such thing", "reason_code": "unsupported", "instead": {}, "spec": {"workload": "dense", "backend": "torch", "params": {}, "mode": "infer", "batch_size": 4, "precision": "32.32", "partials": "full", "norms": "own", "device": "cpu", "data": "synthetic", "values": "random", "batches_per_step": 1, "execution": "auto", "formulation": "library", "loss": "target", "threads": 2, "ring": 4, "cache": "warm", "subnormals": "flush", "allocator": "retain", "learning_rate": 0.01, "seed": 42, "weights": "", "pipeline_splits": "", "pipeline_schedule": "Interleaved", "bucket_bytes": 10485760, "loading": {"data_dir": "", "source": "auto", "split": "validation", "normalise": "full", "augment": false, "shuffle": false, "loader_workers": -1, "prefetch": 0, "loader_chunk": 0, "data_cache": 0.0, "skip_bad": false}, "plan": {"instances": 1, "replicas": 1, "stages": 1, "micro_batches": 1}, "update": {"optimiser": "sgd", "momentum": 0.9, "rmsprop_decay": 0.9, "rmsprop_epsilon": 0.001, "lars_eeta": 0.001, "lars_epsilon": 0.0, "lars_skip": ["beta", "gamma", "bias"], "weight_decay": 0.0, "decay_per": "update", "label_smoothing": 0.0, "loss_scaling": 1.0, "dynamic_scaling": false, "clip_norm": 0.0, "accumulation": 1, "statistics_per": "micro-batch", "variable_filter": [], "replicas": 1}, "mixing": {"mixup_alpha": 0.0, "cutmix_lambda": 1.0, "cutmix_version": 1, "mixing_place": "device"}}, "settings": {"layout": null, "compute_type": null, "output_type": null, "clock": null, "execution": "auto", "formulation": "library", "loss": "target", "subnormals": "flush", "allocator": "retain", "cell": null}, "throughput": {"value": null, "low": null, "high": null, "unit": null}, "sustained": {"value": null, "low": null, "high": null, "unit": null}, "mean_rate": {"value": null, "unit": null}, "ranks": [], "scaling": {"alone": null, "efficiency": null}, "pipeline": null, "communication": null, "lanes": null, "latency_ms": {"p50": null, "p90": null, "p99": null}, "compile_s": null, "timings_s": null, "wall_s": null, "memory": {"peak_rss_bytes": null}, "efficiency": null, "impossible": false, "ceiling": {"flops_per_s": null, "bytes_per_s": null, "flops": null, "bytes": null, "intensity": null, "bound": null, "probe": null}, "noise_floor": null, "verified": {"ok": null, "max_error": null, "tolerance": null, "against": null, "worst": null, "reason": null}, "accuracy": {"against": null, "items": null, "relative_error": null, "top1_agreement": null}, "profile": null, "environment": null, "command": "", "warnings": [], "warning_codes": [], "log": null}');
CREATE TABLE finished (
    session INTEGER NOT NULL REFERENCES sessions (number),
    comparison TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    PRIMARY KEY (session, comparison, attempt)
);
INSERT INTO "finished" VALUES(1,'5e4c0a79991af134',1);
INSERT INTO "finished" VALUES(1,'c4338c12a26bf10c',1);
CREATE TABLE measurements (
    spec TEXT PRIMARY KEY,
    workload TEXT NOT NULL,
    backend TEXT NOT NULL,
    session INTEGER NOT NULL REFERENCES sessions (number)
);
INSERT INTO "measurements" VALUES('91ae2476af6fe9e7','lstm','torch',1);
INSERT INTO "measurements" VALUES('91b5ec0ce200d09c','dense','torch',1);
CREATE TABLE migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP);
INSERT INTO "migrations" VALUES(1,'0001_first.sql','2026-11-19 06:15:49');
INSERT INTO "migrations" VALUES(2,'0002_history.sql','2026-11-19 06:15:49');
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
INSERT INTO "outcomes" VALUES(1,1,'5e4c0a79991af134',1,'91ae2476af6fe9e7',0,'2026-11-19T06:15:49+00:00','',1.99800199800193034604e-03,'{"schema": 2, "kind": "Run", "items_per_batch": 4, "item": "sequence", "settings": {"execution": "eager", "layout": "NTC"}, "environment": {"cpu": "some"}, "timings_s": {"import": 1.0, "compile": 0.5, "first_step": 0.1, "warm_up": 0.2}, "memory": {"peak_rss_bytes": 1000}, "clock": "perf_counter", "verified": {"ok": true, "max_error": 2e-06, "tolerance": 0.0001, "against": "numpy float64", "worst": "", "reason": ""}, "ceiling": {"flops_per_s": [900000000.0, 1000000000.0, 1100000000.0], "bytes_per_s": [1800000000.0, 2000000000.0, 2200000000.0], "flops": 1000000, "bytes": 1000000, "probe": "torch float32"}, "accuracy": null, "faults": [], "warnings": [], "precision_goal": 0.01, "alone": [], "wall_s": {}, "profile": null, "pipeline": null, "communication": null, "spec": {"workload": "lstm", "backend": "torch", "params": {"hidden_size": 64}, "mode": "infer", "batch_size": 4, "precision": "32.32", "partials": "full", "norms": "own", "device": "cpu", "data": "synthetic", "values": "random", "batches_per_step": 1, "execution": "auto", "formulation": "library", "loss": "target", "threads": 2, "ring": 4, "cache": "warm", "subnormals": "flush", "allocator": "retain", "learning_rate": 0.01, "seed": 42, "weights": "", "pipeline_splits": "", "pipeline_schedule": "Interleaved", "bucket_bytes": 10485760, "loading": {"data_dir": "", "source": "auto", "split": "validation", "normalise": "full", "augment": false, "shuffle": false, "loader_workers": -1, "prefetch": 0, "loader_chunk": 0, "data_cache": 0.0, "skip_bad": false}, "plan": {"instances": 1, "replicas": 1, "stages": 1, "micro_batches": 1}, "update": {"optimiser": "sgd", "momentum": 0.9, "rmsprop_decay": 0.9, "rmsprop_epsilon": 0.001, "lars_eeta": 0.001, "lars_epsilon": 0.0, "lars_skip": ["beta", "gamma", "bias"], "weight_decay": 0.0, "decay_per": "update", "label_smoothing": 0.0, "loss_scaling": 1.0, "dynamic_scaling": false, "clip_norm": 0.0, "accumulation": 1, "statistics_per": "micro-batch", "variable_filter": [], "replicas": 1}, "mixing": {"mixup_alpha": 0.0, "cutmix_lambda": 1.0, "cutmix_version": 1, "mixing_place": "device"}}}');
INSERT INTO "outcomes" VALUES(2,1,'c4338c12a26bf10c',1,'91b5ec0ce200d09c',0,'2026-11-19T06:15:49+00:00','',NULL,'{"schema": 2, "kind": "Skipped", "reason": "no such thing", "code": "unsupported", "instead": {}, "spec": {"workload": "dense", "backend": "torch", "params": {}, "mode": "infer", "batch_size": 4, "precision": "32.32", "partials": "full", "norms": "own", "device": "cpu", "data": "synthetic", "values": "random", "batches_per_step": 1, "execution": "auto", "formulation": "library", "loss": "target", "threads": 2, "ring": 4, "cache": "warm", "subnormals": "flush", "allocator": "retain", "learning_rate": 0.01, "seed": 42, "weights": "", "pipeline_splits": "", "pipeline_schedule": "Interleaved", "bucket_bytes": 10485760, "loading": {"data_dir": "", "source": "auto", "split": "validation", "normalise": "full", "augment": false, "shuffle": false, "loader_workers": -1, "prefetch": 0, "loader_chunk": 0, "data_cache": 0.0, "skip_bad": false}, "plan": {"instances": 1, "replicas": 1, "stages": 1, "micro_batches": 1}, "update": {"optimiser": "sgd", "momentum": 0.9, "rmsprop_decay": 0.9, "rmsprop_epsilon": 0.001, "lars_eeta": 0.001, "lars_epsilon": 0.0, "lars_skip": ["beta", "gamma", "bias"], "weight_decay": 0.0, "decay_per": "update", "label_smoothing": 0.0, "loss_scaling": 1.0, "dynamic_scaling": false, "clip_norm": 0.0, "accumulation": 1, "statistics_per": "micro-batch", "variable_filter": [], "replicas": 1}, "mixing": {"mixup_alpha": 0.0, "cutmix_lambda": 1.0, "cutmix_version": 1, "mixing_place": "device"}}}');
CREATE TABLE pruning (session INTEGER PRIMARY KEY);
CREATE TABLE samples (
    outcome INTEGER PRIMARY KEY REFERENCES outcomes (number),
    format INTEGER NOT NULL,
    data BLOB NOT NULL
);
INSERT INTO "samples" VALUES(1,1,X'789CED93410A83301045EF32EB50B485825E45244CD3146D639424D68A78F7C6A642175D74214564DCE4CF7791C983970D2050290B69CCE0844E1432648B55A3A4E5DA8F591C858F2D1D72060A9DD4A29CAFF28DA8B5930F07E900F75AB5DAA1E9B9EDCAF7727B06A5FEF6C36F5D95BA36FC82AD725311F906AF1F8D2FAC93A8F894777E124D1BF29141E74184E1E059B4B6E7AE3012CFD39D230383FA362F39B25FB9C5F37B170D1BE79624C9EBB90B9D1BA74576929D64E75A69919D6427D9B9565A6427D94976FE9F56FE043E005399');
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
INSERT INTO "sessions" VALUES(1,'recorded','2026-11-19T06:15:49+00:00','layermark run lstm dense','[{"workload": "lstm", "backend": "torch", "params": {"hidden_size": 64}, "mode": "infer", "batch_size": 4, "precision": "32.32", "partials": "full", "norms": "own", "device": "cpu", "data": "synthetic", "values": "random", "batches_per_step": 1, "execution": "auto", "formulation": "library", "loss": "target", "threads": 2, "ring": 4, "cache": "warm", "subnormals": "flush", "allocator": "retain", "learning_rate": 0.01, "seed": 42, "weights": "", "pipeline_splits": "", "pipeline_schedule": "Interleaved", "bucket_bytes": 10485760, "loading": {"data_dir": "", "source": "auto", "split": "validation", "normalise": "full", "augment": false, "shuffle": false, "loader_workers": -1, "prefetch": 0, "loader_chunk": 0, "data_cache": 0.0, "skip_bad": false}, "plan": {"instances": 1, "replicas": 1, "stages": 1, "micro_batches": 1}, "update": {"optimiser": "sgd", "momentum": 0.9, "rmsprop_decay": 0.9, "rmsprop_epsilon": 0.001, "lars_eeta": 0.001, "lars_epsilon": 0.0, "lars_skip": ["beta", "gamma", "bias"], "weight_decay": 0.0, "decay_per": "update", "label_smoothing": 0.0, "loss_scaling": 1.0, "dynamic_scaling": false, "clip_norm": 0.0, "accumulation": 1, "statistics_per": "micro-batch", "variable_filter": [], "replicas": 1}, "mixing": {"mixup_alpha": 0.0, "cutmix_lambda": 1.0, "cutmix_version": 1, "mixing_place": "device"}}, {"workload": "dense", "backend": "torch", "params": {}, "mode": "infer", "batch_size": 4, "precision": "32.32", "partials": "full", "norms": "own", "device": "cpu", "data": "synthetic", "values": "random", "batches_per_step": 1, "execution": "auto", "formulation": "library", "loss": "target", "threads": 2, "ring": 4, "cache": "warm", "subnormals": "flush", "allocator": "retain", "learning_rate": 0.01, "seed": 42, "weights": "", "pipeline_splits": "", "pipeline_schedule": "Interleaved", "bucket_bytes": 10485760, "loading": {"data_dir": "", "source": "auto", "split": "validation", "normalise": "full", "augment": false, "shuffle": false, "loader_workers": -1, "prefetch": 0, "loader_chunk": 0, "data_cache": 0.0, "skip_bad": false}, "plan": {"instances": 1, "replicas": 1, "stages": 1, "micro_batches": 1}, "update": {"optimiser": "sgd", "momentum": 0.9, "rmsprop_decay": 0.9, "rmsprop_epsilon": 0.001, "lars_eeta": 0.001, "lars_epsilon": 0.0, "lars_skip": ["beta", "gamma", "bias"], "weight_decay": 0.0, "decay_per": "update", "label_smoothing": 0.0, "loss_scaling": 1.0, "dynamic_scaling": false, "clip_norm": 0.0, "accumulation": 1, "statistics_per": "micro-batch", "variable_filter": [], "replicas": 1}, "mixing": {"mixup_alpha": 0.0, "cutmix_lambda": 1.0, "cutmix_version": 1, "mixing_place": "device"}}]','{"precision_goal": 0.01, "time_box": 10.0, "block": 0.3, "min_blocks": 6, "min_steps": 5, "timeout": 600.0, "trial": "known", "memory_limit": 0}','{"cpu": "some"}','machine');
CREATE TABLE spreads (
    number INTEGER PRIMARY KEY,
    created TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    spread REAL NOT NULL
);
INSERT INTO "spreads" VALUES(1,'2026-11-19T06:15:49+00:00','machine',0.02);
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
INSERT INTO "summaries" VALUES(1,1,'lstm','torch','91ae2476af6fe9e7','ok',400.0,3.99600399600399612152e+02,4.00400400400400371817e+02,'sequences/s',0.1);
INSERT INTO "summaries" VALUES(2,1,'dense','torch','91b5ec0ce200d09c','skipped',NULL,NULL,NULL,NULL,NULL);
CREATE INDEX outcomes_by_session ON outcomes (session, comparison, attempt);
CREATE INDEX spreads_by_fingerprint ON spreads (fingerprint);
CREATE TRIGGER sessions_stay BEFORE UPDATE ON sessions BEGIN SELECT RAISE(ABORT, 'sessions are append-only'); END;
CREATE TRIGGER outcomes_stay BEFORE UPDATE ON outcomes BEGIN SELECT RAISE(ABORT, 'outcomes are append-only'); END;
CREATE TRIGGER samples_stay BEFORE UPDATE ON samples BEGIN SELECT RAISE(ABORT, 'samples are append-only'); END;
CREATE TRIGGER finished_stay BEFORE UPDATE ON finished BEGIN SELECT RAISE(ABORT, 'finished groups are append-only'); END;
CREATE INDEX summaries_by_spec ON summaries (spec, session);
CREATE INDEX measurements_by_session ON measurements (session);
CREATE INDEX measurements_by_workload ON measurements (workload, session);
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
COMMIT;
