"""Info columns: round trip, and what a peer may not send."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.infos import MAX_ENTRIES, MAX_INFO_BYTES, InfoColumn, from_proto, read_rows, to_proto
from tests.unit.wire.strategies import DTYPES, random_array, seeds, shapes

U4 = np.dtype("<u4")


@given(seeds, st.integers(1, 6), st.lists(st.tuples(st.sampled_from(DTYPES), shapes), max_size=4))
def test_columns_round_trip(seed: int, num_slots: int, kinds: list[tuple[np.dtype[Any], tuple[int, ...]]]) -> None:
    """Random columns over all or some slots come back equal and writable; columns over none do not travel."""
    rng = np.random.default_rng(seed)
    columns = []
    for number, (dtype, shape) in enumerate(kinds):
        rows = np.flatnonzero(rng.integers(0, 2, num_slots)).astype(U4)
        columns.append(InfoColumn(f"key/{number}", rows, random_array(rng, dtype, (len(rows), *shape))))
    back = from_proto(to_proto(columns, num_slots), num_slots)
    sent = [column for column in columns if len(column.rows)]
    assert [column.key for column in back] == [column.key for column in sent]
    for ours, theirs in zip(sent, back, strict=True):
        assert ours.rows.tolist() == theirs.rows.tolist()
        assert (ours.data.dtype, ours.data.shape) == (theirs.data.dtype, theirs.data.shape)
        assert ours.data.tobytes() == theirs.data.tobytes()
        assert theirs.data.flags.writeable


def test_a_column_over_all_slots_sends_no_rows() -> None:
    """Empty rows mean every slot."""
    (message,) = to_proto([InfoColumn("k", np.arange(3, dtype=U4), np.zeros(3))], 3)
    assert message.rows == b""
    (message,) = to_proto([InfoColumn("k", np.arange(2, dtype=U4), np.zeros(2))], 3)
    assert message.rows != b""


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"dtype": pb.DTYPE_UNSPECIFIED}, "unknown dtype"),
        ({"dtype": pb.DType.ValueType(99)}, "unknown dtype"),
        ({"shape": [2]}, "8 bytes where"),
        ({"shape": [2**32 - 1]}, "no array of"),
        ({"shape": [MAX_INFO_BYTES + 1]}, f"over {MAX_INFO_BYTES} bytes a slot"),
        ({"shape": [1] * 17}, "no array of"),
        ({"shape": [0, 2**32 - 1, 2**32 - 1, 2**32 - 1], "data": b""}, "no array of"),
        ({"data": b""}, "0 bytes where"),
        ({"data": bytes(9)}, "9 bytes where"),
        ({"data": b"\2" * 8, "dtype": pb.B1}, "a bool is 0 or 1"),
        ({"rows": b"\0"}, "no u4 array"),
        ({"rows": np.array([1, 0], U4).tobytes()}, "ascending"),
        ({"rows": np.array([1, 1], U4).tobytes()}, "ascending"),
        ({"rows": np.array([8], U4).tobytes()}, "below 8"),
        ({"rows": np.array([2**32 - 1], U4).tobytes()}, "below 8"),
        ({"rows": np.array([0], U4).tobytes()}, "8 bytes where"),
    ],
)
def test_columns_that_make_no_sense_are_refused(fields: dict[str, Any], says: str) -> None:
    """Each raises RemoteProtocolError that names the key, before an array of that size exists."""
    good: dict[str, Any] = {"key": "lives", "dtype": pb.U1, "data": bytes(8)}
    assert from_proto([pb.InfoColumn(**good)], 8)[0].data.tolist() == [0] * 8
    with pytest.raises(RemoteProtocolError) as caught:
        from_proto([pb.InfoColumn(**good | fields)], 8)
    assert says in str(caught.value)
    assert "dtype" in says or "lives" in str(caught.value)


def test_the_largest_column_is_legal() -> None:
    """Exactly the cap."""
    message = pb.InfoColumn(key="k", dtype=pb.F8, shape=[MAX_INFO_BYTES // 8], data=bytes(MAX_INFO_BYTES))
    assert from_proto([message], 1)[0].data.nbytes == MAX_INFO_BYTES


def test_many_columns_are_refused_before_they_take_memory() -> None:
    """Empty ones are seven bytes each on the wire; large ones are each within the cap of a slot."""
    empty = pb.InfoColumn(dtype=pb.B1, shape=[0])
    assert len(from_proto([empty] * MAX_ENTRIES * 4, 4)) == MAX_ENTRIES * 4
    with pytest.raises(RemoteProtocolError, match=f"at most {MAX_ENTRIES} a slot"):
        from_proto([empty] * (MAX_ENTRIES * 4 + 1), 4)
    half = pb.InfoColumn(key="k", dtype=pb.F8, shape=[MAX_INFO_BYTES // 16], data=bytes(MAX_INFO_BYTES * 2))
    assert len(from_proto([half] * 2, 4)) == 2
    with pytest.raises(RemoteProtocolError, match=f"over {MAX_INFO_BYTES} bytes a slot"):
        from_proto([half] * 3, 4)


def test_rows_in_order() -> None:
    """Every strictly ascending list below the number of slots is read, the empty one too."""
    for rows in ([], [0], [0, 1, 2], [1, 7]):
        assert read_rows(np.array(rows, U4).tobytes(), 8, "x").tolist() == rows
