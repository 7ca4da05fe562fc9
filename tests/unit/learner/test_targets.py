"""Targets of a batch: which observation is bootstrapped from, and how the two rules relate."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from asyncrl.config import PPOConfig
from asyncrl.learner.batches import Batch, Stage
from asyncrl.learner.minibatches import split_of
from asyncrl.learner.model import ActorCritic, Outputs
from asyncrl.learner.returns import Segment, gae, next_values, vtrace
from asyncrl.learner.targets import ACTED_VALUE, ADVANTAGE, LOG_MU, TARGET, TargetRule, targets_of
from asyncrl.records import Array, Unroll
from tests.unit.learner.unrolls import acted, changed, lanes_of, lost_at, model_for

GAMMA, LAMBDA = 0.99, 0.95
FRESH, OLD = (TargetRule(GAMMA, LAMBDA, corrects) for corrects in (False, True))


class Echo:
    """A value function that says what it sees: V(obs) = obs[0]."""

    def step(self, obs: Sequence[Tensor], first: Tensor, carry: Sequence[Tensor]) -> Outputs:
        return Outputs(torch.zeros(len(first), 2), obs[0][:, 0].float(), [])


def batch_of(unrolls: Sequence[Unroll]) -> Batch:
    return Stage(torch.device("cpu")).load(unrolls)


def columns(model: ActorCritic, batch: Batch, rule: TargetRule) -> Array:
    """f4 [4, T, N]"""
    found = targets_of(model, batch, split_of(batch, 3), batch.reward, rule).columns.numpy()
    return found.reshape(4, *batch.valid.shape)


def observed(reset: float, last: float) -> Unroll:
    """Four rows of one slot; row 1 is truncated at an observation of `last`, and the reset shows `reset`."""
    whole = acted(model_for(PPOConfig()), num_steps=4, num_envs=1)
    obs = np.array([10.0, 20.0, reset, 30.0])[:, None, None]
    truncated = np.array([[False], [True], [False], [False]])
    return changed(
        whole,
        obs=[obs],
        value=obs[..., 0].astype(np.float32),
        reward=np.ones((4, 1)),
        terminated=~truncated & truncated,
        truncated=truncated,
        first=np.array([[True], [False], [True], [False]]),
        end_rows=np.array([[1, 0]]),
        end_obs=[np.array([[last]])],
        last_obs=[np.array([[40.0]])],
    )


def test_bootstraps_come_from_the_last_observation() -> None:
    """The terminal observation is 999 and the one after the reset 0: the truncated row is worth 1 + γ 999."""
    model = cast(ActorCritic, Echo())
    found = columns(model, batch_of([observed(0.0, 999.0)]), FRESH)
    assert found[TARGET, 1, 0] == pytest.approx(1 + GAMMA * 999)
    assert found[TARGET, 3, 0] == pytest.approx(1 + GAMMA * 40)
    # Rows of the first episode do not change with what comes after it.
    other = columns(model, batch_of([observed(-1e6, 999.0)]), FRESH)
    np.testing.assert_array_equal(found[ADVANTAGE, :2], other[ADVANTAGE, :2])


def test_the_columns_are_the_rules_of_returns() -> None:
    """With several lanes, one of them lost: every number is the one that `returns` gives for the rows side by side."""
    model = model_for(PPOConfig())
    whole = acted(model, num_steps=64, num_envs=5)
    lanes = lanes_of(whole, [2, 3])
    lanes[1] = lost_at(lanes[1], 40, [0, 2])
    batch = batch_of(lanes)
    after = model.step(batch.after, batch.after_first, []).value.detach().numpy()
    following = next_values(batch.value, after[:5], after[5:], batch.end_rows, batch.terminated)
    segment = Segment(batch.reward, batch.value, batch.valid, batch.ended, following)
    found = columns(model, batch, FRESH)
    np.testing.assert_array_equal(found[LOG_MU], batch.log_prob)
    np.testing.assert_array_equal(found[ACTED_VALUE], batch.value)
    np.testing.assert_allclose(found[ADVANTAGE], gae(segment, GAMMA, LAMBDA), rtol=1e-6)
    assert batch.end_rows.tolist().count([40, 2]) + batch.end_rows.tolist().count([40, 4]) >= 1


@pytest.mark.parametrize("gru_size", [0, 8])
def test_corrected_targets_of_fresh_data_are_those_of_gae(gru_size: int) -> None:
    """At the weights that acted every ratio is 1, so V-trace gives what GAE gives; ends and gaps included."""
    model = model_for(PPOConfig(gru_size=gru_size))
    batch = batch_of([lost_at(acted(model, num_steps=64, num_envs=4), 40, [2])])
    fresh, old = columns(model, batch, FRESH), columns(model, batch, OLD)
    np.testing.assert_allclose(fresh[:, batch.valid], old[:, batch.valid], atol=1e-3, rtol=1e-4)


def test_bootstraps_of_a_recurrent_model_know_what_came_before() -> None:
    """V of a last observation is that of the model carried there, row by row, from the unroll's first carry."""
    model = model_for(PPOConfig(gru_size=8))
    unroll = acted(model, num_steps=64, num_envs=4)
    found = columns(model, batch_of([unroll]), FRESH)
    assert len(unroll.end_rows) > 1
    ends = {(int(t), int(n)): obs for (t, n), obs in zip(unroll.end_rows, unroll.end_obs[0], strict=True)}
    ends |= {(63, int(n)): unroll.last_obs[0][n] for n in np.flatnonzero(~unroll.ended[63])}
    carry = [torch.from_numpy(leaf) for leaf in unroll.carry]
    never = torch.zeros(4, dtype=torch.bool)
    for t in range(64):
        carry = model.step([torch.from_numpy(unroll.obs[0][t])], torch.from_numpy(unroll.first[t]), carry).carry
        for n in (n for row, n in ends if row == t):
            seen = torch.from_numpy(np.broadcast_to(ends[t, n], (4, 4)).copy())
            after = model.step([seen], never, carry).value[n].item()
            assert found[TARGET, t, n] == pytest.approx(unroll.reward[t, n] + GAMMA * after, rel=1e-5)


