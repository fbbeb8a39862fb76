"""Training input: every picture once a pass, over all ranks; the same stream with any number of processes, from any
position on."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from layermark.axes import expand
from layermark.data.bench import loader_rate
from layermark.data.cache import Cache
from layermark.data.decode import encode
from layermark.data.feed import Pictures
from layermark.data.order import Order, Position, Shard
from layermark.data.preprocess import Preprocess
from layermark.data.stream import TRAINING, TrainingInput, TrainingStream
from layermark.errors import UserError
from layermark.worker.picture_task import fed_task
from layermark.workloads.base import task

COUNT = 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Seven pictures, each of a class of its own, so that a label names a picture."""
    made = tmp_path_factory.mktemp("training")
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        place = made / "train" / f"n{number}"
        place.mkdir(parents=True)
        (place / "0.JPEG").write_bytes(encode(rng.integers(0, 256, (40, 50, 3), dtype="uint8"), 90))
    return made


def request(folder, *, workers=0, batch_size=3, dtype="uint8", cache=0.0, **more):
    loading = replace(TRAINING, data_dir=str(folder), loader_workers=workers, data_cache=cache)
    wanted = Preprocess((32, 32), dtype=dtype, normalise="none" if dtype == "uint8" else "full")
    return TrainingInput(batch_size=batch_size, preprocess=wanted, loading=loading, **more)


def taken(stream, count):
    return [(each.pictures.copy(), list(each.labels), each.position, each.epoch) for each in _some(stream, count)]


def _some(stream, count):
    return (next(stream) for _ in range(count))


def equal(one, other):
    return len(one) == len(other) and all(
        np.array_equal(a[0], b[0]) and a[1:] == b[1:] for a, b in zip(one, other, strict=True)
    )


