"""Which scopes of a program the instructions of XLA's compiled modules come from, read from its profiler's file.

The file (`*.xplane.pb`) holds the compiled modules beside the times, as protocol buffers. What is needed of them is
names, so that a reader of the wire format is enough, for JAX and TensorFlow alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_WRAPPED = re.compile(r"\b(?:jit|pjit|jvp|vjp|vmap|transpose|remat|checkpoint|custom_jvp|custom_vjp)\(")

# Numbers of the fields in XSpace, XPlane, XEventMetadata and XStat ...
_PLANES, _EVENT_METADATA, _MAP_VALUE, _STATS, _STAT_BYTES = 1, 4, 2, 5, 6
# ... and in HloProto, HloModuleProto, HloComputationProto, HloInstructionProto and OpMetadata.
_MODULE, _COMPUTATIONS, _INSTRUCTIONS, _COMPUTATION_ID = 1, 3, 2, 5
_NAME, _OPCODE, _METADATA, _ID, _OPERANDS, _CALLED, _OP_NAME = 1, 2, 7, 35, 36, 38, 2
_BORDERS = frozenset({"constant", "parameter", "get-tuple-element", "tuple", "while", "call", "conditional"})
_SHARED = frozenset({"constant", "parameter", "broadcast", "get-tuple-element"})
"""Opcodes whose scope says little: equal constants of all layers become one, which keeps the name of the first."""


class _Field(NamedTuple):
    number: int
    value: int | bytes


@dataclass(frozen=True)
class _Instruction:
    name: str
    scope: str
    called: tuple[int, ...]
    id: int = 0
    operands: tuple[int, ...] = ()
    carries: bool = True
    """Whether what it is given and what it gives belong to the same piece of work; not so for parameters and tuples."""


def scopes(content: bytes) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the scopes of every instruction by module and name, those of what was fused into it included."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for module in _modules(content):
        name = next((_text(each) for each in _inner(module, _NAME)), "")
        found |= {(name, instruction): each for instruction, each in _module_scopes(module).items()}
    return found


def plain(scope: str) -> str:
    """Return a scope without the transformations around its parts.

    >>> plain("jit(train)/transpose(jvp(conv1/bn))/mul")
    'train/conv1/bn/mul'
    """
    return _WRAPPED.sub("", scope).replace(")", "")


def _module_scopes(module: bytes) -> dict[str, tuple[str, ...]]:
    computations = dict(_computation(each.value) for each in _fields(module) if _is_bytes(each, _COMPUTATIONS))
    callers, found = _callers(computations), {}
    for number, instructions in computations.items():
        own = {each.id: tuple(dict.fromkeys(_with_called(each, computations))) for each in instructions}
        near = _neighbours(instructions)
        for each in instructions:
            told = own[each.id] or _nearest(each, near, own)
            found[each.name] = tuple(dict.fromkeys([*told, *_around(number, callers)]))
    return found


Callers = Mapping[int, tuple[int, str]]


def _callers(computations: Mapping[int, list[_Instruction]]) -> Callers:
    """Return for the body of every loop, branch and call where it is called from: that computation, and the scope."""
    return {
        body: (number, plain(each.scope))
        for number, instructions in computations.items()
        for each in instructions
        if not each.carries
        for body in each.called
    }


def _around(number: int, callers: Callers) -> Iterator[str]:
    """The scopes of the loops around a computation: TensorFlow's sessions name what is inside as if it stood alone."""
    while number in callers:
        number, scope = callers[number]
        if scope:
            yield scope


Neighbours = Mapping[int, tuple[list[_Instruction], list[_Instruction]]]


def _neighbours(instructions: Sequence[_Instruction]) -> Neighbours:
    """Readers and operands of every instruction of a computation."""
    by_id = {each.id: each for each in instructions}
    found: dict[int, tuple[list[_Instruction], list[_Instruction]]] = {each.id: ([], []) for each in instructions}
    for each in instructions:
        for operand in each.operands:
            if operand in by_id:
                found[operand][0].append(each)
                found[each.id][1].append(by_id[operand])
    return found


