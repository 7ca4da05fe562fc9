"""Advantages and value targets over [T, N] rows: GAE and V-trace, as two backward passes over whole rows of time.

A row is bootstrapped from the value of the observation that followed it: the next row's, that of `last_obs` for row
T - 1, that of `end_obs` where the row was truncated or cut, and nothing where it terminated (terminated wins over
both). A trace is carried to the next row only within an episode. What void rows hold is never looked at; their
advantages are 0.

NumPy on the host, also where the network is elsewhere: T short vector operations cost less there than T launches.

Invariants: equal to a plain loop over each fragment of an episode, for any ends and any void rows
(test_gae_is_the_loop_over_each_fragment, test_vtrace_is_the_loop_over_each_fragment); nothing crosses an end, neither
a value nor a reward that is not finite (test_nothing_crosses_an_end,
test_an_infinite_reward_stays_in_its_episode); a row that no episode can have is refused
(test_an_open_row_before_a_void_one).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from asyncrl.errors import LocalProtocolError
from asyncrl.records import Array


@dataclass(slots=True)
class Segment:
    """The rows of N slots as returns see them. Values are those of one set of weights."""

    reward: Array  # f [T, N]
    value: Array  # f [T, N]
    valid: Array  # b1 [T, N]
    ended: Array  # b1 [T, N]: terminated, truncated or cut
    next_value: Array  # f [T, N]: of the observation after each row, 0 where terminated; see `next_values`


class VTrace(NamedTuple):
    """What V-trace gives. 0 in void rows, but for `targets`, which repeat the value."""

    targets: Array  # f [T, N]: vs
    errors: Array  # f [T, N]: r + γ (λ vs' + (1 - λ) V') - V, not weighted
    advantages: Array  # f [T, N]: min(ρ̄, ρ) times errors, as a policy gradient without a ratio of its own wants them


def next_values(value: Array, last_value: Array, end_value: Array, end_rows: Array, terminated: Array) -> Array:
    """f [T, N]: the value of the observation after each row.

    `value` f [T, N]; `last_value` f [N]; `end_value` f [E] for the rows (t, n) of `end_rows` i8 [E, 2], which ended
    without termination; `terminated` b1 [T, N].
    """
    after = np.empty_like(value)
    after[:-1] = value[1:]
    after[-1] = last_value
    after[end_rows[:, 0], end_rows[:, 1]] = end_value
    after[terminated] = 0.0
    return after


def check_fragments(valid: Array, ended: Array) -> None:
    """Raises LocalProtocolError where an episode is left open before a void row: there is nothing to bootstrap from."""
    open_rows = valid[:-1] & ~ended[:-1] & ~valid[1:]
    if open_rows.any():
        t, n = np.argwhere(open_rows)[0]
        raise LocalProtocolError(f"row {t} of slot {n} is neither an end nor followed by a transition: mark it as cut")


def _accumulate(terms: Array, weight: Array, carries: Array) -> Array:
    """Turns terms [T, N] in place into x[t] = terms[t] + weight[t] * x[t + 1], the latter where `carries` b1 [T, N].

    Where it does not carry nothing is multiplied: 0 times an infinite reward of the next episode would be NaN.
    """
    scratch = np.empty_like(terms[0])
    for t in range(len(terms) - 2, -1, -1):
        np.multiply(weight[t], terms[t + 1], out=scratch)
        np.add(terms[t], scratch, out=terms[t], where=carries[t])
    return terms


def _silent() -> np.errstate:
    """A reward that is not finite is for the update to find, not for a warning."""
    return np.errstate(invalid="ignore", over="ignore")


def _errors(segment: Segment, gamma: float) -> Array:
    """f [T, N]: r + γ V' - V, of the dtype of the values; 0 in void rows."""
    error = segment.reward + gamma * segment.next_value - segment.value
    return np.where(segment.valid, error, 0).astype(segment.value.dtype, copy=False)


def gae(segment: Segment, gamma: float, gae_lambda: float) -> Array:
    """f [T, N]: generalised advantages, of the dtype of the values. Value targets are these plus the values."""
    weight = np.full_like(segment.value, gamma * gae_lambda)
    with _silent():
        return _accumulate(_errors(segment, gamma), weight, segment.valid & ~segment.ended)


def vtrace(
    segment: Segment, rho: Array, gamma: float, gae_lambda: float, rho_bar: float = 1.0, c_bar: float = 1.0
) -> VTrace:
    """V-trace; `rho` f [T, N] is π(a)/μ(a). Errors are weighted by min(ρ̄, ρ), a trace's steps by λ min(c̄, ρ).

    For λ < 1 the target of the policy is bootstrapped from λ vs' + (1 - λ) V', not from vs': so it stays an estimate
    of the same return that the value is trained on, and with ρ = 1 both are those of GAE.
    """
    dtype = segment.value.dtype
    carries = segment.valid & ~segment.ended
    ratio = np.where(segment.valid, rho, 0).astype(dtype, copy=False)
    weight, decay = np.minimum(ratio, rho_bar), dtype.type(gamma * gae_lambda)
    with _silent():
        errors = _errors(segment, gamma)
        excess = _accumulate(weight * errors, decay * np.minimum(ratio, c_bar), carries)  # vs - V
        np.add(errors[:-1], decay * excess[1:], out=errors[:-1], where=carries[:-1])
        targets = np.where(segment.valid, segment.value + excess, segment.value)
        return VTrace(targets, errors, weight * errors)
