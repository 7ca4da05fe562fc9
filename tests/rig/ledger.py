"""`Ledger`: keeps every transition that a client saw, and audits it against the journal of what was executed.

The client side numbers rows itself, from flags alone, with the wire's own `RowTracker`; what an observation says about
itself is only used to check that numbering. Invariants that `check` proves or refutes:

    I1  no (fleet slot, incarnation, episode, t) is stored twice; the t of an episode run from 0 without a gap
    I2  executed = stored + lost in flight + dropped(reason); what is lost are the last steps of an instance whose
        loss was announced, at most as many as were in flight
    I3  a row's observations are undamaged and of one instance, one episode, and neighbouring t
    I5  the next observation names the row's action, and the reward is that action's

(test_audit_passes_a_faithful_history, and one test for each way to break it)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from asyncrl.wire.flags import NO_TRANSITION, SOFT, RowState, RowTracker
from asyncrl.wire.step_rows import StepRows
from tests.rig import ledger_rules as rules
from tests.rig.ledger_audit import Loss, Report, audit

U1 = npt.NDArray[np.uint8]
I8 = npt.NDArray[np.int64]

_FOLD_AT = 20_000  # rows kept whole before only their headers are

# One stored transition. Obs fields are what the observation says about itself, next_* the following one's.
ROW = np.dtype(
    [
        ("slot", "<i8"),
        ("incarnation", "<i8"),
        ("episode", "<i8"),
        ("t", "<i8"),
        ("action", "<i8"),
        ("reward", "<f8"),
        ("nonce", "<u8"),
        ("seed", "<u8"),
        ("env_episode", "<i8"),
        ("env_t", "<i8"),
        ("last_action", "<i8"),
        ("next_nonce", "<u8"),
        ("next_seed", "<u8"),
        ("next_episode", "<i8"),
        ("next_t", "<i8"),
        ("next_action", "<i8"),
        ("intact", "?"),
        ("at_end", "?"),
    ]
)


@dataclass
class Batch:
    """Rows of one reply; `keys` is i8 `[4, N]`: slot, incarnation, episode, t."""

    keys: I8
    action: I8
    reward: npt.NDArray[np.float64]
    obs: U1
    next_obs: U1
    at_end: npt.NDArray[np.bool_]


@dataclass
class Ledger:
    """All that the client of a run stored. `seed_of(fleet_slot, incarnation)`, if given, is checked too."""

    seed_of: Callable[[int, int], int] | None = None
    losses: list[Loss] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    num_rows: int = 0
    _batches: list[Batch] = field(default_factory=list)
    _whole: int = 0
    _folded: list[npt.NDArray[np.void]] = field(default_factory=list)

    def lane(self, fleet_slots: Sequence[int], incarnations: Sequence[int] | None = None) -> LaneLedger:
        """The account of one fleet lane, across every lane that serves it."""
        return LaneLedger(self, fleet_slots, incarnations or [0] * len(fleet_slots))

    def store(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._whole += len(batch.action)
        self.num_rows += len(batch.action)
        if self._whole >= _FOLD_AT:
            self._fold()

    def rows(self) -> npt.NDArray[np.void]:
        """All stored transitions, `[N]` of ROW, in the order in which they were stored."""
        self._fold()
        return np.concatenate(self._folded) if self._folded else np.zeros(0, ROW)

    def check(self, journal: str | rules.Journal | rules.Records) -> Report:
        """Audit against a journal file, one in memory, or records. Call it when nothing steps any more."""
        if isinstance(journal, str):
            records = rules.read_journal(journal)
        else:
            records = journal.records() if isinstance(journal, rules.Journal) else journal
        return audit(self.rows(), records, self.losses, self.dropped, self.seed_of)

    def _fold(self) -> None:
        if not self._batches:
            return
        batches, self._batches, self._whole = self._batches, [], 0
        rows = np.zeros(sum(len(batch.action) for batch in batches), ROW)
        keys = np.concatenate([batch.keys for batch in batches], axis=1)
        rows["slot"], rows["incarnation"], rows["episode"], rows["t"] = keys
        rows["action"] = np.concatenate([batch.action for batch in batches])
        rows["reward"] = np.concatenate([batch.reward for batch in batches])
        rows["at_end"] = np.concatenate([batch.at_end for batch in batches])
        now = rules.read_headers(np.concatenate([batch.obs for batch in batches]))
        after = rules.read_headers(np.concatenate([batch.next_obs for batch in batches]))
        for name, header in zip(("nonce", "seed", "env_episode", "env_t", "last_action"), now, strict=False):
            rows[name] = header
        for name, header in zip(("nonce", "seed", "episode", "t", "action"), after, strict=False):
            rows[f"next_{name}"] = header
        rows["intact"] = now.intact & after.intact
        self._folded.append(rows)


class LaneLedger:
    """Turns what crosses a client's hands for one fleet lane into rows.

    `sent` for every step or reset the caller made, `arrived` for every reply, `lost` where the lane went. The first
    rows of a lane that was opened answer a reset which the fleet sent by itself; `sent(None)` before them is optional.
    """

    def __init__(self, ledger: Ledger, fleet_slots: Sequence[int], incarnations: Sequence[int]) -> None:
        self._ledger = ledger
        self._slots = np.array(fleet_slots, np.int64)
        self._incarnations = np.array(incarnations, np.int64)
        self._tracker = RowTracker(len(self._slots))
        self._requests: deque[I8 | None] = deque()  # actions [B] in flight, None for a reset
        self._obs: U1 | None = None  # [B, obs_bytes]
        self._fresh = True  # no rows yet of the lane that serves now

    def sent(self, action: npt.ArrayLike | None) -> None:
        """A step with `action` `[B]` was sent, or a reset (None)."""
        self._requests.append(None if action is None else np.array(action, np.int64))

    def arrived(self, rows: StepRows) -> None:
        """The reply to the oldest unanswered request."""
        action = self._answered()
        episode, t = self._tracker.episode.copy(), self._tracker.t.copy()
        self._tracker.advance(rows.flags)
        moved = np.flatnonzero((rows.flags & NO_TRANSITION) == 0)
        if moved.size:
            if action is None or self._obs is None:
                raise AssertionError("transitions arrived that no action asked for")
            next_obs = rows.obs[0].copy()
            if len(rows.final_rows):
                next_obs[rows.final_rows] = rows.final_obs[0]
            keys = np.stack([self._slots, self._incarnations, episode, t])[:, moved]
            # A soft end is one for the learner: the instance goes on, so its rows do too.
            at_end = ((rows.flags & SOFT) == 0)[moved] & ((rows.flags & 3) != 0)[moved]
            before = self._obs[moved]
            self._ledger.store(Batch(keys, action[moved], rows.rewards[moved], before, next_obs[moved], at_end))
        for rebuilt in rows.rebuilt:
            self._incarnations[rebuilt.row] = rebuilt.incarnation
            # The step that broke the instance was not executed, and those behind it found the new one.
            self._ledger.losses.append(Loss(int(self._slots[rebuilt.row]), rebuilt.incarnation - 1, 0, rebuilt.code))
        self._obs = rows.obs[0].copy()

    def _answered(self) -> I8 | None:
        if self._fresh:
            self._fresh = False
            if not self._requests or self._requests[0] is not None:
                return None
        if not self._requests:
            raise AssertionError("rows arrived that nobody asked for")
        return self._requests.popleft()

    def lost(self, cause: str) -> None:
        """The lane is gone: what is in flight may have been executed and will never arrive. Every slot is made anew."""
        steps = self.steps_in_flight
        self._requests.clear()
        self._fresh = True
        for slot, incarnation in zip(self._slots.tolist(), self._incarnations.tolist(), strict=True):
            self._ledger.losses.append(Loss(slot, incarnation, steps, cause))
        self._incarnations = self._incarnations + 1

    @property
    def steps_in_flight(self) -> int:
        return sum(action is not None for action in self._requests)

    @property
    def incarnations(self) -> list[int]:
        return [int(incarnation) for incarnation in self._incarnations]

    @property
    def ended(self) -> npt.NDArray[np.bool_]:
        """b1 `[B]`: slots whose episode is over and that wait for a reset."""
        return np.asarray(self._tracker.state == RowState.ENDED)
