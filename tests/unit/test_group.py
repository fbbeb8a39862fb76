"""The place of a rank among others, and the ports that are kept for them."""

import socket

import pytest

from layermark.backends._network import interface_of
from layermark.backends._network import own_address as group_address
from layermark.launch.ports import Ports, own_address
from layermark.spec import Group, Plan, Spec
from layermark.training.update import Update
from layermark.worker.picture_task import fed_task


def test_ranks_are_numbered_replica_by_replica() -> None:
    addresses = tuple(f"127.0.0.1:{port}" for port in range(5000, 5006))
    places = [Group(rank=rank, addresses=addresses, stages=3) for rank in range(6)]

    assert [(each.replica, each.stage) for each in places] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert places[0].replicas == 2
    assert places[4].master == ("127.0.0.1", 5000)
    assert places[0].local
    assert not Group(rank=0, addresses=("10.0.0.1:80", "127.0.0.1:81")).local


def test_a_group_crosses_the_line_to_a_worker() -> None:
    place = Group(rank=1, addresses=("127.0.0.1:5000", "127.0.0.1:5001"))

    assert Group.from_json(place.to_json()) == place
    assert Group.from_json(None) is None


def test_a_kept_port_is_given_to_nobody_else_but_a_rank_can_listen_on_it() -> None:
    with Ports(2) as kept:
        first, second = kept.numbers
        assert first != second
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", first))
        with socket.socket() as rank:
            rank.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            rank.bind(("", first))
            rank.listen()
            assert kept.addresses() == [f"127.0.0.1:{first}", f"127.0.0.1:{second}"]


def test_the_own_address_towards_this_host() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("no.such.host.invalid") == "127.0.0.1"


@pytest.mark.parametrize(
    ("plan", "update", "expected"),
    [
        (Plan(), Update(replicas=4), False),
        (Plan(replicas=2), Update(), False),
        (Plan(replicas=2), Update(replicas=2), True),
        (Plan(stages=2), Update(), True),
    ],
)
def test_ranks_are_connected_where_they_share_an_update_or_a_network(
    plan: Plan, update: Update, expected: bool
) -> None:
    assert Spec(workload="dense", backend="null", mode="train", plan=plan, update=update).connected is expected


def test_replicas_share_the_inputs_that_one_process_walks_through() -> None:
    spec = Spec(workload="dense", backend="null", mode="train", batch_size=2, ring=4)
    addresses = ("127.0.0.1:5000", "127.0.0.1:5001")
    ranks = [fed_task(spec, Group(rank=rank, addresses=addresses)) for rank in range(2)]
    alone = fed_task(spec)

    together = [rank.batch(index)["x"] for index in range(2) for rank in ranks]
    for number, each in enumerate(together):
        assert (each == alone.batch(number)["x"]).all()


def test_gloo_uses_the_interface_that_others_reach() -> None:
    """The own name is not looked up: on many hosts it is 127.0.1.1, or nobody's."""
    local = Group(rank=0, addresses=("127.0.0.1:1", "127.0.0.1:2"))
    same = Group(rank=1, addresses=("no.such.host.invalid:1", "no.such.host.invalid:2"))
    assert {("127.0.0.1", "lo")} == {(found, interface_of(found)) for found in map(group_address, (local, same))}
    lost = Group(rank=0, addresses=("10.255.255.1:1", "no.such.host.invalid:2"))
    assert "10.255.255.1" == group_address(lost) and "" == interface_of("10.255.255.1")


def test_the_address_towards_another_host_is_that_of_an_interface() -> None:
    outwards = group_address(Group(rank=0, addresses=("here:1", "198.51.100.7:2")))
    if outwards == "here":
        pytest.skip("this host has no route to any other")
    assert interface_of(outwards) not in ("", "lo")
