"""Wall time that may run out."""

from layermark.session.deadline import Deadline


class Hands:
    now = 100.0

    def __call__(self):
        return self.now


def test_no_limit_is_forever():
    assert float("inf") == Deadline(None).left()
    assert 600 == Deadline(None).timeout(600)


def test_time_runs_out_and_stays_out():
    clock = Hands()
    deadline = Deadline(5, clock)
    clock.now += 3
    assert 2 == deadline.left()
    assert 2 == deadline.timeout(600)
    clock.now += 30
    assert 0 == deadline.left()
    assert 0 < deadline.timeout(600) < 0.01
