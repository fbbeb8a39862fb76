"""The event file that TensorBoard opens."""

import struct

from layermark.seeds.engine_options import EngineOptions
from layermark.seeds.graphs import save_graph
from layermark.seeds.parsing import parse
from layermark.seeds.request import layer_request
from layermark.seeds.scripts import script
from layermark.seeds.tensorboard import drawn, masked, write_events
from layermark.spec import Spec
from layermark.workloads.base import task


def records(path):
    content = path.read_bytes()
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        assert struct.unpack("<I", content[8:12]) == (masked(content[:8]),)
        body = content[12 : 12 + length]
        assert struct.unpack("<I", content[12 + length : 16 + length]) == (masked(body),)
        yield body
        content = content[16 + length :]


def fields(message):
    """Numbers and contents of the fields of a protocol buffer message."""
    position = 0

    def varint():
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        number, wire = divmod(varint(), 8)
        if wire == 0:
            yield number, varint()
            continue
        size = 8 if wire == 1 else varint()
        yield number, message[position : position + size]
        position += size


def test_an_event_file_holds_the_graph(tmp_path):
    graph = task(Spec(workload="lstm_multi", backend="torch", batch_size=2)).graph
    version, event = records(write_events(drawn(graph), tmp_path / "logs"))
    assert b"brain.Event:2" == dict(fields(version))[3]
    nodes = [list(fields(node)) for _, node in fields(dict(fields(event))[4])]
    names = [dict(node)[1].decode() for node in nodes]
    assert {"x", "lstm1/lstm1", "lstm1/weight", "last", "dense/dense"} <= set(names)
    assert len(set(names)) == len(names)
    for node in nodes:
        assert {content.decode() for number, content in node if number == 3} <= set(names)


def test_the_chain_is_drawn_as_one_transition(tmp_path):
    """HMC is no graph of layers: what is saved is what one transition does."""
    request = layer_request(
        script("tensorflow/hmc"), parse(script("tensorflow/hmc"), "hmc.py", ["--save-graph"]), EngineOptions()
    )
    line = save_graph(request, tmp_path / "hmc.py")
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert str(file.parent) in line
    _, event = records(file)
    names = [dict(fields(node))[1].decode() for _, node in fields(dict(fields(event))[4])]
    assert {"state", "momentum", "leapfrog", "metropolis", "next_state"} <= set(names)
