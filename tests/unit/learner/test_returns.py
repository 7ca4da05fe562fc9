"""Returns against golden vectors, against a plain loop over each fragment of an episode, and against poison."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.errors import LocalProtocolError
from asyncrl.learner.returns import Segment, check_fragments, gae, next_values, vtrace
from asyncrl.records import Array

GAMMA, LAMBDA = 0.99, 0.95


def column(*values: float) -> Array:
    """f8 [T, 1]."""
    return np.array(values, np.float64)[:, None]


def flags(*at: int, length: int) -> Array:
    """b1 [length, 1], true at the given rows."""
    found = np.zeros((length, 1), np.bool_)
    found[list(at)] = True
    return found


def segment_of(reward: Array, value: Array, after: Array, terminated: Array, truncated: Array) -> Segment:
    """Rows that are all transitions; `after` holds the value of the true next observation of each."""
    every = np.ones(value.shape, np.bool_)
    return Segment(reward, value, every, terminated | truncated, np.where(terminated, 0.0, after))


FOUR = (column(1, 1, 1, 1), column(0.5, 0.5, 0.5, 0.5), column(0.5, 0.5, 0.5, 0.5))
NEVER = flags(length=4)


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        (NEVER, NEVER, [3.638666, 2.810915, 1.930798, 0.995]),
        (flags(1, length=4), NEVER, [1.46525, 0.5, 1.930798, 0.995]),
        (NEVER, flags(1, length=4), [1.930798, 0.995, 1.930798, 0.995]),
        (flags(0, length=4), NEVER, [0.5, 2.810915, 1.930798, 0.995]),
        (flags(3, length=4), NEVER, [3.226870, 2.373068, 1.46525, 0.5]),
        (flags(1, length=4), flags(1, length=4), [1.46525, 0.5, 1.930798, 0.995]),
    ],
    ids=["none", "terminated", "truncated", "first_row", "last_row", "both"],
)
def test_gae_golden_vectors(terminated: Array, truncated: Array, expected: list[float]) -> None:
    """Four steps of reward 1 and value .5: an end stops the trace, and only a truncation is bootstrapped."""
    found = gae(segment_of(*FOUR, terminated, truncated), GAMMA, LAMBDA)
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-6)


def test_gae_of_three_episodes() -> None:
    """Three episodes of four steps in one column, each terminated at its fourth: targets of a published test."""
    reward = column(101, 102, 103, 200, 104, 105, 106, 201, 107, 108, 109, 202)
    after = column(2, 3, 4, -1, 5, 6, 7, -2, 8, 9, 10, -3)
    before = np.concatenate([np.zeros((1, 1)), after[:-1]])
    ends = flags(3, 7, 11, length=12)
    found = gae(segment_of(reward, before, after, ends, flags(length=12)), GAMMA, LAMBDA) + before
    expected = [
        454.8344,
        376.1143,
        291.298,
        200.0,
        464.5610,
        383.1085,
        295.387,
        201.0,
        474.2876,
        390.1027,
        299.476,
        202.0,
    ]
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-3)


@pytest.mark.parametrize("length", [1, 2, 10, 50])
def test_a_reward_at_the_end_alone_has_a_closed_form(length: int) -> None:
    """Reward 1 at the terminal step and a constant value c: the first advantage is a geometric sum."""
    c, decay = 0.7, GAMMA * LAMBDA
    reward = np.zeros((length, 1))
    reward[-1] = 1.0
    value = np.full((length, 1), c)
    found = gae(segment_of(reward, value, value, flags(length - 1, length=length), flags(length=length)), GAMMA, LAMBDA)
    expected = sum(decay**k * (GAMMA - 1) * c for k in range(length - 1)) + decay ** (length - 1) * (1 - c)
    assert found[0, 0] == pytest.approx(expected, abs=1e-12)


RHO = column(0.5, 1.5, 1, 2)


@pytest.mark.parametrize(
    ("trace", "targets", "advantages"),
    [
        (1.0, [0.145, -0.9, -1, 2.45], [0.045, -1.1, -1.3, 2.05]),
        (0.9, [0.241885, -0.783, -1, 2.45], [0.141885, -0.983, -1.3, 2.05]),
    ],
)
def test_vtrace_golden_vectors(trace: float, targets: list[float], advantages: list[float]) -> None:
    """Four steps with a termination at the third; for λ < 1 the policy's bootstrap is λ vs' + (1 - λ) V'."""
    value = column(0.1, 0.2, 0.3, 0.4)
    after = column(0.2, 0.3, 0.4, 0.5)
    segment = segment_of(column(1, 0, -1, 2), value, after, flags(2, length=4), NEVER)
    found = vtrace(segment, RHO, 0.9, trace)
    np.testing.assert_allclose(found.targets[:, 0], targets, atol=1e-9)
    np.testing.assert_allclose(found.advantages[:, 0], advantages, atol=1e-9)
    np.testing.assert_allclose(np.minimum(RHO, 1) * found.errors, found.advantages, atol=1e-15)


