"""Arrays to bytes and back, over a table of dtypes and shapes, and what is refused in each direction."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import LocalProtocolError, RemoteProtocolError
from asyncrl.wire import tensors
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.tensors import MAX_SLOT_BYTES, check_shape, code_of, dtype_of, from_bytes, to_bytes
from tests.unit.wire.strategies import DTYPES, random_array, seeds, shapes

TABLE = {
    pb.B1: "?",
    pb.I1: "<i1",
    pb.I2: "<i2",
    pb.I4: "<i4",
    pb.I8: "<i8",
    pb.U1: "<u1",
    pb.U2: "<u2",
    pb.U4: "<u4",
    pb.U8: "<u8",
    pb.F2: "<f2",
    pb.BF16: "<u2",
    pb.F4: "<f4",
    pb.F8: "<f8",
}
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (7,), (3, 0), (2, 3), (2, 1, 3, 2), (1,) * 16]


def test_every_dtype_of_the_proto_is_in_the_table() -> None:
    """The proto's enum and the table of codes agree, and a bfloat16 is held as its bits."""
    assert {code: str(dtype_of(code)) for code in TABLE} == {code: str(np.dtype(name)) for code, name in TABLE.items()}
    assert set(TABLE) == set(pb.DType.values()) - {pb.DTYPE_UNSPECIFIED}
    for code, name in TABLE.items():
        assert code_of(name) == (pb.U2 if code == pb.BF16 else code)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_dtype_and_shape_round_trips(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """What comes back has the same dtype, shape and bits, NaN payloads and signed zeros among them."""
    array = random_array(np.random.default_rng(1), dtype, shape)
    back = from_bytes(to_bytes(array), dtype, shape, "x")
    assert (back.dtype, back.shape) == (dtype, shape)
    assert back.tobytes() == array.tobytes()
    assert not back.flags.writeable


@given(seeds, st.sampled_from(DTYPES), shapes, st.sampled_from(["C", "F", "reversed", "sliced", "big-endian"]))
def test_any_layout_becomes_c_order(seed: int, dtype: np.dtype[Any], shape: tuple[int, ...], layout: str) -> None:
    """Fortran order, negative strides, gaps and big-endian arrays travel as what they mean."""
    array = random_array(np.random.default_rng(seed), dtype, shape)
    laid = {
        "C": array,
        "F": np.asfortranarray(array),
        "reversed": array[..., ::-1].copy()[..., ::-1] if shape else array,
        "sliced": np.repeat(array, 2, axis=0)[::2] if shape else array,
        "big-endian": array.astype(dtype.newbyteorder(">")),
    }[layout]
    back = from_bytes(to_bytes(laid), dtype, shape, "x")
    if dtype.kind == "f" and layout == "big-endian":  # a cast may make a signalling NaN a quiet one
        np.testing.assert_array_equal(back, array)
    else:
        assert back.tobytes() == array.tobytes()


def test_bytes_are_little_endian() -> None:
    """The bytes are those of `struct`, written out by hand."""
    assert to_bytes(np.array([1, -2], np.int32)) == struct.pack("<ii", 1, -2)
    assert to_bytes(np.array([1.5], ">f8")) == struct.pack("<d", 1.5)
    assert to_bytes(np.array([True, False])) == b"\1\0"


FOREIGN = [
    np.array([object()]),
    np.array(["text"]),
    np.array([b"bytes"]),
    np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    np.array(["2020-01-01"], "datetime64[D]"),
    np.array([1], "timedelta64[s]"),
    np.array([1j]),
    np.array([b"x"], "V1"),
]
if np.dtype(np.longdouble).itemsize > 8:
    FOREIGN.append(np.array([1], np.longdouble))


@pytest.mark.parametrize("array", FOREIGN, ids=lambda array: str(array.dtype))
def test_foreign_dtypes_are_refused(array: tensors.Array) -> None:
    """Objects, texts, structures, times, complex and long numbers have no wire form, in either function."""
    with pytest.raises(LocalProtocolError):
        to_bytes(array)
    with pytest.raises(LocalProtocolError, match="has no wire form"):
        code_of(array.dtype)


@pytest.mark.parametrize("code", [pb.DTYPE_UNSPECIFIED, 14, 255, -1])
def test_an_unknown_code_is_the_peers_fault(code: int) -> None:
    """A code outside the table raises RemoteProtocolError."""
    with pytest.raises(RemoteProtocolError, match="unknown dtype"):
        dtype_of(code)


@pytest.mark.parametrize(
    ("data", "dtype", "shape", "says"),
    [
        (b"", "<f4", (1,), "0 bytes where"),
        (b"\0" * 3, "<f4", (1,), "3 bytes where"),
        (b"\0" * 5, "<f4", (1,), "5 bytes where"),
        (b"\0" * 8, "<f4", (), "needs 4"),
        (b"\0", "<u1", (0,), "needs 0"),
        (b"\2", "?", (1,), "a bool is 0 or 1, not 2"),
        (b"\0\1\xff", "?", (3, 1), "not 255"),
    ],
)
def test_bytes_that_are_no_such_array_are_refused(data: bytes, dtype: str, shape: tuple[int, ...], says: str) -> None:
    """Too short, too long, and bools with other bits in them; the error names the field."""
    with pytest.raises(RemoteProtocolError) as caught:
        from_bytes(data, np.dtype(dtype), shape, "the field")
    assert says in str(caught.value)
    assert str(caught.value).startswith("the field: ")


@pytest.mark.parametrize(
    ("shape", "legal"),
    [
        ((), True),
        ((1,) * 16, True),
        ((1,) * 17, False),
        ((MAX_SLOT_BYTES // 4,), True),
        ((MAX_SLOT_BYTES // 4 + 1,), False),
        ((0, MAX_SLOT_BYTES // 4), True),
        ((0, 2**32 - 1, 2**32 - 1, 2**32 - 1), False),
    ],
)
def test_a_shape_that_no_array_has_is_refused(shape: tuple[int, ...], legal: bool) -> None:
    """Axes and bytes are bounded, also behind an axis of size zero."""
    if legal:
        check_shape(shape, np.dtype("<f4"), "x")
    else:
        with pytest.raises(RemoteProtocolError, match="no array of float32"):
            check_shape(shape, np.dtype("<f4"), "x")
