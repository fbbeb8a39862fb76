"""Data sets that are made: the same seed gives the same bytes, their classes can be learnt, a full disk is one line."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layermark.cli import main
from layermark.data import example
from layermark.data.base import Place
from layermark.data.decode import encode
from layermark.data.making import Recipe, make
from layermark.data.making_cifar import SmallRecipe, make_small
from layermark.data.opening import dataset_folder, open_source
from layermark.data.preprocess import Preprocess, resized
from layermark.data.records import write_records
from layermark.data.stream import TRAINING, TrainingInput, TrainingStream
from layermark.errors import UserError

GREY = [np.full((200, 260, 3), 128, "uint8")]


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(("classes", "label_bytes"), [("10", 1), ("100", 2)])
def test_small_sets_have_the_files_and_records_of_the_real_ones(tmp_path, classes, label_bytes):
    recipe = SmallRecipe(classes=classes, train=203, test=101)
    place = make_small(tmp_path, recipe)
    train = [f"data_batch_{number}.bin" for number in range(1, 6)] if classes == "10" else ["train.bin"]
    test = "test_batch.bin" if classes == "10" else "test.bin"
    assert sorted([*train, test]) == sorted(map(str, contents(place)))
    assert 203 * (3072 + label_bytes) == sum((place / name).stat().st_size for name in train)
    for split, count in (("train", 203), ("validation", 101)):
        source = open_source("auto", Place(tmp_path, split))
        assert (count, int(classes)) == (len(source), source.classes)
        assert {number % int(classes) for number in range(count)} == {
            source.read(number).label for number in range(count)
        }


def test_the_same_seed_gives_the_same_bytes_and_splits_differ(tmp_path):
    recipe = SmallRecipe(train=20, test=20)
    one, two, three = (
        contents(make_small(tmp_path / name, each))
        for name, each in (("a", recipe), ("b", recipe), ("c", replace(recipe, seed=1)))
    )
    assert one == two != three
    train = b"".join(one[Path(f"data_batch_{number}.bin")] for number in range(1, 6))
    assert train != one[Path("test_batch.bin")]


def looks(picture):
    """What a class looks like, roughly: mean and deviation of the colours, and how they change across and down."""
    pixels = picture.astype("float64") / 255
    slopes = [np.abs(np.diff(pixels, axis=axis)).mean() for axis in (0, 1)]
    return np.array([*pixels.mean((0, 1)), *pixels.std((0, 1)), *slopes])


def accuracy(train, test, labels=None):
    """Of the nearest class mean, over standardised features: about the least that can be called learning."""
    known = np.array([looks(picture) for picture, _ in train])
    classes = np.array([label for _, label in train] if labels is None else labels)
    spread = known.std(0)
    means = np.array([known[classes == label].mean(0) for label in range(classes.max() + 1)])
    guesses = [np.argmin((((looks(picture) - means) / spread) ** 2).sum(1)) for picture, _ in test]
    return np.mean([guess == label for guess, (_, label) in zip(guesses, test, strict=True)])


def samples(source):
    return [(sample.decode(), sample.label) for sample in map(source.read, range(len(source)))]


def test_classes_of_small_sets_can_be_told_apart_and_wrong_labels_cannot(tmp_path):
    make_small(tmp_path, SmallRecipe(train=400, test=100))
    train, test = (samples(open_source("cifar", Place(tmp_path, split))) for split in ("train", "validation"))
    assert accuracy(train, test) > 0.9
    shuffled = np.random.default_rng(0).permutation([label for _, label in train])
    assert accuracy(train, test, shuffled) < 0.4


def test_objects_lie_in_their_boxes_and_classes_can_be_told_apart(tmp_path):
    for split, count in (("train", 60), ("validation", 20)):
        make(tmp_path, Recipe(content="classes", classes=5, split=split, count=count), GREY)
    found = {}
    for split in ("train", "validation"):
        source = open_source("tfrecord", Place(tmp_path, split))
        found[split] = [(inside(source.read(number)), source.read(number).label) for number in range(len(source))]
    assert accuracy(found["train"], found["validation"]) > 0.9


def inside(sample):
    """The object, after a look at the rest: that is grey."""
    (box,), picture = sample.boxes, sample.decode().astype("float64")
    height, width = picture.shape[:2]
    left, top, right, bottom = (round(share * side) for share, side in zip(box, (width, height) * 2, strict=True))
    outside = np.ones((height, width), bool)
    outside[top:bottom, left:right] = False
    assert abs(picture[outside].mean() - 128) < 3
    part = picture[top:bottom, left:right].astype("uint8")
    middle = part[part.shape[0] // 4 : -part.shape[0] // 4, part.shape[1] // 4 : -part.shape[1] // 4]
    return resized(np.ascontiguousarray(middle), (48, 48))


def coloured_parts(folder, box):
    """Which parts that training cuts out of grey pictures show something of the red corner, 2 % of each picture."""
    picture = np.full((200, 260, 3), 128, "uint8")
    picture[170:, 221:] = 255, 0, 0
    sides = {
        f"image/object/bbox/{name}": [side] for name, side in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    }
    features = {"image/encoded": [encode(picture, 95)], "image/class/label": [1], **sides}
    write_records(folder / "train-00000-of-00001", [example.encode(features)])
    loading = replace(TRAINING, data_dir=str(folder), loader_workers=0)
    wanted = Preprocess((64, 64), dtype="uint8", normalise="none")
    with TrainingStream(TrainingInput(batch_size=200, preprocess=wanted, loading=loading)) as stream:
        pictures = next(stream).pictures.astype(int)
    return (pictures.max(1) - pictures.min(1) > 40).any((1, 2))


def test_training_parts_show_the_object_that_the_box_names(tmp_path):
    assert coloured_parts(tmp_path, (0.85, 0.85, 1.0, 1.0)).all()
    assert coloured_parts(tmp_path, (0.0, 0.0, 1.0, 1.0)).mean() < 0.8


def test_one_of_several_sets_below_a_folder_is_found_by_name(tmp_path):
    for classes in ("10", "100"):
        make_small(tmp_path, SmallRecipe(classes=classes, train=100, test=100))
    for classes in (10, 100):
        assert classes == open_source("cifar", Place(dataset_folder(tmp_path, f"cifar-{classes}"))).classes
    assert tmp_path == dataset_folder(tmp_path, "imagenet")
    with pytest.raises(UserError, match="unknown data set 'mnist'"):
        dataset_folder(tmp_path, "mnist")


FULL = Path("/dev/full")


@pytest.mark.parametrize(
    ("argv", "file"),
    [
        (["imagenet", "--count", "2"], "validation-00000-of-00001"),
        (["imagenet", "--count", "2", "--format", "webdataset"], "validation-000000.tar"),
        (["images"], "astronaut.jpg"),
        (["cifar", "--train", "5", "--test", "5"], "cifar-10-batches-bin/data_batch_1.bin"),
    ],
)
def test_a_full_disk_is_one_line_and_leaves_no_torn_file(capsys, tmp_path, argv, file):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.with_name(f".{path.name}.part").symlink_to(FULL)  # whatever is written there finds no room
    status = main(["data", argv[0], str(tmp_path), *argv[1:]])
    assert (
        2,
        f"layermark: error: {path}: cannot be written: No space left on device; make room, or give another ",
    ) == (
        status,
        capsys.readouterr().err.removesuffix("folder\n"),
    )
    assert {} == contents(tmp_path)


def test_a_folder_that_cannot_be_made_is_one_line(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert 2 == main(["data", "cifar", str(tmp_path / "file" / "below")])
    assert "no folder can be made: Not a directory" in capsys.readouterr().err


def test_files_of_another_making_are_not_mixed_in(tmp_path):
    make(tmp_path, Recipe(count=2, files=2), GREY)
    make(tmp_path, Recipe(count=2, files=2), GREY)
    with pytest.raises(UserError, match="validation-00000-of-00002 is there already and would be mixed in"):
        make(tmp_path, Recipe(count=2, files=1), GREY)