# ------------------------------------------------------------------------------------------------- the plain loop


class Rows(NamedTuple):
    """What an unroll holds that returns depend on, with garbage in void rows."""

    reward: Array
    value: Array
    valid: Array
    terminated: Array
    truncated: Array
    last_value: Array
    end_rows: Array
    end_value: Array

    def segment(self, dtype: npt.DTypeLike) -> Segment:
        value = self.value.astype(dtype)
        after = next_values(
            value,
            self.last_value.astype(dtype),
            self.end_value.astype(dtype),
            self.end_rows,
            self.terminated & self.valid,
        )
        return Segment(self.reward, value, self.valid, (self.terminated | self.truncated) & self.valid, after)


def random_rows(seed: int, length: int, slots: int) -> Rows:
    """Episodes of random lengths; after an end come none to three void rows, or only void rows to the end."""
    rng = np.random.default_rng(seed)
    valid, terminated, truncated = (np.zeros((length, slots), np.bool_) for _ in range(3))
    for slot in range(slots):
        t = int(rng.integers(0, 3))
        while t < length:
            stop = min(t + int(rng.integers(1, 9)), length)
            valid[t:stop, slot] = True
            if stop < length or rng.random() < 0.5:
                kind = rng.integers(0, 3)
                terminated[stop - 1, slot] = kind != 1
                truncated[stop - 1, slot] = kind != 0
            t = stop + int(rng.choice([0, 0, 1, 3, length]))
    end_rows = np.argwhere(truncated & ~terminated)
    reward, value = (np.where(valid, rng.normal(size=(length, slots)), np.nan) for _ in range(2))
    last_value = np.where(valid[-1] & ~(terminated | truncated)[-1], rng.normal(size=slots), np.nan)
    flag = rng.random((length, slots)) < 0.5
    return Rows(
        reward,
        value,
        valid,
        np.where(valid, terminated, flag),
        np.where(valid, truncated, flag),
        last_value,
        end_rows,
        rng.normal(size=len(end_rows)),
    )


def fragments(rows: Rows) -> list[tuple[int, range, float]]:
    """(slot, rows, value after the last row) of every stretch of one episode, found by walking."""
    end_value = {(int(t), int(n)): float(v) for (t, n), v in zip(rows.end_rows, rows.end_value, strict=True)}
    length, slots = rows.valid.shape
    found = []
    for slot in range(slots):
        start = 0
        for t in range(length):
            if not rows.valid[t, slot]:
                start = t + 1
            elif rows.terminated[t, slot]:
                found.append((slot, range(start, t + 1), 0.0))
                start = t + 1
            elif rows.truncated[t, slot]:
                found.append((slot, range(start, t + 1), end_value[t, slot]))
                start = t + 1
            elif t == length - 1:
                found.append((slot, range(start, t + 1), float(rows.last_value[slot])))
    return found


