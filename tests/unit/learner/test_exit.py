"""Learners that imitate searches, against plain updates written here."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncrl.config import PPOConfig
from asyncrl.errors import ConfigError
from asyncrl.learner.algorithms import open_learner
from asyncrl.learner.batches import Stage
from asyncrl.learner.exit import Exit, Rows, SearchedPPO
from asyncrl.learner.exit_targets import search_returns
from asyncrl.learner.ppo import PPO
from asyncrl.records import Unroll
from tests.rig.sync_driver import spec_of
from tests.unit.learner.test_exit_targets import searched
from tests.unit.learner.unrolls import acted, cartpole, changed, model_for

# One minibatch: who goes first in it changes nothing.
EXIT = PPOConfig(
    num_envs=4,
    num_steps=32,
    search="exit",
    search_window=2,
    num_minibatches=1,
    update_epochs=2,
    anneal_lr=False,
    learning_rate=1e-3,
)
AUX = dataclasses.replace(EXIT, search="ppo-aux", search_coef=0.7)


def parameters_of(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


def imitation(model: Any, unroll: Unroll) -> Tensor:
    """The mean cross-entropy of the policy against those that were found, in the usual words."""
    out = model.step([torch.from_numpy(unroll.obs[0]).flatten(0, 1)], torch.zeros(unroll.valid.size).bool(), [])
    policy = torch.from_numpy(unroll.kept[0]).flatten(0, 1)
    which = torch.from_numpy(unroll.kept[1]).flatten() > 0
    found: Tensor = nn.functional.cross_entropy(out.params[which], policy[which])
    return found


def test_an_update_imitates_the_search() -> None:
    """Two epochs of cross-entropy, value error and entropy: torch's Adam, clipped, finds the same parameters."""
    learner = Exit(model_for(EXIT), EXIT)
    plain = copy.deepcopy(learner.model)
    unroll = searched(acted(learner.model))
    batch = Stage(torch.device("cpu")).load([unroll])
    returns = torch.from_numpy(search_returns(plain, batch, batch.reward, unroll.kept[2], EXIT, games=False)).flatten()
    metrics = learner.update([unroll], 0.0)
    optimiser = torch.optim.Adam(plain.parameters(), lr=1e-3, eps=1e-5)
    for _ in range(2):
        out = plain.step([torch.from_numpy(unroll.obs[0]).flatten(0, 1)], torch.zeros(128).bool(), [])
        entropy = torch.distributions.Categorical(logits=out.params).entropy().mean()  # type: ignore[no-untyped-call]
        last = imitation(plain, unroll)
        loss = last - 0.01 * entropy + 0.5 * 0.5 * (out.value - returns).square().mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimiser.step()
    torch.testing.assert_close(parameters_of(learner.model), parameters_of(plain), atol=2e-6, rtol=0)
    assert metrics["losses/search_loss"] == pytest.approx(float(last.detach()), abs=1e-5)
    assert 0 < metrics["losses/search_kl"] < metrics["losses/search_loss"]
    assert metrics["search/share"] == pytest.approx(float(unroll.kept[1].mean()))


def test_rows_without_a_search_teach_no_policy() -> None:
    """Whatever policy such rows hold, the update is the same."""
    unroll = searched(acted(model_for(EXIT)))
    policy = unroll.kept[0].copy()
    policy[unroll.kept[1] == 0] = [1.0, 0.0]
    found = []
    for each in (unroll, changed(unroll, kept=[policy, *unroll.kept[1:]])):
        learner = Exit(model_for(EXIT), EXIT)
        learner.update([each], 0.0)
        found.append(parameters_of(learner.model))
    torch.testing.assert_close(found[0], found[1], atol=0, rtol=0)


def test_an_epoch_is_drawn_from_the_last_rounds() -> None:
    """Of three rounds the last two: each of their rows once in two epochs' worth at most, none of the first."""
    config = dataclasses.replace(EXIT, num_minibatches=4, update_epochs=1)
    learner = Exit(model_for(config), config)
    seen: list[Tensor] = []
    losses = learner._losses

    def watched(rows: Rows) -> tuple[Tensor, ...]:
        seen.append(rows.obs[0].clone())
        return losses(rows)

    learner._losses = watched  # type: ignore[method-assign]
    unrolls = [searched(acted(learner.model, seed=seed), seed=seed) for seed in (0, 100, 200)]
    for unroll in unrolls:
        seen.clear()
        learner.update([unroll], 0.0)
        assert len(torch.cat(seen)) == 128
    drawn = {tuple(row) for row in torch.cat(seen).tolist()}
    rounds = [{tuple(row) for row in unroll.obs[0].reshape(-1, 4).tolist()} for unroll in unrolls]
    assert len(drawn) == 128
    assert drawn <= rounds[1] | rounds[2]
    assert 40 < len(drawn & rounds[1]) < 88


