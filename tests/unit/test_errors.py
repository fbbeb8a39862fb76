from layermark.errors import UserError, WorkerFailed, unknown


def test_unknown_offers_the_nearest_names() -> None:
    error = unknown("workload", "lstn", ["lstm", "gru", "lstm_multi"])
    assert isinstance(error, UserError)
    assert str(error) == "unknown workload 'lstn'; did you mean lstm? known: gru, lstm, lstm_multi"


def test_unknown_without_a_near_name_lists_all() -> None:
    assert str(unknown("backend", "zzz", ["torch", "jax"])) == "unknown backend 'zzz'; known: jax, torch"


def test_worker_failed_keeps_the_log() -> None:
    failure = WorkerFailed("killed by signal SIGKILL", "last line")
    assert (failure.reason, failure.log, str(failure)) == (
        "killed by signal SIGKILL",
        "last line",
        "killed by signal SIGKILL",
    )
