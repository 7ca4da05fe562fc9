"""IMPALA against a plain update written here, and against what its parts reduce to."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncrl.config import A2CConfig, ImpalaConfig
from asyncrl.learner.actor_critic import NonFiniteUpdate
from asyncrl.learner.impala import Impala
from asyncrl.learner.model import ActorCritic, build_model
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.ppo import PPO
from asyncrl.records import Array, Unroll
from tests.rig.sync_driver import spec_of
from tests.unit.learner.unrolls import acted, cartpole, changed, lanes_of, lost_at

CONFIG = ImpalaConfig(num_envs=4, num_steps=32, batch_steps=0, learning_rate=1e-3, anneal_lr=False)


def model_for(config: ImpalaConfig) -> ActorCritic:
    return build_model(spec_of(cartpole()), ModelConfig.of(config), config.seed)


def learner_for(config: ImpalaConfig) -> Impala:
    return Impala(model_for(config), config)


def moved(model: ActorCritic, by: float = 0.1) -> ActorCritic:
    """The same network some updates later: the data is older than it."""
    now = copy.deepcopy(model)
    with torch.no_grad():
        for p in now.parameters():
            p.add_(by * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    return now


def parameters_of(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


def plain_vtrace(
    unroll: Unroll, log_pi: Array, value: Array, after: Array, config: ImpalaConfig
) -> tuple[Array, Array]:
    """vs and the policy's advantages [T, N] of the paper, by its recursion; `after` [T, N]: V of what follows a row."""
    length, slots = value.shape
    rho = np.exp(log_pi - unroll.log_prob)
    vs, advantage = value.copy(), np.zeros_like(value)
    for n in range(slots):
        excess, target_after = 0.0, 0.0
        for t in reversed(range(length)):
            ends = unroll.ended[t, n] or t == length - 1
            following = 0.0 if unroll.terminated[t, n] else after[t, n]
            if ends:
                excess, target_after = 0.0, following
            mixed = config.gae_lambda * target_after + (1 - config.gae_lambda) * following
            weight = min(config.rho_bar, rho[t, n])
            advantage[t, n] = weight * (unroll.reward[t, n] + config.gamma * mixed - value[t, n])
            delta = weight * (unroll.reward[t, n] + config.gamma * following - value[t, n])
            excess = delta + config.gamma * config.gae_lambda * min(config.c_bar, rho[t, n]) * excess
            vs[t, n] = target_after = value[t, n] + excess
    return vs, advantage


def plain_loss(model: ActorCritic, unroll: Unroll, config: ImpalaConfig) -> Tensor:
    """The sum over all rows, in the usual words, for a network without a carry."""
    length, slots = unroll.reward.shape
    out = model.step([torch.from_numpy(unroll.obs[0]).flatten(0, 1)], torch.zeros(length * slots, dtype=torch.bool), [])
    policy = torch.distributions.Categorical(logits=out.params)
    log_pi: Tensor = policy.log_prob(torch.from_numpy(unroll.action[0]).flatten())  # type: ignore[no-untyped-call]
    entropy: Tensor = policy.entropy()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        last = model.step([torch.from_numpy(unroll.last_obs[0])], torch.zeros(slots, dtype=torch.bool), []).value
        ends = model.step(
            [torch.from_numpy(unroll.end_obs[0])], torch.zeros(len(unroll.end_rows), dtype=torch.bool), []
        ).value
    value = out.value.detach().numpy().reshape(length, slots)
    after = np.concatenate([value[1:], last.numpy()[None]])
    after[unroll.end_rows[:, 0], unroll.end_rows[:, 1]] = ends.numpy()
    vs, advantage = plain_vtrace(unroll, log_pi.detach().numpy().reshape(length, slots), value, after, config)
    policy_loss = -(torch.from_numpy(advantage).flatten() * log_pi).sum()
    value_loss = 0.5 * (torch.from_numpy(vs).flatten() - out.value).square().sum()
    return policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy.sum()


@pytest.mark.parametrize("lanes", [[4], [1, 3]])
@pytest.mark.parametrize(
    "changes",
    [{}, {"gae_lambda": 0.9}, {"rho_bar": 1.5, "c_bar": 0.8}, {"optimizer": "rmsprop", "rms_eps": 0.1}],
)
def test_an_update_equals_a_plain_one(changes: dict[str, Any], lanes: list[int]) -> None:
    """Three updates over data of older weights, clipped at 40: the parameters of torch's optimisers to 2e-6."""
    config = dataclasses.replace(CONFIG, rms_style="torch", **changes)
    acting = model_for(config)
    now = moved(acting)
    plain = copy.deepcopy(now)
    learner = Impala(now, config)
    if config.optimizer == "adam":
        optimiser: torch.optim.Optimizer = torch.optim.Adam(plain.parameters(), lr=1e-3, eps=1e-5)
    else:
        optimiser = torch.optim.RMSprop(plain.parameters(), lr=1e-3, alpha=0.99, eps=0.1)
    norms = []
    for seed in range(3):
        unroll = acted(acting, num_steps=64, seed=seed)
        assert unroll.terminated.any() and unroll.truncated.any()
        norms.append(learner.update(lanes_of(unroll, lanes), 0.5)["losses/grad_norm"])
        optimiser.zero_grad()
        plain_loss(plain, unroll, config).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(plain.parameters(), 40.0)
        optimiser.step()
        torch.testing.assert_close(parameters_of(learner.model), parameters_of(plain), atol=2e-6, rtol=0)
    assert max(norms) > 40.0


