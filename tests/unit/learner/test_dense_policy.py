"""`DensePolicy` against `TorchPolicy`, with the same weights, keys and seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from asyncrl.keyed_noise import row_keys
from asyncrl.learner.dense_policy import DensePolicy, acts_densely
from asyncrl.learner.model import ActorCritic, build_model
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.publishing import mailbox_for, publish
from asyncrl.learner.torch_policy import TorchPolicy
from asyncrl.policy import Acted, Policy
from asyncrl.wire.tensors import Array
from tests.unit.learner.spaces_served import VECTOR, AnySpace, rows_of, served
from tests.unit.learner.test_torch_policy import set_all

N = 300
DISCRETE = spaces.Discrete(5, start=-2)


def made(action: AnySpace = DISCRETE, *, masked: bool = False, **settings: Any) -> ActorCritic:
    model = build_model(served(VECTOR, action, masked=masked), ModelConfig(**settings), seed=1)
    model.head.get_submodule("out").weight.data.mul_(100.0)  # type: ignore[operator]
    return model


def act(policy: Policy, step: int = 3, mask: Array | None = None, num: int = N) -> Acted:
    keys = row_keys(np.arange(num), np.full(num, step))
    return policy.act(rows_of(VECTOR, num, seed=step), mask, np.zeros(num, np.bool_), (), keys)


def assert_alike(one: Acted, other: Acted) -> None:
    """Equal actions, and the rest but for rounding; dtypes as well."""
    assert np.array_equal(one.action[0], other.action[0])
    assert [each.dtype for each in (*one.action, one.log_prob, one.value)] == [
        each.dtype for each in (*other.action, other.log_prob, other.value)
    ]
    assert np.allclose(one.log_prob, other.log_prob, atol=1e-4)  # logits are about 100
    assert np.allclose(one.value, other.value, atol=1e-5)
    assert (one.version, *map(len, (one.carry, one.env_action, one.kept))) == (
        other.version,
        *map(len, (other.carry, other.env_action, other.kept)),
    )


def some_masks(seed: int) -> Array:
    """Among them rows that allow nothing, and rows that allow one action."""
    mask: Array = np.random.default_rng(seed).random((N, 5)) < 0.4
    return mask


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("settings", [{}, {"share_trunk": True}, {"activation": "relu"}, {"normalize_obs": True}])
def test_it_acts_as_torch_does(deterministic: bool, masked: bool, settings: dict[str, Any]) -> None:
    """Action by action, over several steps."""
    model = made(masked=masked, **settings)
    ours, theirs = (kind(model, 7, deterministic=deterministic, version=4) for kind in (DensePolicy, TorchPolicy))
    seen = set[int]()
    for step in range(4):
        mask = some_masks(step) if masked else None
        acted = act(ours, step, mask)
        assert_alike(acted, act(theirs, step, mask))
        seen |= set(acted.action[0].tolist())
    assert len(seen) > 1 if deterministic else seen == {-2, -1, 0, 1, 2}


def test_masks_are_obeyed() -> None:
    """What a mask forbids is never drawn, unless it forbids all."""
    mask = some_masks(5)
    acted = act(DensePolicy(made(masked=True), 1), mask=mask)
    allowed = mask | ~mask.any(1, keepdims=True)
    assert (~mask.any(1)).any()
    assert allowed[np.arange(N), acted.action[0] + 2].all()
    alone = mask.sum(1) == 1
    assert alone.any()
    assert (acted.log_prob[alone] == 0.0).all()


def test_a_point_on_a_border_is_the_lower_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a head has it: each action has the numbers up to its border, that one among them."""
    points = np.array([[0.25], [0.5], [0.75], [0.25 + 1e-6]])
    monkeypatch.setattr("asyncrl.learner.dense_policy.uniform", lambda seed, keys, columns: points)
    model = made(spaces.Discrete(4))
    set_all(model, 0.0)
    assert act(DensePolicy(model, 1), num=4).action[0].tolist() == [0, 1, 2, 1]


def test_without_keys_noise_is_still_noise() -> None:
    """Every call then draws anew."""
    policy, obs = DensePolicy(made(), 1), rows_of(VECTOR, N)
    one, two = (policy.act(obs, None, np.zeros(N, np.bool_), (), None).action[0] for _ in range(2))
    assert not np.array_equal(one, two)


def test_a_new_version_is_taken_between_forwards() -> None:
    """Weights of the newest version are those of the next forward, stamped with it; others wait."""
    model = made()
    box = mailbox_for(model)
    policy = DensePolicy(model, 1, box, version=5)
    before = act(policy)
    assert before.version == 5
    set_all(model, 0.25)
    publish(model, box, 6)
    set_all(model, 0.5)
    after = act(policy)
    assert after.version == 6
    assert not np.allclose(after.value, before.value)
    set_all(model, 0.25)
    assert_alike(after, act(TorchPolicy(model, 1, version=6)))


def test_what_was_acted_is_not_written_again() -> None:
    """Arrays of an earlier forward keep their values, also where the features are the observations."""
    for sizes in ((), (64, 64)):
        policy = DensePolicy(made(hidden_sizes=sizes), 1)
        one = act(policy)
        kept = [array.copy() for array in (*one.action, one.log_prob, one.value)]
        act(policy, step=4)
        assert all(map(np.array_equal, (*one.action, one.log_prob, one.value), kept))


def test_who_acts_so() -> None:
    """Choices among the actions of one space, by a network that `fits`."""
    assert acts_densely(made())
    for other in (
        made(hidden_sizes=(512, 512)),
        made(spaces.MultiDiscrete([3, 4])),
        build_model(served(VECTOR, spaces.Box(-1.0, 1.0, (2,), np.float32)), ModelConfig(), seed=1),
    ):
        assert not acts_densely(other)