def test_corrected_targets_of_old_data_are_those_of_vtrace() -> None:
    """At other weights: ratios to the stored log μ, and values of the weights of now."""
    model = model_for(PPOConfig())
    batch = batch_of([acted(model, num_steps=64, num_envs=4)])
    now = copy.deepcopy(model)
    with torch.no_grad():
        for p in now.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    out = now.sequence(batch.obs, batch.first, [])
    log_pi = now.head.log_prob(out.params, None, batch.action).detach().numpy()
    after = now.step(batch.after, batch.after_first, []).value.detach().numpy()
    value = out.value.detach().numpy()
    following = next_values(value, after[:4], after[4:], batch.end_rows, batch.terminated)
    rho = np.exp(log_pi - batch.log_prob)
    assert rho.min() < 0.97 and rho.max() > 1.03
    expected = vtrace(Segment(batch.reward, value, batch.valid, batch.ended, following), rho, GAMMA, LAMBDA)
    found = columns(now, batch, OLD)
    np.testing.assert_allclose(found[TARGET], expected.targets, rtol=1e-4)
    np.testing.assert_allclose(found[ADVANTAGE], expected.errors, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(found[ACTED_VALUE], batch.value)


def test_targets_minus_values_are_raw_advantages() -> None:
    """Value targets come from advantages before they are normalised."""
    model = model_for(PPOConfig())
    found = columns(model, batch_of([acted(model, num_steps=64)]), FRESH)
    np.testing.assert_allclose(found[TARGET] - found[ACTED_VALUE], found[ADVANTAGE], atol=1e-5)
    assert abs(found[ADVANTAGE].std() - 1.0) > 0.5
