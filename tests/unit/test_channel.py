"""Framed messages over a real socket pair."""

import json
import socket
import struct

import pytest

from layermark.worker.channel import VERSION, Channel, Closed


@pytest.fixture
def line():
    left, right = socket.socketpair()
    yield Channel(left), Channel(right), left
    left.close()
    right.close()


def test_messages_arrive_whole_and_in_order(line):
    sender, receiver, _ = line
    sender.send({"id": 1, "text": "é" * 10_000})
    sender.send({"id": 2})
    assert {"version": VERSION, "id": 1, "text": "é" * 10_000} == receiver.receive(1)
    assert 2 == receiver.receive(1)["id"]


def test_silence_is_a_timeout(line):
    with pytest.raises(TimeoutError):
        line[1].receive(0.01)


def test_hanging_up_is_closed(line):
    line[0].close()
    with pytest.raises(Closed):
        line[1].receive(1)


def test_half_a_message_is_closed(line):
    _, receiver, raw = line
    raw.sendall(struct.pack(">I", 100) + b"{")
    raw.close()
    with pytest.raises(Closed):
        receiver.receive(1)


def test_sending_to_nobody_is_closed(line):
    line[1].close()
    with pytest.raises(Closed):
        line[0].send({"id": 1})


def test_sending_after_hanging_up_is_closed(line):
    line[0].close()
    with pytest.raises(Closed):
        line[0].send({"id": 1})


@pytest.mark.parametrize("header", [struct.pack(">I", 1 << 31), None])
def test_foreign_speech_is_refused(line, header):
    _, receiver, raw = line
    body = json.dumps({"version": VERSION + 1}).encode()
    raw.sendall(header or struct.pack(">I", len(body)) + body)
    with pytest.raises(Closed):
        receiver.receive(1)
