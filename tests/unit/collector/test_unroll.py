"""Unrolls against a twin that reads the flag table slot by slot, row by row, over random legal histories.

A history is what one lane sent: replies with flags that `ROW_TABLE` allows, of one autoreset mode. Every observation
is a number of its own, so that a wrong one is seen wherever it turns up.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.collector.unroll import UnrollBuilder
from asyncrl.policy import Acted
from asyncrl.records import Unroll
from asyncrl.wire.flags import CUT, FIRST, NO_TRANSITION, ROW_TABLE, SOFT, TERMINATED, TRUNCATED, RowState
from asyncrl.wire.step_rows import StepRows, final_rows_of

POISON = 1e6
ENDS = TERMINATED | TRUNCATED
SAME_STEP_ENDS = {end | FIRST | soft for end in (TERMINATED, TRUNCATED) for soft in (0, SOFT)}
FAULTS = {CUT | NO_TRANSITION, CUT | FIRST | NO_TRANSITION, FIRST | NO_TRANSITION, NO_TRANSITION}
MODES: dict[str, set[int]] = {
    "same_step": {0, *SAME_STEP_ENDS, *FAULTS},
    "next_step": {0, TERMINATED, TRUNCATED, TERMINATED | FIRST | SOFT, *FAULTS},
    "disabled": {0, TERMINATED, TRUNCATED, *FAULTS},
    "all at once": {flags for _, flags in ROW_TABLE},
}


@dataclass
class History:
    """Replies of one lane of B slots; reply 0 is to the first reset."""

    num_slots: int
    replies: list[StepRows] = field(default_factory=list)
    poisoned: bool = False  # first observations, and those after a cut, are POISON

    def reply(self, flags: list[int]) -> None:
        number = len(self.replies)
        obs = np.arange(self.num_slots) + 100.0 * (number + 1)
        row_flags = np.array(flags, np.uint8)
        for slot, flag in enumerate(flags):
            if flag & (FIRST | CUT) and not flag & SOFT and self.poisoned:
                obs[slot] = POISON
            elif flag == NO_TRANSITION and self.replies:
                obs[slot] = self.replies[-1].obs[0][slot, 0]  # waiting: repeated
        final_rows = final_rows_of(row_flags)
        finals = np.stack([final_rows + 100.0 * (number + 1) + 0.5] * 2, axis=1)
        self.replies.append(
            StepRows(
                [np.stack([obs, obs], axis=1), (number + np.arange(self.num_slots)).astype(np.uint8)],
                np.arange(self.num_slots) + 1000.0 * number,
                row_flags,
                final_rows,
                [finals, np.full(len(final_rows), 200 + number % 50, np.uint8)] if len(final_rows) else [],
                mask=np.stack([np.arange(3) <= (number + slot) % 4 - 1 for slot in range(self.num_slots)]),
                final_mask=np.stack([np.arange(3) == (number + slot) % 4 for slot in final_rows.tolist()])
                if len(final_rows)
                else None,
            )
        )


@st.composite
def histories(draw: st.DrawFn, mode: str, poisoned: bool = False) -> History:
    history = History(draw(st.integers(1, 3)), poisoned=poisoned)
    states = [RowState.UNBORN] * history.num_slots
    for _ in range(draw(st.integers(1, 14))):
        flags = []
        for slot, state in enumerate(states):
            choices = sorted(flag for at, flag in ROW_TABLE if at is state and flag in MODES[mode])
            flag = draw(st.sampled_from(choices))
            states[slot] = ROW_TABLE[state, flag]
            flags.append(flag)
        history.reply(flags)
    return history


def acted(number: int, num_slots: int) -> Acted:
    """Act `number` of a lane."""
    slots = np.arange(num_slots)
    log_prob, value = (slots - number).astype(np.float32), slots + 0.25 * number
    return Acted([slots + 10 * number], log_prob, value, number // 2, kept=[np.stack([slots, slots - number], axis=1)])


def names(number: int, num_slots: int) -> tuple[npt.NDArray[np.int64], ...]:
    slots = np.arange(num_slots)
    return slots + 7, slots + 3 * number, slots + 5 * number


def unrolls_of(history: History, num_steps: int) -> list[tuple[Unroll, int]]:
    """With the number of each one's first act. The last one is that of a lane which was lost, unless it fits."""
    unrolls: list[tuple[Unroll, int]] = []
    size, slots = history.num_slots, np.arange(history.num_slots)
    builder, start = UnrollBuilder(num_steps, size), 0
    for number, (before, after) in enumerate(zip(history.replies, history.replies[1:], strict=False)):
        builder.observed(before.obs, before.mask, (before.flags & FIRST) != 0)
        builder.acted(acted(number, size))
        builder.replied(after, *names(number, size))
        if builder.is_complete:
            unroll = builder.finish(0, number, slots, after)
            unrolls += [(unroll, start)] if unroll is not None else []
            builder, start = UnrollBuilder(num_steps, size), number + 1
    unroll = builder.finish(0, 99, slots, history.replies[-1])
    return unrolls + ([(unroll, start)] if unroll is not None else [])