def loop_gae(rows: Rows) -> Array:
    """The definition: a sum of later errors, weighted by the distance, for each row by itself."""
    found = np.zeros(rows.valid.shape)
    for slot, span, after in fragments(rows):
        values = [float(rows.value[t, slot]) for t in span] + [after]
        errors = [float(rows.reward[t, slot]) + GAMMA * values[i + 1] - values[i] for i, t in enumerate(span)]
        for i, t in enumerate(span):
            found[t, slot] = sum((GAMMA * LAMBDA) ** (j - i) * errors[j] for j in range(i, len(span)))
    return found


def loop_vtrace(rows: Rows, rho: Array, rho_bar: float, c_bar: float) -> tuple[Array, Array]:
    """The definition of the paper: vs by products of the c's, then the policy's advantage from vs of the next row."""
    targets, advantages = np.zeros(rows.valid.shape), np.zeros(rows.valid.shape)
    for slot, span, after in fragments(rows):
        values = [float(rows.value[t, slot]) for t in span] + [after]
        weights = [min(rho_bar, float(rho[t, slot])) for t in span]
        traces = [min(c_bar, float(rho[t, slot])) for t in span]
        errors = [
            w * (float(rows.reward[t, slot]) + GAMMA * values[i + 1] - values[i])
            for i, (t, w) in enumerate(zip(span, weights, strict=True))
        ]
        vs = [*values]
        for i in range(len(span)):
            product = 1.0
            for j in range(i, len(span)):
                vs[i] += product * errors[j]
                product *= GAMMA * LAMBDA * traces[j]
        for i, t in enumerate(span):
            bootstrap = LAMBDA * vs[i + 1] + (1 - LAMBDA) * values[i + 1]
            targets[t, slot] = vs[i]
            advantages[t, slot] = weights[i] * (float(rows.reward[t, slot]) + GAMMA * bootstrap - values[i])
    return targets, advantages


PRECISIONS = pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float64, 1e-12)])
SIZES = {"seed": st.integers(0, 2**32 - 1), "length": st.integers(1, 24), "slots": st.integers(1, 4)}


@PRECISIONS
@settings(max_examples=60)
@given(**SIZES)
def test_gae_is_the_loop_over_each_fragment(
    dtype: npt.DTypeLike, tolerance: float, seed: int, length: int, slots: int
) -> None:
    """GAE equals the sum in its definition, whatever ends where and whatever lies in void rows."""
    rows = random_rows(seed, length, slots)
    found = gae(rows.segment(dtype), GAMMA, LAMBDA)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, loop_gae(rows), rtol=tolerance, atol=tolerance)


