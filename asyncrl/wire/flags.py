"""Flags of a row: which combinations exist, in which order they may follow, and what they number.

Both tables are data, so that a reader can compare them with section 6 of the proto, and the
tests with every pair there is.

Invariants: an illegal combination or order raises and changes nothing
(test_illegal_row_raises_and_changes_nothing); (episode, t) never repeats within an incarnation
(test_row_identity_is_never_repeated).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from asyncrl.errors import RemoteProtocolError

TERMINATED: Final = 1
TRUNCATED: Final = 2
FIRST: Final = 4
NO_TRANSITION: Final = 8
CUT: Final = 16
SOFT: Final = 32

_NAMES = {TERMINATED: "TERMINATED", TRUNCATED: "TRUNCATED", FIRST: "FIRST"}
_NAMES |= {NO_TRANSITION: "NO_TRANSITION", CUT: "CUT", SOFT: "SOFT", 64: "64", 128: "128"}

Flags = npt.NDArray[np.uint8]


class RowState(IntEnum):
    """Where a slot stands between two rows."""

    UNBORN = 0
    RUNNING = 1
    ENDED = 2


# (state, flags) -> state. What is not here is a protocol error.
ROW_TABLE: Final[dict[tuple[RowState, int], RowState]] = {
    (RowState.UNBORN, FIRST | NO_TRANSITION): RowState.RUNNING,
    (RowState.UNBORN, NO_TRANSITION): RowState.UNBORN,
    (RowState.RUNNING, 0): RowState.RUNNING,
    (RowState.RUNNING, TERMINATED): RowState.ENDED,
    (RowState.RUNNING, TRUNCATED): RowState.ENDED,
    (RowState.RUNNING, TERMINATED | FIRST): RowState.RUNNING,
    (RowState.RUNNING, TRUNCATED | FIRST): RowState.RUNNING,
    (RowState.RUNNING, TERMINATED | FIRST | SOFT): RowState.RUNNING,
    (RowState.RUNNING, TRUNCATED | FIRST | SOFT): RowState.RUNNING,
    (RowState.RUNNING, FIRST | NO_TRANSITION): RowState.RUNNING,
    (RowState.RUNNING, NO_TRANSITION): RowState.RUNNING,
    (RowState.RUNNING, CUT | NO_TRANSITION): RowState.ENDED,
    (RowState.RUNNING, CUT | FIRST | NO_TRANSITION): RowState.RUNNING,
    (RowState.ENDED, FIRST | NO_TRANSITION): RowState.RUNNING,
    (RowState.ENDED, NO_TRANSITION): RowState.ENDED,
}
LEGAL_FLAGS: Final = frozenset(flags for _, flags in ROW_TABLE)

_ILLEGAL: Final = 255
_NEXT: Final = np.full(len(RowState) << 8, _ILLEGAL, np.uint8)  # by state << 8 | flags
for (_state, _flags), _next in ROW_TABLE.items():
    _NEXT[_state << 8 | _flags] = _next


def describe(flags: int) -> str:
    """`TERMINATED|FIRST` for 5."""
    return "|".join(name for bit, name in _NAMES.items() if flags & bit) or "0"


class RowTracker:
    """Checks the rows of one lane and numbers them: `episode` and `t` are `[B]`, of the *next* transition."""

    def __init__(self, num_slots: int) -> None:
        self.state = np.zeros(num_slots, np.uint8)
        self.episode = np.full(num_slots, -1, np.int64)
        self.t = np.zeros(num_slots, np.int64)

    def advance(self, flags: Flags) -> None:
        """Account for one reply's flags `[B]`."""
        following = _NEXT.take((self.state.astype(np.uint16) << 8) | flags)
        if _ILLEGAL in following.tobytes():
            row = int(np.argmax(following == _ILLEGAL))
            raise RemoteProtocolError(
                f"row {row}: flags {describe(int(flags[row]))} are illegal after {RowState(int(self.state[row])).name}"
            )
        self.state = following
        self.t += (flags & NO_TRANSITION) == 0
        first = (flags & FIRST).nonzero()[0]
        if first.size:
            self.episode[first] += 1
            self.t[first] = 0
