"""Messages between the front and the engine: JSON with raw arrays, each part with its length.

A message is a header, a JSON object of a known length, and the bytes of its arrays one after the
other. The header contains the name, type and shape of each array. Nothing is pickled, so a message
cannot run code.
"""

from __future__ import annotations

import asyncio
import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

MOST_BYTES = 1 << 34
"""The size of one part; a larger length means that the stream is damaged."""
TYPES = ("float32", "int64", "uint8")

Array = NDArray[Any]


@dataclass(frozen=True)
class Message:
    """What is sent: values of JSON, and arrays by name."""

    values: Mapping[str, Any]
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.values[key]


def encode(message: Message) -> list[bytes | memoryview]:
    """The parts of a message, to be written one after the other."""
    arrays = {name: np.ascontiguousarray(array) for name, array in message.arrays.items()}
    for name, array in arrays.items():
        assert array.dtype.name in TYPES, name
    described = [[name, a.dtype.name, list(a.shape)] for name, a in arrays.items()]
    header = json.dumps([dict(message.values), described], separators=(",", ":")).encode()
    parts: list[bytes | memoryview] = [struct.pack(">Q", len(header)) + header]
    return parts + [a.reshape(-1).view(np.uint8).data for a in arrays.values() if a.size]


def _described(header: bytes) -> tuple[dict[str, Any], list[tuple[str, np.dtype[Any], list[int]]]]:
    values, described = json.loads(header)
    found = []
    for name, kind, shape in described:
        if kind not in TYPES:
            raise ValueError(f"an array of type {kind!r} cannot be received")
        found.append((name, np.dtype(kind), shape))
    return values, found


def _size(kind: np.dtype[Any], shape: Iterable[int]) -> int:
    return _checked(math.prod(shape) * kind.itemsize)


def _checked(size: int) -> int:
    if not 0 <= size <= MOST_BYTES:
        raise ValueError(f"a part of {size} bytes cannot be received")
    return size


def send(stream: BinaryIO, message: Message) -> None:
    """Write a message to a pipe."""
    for part in encode(message):
        stream.write(part)
    stream.flush()


def receive(stream: BinaryIO) -> Message | None:
    """Read a message from a pipe; None at its end."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    values, described = _described(stream.read(_checked(struct.unpack(">Q", head)[0])))
    arrays = {}
    for name, kind, shape in described:
        arrays[name] = np.frombuffer(stream.read(_size(kind, shape)), kind).reshape(shape)
    return Message(values, arrays)


async def receive_async(stream: asyncio.StreamReader) -> Message:
    """Read a message from an asyncio stream; raises IncompleteReadError at its end."""
    (length,) = struct.unpack(">Q", await stream.readexactly(8))
    values, described = _described(await stream.readexactly(_checked(length)))
    arrays = {}
    for name, kind, shape in described:
        # A copy, because published rows are written to.
        raw = bytearray(await stream.readexactly(_size(kind, shape)))
        arrays[name] = np.frombuffer(raw, kind).reshape(shape)
    return Message(values, arrays)