class End(NamedTuple):
    """Both leaves of an observation, and what could be done in it."""

    obs: float
    small: int
    mask: list[bool]


def allowed(mask: npt.NDArray[np.bool_]) -> list[bool]:
    """A mask that allows nothing is void."""
    return mask.tolist() if mask.any() else [True] * len(mask)


class Twin:
    """What rows `start` to `start + T - 1` of a history are, in the words of the flag table."""

    def __init__(self, history: History, start: int, num_steps: int) -> None:
        self.history = history
        self.valid: dict[tuple[int, int], int] = {}  # (t, b) -> flags of its reply
        self.ends: dict[tuple[int, int], End] = {}  # what is seen after a row that is bootstrapped
        self.cut: set[tuple[int, int]] = set()
        self.complete = min(num_steps, len(history.replies) - 1 - start)
        self.is_lost = self.complete < num_steps
        for slot in range(history.num_slots):
            self._slot(slot, start)

    def _slot(self, b: int, start: int) -> None:
        running: tuple[int, int] | None = None  # the last transition of the episode that runs
        for t in range(self.complete):
            reply = self.history.replies[start + t + 1]
            flags = int(reply.flags[b])
            if flags & NO_TRANSITION:
                # CUT says so; a row that waits, or begins anew unannounced, ends what can be learnt from as well.
                self._cut(running, b, start + t)
                running = None
                continue
            self.valid[t, b] = flags
            running = None if flags & ENDS else (t, b)
            if flags & TRUNCATED:
                self.ends[t, b] = self._true_last(reply, b, flags)
        if self.is_lost:
            self._cut(running, b, start + self.complete)

    def _cut(self, running: tuple[int, int] | None, b: int, acted_on: int) -> None:
        if running is not None:
            self.cut.add(running)
            self.ends[running] = self._obs(acted_on, b)

    def _true_last(self, reply: StepRows, b: int, flags: int) -> End:
        if flags & FIRST and not flags & SOFT:
            row = reply.final_rows.tolist().index(b)
            assert reply.final_mask is not None
            return End(float(reply.final_obs[0][row, 0]), int(reply.final_obs[1][row]), allowed(reply.final_mask[row]))
        return self._seen(reply, b)

    def _obs(self, number: int, b: int) -> End:
        return self._seen(self.history.replies[number], b)

    def _seen(self, reply: StepRows, b: int) -> End:
        assert reply.mask is not None
        return End(float(reply.obs[0][b, 0]), int(reply.obs[1][b]), allowed(reply.mask[b]))


def check(unroll: Unroll, history: History, start: int, num_steps: int) -> None:
    """Every field of the unroll that is not void."""
    twin = Twin(history, start, num_steps)
    marks = {"terminated": TERMINATED, "truncated": TRUNCATED, "soft": SOFT}
    assert set(zip(*map(np.ndarray.tolist, np.nonzero(unroll.valid)), strict=True)) == set(twin.valid)
    for name, bit in marks.items():
        expected = {row for row, flags in twin.valid.items() if flags & bit}
        assert set(zip(*map(np.ndarray.tolist, np.nonzero(getattr(unroll, name))), strict=True)) == expected, name
    assert set(zip(*map(np.ndarray.tolist, np.nonzero(unroll.cut)), strict=True)) == twin.cut
    for t, b in twin.valid:
        check_row(unroll, history, start, t, b)
    ends = [tuple(row) for row in unroll.end_rows.tolist()]
    assert ends == sorted(twin.ends)
    for index, row in enumerate(ends):
        assert unroll.end_mask is not None
        found = End(unroll.end_obs[0][index, 0], unroll.end_obs[1][index], unroll.end_mask[index].tolist())
        assert found == twin.ends[row]
    last = history.replies[start + twin.complete]
    assert unroll.last_first.tolist() == [bool(flags & FIRST) for flags in last.flags]
    for b in range(history.num_slots):
        if unroll.valid[-1, b] and not unroll.ended[-1, b]:
            np.testing.assert_array_equal(unroll.last_obs[0][b], last.obs[0][b])
            assert unroll.last_obs[1][b] == last.obs[1][b]


