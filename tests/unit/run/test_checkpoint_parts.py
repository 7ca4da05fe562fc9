"""Parts of checkpoints come back as they were; their files are plain safetensors, npz and JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asyncrl.run.checkpoint_parts import DTYPES, Arrays, Plain, Tensors, kind_of, read_part, write_part
from asyncrl.run.files import PIECE_BYTES

PLAIN = sorted({dtype.str for dtype in DTYPES.values()})
NAMES = st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__" and name.isprintable())
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
TENSORS = st.dictionaries(NAMES, hnp.arrays(st.sampled_from(PLAIN).map(np.dtype), SHAPES), max_size=5)
ANY_DTYPE = st.one_of(hnp.scalar_dtypes(), hnp.byte_string_dtypes(min_len=1), hnp.unicode_string_dtypes(min_len=1))
PLAIN_NAMES = st.text("abc_.0", min_size=1, max_size=8)
ARRAYS = st.dictionaries(PLAIN_NAMES, hnp.arrays(ANY_DTYPE, SHAPES), max_size=4)


class Collected:
    """A sink in memory that knows the sizes of what it was given."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.sizes: list[int] = []

    def write(self, data: bytes | memoryview, /) -> int:
        self.data += data
        self.sizes.append(len(data))
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing is open."""


def written(part: Plain) -> bytearray:
    sink = Collected()
    write_part(part, sink)
    return sink.data


def same(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    """Shape, dtype up to byte order, and every bit."""
    little = left.astype(left.dtype.newbyteorder("<"))
    return (
        left.shape == right.shape
        and little.dtype == right.dtype.newbyteorder("<")
        and little.tobytes() == right.astype(right.dtype.newbyteorder("<")).tobytes()
    )


@given(TENSORS, st.randoms(use_true_random=False))
def test_parts_come_back_as_they_were(arrays: dict[str, np.ndarray[Any, Any]], chance: Any) -> None:
    """Tensors of every dtype and shape, empty and scalar ones too, bit for bit, and writable."""
    halves = frozenset(name for name, array in arrays.items() if array.dtype == np.uint16 and chance.random() < 0.5)
    found = read_part("safetensors", written(Tensors(arrays, halves)))
    assert isinstance(found, Tensors)
    assert found.bf16 == halves
    assert found.arrays.keys() == arrays.keys()
    assert all(same(array, found.arrays[name]) and found.arrays[name].flags.writeable for name, array in arrays.items())


@given(ARRAYS)
def test_arrays_of_any_dtype_come_back(arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    """Strings, dates and big-endian numbers too."""
    found = read_part("npz", written(Arrays(arrays)))
    assert isinstance(found, Arrays)
    assert found.arrays.keys() == arrays.keys()
    assert all(same(array, found.arrays[name]) for name, array in arrays.items())


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("step", [1, -1, 2])
def test_arrays_in_any_layout_come_back(order: Any, step: int) -> None:
    """Fortran order, reversed and strided views keep their values and shapes."""
    array = np.asarray(np.arange(24, dtype=">f4").reshape(4, 6), order=order)[::step]
    for part in (Tensors({"x": array}), Arrays({"x": array})):
        found = read_part(kind_of(part), written(part))
        assert isinstance(found, Tensors | Arrays)
        np.testing.assert_array_equal(found.arrays["x"], array)


@settings(max_examples=40)
@given(st.dictionaries(st.text(), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists)))
def test_json_comes_back(value: dict[str, Any]) -> None:
    """Integers of any size too: states of generators have 128 bits."""
    assert read_part("json", written(value)) == value


def test_floats_of_json_come_back_exactly() -> None:
    """To the last bit, and with infinities."""
    value = {"numbers": [0.1, 1e-320, float("inf"), -0.0, 2.0**70]}
    found = read_part("json", written(value))
    assert isinstance(found, dict)
    assert [number.hex() for number in found["numbers"]] == [number.hex() for number in value["numbers"]]


def test_safetensors_reads_ours() -> None:
    """The package finds the same arrays, and torch the same bfloat16 numbers."""
    arrays = {"weight": np.arange(6, dtype="f4").reshape(2, 3), "flag": np.array(True), "none": np.zeros((0, 2), "i8")}
    found = safetensors.numpy.load(bytes(written(Tensors(arrays))))
    assert found.keys() == arrays.keys()
    assert all(same(array, found[name]) for name, array in arrays.items())
    half = torch.tensor([1.5, -2.25, float("inf")], dtype=torch.bfloat16)
    bits = half.view(torch.uint16).numpy()
    read = safetensors.torch.load(bytes(written(Tensors({"half": bits, "x": arrays["flag"]}, frozenset({"half"})))))
    assert read["half"].dtype == torch.bfloat16
    assert torch.equal(read["half"], half)


def test_we_read_safetensors() -> None:
    """What the package wrote, with metadata and with bfloat16."""
    half = torch.tensor([[1.5, -2.25]], dtype=torch.bfloat16)
    data = safetensors.torch.save({"half": half, "x": torch.arange(5)}, metadata={"format": "pt"})
    found = read_part("safetensors", bytearray(data))
    assert isinstance(found, Tensors)
    assert found.bf16 == {"half"}
    assert torch.equal(torch.from_numpy(found.arrays["half"]).view(torch.bfloat16), half)
    np.testing.assert_array_equal(found.arrays["x"], np.arange(5))


def test_numpy_reads_ours(tmp_path: Path) -> None:
    """An npz is one for everybody."""
    path = tmp_path / "x.npz"
    path.write_bytes(written(Arrays({"a": np.arange(3), "b": np.array("text")})))
    with np.load(path, allow_pickle=False) as found:
        assert found["a"].tolist() == [0, 1, 2]
        assert str(found["b"]) == "text"


def test_the_same_content_gives_the_same_bytes() -> None:
    """Whatever the order of the names and whatever the time."""
    one = {"a": np.arange(3), "b": np.arange(4.0)}
    other = dict(reversed(one.items()))
    assert written(Tensors(one)) == written(Tensors(other))
    assert written(Arrays(one)) == written(Arrays(other))


def test_no_piece_is_large() -> None:
    """Large arrays leave in pieces, so that nothing holds the interpreter for long."""
    array = np.zeros(3 * PIECE_BYTES + 5, "u1")
    for part in (Tensors({"x": array}), Arrays({"x": array})):
        sink = Collected()
        write_part(part, sink)
        assert max(sink.sizes) == PIECE_BYTES


@pytest.mark.parametrize(
    "part",
    [
        *(Tensors({"x": np.array([None])}), Tensors({"x": np.array(["text"])}), Arrays({"x": np.array([None])})),
        *(Tensors({"x": np.zeros(2, "f4")}, frozenset({"x"})), {"x": object()}),
    ],
)
def test_what_has_no_form_is_the_callers_mistake(part: Plain) -> None:
    """Objects, text as tensors, bfloat16 that is none."""
    with pytest.raises(TypeError):
        written(part)


def test_pickles_are_refused() -> None:
    """An npz with an object array in it is not loaded."""
    buffer = io.BytesIO()
    np.savez(buffer, x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match=r"npz|pickle"):
        read_part("npz", bytearray(buffer.getvalue()))


@settings(max_examples=300)
@given(st.sampled_from(["safetensors", "npz", "json"]), st.data())
def test_any_bytes_are_a_part_or_a_value_error(kind: str, data: st.DataObject) -> None:
    """Noise, and good files with some bytes changed."""
    good: dict[str, Plain] = {
        "safetensors": Tensors({"x": np.arange(4.0), "y": np.array(1, "u2")}, frozenset({"y"})),
        "npz": Arrays({"x": np.arange(4.0)}),
        "json": {"x": [1, 2]},
    }
    if data.draw(st.booleans()):
        content = bytearray(data.draw(st.binary(max_size=64)))
    else:
        content = written(good[kind])
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        part = read_part(kind, content)
    except ValueError:
        return
    assert kind_of(part) == kind


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F64", "shape": [-1, -2], "data_offsets": [0, 16]},
        {"dtype": "F64", "shape": [2], "data_offsets": [0, 24]},
        {"dtype": "F64", "shape": [3], "data_offsets": [0, 24]},
        {"dtype": "F64", "shape": [1], "data_offsets": [-8, 0]},
        {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]},
        {"dtype": "F128", "shape": [1], "data_offsets": [0, 16]},
        {"dtype": "F64", "shape": [2]},
        [],
    ],
)
def test_a_header_that_does_not_fit_is_refused(entry: Any) -> None:
    """Offsets outside of the file, sizes that do not multiply, bytes of nobody."""
    header = json.dumps({"x": entry}).encode()
    with pytest.raises(ValueError, match=r"safetensors|fit|belong"):
        read_part("safetensors", bytearray(len(header).to_bytes(8, "little") + header + bytes(16)))
