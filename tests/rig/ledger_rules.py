"""The arithmetic that `LedgerEnv` and the `Ledger` share: observation words, rewards, lengths, journal records.

Everything follows from (seed, episode, t, action) by a 64-bit mixer, once on Python integers for one step and once on
arrays for a million of them. An observation is `u1 [obs_bytes]`, read as little-endian u64 words:

    0       nonce of the instance, drawn when it was constructed
    1       seed of the instance's first reset: the client knows which (fleet slot, incarnation) it gave it to
    2       episode (low half) and t (high half), both counted by the instance from 0
    3       last action (low half, two's complement; -1 after a reset) and a magic number (high half)
    4..n-2  filler
    n-1     checksum of all words before

Invariant: both forms of each rule agree (test_scalar_and_array_rules_agree).
"""

from __future__ import annotations

import os
import struct
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Records = npt.NDArray[np.void]
# One rule serves Python integers and u64 arrays alike: both know ^, >>, * and &.
N = TypeVar("N", int, Words)

HEADER_WORDS: Final = 4
MIN_OBS_BYTES: Final = 8 * (HEADER_WORDS + 1)
MAGIC: Final = 0x1ED6E700
NO_ACTION: Final = -1
_MASK: Final = (1 << 64) - 1
_LOW: Final = 0xFFFF_FFFF
_SALT_REWARD, _SALT_LENGTH, _SALT_END, _SALT_FILLER = 0xA11CE, 0xB0B, 0xCA7, 0xD06


class RecordKind(IntEnum):
    """What a journal record is about."""

    RESET = 1
    STEP = 2
    SNAPSHOT = 3
    RESTORE = 4


# Fields of one 48-byte record. `t` is that of the observation which the call returned.
RECORD: Final = np.dtype(
    [
        ("nonce", "<u8"),
        ("seed", "<u8"),
        ("episode", "<u4"),
        ("t", "<u4"),
        ("action", "<i4"),
        ("kind", "<u4"),
        ("reward", "<f8"),
        ("pid", "<u4"),
        ("check", "<u4"),
    ]
)
_RECORD_HEAD: Final = struct.Struct("<QQIIiIdI")
_RECORD_CHECK: Final = struct.Struct("<I")


def mix(x: N) -> N:
    """A bijection of 64 bits in which every input bit moves half of the output bits."""
    y: Any = x
    y = (y ^ (y >> 32)) * 0xD6E8FEB86659FD93 & _MASK
    y = (y ^ (y >> 32)) * 0xD6E8FEB86659FD93 & _MASK
    mixed: N = y ^ (y >> 32)
    return mixed


def place(seed: N, episode: N, t: N) -> N:
    """One number for a point in the life of an instance."""
    inner: Any = mix(seed) + episode & _MASK
    outer: Any = mix(inner) + t & _MASK
    placed: N = mix(outer)
    return placed


def reward_bits(seed: N, episode: N, t: N, action: N) -> N:
    """20 random bits for the transition that starts at `t`; `action` in two's complement."""
    start: Any = place(seed, episode, t)
    bits: N = mix(start ^ action ^ _SALT_REWARD) >> 44
    return bits


def reward_of(seed: int, episode: int, t: int, action: int) -> float:
    """Reward of the transition that starts at `t`: a multiple of 1/1024, exact in every float."""
    return reward_bits(seed, episode, t, action & _LOW) / 1024.0


class EpisodeEnd(NamedTuple):
    """When an episode ends, and how."""

    length: int
    terminated: bool


def end_of(seed: int, episode: int, mean_length: int) -> EpisodeEnd:
    """Lengths are uniform on 1..2·mean-1; every third end or so is a truncation."""
    length = 1 + place(seed, episode, _SALT_LENGTH) % max(2 * mean_length - 1, 1)
    return EpisodeEnd(length, place(seed, episode, _SALT_END) % 3 != 0)


def observe(nonce: int, seed: int, episode: int, t: int, action: int, num_words: int) -> npt.NDArray[np.uint8]:
    """One observation, `u1 [8 * num_words]`."""
    words = [nonce, seed, episode | t << 32, (action & _LOW) | MAGIC << 32]
    fill = place(seed, episode, t) ^ _SALT_FILLER
    short = min(num_words - 1 - HEADER_WORDS, 4)
    words += [mix(fill ^ k) for k in range(short)]
    words.append(_checksum(words))
    array = np.array(words, "<u8")
    if short < num_words - 1 - HEADER_WORDS:
        # Long observations repeat the filler: making them should not cost more than sending them.
        body = np.resize(array[HEADER_WORDS:-1], num_words - 1 - HEADER_WORDS)
        array = np.concatenate([array[:HEADER_WORDS], body, array[-1:]])
    return array.view(np.uint8)


