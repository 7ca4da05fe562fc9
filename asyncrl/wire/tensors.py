"""Arrays as raw little-endian bytes: the dtype table of the wire and the two directions.

Only the dtypes of the table travel. Object, structured, string and big-endian arrays are
refused on the way out, and a length that does not match its spec on the way in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.errors import LocalProtocolError, RemoteProtocolError
from asyncrl.wire._generated import env_pb2 as pb

Array = npt.NDArray[Any]

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


def to_bytes(array: Array) -> bytes:
    """C-order little-endian bytes of an array of any layout."""
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array.tobytes()


def from_bytes(data: bytes, dtype: np.dtype[Any], shape: Sequence[int], what: str) -> Array:
    """A read-only view of `data` as an array; `what` names the field in the error."""
    wanted = math.prod(shape) * dtype.itemsize
    if len(data) != wanted:
        raise RemoteProtocolError(f"{what}: {len(data)} bytes where {tuple(shape)} of {dtype} needs {wanted}")
    return np.frombuffer(data, dtype).reshape(shape)
