"""Pictures are brought into the shape, type and layout asked for; the order of samples is the same everywhere."""

import numpy as np
import pytest
from PIL import Image

from layermark.data.base import Pixels
from layermark.data.order import Order
from layermark.data.preprocess import Preprocess, centre_box, resized, sample_box, standardised
from layermark.laws import stream
from layermark.ops import Normalise

SMOOTH = np.asarray(
    Image.fromarray(np.random.default_rng(3).integers(0, 256, (6, 9, 3), dtype="uint8")).resize((500, 375))
)
MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def finished(picture=SMOOTH, position=0, boxes=(), **facts):
    wanted = Preprocess(**({"size": (224, 224)} | facts))
    batch = wanted.empty(1)
    wanted.write(picture, Pixels(picture, 0, "", boxes), position, batch[0])
    return batch[0]


@pytest.mark.parametrize("shape", [(375, 500), (500, 333), (256, 256), (224, 224), (640, 427), (1000, 300)])
def test_resizing_the_centre_alone_is_resizing_and_cropping(shape):
    picture = resized(SMOOTH, shape)
    short = 256
    height, width = (
        (short, int(short * shape[1] / shape[0]))
        if shape[0] <= shape[1]
        else (
            int(short * shape[0] / shape[1]),
            short,
        )
    )
    top, left = round((height - 224) / 2), round((width - 224) / 2)
    wanted = resized(picture, (height, width))[top : top + 224, left : left + 224]
    found = resized(picture, (224, 224), centre_box(shape, (224, 224)))
    assert np.abs(wanted.astype(int) - found).max() <= 1


def test_full_normalisation_is_that_of_the_seeds():
    plain = finished(normalise="none", dtype="uint8").astype("float64").transpose(1, 2, 0)
    wanted = ((plain / 255 - MEAN) / DEVIATION).transpose(2, 0, 1)
    assert np.abs(finished() - wanted).max() < 1e-6 * np.abs(wanted).max()


def test_normalising_in_the_program_is_normalising_on_the_host():
    from layermark.graph import Builder
    from layermark.reference import evaluate

    build = Builder()
    x = build.input("x", (1, 3, 224, 224), item_bytes=1)
    graph = build.graph(build.add("y", Normalise(tuple(MEAN), tuple(DEVIATION)), x))
    bytes_ = finished(normalise="none", dtype="uint8")[None]
    inside = evaluate(graph, {}, {"x": bytes_.astype("float64")})["y"]
    assert np.abs(inside[0] - finished()).max() < 1e-6 * np.abs(inside).max()


def test_eight_bit_pictures_are_those_that_are_sent_as_floats():
    assert np.array_equal(finished(normalise="none", dtype="uint8"), finished(normalise="none"))
    half = finished(dtype="float16").astype("float32")
    assert np.abs(half - finished()).max() < 4e-3


def test_the_mean_alone_is_subtracted_from_0_to_255():
    plain = finished(normalise="none")
    assert np.allclose(plain[1] - 116.78, finished(normalise="mean")[1], atol=1e-4)
    assert np.allclose(plain / 255, finished(normalise="scale"))


def test_both_layouts_hold_the_same_numbers():
    wanted = Preprocess((224, 224), layout="NHWC")
    batch = wanted.empty(2)
    wanted.write(SMOOTH, Pixels(SMOOTH, 0, ""), 0, batch[1])
    assert batch.transpose(0, 2, 3, 1).flags["C_CONTIGUOUS"]
    assert np.array_equal(batch[1], finished())


def test_a_fourth_channel_is_zero():
    found = finished(channels=4)
    assert np.array_equal(found[:3], finished()) and not found[3].any()


def test_small_pictures_are_standardised_one_by_one():
    small = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype="uint8")
    found = finished(small, size=(32, 32), whole=True)
    assert (abs(found.mean()), found.std()) == (pytest.approx(0, abs=1e-5), pytest.approx(1, abs=1e-5))
    assert np.isfinite(standardised(np.zeros((3, 4, 4), "uint8"))).all()


def test_augmented_pictures_depend_on_the_position_alone():
    one, again, other = (finished(position=number, augment=True) for number in (5, 5, 6))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert finished(SMOOTH[:32, :32], size=(32, 32), whole=True, augment=True).shape == (3, 32, 32)


def test_sampled_parts_hold_a_tenth_of_an_object():
    tiny = (0.9, 0.9, 1.0, 1.0)
    for number in range(50):
        left, top, right, bottom = sample_box((300, 400), [tiny], stream(0, number))
        across, down = right / 400 - max(left / 400, 0.9), bottom / 300 - max(top / 300, 0.9)
        assert across > 0 and down > 0 and across * down >= 0.1 * 0.01 - 1e-9


@pytest.mark.parametrize("instances", [1, 4])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_sample_is_seen_once_in_an_epoch(instances, shuffle):
    orders = [Order(10_000, shuffle, 3, instances, rank) for rank in range(instances)]
    for number in (0, 1):
        seen = [index for order in orders for batch in order.epoch(number, 31) for index in batch]
        assert sorted(seen) == list(range(10_000))


def test_shuffled_epochs_differ_and_can_be_repeated():
    def seen(number, batch):
        return [index for each in Order(100, True, 3).epoch(number, batch) for index in each]

    assert seen(0, 7) != seen(1, 7)
    assert seen(0, 7) == seen(0, 13)