def _nearest(start: _Instruction, near: Neighbours, own: Mapping[int, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the scopes of the nearest reader that has some, else of the nearest operand.

    XLA makes instructions of its own, such as the products that it splits a loop's into, and gives them no scope.
    """
    for direction in (0, 1):
        seen, front = {start.id}, [start]
        while front:
            front = [each for one in front for each in near[one.id][direction] if each.carries and each.id not in seen]
            seen |= {each.id for each in front}
            told = [scope for each in front for scope in own[each.id]]
            if told:
                return tuple(dict.fromkeys(told))
    return ()


def _with_called(instruction: _Instruction, computations: Mapping[int, list[_Instruction]]) -> Iterator[str]:
    inside = [each for number in instruction.called for each in computations.get(number, ())]
    # A fusion carries the scope of its last part; the parts say more.
    for each in inside:
        yield from _with_called(each, computations)
    if instruction.scope:
        yield plain(instruction.scope)


def _modules(content: bytes) -> Iterator[bytes]:
    """Every HloModuleProto: the bytes of a statistic of an event's metadata."""
    for plane in _inner(content, _PLANES):
        for entry in _inner(plane, _EVENT_METADATA):
            for metadata in _inner(entry, _MAP_VALUE):
                for stat in _inner(metadata, _STATS):
                    for proto in _inner(stat, _STAT_BYTES):
                        yield from _inner(proto, _MODULE)


def _computation(content: int | bytes) -> tuple[int, list[_Instruction]]:
    number, found = 0, []
    for each in _fields(content):
        if each.number == _COMPUTATION_ID and isinstance(each.value, int):
            number = each.value
        elif _is_bytes(each, _INSTRUCTIONS):
            found.append(_instruction(each.value))
    return number, found


def _instruction(content: int | bytes) -> _Instruction:
    name, opcode, scope, number, called, operands = "", "", "", 0, list[int](), list[int]()
    for each in _fields(content):
        if _is_bytes(each, _NAME):
            name = _text(each.value)
        elif _is_bytes(each, _OPCODE):
            opcode = _text(each.value)
        elif _is_bytes(each, _METADATA):
            scope = next((_text(inner) for inner in _inner(each.value, _OP_NAME)), "")
        elif each.number == _ID and isinstance(each.value, int):
            number = each.value
        elif each.number in (_CALLED, _OPERANDS):
            listed = called if each.number == _CALLED else operands
            listed += [each.value] if isinstance(each.value, int) else _packed(each.value)
    own = "" if opcode in _SHARED else scope
    return _Instruction(name, own, tuple(called), number, tuple(operands), opcode not in _BORDERS)


def _is_bytes(field: _Field, number: int) -> bool:
    return field.number == number and isinstance(field.value, bytes)


def _inner(content: int | bytes, number: int) -> Iterator[bytes]:
    return (each.value for each in _fields(content) if each.number == number and isinstance(each.value, bytes))


def _text(content: int | bytes) -> str:
    return content.decode("utf-8", "replace") if isinstance(content, bytes) else str(content)


def _packed(content: bytes) -> list[int]:
    place, found = 0, []
    while place < len(content):
        number, place = _varint(content, place)
        found.append(number)
    return found


def _fields(content: int | bytes) -> Iterator[_Field]:
    """The fields of a message, as far as it can be read."""
    assert isinstance(content, bytes)
    place = 0
    while place < len(content):
        key, place = _varint(content, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _varint(content, place)
            yield _Field(key >> 3, value)
        elif kind in (_FIXED_64, _FIXED_32):
            place += 8 if kind == _FIXED_64 else 4
        elif kind == _BYTES:
            size, place = _varint(content, place)
            yield _Field(key >> 3, content[place : place + size])
            place += size
        else:  # bytes that are no message
            return


def _varint(content: bytes, place: int) -> tuple[int, int]:
    number, shift = 0, 0
    while place < len(content):
        byte = content[place]
        number |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            break
    return number, place
