"""The learner's side of a run: checkpoints, and the policies made from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.errors import CheckpointMismatch
from asyncrl.learner.model import ActorCritic
from asyncrl.policy import Policy
from asyncrl.run.checkpoints import CheckpointStore, load_newest
from asyncrl.run.learning import Learning, Saved
from asyncrl.run.manifests import Identity
from asyncrl.wire.tensors import Array
from tests.rig.sync_driver import spec_of
from tests.unit.learner.unrolls import acted, cartpole, lanes_of
from tests.unit.run.tiny_training import tiny_config

OBS = np.random.default_rng(1).normal(size=(64, 4)).astype(np.float32)


def learning(tmp_path: Path, **changed: Any) -> Learning:
    return Learning(tiny_config(tmp_path, **changed), spec_of(cartpole()))


def trained(tmp_path: Path, rounds: int = 2, **changed: Any) -> Learning:
    made = learning(tmp_path, **changed)
    train(made, rounds)
    return made


def train(made: Learning, rounds: int) -> None:
    for number in range(rounds):
        model = made.learner.model
        assert isinstance(model, ActorCritic)
        made.learner.update(lanes_of(acted(model, num_steps=8, seed=number), [2, 2]), 0.1)


def values(policy: Policy) -> Array:
    return policy.act([OBS], None, np.zeros(64, np.bool_), [], np.arange(64, dtype=np.uint64)).value


def test_a_learner_survives_its_checkpoint(tmp_path: Path) -> None:
    """On the disk and back: trained on, the copy stays equal to the original bit for bit, normalisers and all."""
    wish: dict[str, Any] = {"normalize_obs": True, "normalize_reward": True}
    first = trained(tmp_path, **wish)
    CheckpointStore(tmp_path, Identity("ppo", "x", "00")).save(1, first.save().parts())
    second = learning(tmp_path, seed=9, **wish)
    second.load(Saved.of(load_newest(tmp_path).parts))
    for made in (first, second):
        train(made, 1)
    ours, theirs = first.save(), second.save()
    assert ours.rest == theirs.rest
    assert set(ours.arrays) == set(theirs.arrays)
    for name, array in ours.arrays.items():
        np.testing.assert_array_equal(array, theirs.arrays[name], err_msg=name)


def test_a_copy_is_a_copy(tmp_path: Path) -> None:
    """The next update leaves it alone."""
    made = trained(tmp_path)
    saved = made.save()
    before = {name: array.copy() for name, array in saved.arrays.items()}
    train(made, 1)
    assert all((saved.arrays[name] == array).all() for name, array in before.items())


def test_a_policy_acts_with_the_newest_weights(tmp_path: Path) -> None:
    """That of training with those that were published last; a frozen one with those of when it was made."""
    made = trained(tmp_path)
    made.publish(2)
    following, frozen = made.policy(), made.frozen_policy(deterministic=True)
    before = values(following)
    np.testing.assert_array_equal(values(frozen), before)
    train(made, 1)
    np.testing.assert_array_equal(values(following), before)
    made.publish(3)
    assert (values(following) != before).any()
    np.testing.assert_array_equal(values(frozen), before)


def test_another_network_is_a_mismatch(tmp_path: Path) -> None:
    """Of a size that the settings do not tell, as one from a module of the user's: one line."""
    with pytest.raises(CheckpointMismatch, match="of another network than the settings say") as caught:
        learning(tmp_path, hidden_sizes=[9]).load(learning(tmp_path).save())
    assert "\n" not in str(caught.value)


def test_nothing_is_published_twice(tmp_path: Path) -> None:
    """A version that is there already stays as it was."""
    made = trained(tmp_path)
    made.publish(2)
    before = values(made.policy())
    train(made, 1)
    made.publish(2)
    np.testing.assert_array_equal(values(made.policy()), before)


def test_threads_are_those_that_were_chosen(tmp_path: Path) -> None:
    """And said so in what the run prints; every parameter is counted."""
    made = learning(tmp_path)
    assert made.config.learner_threads == made.threads.learner >= 1
    assert made.num_parameters == sum(tensor.numel() for tensor in made.learner.model.parameters())


@pytest.mark.parametrize(
    ("hidden", "briefly", "alone"),
    [((64, 64), True, True), ((64, 30_000, 64), False, True), ((64, 100_000, 64), False, False)],
)
def test_only_small_networks_act_briefly(tmp_path: Path, hidden: tuple[int, ...], briefly: bool, alone: bool) -> None:
    """By the arithmetic of one forward for all environments: 4 rows of 18 kFLOP, of 15 MFLOP, of 52 MFLOP."""
    made = learning(tmp_path, hidden_sizes=hidden)
    assert (made.acts_briefly, made.may_act_on_loop(2), made.may_act_on_loop(1)) == (briefly, briefly, alone)
