"""`QPolicy`: what it does, what it stores with it, and on what that depends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from asyncrl.keyed_noise import row_keys
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.publishing import mailbox_for, publish
from asyncrl.learner.q_network import QNetwork, QShape, build_q_network
from asyncrl.learner.q_policy import QPolicy
from asyncrl.policy import Acted
from asyncrl.wire.tensors import Array
from tests.unit.learner.spaces_served import VECTOR, rows_of, served, tensors

N = 64
ACTIONS = spaces.Discrete(4, start=3)


def made(**shape: Any) -> QNetwork:
    return build_q_network(served(VECTOR, ACTIONS, masked=True), ModelConfig(hidden_sizes=(16,)), QShape(**shape), 1)


def always(share: float) -> Callable[[Array], Array]:
    return lambda keys: np.full(len(keys), share)


def act(policy: QPolicy, mask: Array | None = None, rows: slice = slice(None)) -> Acted:
    obs, keys = rows_of(VECTOR, N), row_keys(np.arange(N), np.full(N, 5))
    of_rows = None if mask is None else mask[rows]
    return policy.act([leaf[rows] for leaf in obs], of_rows, np.zeros(N, np.bool_)[rows], (), keys[rows])


@torch.no_grad()
def values(model: QNetwork) -> Array:
    found: Array = model.q_values(tensors(rows_of(VECTOR, N))).numpy()
    return found


@pytest.mark.parametrize("masked", [False, True])
def test_what_is_stored_is_of_the_forward_that_acted(masked: bool) -> None:
    """Actions in the environment's numbering, log μ of the mixture, max Q over what is allowed, and Q of the action."""
    model = made()
    mask = np.random.default_rng(2).random((N, 4)) < 0.5
    mask[:, 0] |= ~mask.any(1)
    acted = act(QPolicy(model, 1, always(0.4), keeps_q=True, version=7), mask if masked else None)
    q = np.where(mask, values(model), -np.inf) if masked else values(model)
    choice = acted.action[0] - 3
    assert acted.action[0].dtype == np.int64 and set(choice.tolist()) == {0, 1, 2, 3}
    np.testing.assert_allclose(acted.value, q.max(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(acted.kept[0], q[np.arange(N), choice], rtol=1e-5, atol=1e-6)
    allowed = mask.sum(1) if masked else 4
    expected = 0.4 / allowed + 0.6 * (choice == q.argmax(1))
    np.testing.assert_allclose(acted.log_prob, np.log(expected), rtol=1e-6)
    assert 0.5 < np.mean(choice == q.argmax(1)) < 0.95
    assert acted.version == 7
    assert {array.dtype for array in (acted.log_prob, acted.value, acted.kept[0])} == {np.dtype(np.float32)}


def test_rows_act_the_same_in_any_batch() -> None:
    """Sixty-four at once, or by threes: the same actions, bit for bit; another seed does something else."""
    policy = QPolicy(made(), 1, always(0.5))
    whole = act(policy).action[0]
    parts = np.concatenate([act(policy, rows=slice(i, i + 3)).action[0] for i in range(0, N, 3)])
    np.testing.assert_array_equal(parts, whole)
    assert (act(QPolicy(made(), 2, always(0.5))).action[0] != whole).any()


@pytest.mark.parametrize("shape", [{}, {"num_atoms": 5, "dueling": True}, {"sigma0": 2.0}], ids=str)
def test_deterministic_is_greedy_without_noise(shape: dict[str, Any]) -> None:
    """The highest mean, of the allowed ones; a noisy network acts by its means, whatever noise the learner's has."""
    model = made(**shape)
    model.noise.set_noise(None)
    expected = values(model)
    model.draw_noise(np.random.default_rng(1))
    policy = QPolicy(model, 1, None)
    assert (act(policy).action[0] - 3 == expected.argmax(1)).all()
    mask = np.tile(np.array([False, True, True, False]), (N, 1))
    assert (act(policy, mask).action[0] - 3 == 1 + expected[:, 1:3].argmax(1)).all()
    assert not act(policy).log_prob.any()


def test_noisy_layers_explore_by_keys() -> None:
    """One noise per forward, from its first row's key: a forward repeats itself, the next one differs."""
    policy = QPolicy(made(sigma0=2.0), 1, always(0.0))
    obs, first = rows_of(VECTOR, N), np.zeros(N, np.bool_)
    now, later = (row_keys(np.arange(N), np.full(N, step)) for step in (5, 6))
    one = policy.act(obs, None, first, (), now)
    again = policy.act(obs, None, first, (), now)
    other = policy.act(obs, None, first, (), later)
    np.testing.assert_array_equal(one.value, again.value)
    assert (one.value != other.value).all()


def test_new_weights_are_acted_with() -> None:
    """Between forwards, with their version."""
    model = made()
    box = mailbox_for(model)
    publish(model, box, 4)
    policy = QPolicy(model, 1, always(0.0), box, version=-1)
    before = act(policy)
    with torch.no_grad():
        model.advantage.bias.add_(torch.tensor([100.0, 0.0, 0.0, 0.0]))
    assert act(policy).version == 4
    publish(model, box, 5)
    after = act(policy)
    assert (before.version, after.version) == (4, 5)
    assert (after.action[0] == 3).all()
    assert (before.action[0] != 3).any()


def test_nothing_is_kept_where_nobody_asks() -> None:
    """The replay without priorities of actors takes no memory for them."""
    assert act(QPolicy(made(), 1, always(0.1))).kept == []