@PRECISIONS
@settings(max_examples=60)
@given(bars=st.sampled_from([(1.0, 1.0), (2.0, 0.5), (1.5, 1.5), (np.inf, 1.0)]), **SIZES)
def test_vtrace_is_the_loop_over_each_fragment(
    dtype: npt.DTypeLike, tolerance: float, bars: tuple[float, float], seed: int, length: int, slots: int
) -> None:
    """V-trace equals the paper's sum of products, each bar in its place, whatever lies where and in void rows."""
    rows = random_rows(seed, length, slots)
    rho = np.exp(np.random.default_rng(seed + 1).normal(size=rows.valid.shape))
    found = vtrace(rows.segment(dtype), np.where(rows.valid, rho, np.nan), GAMMA, LAMBDA, *bars)
    targets, advantages = loop_vtrace(rows, rho, *bars)
    np.testing.assert_allclose(found.targets[rows.valid], targets[rows.valid], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(found.advantages, advantages, rtol=tolerance, atol=tolerance)


@settings(max_examples=40)
@given(**SIZES)
def test_vtrace_on_policy_is_gae(seed: int, length: int, slots: int) -> None:
    """With ρ = 1 the targets are GAE(λ) + V, and the errors are GAE(λ)."""
    segment = random_rows(seed, length, slots).segment(np.float64)
    advantage = gae(segment, GAMMA, LAMBDA)
    found = vtrace(segment, np.ones(segment.valid.shape), GAMMA, LAMBDA)
    np.testing.assert_allclose(found.targets[segment.valid], (advantage + segment.value)[segment.valid], atol=1e-12)
    np.testing.assert_allclose(found.advantages, advantage, atol=1e-12)


@settings(max_examples=60)
@given(**SIZES)
def test_nothing_crosses_an_end(seed: int, length: int, slots: int) -> None:
    """A value of a million at the first observation of an episode shows in no other row than its own."""
    rows = random_rows(seed, length, slots)
    ended = rows.terminated | rows.truncated
    begins = rows.valid & np.concatenate([np.ones((1, slots), np.bool_), (ended | ~rows.valid)[:-1]])
    # The observation of row 0 is the first of its episode, or what follows an end that another unroll holds.
    poisoned = rows._replace(
        value=np.where(begins, 1e6, rows.value),
        last_value=np.where(rows.valid[-1] & ~ended[-1], rows.last_value, 1e6),
    ).segment(np.float64)
    rho = np.exp(np.random.default_rng(seed).normal(size=rows.valid.shape))
    found = [gae(poisoned, GAMMA, LAMBDA), vtrace(poisoned, rho, GAMMA, LAMBDA).errors]
    for advantage in found:
        assert np.abs(advantage[~begins]).max(initial=0.0) < 1e3
    returns = (found[0] + poisoned.value)[rows.valid]
    assert np.abs(returns).max(initial=0.0) < 1e3


@pytest.mark.parametrize("reward", [np.inf, np.nan])
def test_an_infinite_reward_stays_in_its_episode(reward: float) -> None:
    """Rows of the episodes before and after it have the advantages that they have without it."""
    ends = flags(1, 3, length=6)
    value = np.full((6, 1), 0.5)
    rewards = [np.ones((6, 1)), column(1, 1, 1, reward, 1, 1)]
    segments = [segment_of(r, value, value, ends, flags(length=6)) for r in rewards]
    rho = np.full((6, 1), 0.9)
    for clean, broken in (
        [gae(segment, GAMMA, LAMBDA) for segment in segments],
        [vtrace(segment, rho, GAMMA, LAMBDA).errors for segment in segments],
    ):
        others = [0, 1, 4, 5]
        np.testing.assert_array_equal(clean[others], broken[others])
        assert not np.isfinite(broken[2:4]).any()


@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_a_bootstrap_is_the_true_last_observation(kind: str) -> None:
    """Row 1 ends with last observation 999 and is followed by a reset to 0: only a truncation sees the 999."""
    ends = flags(1, length=4)
    never = flags(length=4)
    terminated, truncated = (ends, never) if kind == "terminated" else (never, ends)
    value = column(10, 20, 0, 30)  # of observations: V(obs) = obs
    end_rows = np.argwhere(truncated & ~terminated)
    after = next_values(value, np.array([40.0]), np.full(len(end_rows), 999.0), end_rows, terminated)
    assert after[:, 0].tolist() == [20, 0 if kind == "terminated" else 999, 30, 40]


def test_an_open_row_before_a_void_one() -> None:
    """An episode that just stops before a void row is refused; marked as cut it is not."""
    valid = ~flags(2, length=4)
    with pytest.raises(LocalProtocolError, match="row 1 of slot 0"):
        check_fragments(valid, flags(length=4))
    check_fragments(valid, flags(1, length=4))


def test_returns_of_a_large_round_cost_milliseconds() -> None:
    """128 rows of 512 slots: printed with -s; the bound is generous, so that only a slow algorithm breaks it."""
    rng = np.random.default_rng(0)
    value = rng.normal(size=(128, 512)).astype(np.float32)
    ended = rng.random((128, 512)) < 0.01
    segment = Segment(rng.normal(size=value.shape), value, np.ones(value.shape, np.bool_), ended, value)
    spent = []
    for _ in range(20):
        before = time.perf_counter()
        gae(segment, GAMMA, LAMBDA)
        spent.append(time.perf_counter() - before)
    print(f"gae of 128 x 512: {min(spent) * 1e3:.2f} ms")
    assert min(spent) < 0.1
