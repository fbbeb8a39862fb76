"""TFRecords as TensorFlow writes and reads them."""

import pytest

from layermark.data import example
from layermark.data.records import read_record, spans, write_records

tf = pytest.importorskip("tensorflow")

FEATURES = {"picture": [b"\xff\xd8\x00", b""], "label": [1, -7, 1 << 40], "box": [0.25, -1.5]}


def message():
    lists = {
        "picture": tf.train.Feature(bytes_list=tf.train.BytesList(value=FEATURES["picture"])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=FEATURES["label"])),
        "box": tf.train.Feature(float_list=tf.train.FloatList(value=FEATURES["box"])),
    }
    return tf.train.Example(features=tf.train.Features(feature=lists))


def test_what_tensorflow_writes_is_read(tmp_path):
    path = tmp_path / "records"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(message().SerializeToString())
        writer.write(b"second")
    one, two = spans(str(path), path.stat().st_size)
    assert FEATURES == example.decode(read_record(str(path), one))
    assert b"second" == read_record(str(path), two)


def test_tensorflow_reads_what_is_written(tmp_path):
    path = tmp_path / "records"
    write_records(path, [example.encode(FEATURES)])
    (found,) = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    assert message() == tf.train.Example.FromString(found)