def test_fresh_data_have_the_gradient_of_a2c() -> None:
    """At the weights that acted, with means and λ of GAE: A2C's optimiser sees the same vector."""
    settings = {"num_envs": 4, "num_steps": 32, "gae_lambda": 0.95, "vf_coef": 0.25, "max_grad_norm": 0.0}
    impala = Impala(model_for(CONFIG), dataclasses.replace(CONFIG, reduction="mean", **settings))  # type: ignore[arg-type]
    a2c = PPO(model_for(CONFIG), A2CConfig(**settings))  # type: ignore[arg-type]
    unroll = acted(impala.model, num_steps=64)
    seen: list[Tensor] = []
    for learner in (impala, a2c):

        def watched(gradient: Tensor, norm: float, learning_rate: float, max_norm: float) -> None:
            seen.append(gradient.clone())

        learner.optimiser.step = watched  # type: ignore[method-assign]
        learner.update([unroll], 0.0)
    torch.testing.assert_close(seen[0], seen[1], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("gru_size", [0, 8])
def test_fresh_data_are_not_corrected(gru_size: int) -> None:
    """The weights that acted give ratios of 1 to what was stored, step by step as in sequences: nothing is clipped."""
    learner = learner_for(dataclasses.replace(CONFIG, gru_size=gru_size))
    metrics = learner.update([acted(learner.model, num_steps=64)], 0.0)
    assert metrics["async/ess"] == pytest.approx(1.0, abs=1e-6)
    assert abs(metrics["losses/approx_kl"]) < 1e-6


def test_older_data_say_so() -> None:
    """Ratios to μ as it was stored: fewer rows count, and some are clipped."""
    learner = Impala(moved(model_for(CONFIG), 0.3), CONFIG)
    metrics = learner.update([acted(model_for(CONFIG), num_steps=64)], 0.0)
    assert metrics["async/ess"] < 0.95
    assert 0.1 < metrics["async/rho_clipfrac"] < 0.9
    assert metrics["losses/approx_kl"] > 0.01


def test_a_sum_is_the_mean_times_its_rows() -> None:
    """Without a limit, the gradient of 256 rows is 256 times as long; with void rows fewer count."""
    unroll = lost_at(acted(model_for(CONFIG), num_steps=64), 31, [0])
    norms = {}
    for reduction in ("sum", "mean"):
        config = dataclasses.replace(CONFIG, reduction=_reduction(reduction), max_grad_norm=0.0)
        norms[reduction] = learner_for(config).update([unroll], 0.0)["losses/grad_norm"]
    assert norms["sum"] == pytest.approx(norms["mean"] * (256 - 32), rel=1e-4)


def _reduction(name: str) -> Literal["sum", "mean"]:
    return "sum" if name == "sum" else "mean"


def test_targets_and_weights_are_constants() -> None:
    """With rewards that make every advantage and value error 0, and no bonus, nothing moves."""
    config = dataclasses.replace(CONFIG, ent_coef=0.0, gamma=0.0)
    now = moved(model_for(config))
    unroll = acted(model_for(config), num_steps=16)
    with torch.no_grad():
        value = now.sequence([torch.from_numpy(unroll.obs[0])], torch.from_numpy(unroll.first), []).value
    learner = Impala(now, config)
    metrics = learner.update([changed(unroll, reward=value.double().numpy())], 0.0)
    assert metrics["losses/grad_norm"] < 1e-3


@pytest.mark.parametrize("gru_size", [0, 8])
def test_void_rows_change_nothing(gru_size: int) -> None:
    """A lane of void rows full of NaN beside the others gives the update that they give alone."""
    config = dataclasses.replace(CONFIG, gru_size=gru_size)
    whole = acted(model_for(config), num_steps=48, num_envs=6)
    void = lost_at(whole, 0, range(6))
    void.valid[:] = False
    void.end_rows, void.end_obs = void.end_rows[:0], [leaf[:0] for leaf in void.end_obs]
    alone, beside = learner_for(config), learner_for(config)
    alone.update([whole], 0.0)
    metrics = beside.update([whole, void], 0.0)
    torch.testing.assert_close(parameters_of(alone.model), parameters_of(beside.model), atol=1e-6, rtol=0)
    assert all(math.isfinite(value) for value in metrics.values())
    before = parameters_of(beside.model)
    beside.update([void], 0.0)
    assert torch.equal(before, parameters_of(beside.model))


def test_a_loss_that_is_not_finite() -> None:
    """`raise`: a typed error, and the weights of before. `cut`: no step, which is counted; the next one is taken."""
    unroll = acted(model_for(CONFIG))
    broken = changed(unroll, reward=np.full_like(unroll.reward, math.nan))
    learner = learner_for(CONFIG)
    before = parameters_of(learner.model)
    with pytest.raises(NonFiniteUpdate, match="gradient has norm nan"):
        learner.update([broken], 0.0)
    assert torch.equal(before, parameters_of(learner.model))
    learner = learner_for(dataclasses.replace(CONFIG, nonfinite="cut"))
    assert learner.update([broken], 0.0)["losses/skipped_steps"] == 1.0
    assert torch.equal(before, parameters_of(learner.model))
    assert learner.update([unroll], 0.0)["losses/skipped_steps"] == 0.0
    assert not torch.equal(before, parameters_of(learner.model))


def test_learning_rate_follows_progress() -> None:
    """In a straight line to 0 at the budget, where asked for."""
    learner = learner_for(dataclasses.replace(CONFIG, anneal_lr=True))
    unroll = acted(learner.model)
    found = [learner.update([unroll], progress)["charts/learning_rate"] for progress in (0.0, 0.25, 1.0)]
    assert found == pytest.approx([1e-3, 0.75e-3, 0.0])
