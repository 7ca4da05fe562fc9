"""Arrays as raw little-endian bytes: the dtype table of the wire and the two directions.

Invariants: what travelled is equal bit for bit (test_every_dtype_and_shape_round_trips); only the dtypes of the table
travel: objects, structures, strings and the like are refused on the way out (test_foreign_dtypes_are_refused); a
length that does not match its spec, a shape that no array can have and a bool that is neither 0 nor 1 are refused on
the way in (test_bytes_that_are_no_such_array_are_refused).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncrl.errors import LocalProtocolError, RemoteProtocolError
from asyncrl.wire._generated import env_pb2 as pb

Array = npt.NDArray[Any]

MAX_DIMS: Final = 16  # NumPy 1 has room for 32; the slot axis and the stack axis are among them
MAX_SLOT_BYTES: Final = 256 * 1024 * 1024  # of one array and one slot

# bf16 has no NumPy dtype; it travels and is held as its 16 raw bits.
_TABLE: dict[int, np.dtype[Any]] = {
    pb.B1: np.dtype(np.bool_),
    pb.I1: np.dtype("<i1"),
    pb.I2: np.dtype("<i2"),
    pb.I4: np.dtype("<i4"),
    pb.I8: np.dtype("<i8"),
    pb.U1: np.dtype("<u1"),
    pb.U2: np.dtype("<u2"),
    pb.U4: np.dtype("<u4"),
    pb.U8: np.dtype("<u8"),
    pb.F2: np.dtype("<f2"),
    pb.BF16: np.dtype("<u2"),
    pb.F4: np.dtype("<f4"),
    pb.F8: np.dtype("<f8"),
}
_CODES: dict[np.dtype[Any], pb.DType.ValueType] = {d: pb.DType.ValueType(c) for c, d in _TABLE.items() if c != pb.BF16}


def dtype_of(code: int) -> np.dtype[Any]:
    """The NumPy dtype of a wire DType."""
    try:
        return _TABLE[code]
    except KeyError:
        raise RemoteProtocolError(f"unknown dtype code {code}") from None


def code_of(dtype: npt.DTypeLike) -> pb.DType.ValueType:
    """The wire DType of a NumPy dtype."""
    found = _CODES.get(np.dtype(dtype).newbyteorder("<"))
    if found is None:
        raise LocalProtocolError(f"dtype {np.dtype(dtype)} has no wire form; use one of {sorted(map(str, _CODES))}")
    return found


def check_shape(shape: Sequence[int], dtype: np.dtype[Any], what: str) -> None:
    """Refuses a shape of the peer's that no array should have: too many axes, or too many bytes but for a zero."""
    if len(shape) > MAX_DIMS or math.prod(size or 1 for size in shape) * dtype.itemsize > MAX_SLOT_BYTES:
        raise RemoteProtocolError(f"{what}: no array of {dtype} has the shape {list(shape[: MAX_DIMS + 1])}")


def to_bytes(array: Array) -> bytes:
    """C-order little-endian bytes of an array of any layout."""
    if array.dtype not in _CODES:  # big-endian, or refused: the bytes of objects would be addresses of this process
        array = array.astype(_TABLE[code_of(array.dtype)])
    return array.tobytes()


def to_buffer(array: Array) -> bytes | Array:
    """What `to_bytes` gives, or the array itself where its memory is just that: for joining, which copies it anyway."""
    return array if array.dtype in _CODES and array.flags.c_contiguous else to_bytes(array)


def from_bytes(data: bytes | bytearray, dtype: np.dtype[Any], shape: Sequence[int], what: str) -> Array:
    """A view of `data` as an array, read-only if `data` is; `what` names the field in the error."""
    wanted = math.prod(shape) * dtype.itemsize
    if len(data) != wanted:
        raise RemoteProtocolError(f"{what}: {len(data)} bytes where {tuple(shape)} of {dtype} needs {wanted}")
    array = np.frombuffer(data, dtype)
    # Any other byte in a bool array makes NumPy's sums and negations wrong.
    if dtype.kind == "b" and wanted and array.view(np.uint8).max() > 1:
        raise RemoteProtocolError(f"{what}: a bool is 0 or 1, not {array.view(np.uint8).max()}")
    return array if len(shape) == 1 else array.reshape(shape)


def owned(data: bytes, dtype: np.dtype[Any], shape: Sequence[int], what: str) -> Array:
    """As `from_bytes`, but writable and in memory of its own."""
    return from_bytes(bytearray(data), dtype, shape, what)
