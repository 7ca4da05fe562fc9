"""Plain values: the closed set of types that a state may consist of, copied in memory or written as bytes.

None, numbers, strings, bytes, arrays without objects, lists, tuples, dicts, deques and sets of them, and random
generators, which are held as `Randomness`. Enum members may be copied, not written: bytes name no classes.

Invariants: what was copied shares no memory that either side can write to (test_copies_share_nothing); bytes read back
equal, type by type (test_any_plain_value_survives_its_bytes); any other bytes are refused with BadBytes
(test_damaged_bytes_are_refused).
"""

from __future__ import annotations

import math
import random
import struct
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, NamedTuple

import numpy as np

MAX_DEPTH: Final = 32
# Values that cannot change.
ATOMS: Final = frozenset({type(None), bool, int, float, complex, str, bytes, range})
_BIT_GENERATORS: Final[dict[str, Any]] = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}
RANDOMNESS_BYTES: Final = 900  # what `size_of` finds of a generator's state, about
_WRITABLE: Final = "biufcSU"
_COLLECTIONS: Final[dict[type, bytes]] = {list: b"l", tuple: b"t", set: b"s", frozenset: b"z", deque: b"q"}
_LENGTH: Final = struct.Struct("<I")


class NotPlain(TypeError):
    """A value of a type that is not in the set; the text names the type."""


class BadBytes(ValueError):
    """Bytes that no plain value was written as."""


class Randomness(NamedTuple):
    """The state of a random generator. `kind`: of its bit generator, or RandomState, or Random (Python's own)."""

    kind: str
    state: Any  # plain


def is_generator(value: Any) -> bool:
    """Whether it draws random numbers and its state can be held."""
    if isinstance(value, np.random.Generator):
        return type(value.bit_generator).__name__ in _BIT_GENERATORS
    return isinstance(value, np.random.RandomState) or type(value) is random.Random


def randomness_of(generator: Any) -> Randomness | None:
    """None for what is no random generator, or one of a foreign kind."""
    if not is_generator(generator):
        return None
    if isinstance(generator, np.random.Generator):
        return Randomness(type(generator.bit_generator).__name__, generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return Randomness("RandomState", list(generator.get_state(legacy=True)))
    return Randomness("Random", generator.getstate())


def apply_randomness(saved: Randomness, current: Any) -> Any:
    """A generator with that state: `current` where it is of that kind, so that whoever shares it sees the same."""
    if saved.kind == "RandomState":
        made = current if isinstance(current, np.random.RandomState) else np.random.RandomState()
        made.set_state(tuple(saved.state))
        return made
    if saved.kind == "Random":
        own = current if type(current) is random.Random else random.Random()
        own.setstate(saved.state)
        return own
    if isinstance(current, np.random.Generator) and type(current.bit_generator).__name__ == saved.kind:
        current.bit_generator.state = saved.state
        return current
    bits = _BIT_GENERATORS[saved.kind]()
    bits.state = saved.state
    return np.random.Generator(bits)


def seed_randomness(generator: Any, seed: int, number: int) -> None:
    """Begin the generator anew; `number` tells several generators of one environment apart."""
    sequence = np.random.SeedSequence([seed, number])
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(sequence).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(sequence.generate_state(4))
    else:
        generator.seed(int(sequence.generate_state(1, np.uint64)[0]))


# ------------------------------------------------------------------------------------------------------------- copies


def copied(value: Any, depth: int = MAX_DEPTH) -> Any:
    """A copy whose containers and arrays are its own; NotPlain for anything else. Generators become Randomness."""
    kind = value.__class__
    if kind in ATOMS:
        return value
    if kind is np.ndarray:
        if value.dtype.hasobject:
            raise NotPlain("an array of objects")
        return value.copy()
    if not depth:
        raise NotPlain(f"nested more than {MAX_DEPTH} deep")
    if kind is dict:
        return {copied(key, depth - 1): copied(each, depth - 1) for key, each in value.items()}
    if kind is deque:
        return deque((copied(each, depth - 1) for each in value), value.maxlen)
    if kind in _COLLECTIONS:
        return kind(copied(each, depth - 1) for each in value)
    if kind is Randomness or isinstance(value, np.generic | Enum):
        return value
    saved = randomness_of(value)
    if saved is None:
        raise NotPlain(f"a {kind.__module__}.{kind.__qualname__}")
    return saved


def revived(saved: Any, current: Any) -> Any:
    """What an attribute that holds `current` is set to, so that it has the value that was copied."""
    kind = saved.__class__
    if kind in ATOMS:
        return saved
    if kind is Randomness:
        return apply_randomness(saved, current)
    if kind is dict:
        return {key: revived(each, None) for key, each in saved.items()}
    if kind is deque:
        return deque((revived(each, None) for each in saved), saved.maxlen)
    if kind in _COLLECTIONS:
        return kind(revived(each, None) for each in saved)
    return copied(saved)


def size_of(value: Any) -> int:
    """About how many bytes a plain value takes in memory."""
    kind = value.__class__
    if kind is np.ndarray:
        return 112 + int(value.nbytes)
    if kind in (str, bytes):
        return 50 + len(value)
    if kind is dict:
        return 64 + sum(100 + size_of(each) for each in value.values())
    if kind in _COLLECTIONS:
        return 64 + sum(8 + size_of(each) for each in value)
    if kind is Randomness:
        return size_of(value.state)
    return 32


# -------------------------------------------------------------------------------------------------------------- bytes


def dump(value: Any) -> bytes:
    """The bytes of a plain value; NotPlain where it holds something that has none."""
    parts: list[bytes] = []
    _write(value, parts, MAX_DEPTH)
    return b"".join(parts)


def _write(value: Any, out: list[bytes], depth: int) -> None:
    kind = value.__class__
    if not depth:
        raise NotPlain(f"nested more than {MAX_DEPTH} deep")
    if value is None or kind is bool:
        out.append({None: b"N", True: b"T", False: b"F"}[value])
    elif kind is int:
        _write_sized(b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True), out)
    elif kind is float:
        out.append(b"f" + struct.pack("<d", value))
    elif kind is str:
        _write_sized(b"u", value.encode("utf-8", "surrogatepass"), out)
    elif kind is bytes:
        _write_sized(b"b", value, out)
    elif kind is dict:
        _write_many(b"d", [part for item in value.items() for part in item], out, depth)
    elif kind in _COLLECTIONS:
        if kind is deque:
            _write_many(b"q", [value.maxlen, *value], out, depth)
        else:
            _write_many(_COLLECTIONS[kind], value, out, depth)
    elif kind is Randomness:
        _write_many(b"r", [value.kind, value.state], out, depth)
    elif isinstance(value, np.ndarray | np.generic):
        _write_array(value, out)
    else:
        raise NotPlain(f"a {kind.__module__}.{kind.__qualname__} has no bytes")


