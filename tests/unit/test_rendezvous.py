"""Ranks that meet: each a thread here, with a real socket between them."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from layermark.errors import UserError
from layermark.launch.ranks import JobPlace
from layermark.launch.rendezvous import PeerLost, Rendezvous
from layermark.worker.channel import Channel


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def place(rank, size, port, token="secret"):
    return JobPlace(
        rank=rank,
        size=size,
        local_rank=rank,
        local_size=size,
        local_replicas=1,
        total_replicas=size,
        devices_per_replica=1,
        master_address="127.0.0.1",
        master_port=port,
        launcher="poprun",
        token=token,
    )


def meet(size, do, *, join_s=10.0, tokens=None):
    """What `do(rank, meeting)` returned or raised, by rank."""
    port = free_port()
    tokens = tokens or ["secret"] * size

    def one(rank):
        try:
            with Rendezvous(place(rank, size, port, tokens[rank]), join_s=join_s, silence_s=3) as meeting:
                return do(rank, meeting)
        except (PeerLost, ValueError) as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def reasons(found):
    return [str(each) for each in found]


def test_values_are_gathered_by_rank_on_rank_0():
    assert [[{"r": 0}, {"r": 1}, {"r": 2}], None, None] == meet(3, lambda rank, all: all.gather({"r": rank}))


def test_rank_0s_value_reaches_everybody():
    assert ["from 0"] * 3 == meet(3, lambda rank, all: all.broadcast(f"from {rank}"))


def test_one_instance_meets_itself():
    assert [[7]] == meet(1, lambda rank, all: all.gather(7))


def test_large_values_cross():
    assert [["0" * 2_000_000, "1" * 2_000_000], None] == meet(2, lambda rank, all: all.gather(str(rank) * 2_000_000))


def test_nobody_passes_a_barrier_before_everybody_is_there():
    came = []

    def do(rank, meeting):
        time.sleep(0.2 * rank)
        came.append(rank)
        meeting.barrier("timed")
        return len(came)

    assert [3, 3, 3] == meet(3, do)


def test_a_barrier_can_be_met_many_times():
    def do(rank, meeting):
        for _ in range(50):
            meeting.barrier("again", timeout=5)
        return meeting.gather(rank)

    assert [[0, 1], None] == meet(2, do)


def test_one_that_does_not_come_is_named_to_all():
    def do(rank, meeting):
        if rank == 1:
            time.sleep(1.5)
        meeting.barrier("timed", timeout=0.5)

    found = meet(3, do)
    assert ["instance 1 did not reach barrier 'timed' within 0.5 s"] * 3 == reasons(found)


@pytest.mark.parametrize("first", [0, 1])
def test_the_least_patience_counts_whoever_comes_first(first):
    def do(rank, meeting):
        if rank == 2:
            return time.sleep(1.5)
        time.sleep(0.0 if rank == first else 0.2)
        return meeting.broadcast(timeout=60.0 if rank else 0.5)

    expected = ["instance 2 did not reach broadcast within 0.5 s"] * 2
    assert expected == reasons(meet(3, do))[:2]


def test_an_error_of_one_is_the_reason_of_all():
    def do(rank, meeting):
        if rank == 1:
            raise ValueError("no more memory")
        meeting.barrier("timed")

    assert ["instance 1 failed: no more memory", "no more memory"] == reasons(meet(2, do))


def test_an_error_of_instance_0_is_told_too():
    def do(rank, meeting):
        if rank == 0:
            raise ValueError("no weights")
        meeting.barrier("timed")

    assert ["no weights", "instance 0 failed: no weights"] == reasons(meet(2, do))


def test_one_that_leaves_early_is_named():
    def do(rank, meeting):
        if rank == 0:
            meeting.barrier("timed")

    assert "instance 1 left before barrier 'timed'" == reasons(meet(2, do))[0]


def test_different_calls_are_refused():
    def do(rank, meeting):
        return meeting.barrier("a") if rank == 0 else meeting.gather(rank, name="b")

    assert all("instances disagree: " in reason for reason in reasons(meet(2, do)))


def test_one_that_never_joins_is_named():
    port = free_port()
    with pytest.raises(PeerLost, match=r"instance 1 did not come to the rendezvous within 0\.3 s"):
        Rendezvous(place(0, 2, port), join_s=0.3, silence_s=1)
    with socket.create_server(("127.0.0.1", port)):
        pass  # nobody listens there any more


def test_a_rank_without_instance_0_gives_up():
    with pytest.raises(PeerLost, match=r"instance 1 could not join instance 0 at 127.0.0.1:\d+ within 0.3 s"):
        Rendezvous(place(1, 2, free_port()), join_s=0.3, silence_s=1)


def test_another_jobs_instance_is_not_let_in():
    found = reasons(meet(2, lambda rank, all: all.gather(rank), join_s=0.5, tokens=["one", "other"]))
    assert found[0] == "instance 1 did not come to the rendezvous within 0.5 s"
    assert "could not join" in found[1]


def test_strangers_do_not_disturb():
    port = free_port()
    results = []
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lambda: joined(place(0, 2, port), results))
        stranger = retried(port)
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        silent = socket.create_connection(("127.0.0.1", port))
        pool.submit(lambda: joined(place(1, 2, port), results)).result(10)
        first.result(10)
    assert [[0, 1], None] == sorted(results, key=lambda each: each is None)
    stranger.close()
    silent.close()


def joined(who, results):
    with Rendezvous(who, join_s=8, silence_s=3) as meeting:
        results.append(meeting.gather(who.rank))


def retried(port):
    for _ in range(100):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.02)
    raise AssertionError("nobody listens")


def test_the_token_itself_is_never_sent():
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def listen():
            channel = Channel(listener.accept()[0])
            channel.send({"challenge": "abc"})
            heard.append(channel.receive(2))
            channel.close()

        thread = threading.Thread(target=listen)
        thread.start()
        with pytest.raises(PeerLost):
            Rendezvous(place(1, 2, port, "the-secret"), join_s=0.5, silence_s=1)
        thread.join()
    assert heard and "the-secret" not in str(heard)


def test_a_taken_port_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot listen on MASTER_PORT {port} .*Address already in use.*free port"):
            Rendezvous(place(0, 2, port), join_s=1)


def test_a_stopped_instance_0_is_given_up():
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def welcome_and_fall_silent():
            channel = Channel(listener.accept()[0])
            channel.send({"challenge": "abc"})
            channel.receive(2)
            channel.send({"welcome": True})
            heard.append(channel.receive(5)["do"])

        thread = threading.Thread(target=welcome_and_fall_silent)
        thread.start()
        with pytest.raises(PeerLost, match=r"instance 0 gave no answer to joining within 0.3 s: it hangs"):
            Rendezvous(place(1, 2, listener.getsockname()[1]), join_s=0.3, silence_s=0.3)
        thread.join()
    assert ["fail"] == heard
