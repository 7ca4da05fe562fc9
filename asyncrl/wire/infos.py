"""Env infos that travel: named arrays of numbers, a fixed shape per key, under a byte cap.

Invariants: columns round-trip (test_columns_round_trip); a column of a peer is refused before anything of it is read
where its rows, shape, dtype or size make no sense (test_columns_that_make_no_sense_are_refused).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire import tensors
from asyncrl.wire._generated import env_pb2 as pb

# For a slot and a step; the server counts the keys, too.
MAX_INFO_BYTES: Final = 4096
# Of one info, nested ones included: a column may be empty, and still takes memory where it is read.
MAX_ENTRIES: Final = 256


@dataclass(slots=True)
class InfoColumn:
    """One key of the infos: `data` is `[N, *shape]`, its rows are `rows` `[N]` (u4, ascending slot indices)."""

    key: str
    rows: tensors.Array
    data: tensors.Array


def to_proto(columns: list[InfoColumn], num_slots: int) -> list[pb.InfoColumn]:
    """Columns that cover every slot leave `rows` out, and columns of no slot stay at home."""
    return [
        pb.InfoColumn(
            key=column.key,
            dtype=tensors.code_of(column.data.dtype),
            shape=column.data.shape[1:],
            rows=b"" if len(column.rows) == num_slots else tensors.to_bytes(column.rows),
            data=tensors.to_bytes(column.data),
        )
        for column in columns
        if len(column.rows)
    ]


def from_proto(messages: list[pb.InfoColumn], num_slots: int) -> list[InfoColumn]:
    """Columns with writable data; sizes are checked against the cap before anything is read."""
    if len(messages) > MAX_ENTRIES * num_slots:
        raise RemoteProtocolError(f"{len(messages)} columns of infos: at most {MAX_ENTRIES} a slot")
    columns = []
    all_rows = np.arange(num_slots, dtype="<u4")
    all_rows.flags.writeable = False  # it is every column's
    room = MAX_INFO_BYTES * num_slots
    for message in messages:
        rows = read_rows(message.rows, num_slots, f"rows of info {message.key!r}") if message.rows else None
        count = num_slots if rows is None else len(rows)
        dtype, shape = tensors.dtype_of(message.dtype), tuple(message.shape)
        tensors.check_shape(shape, dtype, f"info {message.key!r}")
        size = math.prod(shape) * dtype.itemsize
        room -= count * size
        if size > MAX_INFO_BYTES or room < 0:
            raise RemoteProtocolError(f"info {message.key!r}: over {MAX_INFO_BYTES} bytes a slot")
        data = tensors.owned(message.data, dtype, (count, *shape), f"info {message.key!r}")
        columns.append(InfoColumn(message.key, all_rows if rows is None else rows, data))
    return columns


def read_rows(data: bytes, num_slots: int, what: str) -> tensors.Array:
    """Row indices `[N]`: u4, strictly ascending, below `num_slots`."""
    if len(data) % 4:
        raise RemoteProtocolError(f"{what}: {len(data)} bytes are no u4 array")
    rows = np.frombuffer(data, "<u4")
    if rows.size and (int(rows[-1]) >= num_slots or not bool((rows[1:] > rows[:-1]).all())):
        raise RemoteProtocolError(f"{what}: not strictly ascending below {num_slots}")
    return rows