def test_a_round_of_one_players_turns_is_of_a_game() -> None:
    """Once the second player has moved, what follows the last row of such a round is worth the opposite; to a learner
    that was loaded, too. Before that the learner cannot know, and takes one player for all there is."""
    config = dataclasses.replace(EXIT, num_steps=1, gae_lambda=1.0, update_epochs=1, learning_rate=0.0)
    model = model_for(config)
    first = searched(acted(model, num_steps=1))
    second = changed(first, kept=[*first.kept[:2], -first.kept[2]])
    learner, loaded = Exit(model, config), Exit(model_for(config), config)
    followed = model.step([torch.from_numpy(first.last_obs[0])], torch.zeros(4).bool(), []).value.detach()
    for unroll, sign in ((first, 1.0), (second, -1.0), (first, -1.0)):
        learner.update([unroll], 0.0)
        expected = torch.from_numpy(unroll.reward[0]).float() + sign * 0.99 * followed
        torch.testing.assert_close(learner._window[-1].target, expected)
    loaded.load(*learner.state())
    loaded.update([first], 0.0)
    torch.testing.assert_close(loaded._window[-1].target, expected)


def gradient_of(learner: PPO, unroll: Unroll) -> Tensor:
    """What the optimiser sees first."""
    seen: list[Tensor] = []
    learner.optimiser.step = lambda gradient, *_: seen.append(gradient.clone())  # type: ignore[method-assign]
    learner.update([unroll], 0.0)
    return seen[0]


def test_ppo_aux_adds_the_distance_to_its_loss() -> None:
    """Its gradient is PPO's plus search_coef times that of the cross-entropy; with nothing searched it is PPO's."""
    unroll = searched(acted(model_for(AUX)))
    ppo = gradient_of(PPO(model_for(AUX), AUX), unroll)
    both = gradient_of(SearchedPPO(model_for(AUX), AUX), unroll)
    learner = PPO(model_for(AUX), AUX)
    extra = learner.optimiser.gradient(imitation(learner.model, unroll))
    torch.testing.assert_close(both, ppo + 0.7 * extra, atol=1e-6, rtol=1e-4)
    nothing = changed(unroll, kept=[unroll.kept[0], np.zeros_like(unroll.kept[1]), unroll.kept[2]])
    torch.testing.assert_close(gradient_of(SearchedPPO(model_for(AUX), AUX), nothing), ppo, atol=0, rtol=0)


def test_ppo_aux_is_for_one_player() -> None:
    """Advantages of PPO know no other player's turn."""
    with pytest.raises(ConfigError, match="games of two are learned with search 'exit'"):
        SearchedPPO(model_for(AUX), AUX).update([searched(acted(model_for(AUX)), games=True)], 0.0)


@pytest.mark.parametrize(("config", "kind"), [(EXIT, Exit), (AUX, SearchedPPO)])
def test_a_loaded_learner_goes_on_bit_for_bit(config: PPOConfig, kind: type[Exit | PPO]) -> None:
    """Saved through JSON after one update, with several minibatches: the next one gives the same parameters."""
    config = dataclasses.replace(config, num_minibatches=4)
    one, two = (open_learner(config, spec_of(cartpole()), torch.device("cpu")) for _ in range(2))
    assert isinstance(one, kind)
    unrolls = [searched(acted(model_for(config), seed=seed), seed=seed) for seed in (1, 2)]
    one.update([unrolls[0]], 0.0)
    tensors, rest = one.state()
    two.load(tensors, json.loads(json.dumps(rest)))
    for learner in (one, two):
        learner.update([unrolls[1]], 0.1)
    torch.testing.assert_close(parameters_of(one.model), parameters_of(two.model), atol=0, rtol=0)
