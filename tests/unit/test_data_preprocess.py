"""Pictures are brought into the shape, type and layout asked for; the order of samples is the same everywhere."""

import numpy as np
import pytest
from PIL import Image

from layermark.data.base import Pixels
from layermark.data.preprocess import Preprocess, centre_box, covered, resized, sample_box, standardised
from layermark.laws import random_generator
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


def parts(shape, boxes, count=400):
    return [sample_box(shape, boxes, random_generator(0, number)) for number in range(count)]


def test_sampled_parts_hold_a_tenth_of_an_object():
    tiny = (0.9, 0.9, 1.0, 1.0)
    assert all(covered(tiny, shares(part)) >= 0.1 for part in parts((300, 400), [tiny]))
    # Without a box, most parts miss that corner: the rule does something.
    assert sum(covered(tiny, shares(part)) >= 0.1 for part in parts((300, 400), [])) < 200


def shares(part):
    left, top, right, bottom = part
    return left / 400, top / 300, right / 400, bottom / 300


def test_one_of_several_objects_is_enough():
    corners = [(0.0, 0.0, 0.1, 0.1), (0.9, 0.9, 1.0, 1.0)]
    found = parts((300, 400), corners)
    seen = [[covered(corner, shares(part)) >= 0.1 for corner in corners] for part in found]
    assert all(map(any, seen)) and not all(map(all, seen))


def test_areas_and_aspects_of_sampled_parts_fill_their_ranges():
    boxes = np.array(parts((300, 400), [], count=2000))
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, aspect = width * height / (300 * 400), width / height
    rounding = 1 / height.min()
    assert 0.05 * (1 - 2 * rounding) <= area.min() < 0.08 and 0.9 < area.max() <= 1
    assert 0.75 - rounding <= aspect.min() < 0.78 and 1.3 < aspect.max() <= 1.33 + rounding
    assert boxes.min() >= 0 and boxes[:, 2].max() <= 400 and boxes[:, 3].max() <= 300


def test_an_object_that_cannot_be_covered_leaves_the_whole_picture():
    assert (0, 0, 400, 300) == sample_box((300, 400), [(0.5, 0.5, 0.5, 0.5)], random_generator(0, 1))


def test_half_of_the_pictures_are_flipped():
    gradient = np.broadcast_to(np.arange(64, dtype="uint8")[None, :, None] * 4, (64, 64, 3)).copy()
    made = [finished(gradient, number, augment=True, size=(16, 16), normalise="none") for number in range(400)]
    flipped = sum(each[0, 0, 0] > each[0, 0, -1] for each in made)
    assert 160 < flipped < 240


def test_small_pictures_are_standardised_then_padded_with_zeros_and_cut():
    small = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype="uint8")
    wanted = standardised(small).transpose(2, 0, 1)
    padded = [np.pad(each, ((0, 0), (4, 4), (4, 4))) for each in (wanted, wanted[:, :, ::-1])]
    cuts = {
        padded[flip][:, top : top + 32, left : left + 32].tobytes(): (flip, top, left)
        for flip in (0, 1)
        for top in range(9)
        for left in range(9)
    }
    places = {cuts[finished(small, n, size=(32, 32), whole=True, augment=True).tobytes()] for n in range(300)}
    assert 100 < len(places) <= 2 * 81
    assert {0, 8} <= {top for _, top, _ in places} & {left for *_, left in places}