def check_row(unroll: Unroll, history: History, start: int, t: int, b: int) -> None:
    """A transition: what was shown, what was done, what came of it."""
    number = start + t
    before, after = history.replies[number], history.replies[number + 1]
    did = acted(number, history.num_slots)
    np.testing.assert_array_equal(unroll.obs[0][t, b], before.obs[0][b])
    assert unroll.obs[1][t, b] == before.obs[1][b]
    assert unroll.first[t, b] == bool(before.flags[b] & FIRST)
    assert unroll.action[0][t, b] == did.action[0][b]
    assert unroll.log_prob[t, b] == did.log_prob[b]
    assert unroll.value[t, b] == did.value[b]
    assert unroll.version[t] == did.version
    np.testing.assert_array_equal(unroll.kept[0][t, b], did.kept[0][b])
    assert unroll.reward[t, b] == after.rewards[b]
    assert (unroll.incarnation[t, b], unroll.episode[t, b], unroll.t[t, b]) == tuple(
        each[b] for each in names(number, history.num_slots)
    )
    assert unroll.mask is not None
    assert before.mask is not None
    assert unroll.mask[t, b].tolist() == allowed(before.mask[b])


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=150)
@given(data=st.data(), num_steps=st.integers(1, 5))
def test_unrolls_are_as_the_table_says(mode: str, data: st.DataObject, num_steps: int) -> None:
    """Random legal histories of each autoreset mode, cut into unrolls, the last of which is that of a lost lane."""
    history = data.draw(histories(mode))
    for unroll, start in unrolls_of(history, num_steps):
        check(unroll, history, start, num_steps)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=60)
@given(data=st.data(), num_steps=st.integers(1, 5))
def test_valid_rows_are_the_transitions(mode: str, data: st.DataObject, num_steps: int) -> None:
    """Over all unrolls of a lane: as many valid rows as replies without NO_TRANSITION, whose rewards they have."""
    history = data.draw(histories(mode))
    sent = sorted(
        float(reward)
        for reply in history.replies
        for reward, flags in zip(reply.rewards, reply.flags, strict=True)
        if not flags & NO_TRANSITION
    )
    stored = [reward for unroll, _ in unrolls_of(history, num_steps) for reward in unroll.reward[unroll.valid].tolist()]
    assert sorted(stored) == sent


@settings(max_examples=150)
@given(data=st.data(), num_steps=st.integers(1, 5))
def test_no_trace_leads_into_a_void_row(data: st.DataObject, num_steps: int) -> None:
    """A valid row that has not ended is followed by a valid row that begins no episode, or is the last one."""
    for unroll, _ in unrolls_of(data.draw(histories("all at once")), num_steps):
        goes_on = unroll.valid & ~unroll.ended
        assert unroll.valid[1:][goes_on[:-1]].all()
        assert not unroll.first[1:][goes_on[:-1]].any()
        assert not (unroll.ended & ~unroll.valid).any()


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=100)
@given(data=st.data(), num_steps=st.integers(1, 5))
def test_poison_never_reaches_a_bootstrap(mode: str, data: st.DataObject, num_steps: int) -> None:
    """First observations and those after a cut are 1e6: nothing that a row is bootstrapped from is as large."""
    for unroll, _ in unrolls_of(data.draw(histories(mode, poisoned=True)), num_steps):
        assert (unroll.end_obs[0] < POISON).all()
        bootstrapped = unroll.valid[-1] & ~unroll.ended[-1]
        assert (unroll.last_obs[0][bootstrapped] < POISON).all()
        goes_on = (unroll.valid & ~unroll.ended)[:-1]
        assert (unroll.obs[0][1:][goes_on] < POISON).all()


