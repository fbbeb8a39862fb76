"""Lines of instances on their way to the terminal: what they write into by mistake, and a reader that is slow."""

import os
import socket
import time

import pytest

from layermark.launch import lines as lines_module
from layermark.launch import local
from layermark.launch.lines import Lines


@pytest.fixture
def lines(monkeypatch):
    """Lines whose output is kept in `written` instead of shown."""
    made = Lines()
    made.written = b""

    def write(descriptor, data):
        made.written += data

    monkeypatch.setattr(lines_module, "write", write)
    yield made
    made.close()


def a_stream(lines, name):
    ours, theirs = socket.socketpair()
    lines.add(0, name, ours.detach())
    return theirs


def test_what_a_program_writes_into_the_stream_of_its_life_is_no_line(lines):
    with a_stream(lines, "life") as life:
        life.send(b"not\nfor\npeople\n")
        assert lines.step(1.0) and 0 == lines.ended and lines.open
    assert lines.step(1.0) and (1, b"") == (lines.ended, lines.written)


def test_a_remote_stream_of_life_may_be_written_into_too(lines):
    lines.token = "t"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        lines.listen(listener)
        with socket.create_connection(listener.getsockname()) as life:
            life.send(b'{"token": "t", "rank": 1, "stream": "life"}\nand\nmore\n')
            while lines.step(0.2):
                pass
        while not lines.ended:
            assert lines.step(1.0)
        lines.forget(listener.fileno())
    assert b"" == lines.written


def test_a_slow_reader_loses_no_line(lines, monkeypatch):
    """As of a host far away: more is on its way than fits into one reading."""
    written = []

    def slowly(descriptor, data):
        time.sleep(0.02)
        written.append(data)

    monkeypatch.setattr(lines_module, "write", slowly)
    monkeypatch.setattr(local, "DRAIN_S", 0.05)
    data = b"".join(b"%d %s\n" % (number, b"x" * 100) for number in range(12_000))
    stream = a_stream(lines, "stdout")
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    stream.setblocking(False)
    sent = stream.send(data)
    stream.close()
    assert sent > 3 * 65536  # several readings
    local.drain(lines)
    assert data[:sent].rstrip(b"\n") == b"".join(written).rstrip(b"\n")


def test_who_talks_for_ever_is_not_listened_to_for_ever(lines):
    with a_stream(lines, "stdout") as stream:
        began = time.monotonic()
        stream.send(b"line\n" * 100)
        os.set_blocking(stream.fileno(), False)
        local.drain(lines, until=began)
    assert b"" == lines.written
