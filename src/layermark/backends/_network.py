"""By which address and interface the ranks of other hosts reach this one."""

from __future__ import annotations

import fcntl
import socket
import struct

from layermark.spec import LOOPBACK, Group

_GET_ADDRESS = 0x8915
"""SIOCGIFADDR of Linux."""


def own_address(group: Group) -> str:
    """Return the address by which other hosts of a group reach this rank; that of the loopback where there are none.

    A collective library left alone takes what the host's own name resolves to: on many hosts 127.0.1.1, or nothing.
    """
    hosts = [each.rpartition(":")[0] for each in group.addresses]
    others = [each for each in hosts if each != hosts[group.rank]]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # nothing is sent
        try:
            probe.connect((others[0] if others else LOOPBACK, 9))
        except OSError:
            return hosts[group.rank]
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """Return the name of the interface that has an address; nothing where none is known to."""
    for _, name in socket.if_nameindex():
        if _address_of(name) == address:
            return name
    return ""


def _address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        try:
            found = fcntl.ioctl(line, _GET_ADDRESS, struct.pack("256s", interface.encode()[:15]))
        except OSError:  # it has none
            return ""
    return socket.inet_ntoa(found[20:24])