def test_void_rows_hold_numbers() -> None:
    """A lane that is lost after one of four rows: what was never written holds zeros, not what memory held before."""
    history = History(2)
    for flags in ([FIRST | NO_TRANSITION] * 2, [0, TERMINATED | FIRST]):
        history.reply(flags)
    ((unroll, _),) = unrolls_of(history, 4)
    assert unroll.valid.tolist() == [[True, True]] + [[False] * 2] * 3
    assert unroll.cut.tolist() == [[True, False]] + [[False] * 2] * 3
    assert unroll.mask is not None
    assert unroll.mask.any(axis=2).all()
    for array in (*(leaf[2:] for leaf in unroll.obs), *(leaf[1:] for leaf in unroll.action), unroll.log_prob[1:]):
        assert not array.any()
    for array in (unroll.value[1:], unroll.reward[1:], unroll.first[1:], unroll.incarnation[1:], unroll.t[1:]):
        assert not array.any()
    assert unroll.version.tolist() == [0] * 4


def test_nothing_learnt_is_no_unroll() -> None:
    """A lane lost before any transition, or one whose slots waited all the time, hands over nothing."""
    history = History(1)
    for flags in (NO_TRANSITION, NO_TRANSITION, FIRST | NO_TRANSITION):
        history.reply([flags])
    assert unrolls_of(history, 2) == []
    assert UnrollBuilder(2, 1).finish(0, 0, np.arange(1), history.replies[0]) is None


def test_the_carry_is_that_before_row_0() -> None:
    """A copy: what the lane carries on with does not change what was handed over."""
    carry = [np.ones((2, 3), np.float32)]
    builder = UnrollBuilder(1, 2, carry)
    history = History(2)
    history.reply([FIRST | NO_TRANSITION] * 2)
    history.reply([0, 0])
    builder.observed(history.replies[0].obs, None, np.ones(2, np.bool_))
    builder.acted(acted(0, 2))
    carry[0][:] = 9
    builder.replied(history.replies[1], *names(0, 2))
    assert builder.num_transitions == 2
    unroll = builder.finish(0, 0, np.arange(2), history.replies[1])
    assert unroll is not None
    assert unroll.carry[0].tolist() == [[1.0] * 3] * 2
    assert unroll.mask is None


def test_what_is_shown_does_not_change() -> None:
    """The memory given to the policy is the unroll's own: the next observation goes elsewhere."""
    history = History(1)
    for flags in (FIRST | NO_TRANSITION, 0, 0):
        history.reply([flags])
    builder = UnrollBuilder(2, 1)
    shown = []
    for number in range(2):
        reply = history.replies[number]
        (obs, _), mask = builder.observed(reply.obs, reply.mask, np.zeros(1, np.bool_))
        shown.append((obs, mask, obs.copy()))
        builder.acted(acted(number, 1))
        builder.replied(history.replies[number + 1], *names(number, 1))
    unroll = builder.finish(0, 0, np.arange(1), history.replies[2])
    assert unroll is not None
    for number, (obs, mask, before) in enumerate(shown):
        np.testing.assert_array_equal(obs, before)
        assert np.shares_memory(obs, unroll.obs[0][number])
        assert mask is not None
        assert mask.any()


@settings(max_examples=300)
@given(data=st.data(), num_steps=st.integers(1, 5))
def test_no_mask_allows_everything(data: st.DataObject, num_steps: int) -> None:
    """Replies that leave a mask out, that of their rows or that of last observations, are those that allow it all."""
    history = data.draw(histories("same_step"))
    spelt = History(history.num_slots, [replace(reply) for reply in history.replies])
    for reply, full in zip(history.replies, spelt.replies, strict=True):
        if data.draw(st.booleans()):
            full.mask, reply.mask = np.ones_like(reply.mask), None
        if reply.final_mask is not None and data.draw(st.booleans()):
            full.final_mask, reply.final_mask = np.ones_like(reply.final_mask), None
    for (unroll, _), (other, _) in zip(unrolls_of(history, num_steps), unrolls_of(spelt, num_steps), strict=True):
        for name in ("mask", "end_mask", "last_mask"):
            found, expected = getattr(unroll, name), getattr(other, name)
            assert expected is not None
            np.testing.assert_array_equal(np.ones_like(expected) if found is None else found, expected)
