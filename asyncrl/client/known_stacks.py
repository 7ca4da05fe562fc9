"""`KnownStacks`: what kept states show, so that looks from one of them bring only the frames that they add.

Where an observation is a stack of frames, most of a look's reply would be frames that the client has. It keeps, for
each state that the lane keeps, the frames of its stack; states share them, so one frame a state is what it takes.

Invariants: whoever looks sees the same observations with and without (test_looks_show_whole_stacks); nothing is known
of states that were forgotten (test_forgotten_states_have_no_stacks).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from asyncrl.wire.outcomes import Frames, Outcomes
from asyncrl.wire.snapshot_bodies import SimulateEntry


class KnownStacks:
    """Of one lane."""

    def __init__(self) -> None:
        self._by_id: dict[int, Frames] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def asked(self, entries: Sequence[SimulateEntry]) -> tuple[list[SimulateEntry], list[Frames | None]]:
        """The entries, as they may be asked now, and what their parents show."""
        before = [self._shown(entry) for entry in entries]
        known = [entry if stack is None else _newest(entry) for entry, stack in zip(entries, before, strict=True)]
        return known, before

    def learn(self, entries: Sequence[SimulateEntry], outcomes: Outcomes) -> None:
        """What those show that are kept now."""
        over = outcomes.terminated | outcomes.truncated
        for entry, stack, status, ended in zip(entries, outcomes.stacks, outcomes.status, over.tolist(), strict=True):
            if entry.keep_as is not None and stack is not None and status.ok and not ended:
                self._by_id.setdefault(entry.keep_as, stack)  # as in the lane, the first one stays

    def forget(self, ids: Iterable[int]) -> None:
        for each in ids:
            self._by_id.pop(each, None)

    def _shown(self, entry: SimulateEntry) -> Frames | None:
        """None: nobody looks, or nobody knows."""
        return self._by_id.get(entry.parent) if entry.want_obs and isinstance(entry.parent, int) else None


def _newest(entry: SimulateEntry) -> SimulateEntry:
    """`dataclasses.replace` takes longer than anything else that is done for an entry here."""
    return SimulateEntry(
        entry.parent, entry.actions, entry.keep_as, entry.rng, entry.seed, entry.rollout, True, newest_frames=True
    )
