"""Sources: what was written is read back, and what is broken is named."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from layermark import registry
from layermark.data import example
from layermark.data.base import BadData, Place, Trouble
from layermark.data.decode import decode, encode
from layermark.data.making import Recipe, make
from layermark.data.opening import kind, open_source
from layermark.data.records import read_record, spans, write_records
from layermark.errors import UserError

RNG = np.random.default_rng(7)
PHOTOGRAPHS = [RNG.integers(0, 256, (8, 10, 3), dtype="uint8").repeat(20, 0).repeat(20, 1) for _ in range(3)]


def made(folder, form, count=6, **more):
    make(folder, Recipe(format=form, count=count, **more), PHOTOGRAPHS)
    return folder


def opened(folder, *, source="auto", split="validation", skip=False):
    return open_source(source, Place(Path(folder), split, Trouble(skip=skip)))


def pictures(source):
    return [(sample.label, sample.data) for sample in map(source.read, range(len(source)))]


@pytest.mark.parametrize("form", ["tfrecord", "webdataset", "raw"])
def test_what_was_made_is_found_and_read_back(tmp_path, form):
    source = opened(made(tmp_path, form, files=2))
    assert type(source) is kind(form)
    assert [label for label, _ in pictures(source)] == [0, 1, 2, 3, 4, 5]
    assert source.read(2).decode().shape[2] == 3


def test_the_three_forms_hold_the_same_pictures(tmp_path):
    first, *others = [pictures(opened(made(tmp_path / form, form))) for form in ("tfrecord", "webdataset", "raw")]
    assert [first, first] == others


def test_a_data_set_below_the_folder_is_found(tmp_path):
    assert len(opened(made(tmp_path / "sets" / "imagenet-data", "tfrecord").parents[1])) == 6


def test_the_first_files_of_imagenet_are_named_as_the_seeds_name_them(tmp_path):
    names = sorted(path.name for path in made(tmp_path, "tfrecord", files=3, split="train").iterdir())
    assert ["train-00000-of-00003", "train-00001-of-00003", "train-00002-of-00003"] == names


def test_every_source_is_a_file_of_its_name():
    assert {"images", "tfrecord", "webdataset", "raw", "cifar"} <= set(registry.modules("sources"))
    assert all(kind(name).summary for name in registry.modules("sources"))


def test_examples_hold_all_three_kinds_of_lists():
    features = {"bytes": [b"a", b""], "numbers": [1, -1, 2**62], "shares": [0.5, -0.25]}
    assert features == example.decode(example.encode(features))


def test_examples_with_numbers_that_are_not_packed_are_read():
    def nested(number, body):
        return bytes([number << 3 | 2, len(body)]) + body

    integers = nested(3, b"\x08\x05\x08\x07")
    entry = nested(1, b"n") + nested(2, integers)
    assert {"n": [5, 7]} == example.decode(nested(1, nested(1, entry)))


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x0b", b"\x0a\x02\x08\x01", b"\xff" * 11])
def test_bytes_that_are_no_example_are_refused(data):
    with pytest.raises(example.Malformed):
        example.decode(data)


def test_records_come_back_in_order(tmp_path):
    path = tmp_path / "records"
    write_records(path, [b"one", b"", b"three"])
    found = list(spans(str(path), path.stat().st_size))
    assert [b"one", b"", b"three"] == [read_record(str(path), span) for span in found]


def spoil(path, place, value=0xFF):
    data = bytearray(path.read_bytes())
    data[place] ^= value
    path.write_bytes(data)


def test_a_flipped_bit_in_a_record_is_named(tmp_path):
    path = next(made(tmp_path, "tfrecord", count=2).iterdir())
    spoil(path, 5000)
    source = opened(tmp_path)
    with pytest.raises(BadData, match=f"{path}: the data of the record at byte 0 does not match its checksum"):
        source.read(0)
    assert source.read(1).label == 1


def test_a_flipped_bit_in_a_length_is_named(tmp_path):
    path = next(made(tmp_path, "tfrecord", count=2).iterdir())
    spoil(path, 1)
    with pytest.raises(BadData, match="the length of the record at byte 0"):
        opened(tmp_path)


def test_a_truncated_file_is_named_and_what_is_whole_can_be_kept(tmp_path):
    path = next(made(tmp_path, "tfrecord", count=3).iterdir())
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BadData, match=f"{path}: truncated: the record at byte"):
        opened(tmp_path)
    place = Place(tmp_path, trouble=Trouble(skip=True))
    assert len(open_source("auto", place)) == 2
    assert list(place.trouble.found) == [str(path)]


@pytest.mark.parametrize("label", [[0], [1001], [b"dog"], []])
def test_a_wrong_label_in_a_record_is_named(tmp_path, label):
    jpeg = encode(PHOTOGRAPHS[0], 90)
    record = example.encode({"image/encoded": [jpeg], "image/class/label": label})
    write_records(tmp_path / "validation-00000-of-00001", [record])
    with pytest.raises(BadData, match="record at byte 0: wrong label"):
        opened(tmp_path).read(0)


@pytest.mark.parametrize("sides", [{"xmin": [0.1]}, {side: [b"x"] for side in ("xmin", "ymin", "xmax", "ymax")}])
def test_boxes_that_are_none_are_named(tmp_path, sides):
    features = {"image/encoded": [encode(PHOTOGRAPHS[0], 90)], "image/class/label": [1]}
    boxes = {f"image/object/bbox/{side}": values for side, values in sides.items()}
    write_records(tmp_path / "validation-00000-of-00001", [example.encode(features | boxes)])
    with pytest.raises(BadData, match="record at byte 0: image/object/bbox: expected as many floats"):
        opened(tmp_path).read(0)


def test_a_record_that_is_torn_while_it_is_read_is_named(tmp_path):
    path = next(made(tmp_path, "tfrecord", count=2).iterdir())
    source = opened(tmp_path)
    path.write_bytes(path.read_bytes()[:-200])
    assert source.read(0).label == 0
    with pytest.raises(BadData, match=f"{path}: truncated: ends at byte"):
        source.read(1)


def test_a_file_that_is_gone_or_replaced_is_not_read_from_an_open_descriptor(tmp_path):
    path = next(made(tmp_path, "tfrecord", count=2).iterdir())
    source = opened(tmp_path)
    assert source.read(0).label == 0
    write_records(path, [b"another"])
    with pytest.raises(BadData, match=f"{path}: "):
        source.read(0)
    path.unlink()
    with pytest.raises(BadData, match=f"^{path}: cannot be read: No such file or directory$"):
        source.read(0)


def tar(path, members):
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def webdataset(folder, **members):
    (folder / "metadata.json").write_text(json.dumps({"format": "img"}))
    jpeg = encode(PHOTOGRAPHS[0], 90)
    tar(folder / "validation-000000.tar", {"a.jpg": jpeg, "a.cls": b"5"} | members)


@pytest.mark.parametrize("name", ["../b.jpg", "x/../../b.jpg", "/etc/b.jpg"])
def test_a_member_that_leads_out_of_its_archive_is_refused(tmp_path, name):
    webdataset(tmp_path, **{name: b"x"})
    with pytest.raises(BadData, match=r"validation-000000.tar: member '.*b.jpg': leads out of the archive"):
        opened(tmp_path)
    assert len(opened(tmp_path, skip=True)) == 1


@pytest.mark.parametrize("text", [b"1000", b"-1", b"cat", b""])
def test_a_wrong_label_in_an_archive_is_named(tmp_path, text):
    webdataset(tmp_path, **{"b.jpg": encode(PHOTOGRAPHS[0], 90), "b.cls": text})
    with pytest.raises(BadData, match=r"tar: b: wrong label"):
        opened(tmp_path).read(1)


def test_a_sample_without_a_label_is_named(tmp_path):
    webdataset(tmp_path, **{"b.jpg": b"x"})
    with pytest.raises(BadData, match=r"tar: b: expected members jpg and cls, found \['jpg'\]"):
        opened(tmp_path)


def test_a_truncated_archive_is_named(tmp_path):
    path = made(tmp_path, "webdataset") / "validation-000000.tar"
    path.write_bytes(path.read_bytes()[:60_000])
    with pytest.raises(BadData, match=f"{path}: not a whole tar archive"):
        opened(tmp_path)


def test_archives_that_hold_another_number_of_samples_are_named(tmp_path):
    made(tmp_path, "webdataset")
    (tmp_path / "metadata.json").write_text(json.dumps({"validation_length": 7}))
    with pytest.raises(BadData, match="validation_length is 7, the archives hold 6 samples"):
        opened(tmp_path)


def cifar(folder, name, labels, count=3):
    pixels = RNG.integers(0, 256, (count, 3072), dtype="uint8")
    (folder / name).write_bytes(b"".join(bytes(labels) + each.tobytes() for each in pixels))
    return pixels


@pytest.mark.parametrize(("name", "labels", "classes"), [("test_batch.bin", [3], 10), ("test.bin", [1, 42], 100)])
def test_cifar_is_read(tmp_path, name, labels, classes):
    pixels = cifar(tmp_path, name, labels)
    source = opened(tmp_path)
    sample = source.read(1)
    assert (3, classes, labels[-1]) == (len(source), source.classes, sample.label)
    assert np.array_equal(pixels[1].reshape(3, 32, 32), sample.decode().transpose(2, 0, 1))


def test_a_wrong_cifar_label_and_a_short_file_are_named(tmp_path):
    cifar(tmp_path, "test_batch.bin", [10])
    with pytest.raises(BadData, match="record at byte 0: wrong label 10: expected 0 to 9"):
        opened(tmp_path).read(0)
    (tmp_path / "test_batch.bin").write_bytes(b"x" * 4000)
    with pytest.raises(BadData, match="truncated: 4000 bytes are no multiple of the 3073"):
        opened(tmp_path)


@pytest.mark.parametrize("source", ["auto", "images", "tfrecord", "webdataset", "raw", "cifar"])
def test_an_empty_folder_is_named(tmp_path, source):
    with pytest.raises(UserError, match=str(tmp_path)):
        opened(tmp_path, source=source)


def test_bounding_boxes_are_read_from_all_three_forms(tmp_path):
    found = []
    for form in ("tfrecord", "webdataset", "raw"):
        source = opened(made(tmp_path / form, form, split="train", count=20), split="train")
        found.append([source.read(number).boxes for number in range(20)])
    assert {0, 1, 2} == set(map(len, found[0]))
    first, second, third = (np.array([box for boxes in each for box in boxes]) for each in found)
    assert np.allclose(first, second) and np.allclose(first, third)
    assert first.min() >= 0 and first.max() <= 1 and (first[:, :2] < first[:, 2:]).all()
    folder = tmp_path / "raw"
    name = Path(opened(folder, split="train").read(0).where).name
    (folder / "imagenet_2012_bounding_boxes.csv").write_text(f"{name},0.1,0.2,0.3,0.4\nbroken\n")
    with pytest.raises(BadData, match=r"boxes.csv:2: expected a name and four numbers"):
        opened(folder, split="train")
    assert [(0.1, 0.2, 0.3, 0.4)] == opened(folder, split="train", skip=True).read(0).boxes


def test_grey_four_ink_and_png_pictures_are_decoded():
    from PIL import Image

    for mode, form in (("L", "JPEG"), ("CMYK", "JPEG"), ("RGBA", "PNG")):
        file = io.BytesIO()
        Image.fromarray(PHOTOGRAPHS[0]).convert(mode).save(file, form)
        assert decode(file.getvalue(), "x").shape == PHOTOGRAPHS[0].shape


@pytest.mark.parametrize("spoilt", [lambda jpeg: jpeg[:-500], lambda jpeg: jpeg[:3000] + bytes(400) + jpeg[3400:]])
def test_a_corrupt_jpeg_is_named(spoilt):
    noisy = RNG.integers(0, 256, (64, 64, 3), dtype="uint8")
    with pytest.raises(BadData, match=r"a/b\.jpg: corrupt JPEG"):
        decode(spoilt(encode(noisy, 95)), "a/b.jpg")


def test_what_is_no_picture_is_named():
    with pytest.raises(BadData, match=r"a\.jpg: not a picture that can be decoded"):
        decode(b"<html>not found</html>", "a.jpg")
