"""Who may have lanes: capacity, fencing by learner epoch, restart budgets.

Invariants: slots given out never exceed the capacity and all come back (test_capacity_is_conserved);
an older epoch of a run gets nothing once a newer one was seen (test_older_epochs_are_fenced);
slots that keep crashing are refused for longer and longer, never for ever (test_quarantine_readmits).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from asyncrl.errors import ServerRefused

MAX_REMEMBERED: Final = 1024

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Budget:
    """Crashes that one place may have before its lanes are refused for a while."""

    crashes: int = 5
    window_s: float = 60.0
    first_ban_s: float = 5.0
    longest_ban_s: float = 300.0


@dataclass
class _Record:
    """The crashes of one place; `bans` counts how often it was refused since it last behaved."""

    crashes: deque[float] = field(default_factory=deque)
    last: float = 0.0
    banned_until: float = 0.0
    bans: int = 0


class Quarantine:
    """Refuses places (a run's fleet slots) that crash again and again."""

    def __init__(self, budget: Budget, now: Callable[[], float]) -> None:
        self._budget = budget
        self._now = now
        self._records: OrderedDict[Hashable, _Record] = OrderedDict()

    def crashed(self, place: Hashable) -> None:
        """Count a crash; one over the budget bans the place, twice as long as the time before."""
        record = self._records.setdefault(place, _Record())
        self._records.move_to_end(place)
        if len(self._records) > MAX_REMEMBERED:
            self._records.popitem(last=False)
        now, budget = self._now(), self._budget
        if now - record.last > budget.longest_ban_s + budget.window_s:
            record.bans = 0
        record.last = now
        record.crashes.append(now)
        while now - record.crashes[0] > budget.window_s:
            record.crashes.popleft()
        if len(record.crashes) >= budget.crashes:
            # A float has no power of 2 past the 1023rd.
            doubled = budget.first_ban_s * 2.0 ** min(record.bans, 32)
            record.banned_until = now + min(doubled, budget.longest_ban_s)
            record.bans += 1
            record.crashes.clear()

    def check(self, place: Hashable) -> None:
        record = self._records.get(place)
        left = record.banned_until - self._now() if record is not None else 0.0
        if left > 0:
            raise ServerRefused(
                "QUARANTINED",
                f"these slots crashed {self._budget.crashes} times within {self._budget.window_s:.0f} s; "
                f"try again in {left:.1f} s, or look at the server's log for the crashes",
                retryable=True,
                retry_after_s=left,
            )


class Tenancy:
    """Slots and lanes in use, by client; the newest learner epoch of each run."""

    def __init__(self, capacity: int, lanes_per_client: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._lanes_per_client = lanes_per_client
        self._lanes: dict[tuple[str, str], int] = {}
        self._slots: dict[str, int] = {}
        self._epochs: OrderedDict[str, int] = OrderedDict()

    def fence(self, run_id: str, epoch: int) -> bool:
        """Refuse an epoch that is older than one seen before; True if this one is the newest so far."""
        seen = self._epochs.get(run_id)
        if seen is not None and epoch < seen:
            raise ServerRefused("FENCED", f"learner_epoch {seen} of run {run_id!r} has taken over; {epoch} is older")
        self._epochs[run_id] = epoch
        self._epochs.move_to_end(run_id)
        if len(self._epochs) > MAX_REMEMBERED:
            self._epochs.popitem(last=False)
        return seen is not None and epoch > seen

    def take(self, run_id: str, member: str, slots: int) -> None:
        """Reserve slots for one lane, or say who has them."""
        if slots > self.capacity:
            raise ServerRefused(
                "CAPACITY",
                f"{slots} slots asked, this server has {self.capacity} in all: "
                "ask for fewer, add servers, or start it with a larger --num-envs",
            )
        if self._lanes.get((run_id, member), 0) >= self._lanes_per_client:
            raise ServerRefused(
                "CAPACITY", f"a client may have {self._lanes_per_client} lanes here: put more slots into each lane"
            )
        if self.used + slots > self.capacity:
            holders = ", ".join(f"run {run!r}: {count}" for run, count in sorted(self._slots.items()))
            raise ServerRefused(
                "BUSY",
                f"{slots} slots asked, {self.capacity - self.used} of {self.capacity} are free ({holders})",
                retryable=True,
                retry_after_s=0.5,
            )
        self.used += slots
        self._lanes[run_id, member] = self._lanes.get((run_id, member), 0) + 1
        self._slots[run_id] = self._slots.get(run_id, 0) + slots

    def give_back(self, run_id: str, member: str, slots: int) -> None:
        """Undo one `take`."""
        self.used -= slots
        _subtract(self._lanes, (run_id, member), 1)
        _subtract(self._slots, run_id, slots)


def _subtract(counts: dict[K, int], key: K, amount: int) -> None:
    """Entries at zero go away: the tables hold clients that have something, and no others."""
    counts[key] -= amount
    if not counts[key]:
        del counts[key]
