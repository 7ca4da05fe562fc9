"""The parts of a checkpoint as bytes: tensors as safetensors, other arrays as npz, blocks of rows as they are, the rest
as JSON.

* What was written is what is read: values, shapes, dtypes and the bits of bfloat16 (test_parts_come_back_as_they_were).
* Bytes leave in pieces, and arrays are not copied on the way (test_no_piece_is_large).
* Reading runs nothing that the bytes bring along, and any bytes are a part or a ValueError
  (test_any_bytes_are_a_part_or_a_value_error).

The safetensors layout is written here because the package's NumPy side has no bfloat16 and takes a copy of everything;
its files are read by the package and the other way round (test_safetensors_reads_ours, test_we_read_safetensors).
"""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from asyncrl.run.files import PIECE_BYTES

Array = npt.NDArray[Any]

DTYPES: Final = {
    name: np.dtype(code)
    for name, code in [
        *[("F64", "<f8"), ("F32", "<f4"), ("F16", "<f2"), ("BF16", "<u2"), ("C64", "<c8"), ("BOOL", "|b1")],
        *[("I64", "<i8"), ("I32", "<i4"), ("I16", "<i2"), ("I8", "|i1")],
        *[("U64", "<u8"), ("U32", "<u4"), ("U16", "<u2"), ("U8", "|u1")],
    ]
}
NAMES: Final = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}
HEADER_LIMIT: Final = 100_000_000  # bytes; the safetensors package refuses more, too


@dataclass(frozen=True)
class Tensors:
    """Named arrays of plain dtypes, any shapes: parameters, optimiser state. Kept as safetensors."""

    arrays: Mapping[str, Array]
    bf16: frozenset[str] = frozenset()  # names of u2 arrays that hold the raw bits of bfloat16


@dataclass(frozen=True)
class Arrays:
    """Named arrays of any dtype but object, any shapes: statistics, small state. Kept as npz."""

    arrays: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Blocks:
    """Bytes in blocks of which most are as they were in the checkpoint before: rows of a replay. Kept as a directory.

    `keys`, by block: what has the same key has the same bytes; "" is no block.
    """

    keys: tuple[str, ...]
    read: Callable[[int], bytes]


Plain = Tensors | Arrays | dict[str, Any]  # one file each; a dict is kept as JSON
Part = Plain | Blocks
SUFFIXES: Final = {"safetensors": ".safetensors", "npz": ".npz", "json": ".json", "blocks": ".blocks"}


class Sink(Protocol):
    """What parts are written to."""

    def write(self, data: bytes | memoryview, /) -> int: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


def kind_of(part: Part) -> str:
    """The format of a part: a key of SUFFIXES."""
    if isinstance(part, Tensors):
        return "safetensors"
    if isinstance(part, Blocks):
        return "blocks"
    return "npz" if isinstance(part, Arrays) else "json"


def write_part(part: Plain, sink: Sink) -> None:
    """Writes the part's bytes. TypeError or ValueError: the part has no such form, and the caller is wrong."""
    if isinstance(part, Tensors):
        _write_tensors(part, sink)
    elif isinstance(part, Arrays):
        _write_arrays(part, sink)
    else:
        sink.write(json.dumps(part, sort_keys=True).encode())


def read_part(kind: str, data: bytearray) -> Plain:
    """The part; arrays are writable, those of tensors are views of `data`. ValueError: the bytes are no such part."""
    try:
        if kind == "safetensors":
            return _read_tensors(data)
        if kind == "npz":
            return _read_arrays(data)
        value = json.loads(data.decode())
    except (KeyError, TypeError, EOFError, OverflowError, RecursionError, struct.error, zipfile.BadZipFile) as error:
        raise ValueError(f"no {kind}: {error!r}") from None
    except (NotImplementedError, RuntimeError, OSError, MemoryError, zlib.error, SyntaxError) as error:
        raise ValueError(f"no {kind}: {error!r}") from None
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def _write_tensors(part: Tensors, sink: Sink) -> None:
    arrays = {name: _plain(array) for name, array in part.arrays.items()}
    header: dict[str, Any] = {}
    end = 0
    # Large items first: every array then begins at a multiple of its item size.
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    for name in order:
        array = arrays[name]
        begin, end = end, end + array.nbytes
        dtype = "BF16" if name in part.bf16 else NAMES.get(array.dtype)
        if dtype is None or (dtype == "BF16" and array.dtype != np.dtype("<u2")):
            raise TypeError(f"{name!r} is {array.dtype}: no tensor of a checkpoint")
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    sink.write(struct.pack("<Q", len(text)) + text)
    for name in order:
        for piece in _pieces(arrays[name]):
            sink.write(piece)


def _read_tensors(data: bytearray) -> Tensors:
    (length,) = struct.unpack_from("<Q", data)
    if length > min(len(data) - 8, HEADER_LIMIT):
        raise ValueError("the header is longer than the file")
    header = json.loads(bytes(data[8 : 8 + length]).decode())
    header.pop("__metadata__", None)
    arrays: dict[str, Array] = {}
    base, used = 8 + length, 0
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
        count = math.prod(shape)
        if (
            not (0 <= begin <= end <= len(data) - base)
            or count * dtype.itemsize != end - begin
            or min(shape, default=0) < 0
        ):
            raise ValueError(f"{name!r} does not fit into the file")
        empty = count == 0  # frombuffer refuses it
        flat = np.empty(0, dtype) if empty else np.frombuffer(data, dtype, count, base + begin)
        arrays[name] = flat.reshape(shape)
        used += end - begin
    if used != len(data) - base:
        raise ValueError("there are bytes that belong to no tensor")
    return Tensors(arrays, frozenset(name for name, entry in header.items() if entry["dtype"] == "BF16"))


def _write_arrays(part: Arrays, sink: Sink) -> None:
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(part.arrays):
            array = np.asarray(part.arrays[name], order="C")
            if array.dtype.hasobject:
                raise TypeError(f"{name!r} holds Python objects")
            # A fixed date: the same arrays give the same bytes.
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, np.lib.format.header_data_from_array_1_0(array))
                for piece in _pieces(array):
                    member.write(piece)


def _read_arrays(data: bytearray) -> Arrays:
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("no npz")
        return Arrays({name: archive[name] for name in archive.files})


def _plain(array: Array) -> Array:
    """The same values, little-endian and in C order; the same array if it is so already."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.asarray(little, order="C")


def _pieces(array: Array) -> Iterator[memoryview]:
    """The bytes of a C-ordered array."""
    if array.nbytes == 0:
        return
    view = memoryview(array.reshape(-1).view(np.uint8).data)
    for begin in range(0, len(view), PIECE_BYTES):
        yield view[begin : begin + PIECE_BYTES]