def _checksum(words: list[int]) -> int:
    total = 0
    for word in words:
        total = mix(total ^ word)
    return total


class Headers(NamedTuple):
    """What observations say about themselves; every field `[N]`."""

    nonce: Words
    seed: Words
    episode: npt.NDArray[np.int64]
    t: npt.NDArray[np.int64]
    action: npt.NDArray[np.int64]
    intact: npt.NDArray[np.bool_]


def read_headers(obs: npt.NDArray[np.uint8]) -> Headers:
    """Headers of observations `u1 [N, obs_bytes]`; `intact` is False where magic, filler or checksum are wrong."""
    words = np.ascontiguousarray(obs).view("<u8")
    low, high = np.uint64(_LOW), np.uint64(32)
    seed, episode, t = words[:, 1], words[:, 2] & low, words[:, 2] >> high
    intact = words[:, 3] >> high == MAGIC
    fill = place(seed, episode, t) ^ np.uint64(_SALT_FILLER)
    num_filler = words.shape[1] - 1 - HEADER_WORDS
    total = np.zeros(len(words), np.uint64)
    for index in range(HEADER_WORDS + min(num_filler, 4)):
        total = mix(total ^ words[:, index])
    for k in range(min(num_filler, 4)):
        expected = mix(fill ^ np.uint64(k))
        intact &= (words[:, HEADER_WORDS + k : -1 : 4] == expected[:, None]).all(axis=1)
    intact &= words[:, -1] == total
    action = (words[:, 3] & low).astype(np.uint32).view(np.int32)
    return Headers(words[:, 0], seed, episode.astype(np.int64), t.astype(np.int64), action.astype(np.int64), intact)


def rewards_of(seed: Words, episode: Any, t: Any, action: Any) -> npt.NDArray[np.float64]:
    """`reward_of` for arrays `[N]`."""
    low = np.asarray(action).astype(np.int64).view(np.uint64) & np.uint64(_LOW)
    bits = reward_bits(seed, np.asarray(episode).astype(np.uint64), np.asarray(t).astype(np.uint64), low)
    return bits.astype(np.float64) / 1024.0


class Journal:
    """Append-only record of what instances really did; in a file (O_APPEND, shared by processes) or in memory.

    A record is written before the call that it records returns, by one write(2): the page cache keeps it when the
    process is killed right afterwards.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._memory = bytearray()
        self._fd = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._pid = os.getpid()

    def append(
        self, kind: RecordKind, nonce: int, seed: int, place: tuple[int, int], action: int, reward: float
    ) -> None:
        """`place` is (episode, t) of the observation that the call returns."""
        head = _RECORD_HEAD.pack(nonce, seed, *place, action, kind, reward, self._pid)
        record = head + _RECORD_CHECK.pack(_fold(head))
        if self._fd is None:
            self._memory += record
        elif os.write(self._fd, record) != len(record):
            raise OSError("the journal's disk is full: a record was cut")

    def records(self) -> Records:
        """The records held in memory, `[N]` of RECORD."""
        return parse_records(bytes(self._memory))

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _fold(head: bytes) -> int:
    total = 0
    for (word,) in struct.iter_unpack("<I", head):
        total = (total * 0x01000193 ^ word) & _LOW
    return total


def parse_records(data: bytes) -> Records:
    """`[N]` of RECORD; torn or damaged records raise, because O_APPEND writes of 48 bytes are never torn."""
    if len(data) % RECORD.itemsize:
        raise ValueError(f"the journal has {len(data)} bytes, which is not a number of {RECORD.itemsize}-byte records")
    records = np.frombuffer(data, RECORD)
    words = np.frombuffer(data, "<u4").reshape(len(records), RECORD.itemsize // 4)
    total = np.zeros(len(records), np.uint32)
    for index in range(words.shape[1] - 1):
        total = total * np.uint32(0x01000193) ^ words[:, index]
    if not np.array_equal(total, words[:, -1]):
        raise ValueError(f"record {int(np.argmax(total != words[:, -1]))} of the journal is damaged")
    return records


def read_journal(path: str | Path) -> Records:
    """The records of a journal file; an absent file is an empty journal."""
    file = Path(path)
    return parse_records(file.read_bytes() if file.exists() else b"")