def _write_sized(tag: bytes, data: bytes, out: list[bytes]) -> None:
    out += (tag, _LENGTH.pack(len(data)), data)


def _write_many(tag: bytes, values: Iterable[Any], out: list[bytes], depth: int) -> None:
    listed = list(values)
    out += (tag, _LENGTH.pack(len(listed)))
    for each in listed:
        _write(each, out, depth - 1)


def _write_array(value: Any, out: list[bytes]) -> None:
    array = np.asarray(value)
    if array.dtype.kind not in _WRITABLE:
        raise NotPlain(f"an array of {array.dtype}")
    dtype = array.dtype.str.encode()
    _write_sized(b"a" if isinstance(value, np.ndarray) else b"g", dtype, out)
    out.append(struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape))
    _write_sized(b"", array.tobytes(), out)


def load(data: bytes) -> Any:
    """The value that `dump` wrote; BadBytes for any other bytes."""
    reader = _Reader(data)
    try:
        value = reader.value(MAX_DEPTH)
    except BadBytes:
        raise
    except (ValueError, TypeError, KeyError, struct.error, OverflowError) as error:
        raise BadBytes(f"not a plain value: {error}") from None
    if reader.place != len(data):
        raise BadBytes("something follows the value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0
        self._read: dict[bytes, Callable[[int], Any]] = {
            b"N": lambda _: None,
            b"T": lambda _: True,
            b"F": lambda _: False,
            b"i": lambda _: int.from_bytes(self.sized(), "little", signed=True),
            b"f": lambda _: struct.unpack("<d", self.take(8))[0],
            b"u": lambda _: self.sized().decode("utf-8", "surrogatepass"),
            b"b": lambda _: self.sized(),
            b"a": lambda _: self.array(),
            b"g": lambda _: self.array()[()],
            b"d": self.mapping,
            b"l": self.values,
            b"t": lambda depth: tuple(self.values(depth)),
            b"s": lambda depth: set(self.values(depth)),
            b"z": lambda depth: frozenset(self.values(depth)),
            b"q": self.queue,
            b"r": self.randomness,
        }

    def take(self, count: int) -> bytes:
        part = self.data[self.place : self.place + count]
        if len(part) != count:
            raise BadBytes("cut short")
        self.place += count
        return part

    def length(self) -> int:
        count: int = _LENGTH.unpack(self.take(4))[0]
        if count > len(self.data) - self.place:
            raise BadBytes("cut short")
        return count

    def sized(self) -> bytes:
        return self.take(self.length())

    def value(self, depth: int) -> Any:
        if not depth:
            raise BadBytes(f"nested more than {MAX_DEPTH} deep")
        return self._read[self.take(1)](depth - 1)

    def values(self, depth: int) -> list[Any]:
        return [self.value(depth) for _ in range(self.length())]

    def mapping(self, depth: int) -> dict[Any, Any]:
        parts = self.values(depth)
        return dict(zip(parts[::2], parts[1::2], strict=True))

    def queue(self, depth: int) -> deque[Any]:
        maxlen, *values = self.values(depth)
        return deque(values, maxlen)

    def randomness(self, depth: int) -> Randomness:
        kind, state = self.values(depth)
        if kind not in _BIT_GENERATORS and kind not in ("RandomState", "Random"):
            raise BadBytes(f"an unknown generator {kind!r}")
        return Randomness(kind, state)

    def array(self) -> Any:
        dtype = np.dtype(self.sized().decode("ascii"))
        if dtype.kind not in _WRITABLE:
            raise BadBytes(f"an array of {dtype}")
        shape = struct.unpack(f"<{(ndim := self.take(1)[0])}I", self.take(4 * ndim))
        data = self.sized()
        if len(data) != math.prod(shape) * dtype.itemsize:
            raise BadBytes("an array of another size")
        return np.frombuffer(data, dtype).reshape(shape).copy()