def labels(batches):
    return [label for _, each, _, _ in batches for label in each]


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_sample_is_seen_once_in_a_pass_over_all_ranks(ranks, shuffle):
    order, positions = Order(10_000, shuffle, 3), []
    for rank in range(ranks):
        for batch in range(650 // ranks + 1):
            first = Shard(rank, ranks).position(batch, 31)
            positions += range(first, first + 31)
    assert sorted(positions)[:20_000] == list(range(20_000))
    for number in (0, 1):
        seen = [order.sample(position) for position in range(number * 10_000, (number + 1) * 10_000)]
        assert sorted(seen) == list(range(10_000))


def test_passes_differ_and_can_be_repeated():
    def seen(number, seed=3):
        return [Order(100, True, seed).sample(number * 100 + place) for place in range(100)]

    assert seen(0) != seen(1) and seen(0) != seen(0, seed=4)
    assert seen(0) == seen(0)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_streams_are_equal_with_none_one_and_two_processes(folder, dtype):
    streams = []
    for workers in (0, 1, 2):
        with TrainingStream(request(folder, workers=workers, dtype=dtype)) as stream:
            streams.append(taken(stream, 6))
    assert streams[0][0][0].dtype == dtype
    assert equal(streams[0], streams[1]) and equal(streams[0], streams[2])


def test_pictures_of_a_sample_differ_from_pass_to_pass_and_from_seed_to_seed(folder):
    def first_of_class_0(seed):
        with TrainingStream(request(folder, batch_size=1, seed=seed)) as stream:
            return [picture for picture, label, _, _ in taken(stream, 3 * COUNT) if label == [0]]

    one, two, three = first_of_class_0(1)
    assert not np.array_equal(one, two) and not np.array_equal(two, three)
    assert not np.array_equal(one, first_of_class_0(2)[0])
    assert np.array_equal(one, first_of_class_0(1)[0])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_saved_position_goes_on_with_the_same_stream(folder, workers):
    with TrainingStream(request(folder, workers=workers)) as stream:
        taken(stream, 3)
        kept = asdict(stream.position)
        wanted = taken(stream, 5)
        stream.seek(Position(**kept))
        assert equal(wanted, taken(stream, 5))
    with TrainingStream(request(folder, workers=workers), Position(**kept)) as stream:
        assert equal(wanted, taken(stream, 5))
    assert kept == {"pictures": 9, "samples": COUNT, "seed": 0}


def test_a_position_may_be_taken_up_with_another_batch_size(folder):
    with TrainingStream(request(folder)) as stream:
        taken(stream, 1)
        kept, wanted = stream.position, taken(stream, 4)
    with TrainingStream(request(folder, batch_size=6), kept) as stream:
        found = taken(stream, 2)
    assert labels(wanted) == labels(found)
    assert np.array_equal(np.concatenate([each[0] for each in wanted]), np.concatenate([each[0] for each in found]))


@pytest.mark.parametrize(("position", "said"), [({"samples": 8}, "8 samples and seed 0"), ({"seed": 5}, "seed 5")])
def test_a_position_of_another_stream_is_refused(folder, position, said):
    other = Position(**({"samples": COUNT, "seed": 0} | position))
    with pytest.raises(UserError, match=f"{said}, received 7 samples and seed 0; give the same --data-dir and --seed"):
        TrainingStream(request(folder), other)


def test_ranks_share_a_pass_and_take_together_what_one_would(folder):
    with TrainingStream(request(folder, batch_size=2)) as stream:
        alone = taken(stream, 9)
    shards = []
    for rank in range(3):
        with TrainingStream(request(folder, batch_size=2, shard=Shard(rank, 3))) as stream:
            shards.append(taken(stream, 3))
            assert stream.position == Position(pictures=18, samples=COUNT, seed=0)
    assert equal(alone, [each for together in zip(*shards, strict=True) for each in together])
    assert sorted(labels(alone)[:COUNT]) == sorted(labels(alone)[COUNT : 2 * COUNT]) == list(range(COUNT))


@pytest.mark.parametrize(("rank", "ranks"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_that_does_not_exist_is_refused(rank, ranks):
    with pytest.raises(UserError, match=f"rank {rank} of {ranks}: expected at least one rank, numbered from 0"):
        Shard(rank, ranks)


def test_a_small_set_is_repeated_to_fill_an_epoch(folder):
    with TrainingStream(request(folder, batch_size=COUNT, epoch_size=3 * COUNT)) as stream:
        batches = taken(stream, 4)
        assert stream.note == f"{folder}: an epoch of 21 pictures is 3 passes over 7"
    assert [epoch for *_, epoch in batches] == [0, 0, 0, 1]
    assert [sorted(each) for _, each, _, _ in batches] == [list(range(COUNT))] * 4
    with TrainingStream(request(folder)) as stream:
        assert (COUNT, "") == (stream.epoch_size, stream.note)


def test_a_part_of_a_set_is_spread_over_it(folder):
    with TrainingStream(request(folder, percentage=50)) as stream:
        batches = taken(stream, 2)
        assert (3, 7) == (stream.samples, stream.classes)
    assert [sorted(each) for _, each, _, _ in batches] == [[0, 2, 4], [0, 2, 4]]
    for percentage in (0, 101):
        with pytest.raises(UserError, match=f"{percentage} % of the data set: expected 1 to 100"):
            request(folder, percentage=percentage)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cached_set_is_read_once_and_survives_its_files(folder, tmp_path, workers):
    place = tmp_path / "train" / "n0"
    place.mkdir(parents=True)
    for number in range(COUNT):
        (place / f"{number}.JPEG").write_bytes((folder / "train" / f"n{number}" / "0.JPEG").read_bytes())
    with TrainingStream(request(tmp_path, workers=workers)) as stream:
        wanted = taken(stream, 12)
    with TrainingStream(request(tmp_path, workers=workers, cache=1.0)) as stream:
        found = taken(stream, 6)
        for path in place.iterdir():
            path.unlink()
        found += taken(stream, 6)
    assert equal(wanted, found)


def test_a_set_that_vanishes_is_one_line(folder, tmp_path):
    place = tmp_path / "train" / "n0"
    place.mkdir(parents=True)
    (place / "0.JPEG").write_bytes((folder / "train" / "n0" / "0.JPEG").read_bytes())
    with TrainingStream(request(tmp_path, workers=1)) as stream:
        next(stream)
        (place / "0.JPEG").unlink()
        with pytest.raises(UserError, match=f"^{place / '0.JPEG'}: cannot be read: No such file or directory$"):
            taken(stream, 9)


def test_a_full_cache_keeps_what_it_has():
    cache = Cache(3, 2000)
    for number, size in enumerate((1000, 1000, 10)):
        cache.put(number, bytes(size))
    assert 2 == len(cache)
    assert [bytes(1000), None, bytes(10)] == [cache.get(number) for number in range(3)]


def test_waiting_is_counted_and_the_loader_can_be_driven_alone(folder):
    with TrainingStream(request(folder)) as stream:
        rate = loader_rate(stream, 5)
        counters = stream.counters()
    assert (15, 15, 5) == (rate.pictures, counters["pictures"], counters["loader_batches"])
    assert 0 < counters["loader_wait_s"] <= rate.seconds
    assert rate.images_per_s == 15 / rate.seconds
    with TrainingStream(request(folder)) as stream:
        assert 3 == loader_rate(stream, 5, limit_s=0).pictures


def test_what_feeds_a_graph_can_be_saved_and_sharded(folder):
    typed = {"backend": "null", "data": "real", "data_dir": str(folder), "loader_workers": "0", "batch_size": "2"}
    more = {"image_size": "32", "mode": "train", "split": "train", "augment": "on", "shuffle": "on"}
    spec = expand(["resnet18"], typed | more).only()
    alone, made = fed_task(spec).stream, task(spec)
    second = Pictures(made.graph, spec, made.drawn_of, shard=Shard(1, 2))
    for stream in (alone, second):
        stream.start("NCHW")
    wanted = [{name: each.copy() for name, each in alone.take().items()} for _ in range(6)]
    assert all(np.array_equal(second.take()["x"], wanted[number]["x"]) for number in (1, 3, 5))
    assert np.array_equal(second.batch(1)["x"], wanted[3]["x"])
    assert second.position == alone.position == Position(pictures=12, samples=COUNT, seed=spec.seed)
    later = fed_task(spec).stream
    later.seek(Position(pictures=6, samples=COUNT, seed=spec.seed))
    later.start("NCHW")
    assert all(np.array_equal(each, wanted[3][name]) for name, each in later.take().items())
