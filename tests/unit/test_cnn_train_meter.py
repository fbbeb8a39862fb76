"""How host calls become the figures of a line."""

import pytest

from layermark.seeds.cnns.train_meter import HostCall, Meter


def a_call(seconds, loss=1.0, **changes):
    given = {"updates": 4, "pictures": 400, "rate": 0.5, "accuracy": 10 * loss}
    return HostCall(seconds=seconds, loss=loss, **(given | changes))


def a_meter(**changes):
    given = {"global_batch": 100, "epoch_pictures": 1000, "calls_per_epoch": 2, "steps_per_call": 1}
    return Meter(**(given | changes))


def test_a_line_covers_the_calls_since_the_last_one():
    meter = a_meter()
    meter.add(a_call(80.0))
    first = meter.progress()
    for seconds in (1.0, 3.0):
        meter.add(a_call(seconds))
    second = meter.progress()
    assert (first.update_s, first.images_per_s) == (20.0, 5.0)
    assert (second.update_s, second.images_per_s) == (0.5, 200.0)
    assert (second.step, second.iteration, second.epoch, second.total_s) == (3, 12, 1.2, 84.0)


def test_the_rate_counts_pictures_that_were_really_processed():
    meter = a_meter()
    meter.add(a_call(2.0, pictures=30))
    line = meter.progress()
    assert line.images_per_s == 15.0
    assert line.epoch == pytest.approx(0.4)


def test_means_cover_at_most_one_epoch_of_calls():
    meter = a_meter()
    for loss in (9.0, 2.0, 4.0):
        meter.add(a_call(1.0, loss))
    line = meter.progress()
    assert (line.loss_batch, line.loss_mean) == (4.0, 3.0)
    assert (line.accuracy_batch, line.accuracy_mean) == (40.0, 30.0)


def test_calls_without_a_pipeline_count_as_many_steps_as_batches_are_accumulated():
    meter = a_meter(steps_per_call=8, calls_per_epoch=0)
    meter.add(a_call(1.0))
    assert meter.progress().step == 8


def test_a_run_goes_on_where_it_was():
    meter = a_meter(done=20, step=5, total_s=50.0)
    meter.add(a_call(1.0))
    line = meter.progress()
    assert (meter.iteration, line.epoch, line.step, line.total_s) == (24, 2.4, 6, 51.0)
