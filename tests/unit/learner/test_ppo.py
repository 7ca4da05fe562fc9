"""PPO against a plain one written here, and against what each of its rules says."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncrl.config import A2CConfig, PPOConfig
from asyncrl.errors import LocalProtocolError
from asyncrl.learner.actor_critic import NonFiniteUpdate, explained_variance
from asyncrl.learner.batches import Stage
from asyncrl.learner.minibatches import split_of
from asyncrl.learner.model import ActorCritic
from asyncrl.learner.ppo import PPO
from asyncrl.learner.targets import TargetRule, targets_of
from asyncrl.records import Unroll
from tests.unit.learner.unrolls import acted, changed, lanes_of, learner_for, lost_at, model_for

CONFIG = PPOConfig(num_steps=32, learning_rate=1e-3)


def parameters_of(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


def plain_targets(unroll: Unroll, model: ActorCritic, config: PPOConfig) -> tuple[Tensor, Tensor]:
    """Advantages and returns [T, N], by the usual loop in float64."""
    last = model.step([torch.from_numpy(unroll.last_obs[0])], torch.zeros(unroll.num_slots, dtype=torch.bool), [])
    ends = model.step([torch.from_numpy(unroll.end_obs[0])], torch.zeros(len(unroll.end_rows), dtype=torch.bool), [])
    end_value = {(int(t), int(n)): float(v) for (t, n), v in zip(unroll.end_rows, ends.value, strict=True)}
    length, slots = unroll.reward.shape
    advantage = np.zeros((length, slots))
    for n in range(slots):
        trace = 0.0
        for t in reversed(range(length)):
            ended = unroll.terminated[t, n] or unroll.truncated[t, n]
            if unroll.terminated[t, n]:
                after = 0.0
            elif unroll.truncated[t, n]:
                after = end_value[t, n]
            else:
                after = float(last.value[n] if t == length - 1 else unroll.value[t + 1, n])
            delta = unroll.reward[t, n] + config.gamma * after - unroll.value[t, n]
            trace = delta + config.gamma * config.gae_lambda * (0.0 if ended else trace)
            advantage[t, n] = trace
    found = torch.from_numpy(advantage).float()
    return found, found + torch.from_numpy(unroll.value)


def plain_loss(model: ActorCritic, rows: dict[str, Tensor], config: PPOConfig) -> tuple[Tensor, dict[str, float]]:
    """The loss of one minibatch, in the usual words."""
    out = model.step([rows["obs"]], torch.zeros(len(rows["obs"]), dtype=torch.bool), [])
    policy = torch.distributions.Categorical(logits=out.params)
    log_ratio: Tensor = policy.log_prob(rows["action"]) - rows["log_prob"]  # type: ignore[no-untyped-call]
    ratio = log_ratio.exp()
    advantage = rows["advantage"]
    if config.norm_adv:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clip = config.clip_coef
    policy_loss = torch.max(-advantage * ratio, -advantage * torch.clamp(ratio, 1 - clip, 1 + clip)).mean()
    errors = (out.value - rows["return"]) ** 2
    if config.clip_vloss:
        near = rows["value"] + torch.clamp(out.value - rows["value"], -clip, clip)
        errors = torch.max(errors, (near - rows["return"]) ** 2)
    value_loss = 0.5 * errors.mean()
    entropy: Tensor = policy.entropy().mean()  # type: ignore[no-untyped-call]
    shown = {
        "policy_loss": policy_loss.item(),
        "value_loss": value_loss.item(),
        "entropy": entropy.item(),
        "old_approx_kl": (-log_ratio).mean().item(),
        "approx_kl": ((ratio - 1) - log_ratio).mean().item(),
    }
    return policy_loss - config.ent_coef * entropy + config.vf_coef * value_loss, shown


def plain_update(model: ActorCritic, unroll: Unroll, config: PPOConfig, learning_rate: float) -> dict[str, float]:
    """Epochs of minibatches in the order of the learner's generator; metrics of the last epoch."""
    with torch.no_grad():
        advantage, returns = plain_targets(unroll, model, config)
    rows = {
        "obs": torch.from_numpy(unroll.obs[0]).flatten(0, 1),
        "action": torch.from_numpy(unroll.action[0]).flatten(),
        "log_prob": torch.from_numpy(unroll.log_prob).flatten(),
        "value": torch.from_numpy(unroll.value).flatten(),
        "advantage": advantage.flatten(),
        "return": returns.flatten(),
    }
    optimiser = torch.optim.Adam(model.parameters(), lr=learning_rate, eps=1e-5)
    rng = np.random.default_rng(config.seed)
    size = len(rows["value"]) // config.num_minibatches
    shown: list[dict[str, float]] = []
    for _ in range(config.update_epochs):
        order = torch.from_numpy(rng.permutation(len(rows["value"])))
        shown = []
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            loss, metrics = plain_loss(model, {name: column[chosen] for name, column in rows.items()}, config)
            shown.append(metrics)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
            optimiser.step()
    return {name: float(np.mean([metrics[name] for metrics in shown])) for name in shown[0]}


@pytest.mark.parametrize("lanes", [[4], [1, 3]])
@pytest.mark.parametrize("changes", [{}, {"clip_vloss": False, "norm_adv": False, "update_epochs": 2}])
def test_an_update_equals_a_plain_one(changes: dict[str, Any], lanes: list[int]) -> None:
    """Sixteen minibatches in the same order: the same parameters to 1e-6, and the same metrics."""
    config = dataclasses.replace(CONFIG, **changes)
    model = model_for(config)
    unroll = acted(model, num_steps=64)
    assert unroll.terminated.any() and unroll.truncated.any()
    plain = copy.deepcopy(model)
    ppo = PPO(model, config)
    metrics = ppo.update(lanes_of(unroll, lanes), 0.25)
    expected = plain_update(plain, unroll, config, 0.75e-3)
    torch.testing.assert_close(parameters_of(ppo.model), parameters_of(plain), atol=1e-6, rtol=0)
    for name, value in expected.items():
        assert metrics[f"losses/{name}"] == pytest.approx(value, abs=1e-5, rel=1e-4), name


def test_a2c_is_one_epoch_without_a_clip() -> None:
    """One update takes the gradient of -mean(A log π) - c H + v mean((V - R)²)/2, written by hand."""
    config = A2CConfig(num_envs=4, num_steps=32, max_grad_norm=0.0)
    model = model_for(config)
    unroll = acted(model, num_steps=64)
    plain = copy.deepcopy(model)
    with torch.no_grad():
        advantage, returns = plain_targets(unroll, plain, config)
    out = plain.step([torch.from_numpy(unroll.obs[0]).flatten(0, 1)], torch.zeros(256, dtype=torch.bool), [])
    log_p = torch.log_softmax(out.params, -1)
    chosen = log_p.gather(1, torch.from_numpy(unroll.action[0]).flatten()[:, None])[:, 0]
    entropy = -(log_p.exp() * log_p).sum(1).mean()
    value_loss = 0.5 * (out.value - returns.flatten()).square().mean()
    loss = -(advantage.flatten() * chosen).mean() - config.ent_coef * entropy + config.vf_coef * value_loss
    expected = torch.autograd.grad(loss, list(plain.parameters()))
    found: list[Tensor] = []
    ppo = PPO(model, config)
    step = ppo.optimiser.step

    def watched(gradient: Tensor, norm: float, learning_rate: float, max_norm: float) -> None:
        found.append(gradient.clone())
        step(gradient, norm, learning_rate, max_norm)

    ppo.optimiser.step = watched  # type: ignore[method-assign]
    ppo.update([unroll], 0.0)
    assert len(found) == 1
    torch.testing.assert_close(found[0], torch.cat([g.reshape(-1) for g in expected]), atol=1e-5, rtol=1e-4)


# ------------------------------------------------------------------------------------------------------ behaviour data


@pytest.mark.parametrize("gru_size", [0, 8])
def test_the_first_ratio_is_one(gru_size: int) -> None:
    """The stored log-probability is that of the action that was sampled, under the weights that acted."""
    config = dataclasses.replace(CONFIG, update_epochs=1, num_minibatches=1, learning_rate=0.0, gru_size=gru_size)
    metrics = learner_for(config).update([acted(model_for(config), num_steps=64)], 0.0)
    assert abs(metrics["losses/approx_kl"]) < 1e-6
    assert abs(metrics["losses/old_approx_kl"]) < 1e-5
    assert metrics["losses/clipfrac"] == 0.0


def test_a_weight_update_between_acting_and_learning_shows() -> None:
    """Ratios are to the stored log μ: after other weights have come in between, they are not 1."""
    config = dataclasses.replace(CONFIG, update_epochs=1, num_minibatches=1, learning_rate=0.0)
    learner = learner_for(config)
    unroll = acted(learner.model, num_steps=64)
    with torch.no_grad():
        for p in learner.model.head.parameters():
            p.mul_(30.0)
    assert learner.update([unroll], 0.0)["losses/approx_kl"] > 1e-4


@pytest.mark.parametrize("mode", ["sync", "lag 1", "async"])
@pytest.mark.parametrize("correction", ["auto", "none", "vtrace"])
def test_correction_is_for_older_data(mode: str, correction: Literal["auto", "none", "vtrace"]) -> None:
    """`auto` corrects in every mode but sync, and says so by targets that follow the weights of now."""
    config = dataclasses.replace(CONFIG, mode=mode, correction=correction, update_epochs=1, num_minibatches=1)
    corrects = correction == "vtrace" or (correction == "auto" and mode != "sync")
    model = model_for(config)
    unroll = acted(model, num_steps=32)
    with torch.no_grad():
        model.value_out.bias.add_(3.0)
    batch = Stage(torch.device("cpu")).load([unroll])
    rule = TargetRule(config.gamma, config.gae_lambda, corrects)
    target = targets_of(model, batch, split_of(batch, 1), batch.reward, rule).columns[3]
    explained = explained_variance(unroll.value.reshape(-1), target.numpy())
    assert PPO(model, config).update([unroll], 0.0)["losses/explained_variance"] == pytest.approx(explained, rel=1e-5)


def test_correction_is_found_anew_for_each_epoch() -> None:
    """Two epochs over old data are what two updates of one epoch are: each begins with the weights of then."""
    config = dataclasses.replace(CONFIG, correction="vtrace", update_epochs=2, num_minibatches=2)
    unroll = acted(model_for(config), num_steps=64)
    twice, once = learner_for(config), learner_for(dataclasses.replace(config, update_epochs=1))
    twice.update([unroll], 0.0)
    once.update([unroll], 0.0)
    once.update([unroll], 0.0)
    assert torch.equal(parameters_of(twice.model), parameters_of(once.model))


# ------------------------------------------------------------------------------------------------------ rows that count


@pytest.mark.parametrize("gru_size", [0, 8])
def test_void_rows_change_nothing(gru_size: int) -> None:
    """A lane of void rows beside the others gives the update that they give alone."""
    config = dataclasses.replace(CONFIG, gru_size=gru_size, num_minibatches=1)
    whole = acted(model_for(config), num_steps=48, num_envs=6)
    void = lost_at(whole, 0, range(6))
    void.valid[:] = False
    void.end_rows, void.end_obs = void.end_rows[:0], [leaf[:0] for leaf in void.end_obs]
    alone, beside = learner_for(config), learner_for(config)
    alone_metrics = alone.update([whole], 0.0)
    beside_metrics = beside.update([whole, void], 0.0)
    torch.testing.assert_close(parameters_of(alone.model), parameters_of(beside.model), atol=1e-6, rtol=0)
    for name, value in alone_metrics.items():
        assert beside_metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize("gru_size", [0, 8])
def test_a_lost_lane_leaves_no_nan(gru_size: int) -> None:
    """NaN in the void rows of a broken lane reaches neither the loss nor the weights nor the metrics."""
    learner = learner_for(dataclasses.replace(CONFIG, gru_size=gru_size))
    unroll = lost_at(acted(learner.model, num_steps=48, num_envs=4), 17, [1, 2])
    metrics = learner.update([unroll], 0.0)
    assert torch.isfinite(parameters_of(learner.model)).all()
    assert all(math.isfinite(value) for value in metrics.values())


def test_a_round_without_a_row_changes_nothing() -> None:
    """If every lane was lost at once there is nothing to learn from, and no error."""
    learner = learner_for(CONFIG)
    unroll = acted(learner.model, num_steps=8)
    before = parameters_of(learner.model)
    none = np.zeros_like(unroll.valid)
    metrics = learner.update(
        [changed(unroll, valid=none, end_rows=unroll.end_rows[:0], end_obs=[unroll.end_obs[0][:0]])], 0.0
    )
    assert torch.equal(before, parameters_of(learner.model))
    assert metrics["losses/epochs"] == 0.0


def test_an_episode_that_is_left_open_is_refused() -> None:
    """A void row after a row that is no end is an error of the collector, found before a weight is touched."""
    learner = learner_for(CONFIG)
    unroll = acted(learner.model, num_steps=8)
    valid = unroll.valid.copy()
    valid[5:] = False
    with pytest.raises(LocalProtocolError, match="mark it as cut"):
        learner.update([changed(unroll, valid=valid)], 0.0)


# ------------------------------------------------------------------------------------------------------------ numbers


def test_the_gradient_does_not_grow_with_the_batch() -> None:
    """The same rows twice give the same step: losses are means, so the limit on the norm means the same."""
    config = dataclasses.replace(CONFIG, num_minibatches=1, update_epochs=1, norm_adv=False)
    unroll = acted(model_for(config), num_steps=32)
    norms = [learner_for(config).update([unroll] * times, 0.0)["losses/grad_norm"] for times in (1, 2)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_entropy_of_a_uniform_policy() -> None:
    """ln A, with a positive sign; and more of it lowers the loss."""
    learner = learner_for(dataclasses.replace(CONFIG, update_epochs=1, num_minibatches=1, learning_rate=0.0))
    with torch.no_grad():
        for p in learner.model.head.parameters():
            p.zero_()
    metrics = learner.update([acted(learner.model, num_steps=16)], 0.0)
    assert metrics["losses/entropy"] == pytest.approx(math.log(2), rel=1e-6)


def test_entropy_bonus_pulls_towards_uniform() -> None:
    """With nothing but the bonus, entropy rises."""
    config = dataclasses.replace(CONFIG, ent_coef=10.0, vf_coef=0.0, max_grad_norm=0.0)
    learner = learner_for(config)
    with torch.no_grad():
        for p in learner.model.head.parameters():
            p.mul_(300.0)
    unroll = acted(learner.model, num_steps=64)
    still = changed(unroll, reward=np.zeros_like(unroll.reward), value=np.zeros_like(unroll.value))
    found = [learner.update([still], 0.0)["losses/entropy"] for _ in range(3)]
    assert found[0] < found[1] < found[2]


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_learning_rate_and_clip_follow_progress(progress: float) -> None:
    """In a straight line to 0 at the budget; a learner whose budget is spent changes no weight."""
    config = dataclasses.replace(CONFIG, anneal_clip=True)
    learner = learner_for(config)
    before = parameters_of(learner.model)
    metrics = learner.update([acted(learner.model)], progress)
    assert metrics["charts/learning_rate"] == pytest.approx(1e-3 * (1 - progress))
    assert metrics["charts/clip_coef"] == pytest.approx(0.2 * (1 - progress))
    assert torch.equal(before, parameters_of(learner.model)) == (progress == 1.0)


def test_target_kl_stops_early() -> None:
    """Epochs end once the last minibatch of one has moved further than asked for; without a target all are run."""
    hot = dataclasses.replace(CONFIG, learning_rate=0.05, update_epochs=10)
    unroll = acted(model_for(hot))
    assert learner_for(hot).update([unroll], 0.0)["losses/epochs"] == 10
    assert learner_for(dataclasses.replace(hot, target_kl=1e-4)).update([unroll], 0.0)["losses/epochs"] == 1
    assert learner_for(dataclasses.replace(hot, target_kl=1e4)).update([unroll], 0.0)["losses/epochs"] == 10


def test_rewards_are_shaped_before_advantages() -> None:
    """Rewards of 400 clipped at 1 give the update that rewards of 1 give, and the unroll keeps its 400s."""
    unroll = acted(model_for(CONFIG))
    large = changed(unroll, reward=unroll.reward * 400.0)
    learners = [learner_for(CONFIG), learner_for(dataclasses.replace(CONFIG, clip_reward=1.0))]
    learners[0].update([unroll], 0.0)
    learners[1].update([large], 0.0)
    assert torch.equal(*(parameters_of(learner.model) for learner in learners))
    assert large.reward.min() == 400.0


def test_adam_epsilon_is_the_configured_one() -> None:
    """1e-5 by default, as CleanRL has it, not torch's 1e-8."""
    assert learner_for(CONFIG).optimiser.eps == 1e-5
    assert learner_for(dataclasses.replace(CONFIG, adam_eps=1e-3)).optimiser.eps == 1e-3


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler, about itself
def test_compiled_updates_equal_plain_ones() -> None:
    """Over rounds of changing rates and clips, the parameters stay within the rounding of sums."""
    config = dataclasses.replace(CONFIG, anneal_clip=True)
    learners = [learner_for(dataclasses.replace(config, compile=compiles)) for compiles in (False, True)]
    unroll = acted(learners[0].model)
    for progress in (0.0, 0.2, 0.4, 0.6):
        metrics = [learner.update([unroll], progress) for learner in learners]
        assert metrics[0]["losses/clipfrac"] == pytest.approx(metrics[1]["losses/clipfrac"], abs=0.01)
        assert metrics[0]["losses/value_loss"] == pytest.approx(metrics[1]["losses/value_loss"], rel=1e-4)
        found = [parameters_of(learner.model) for learner in learners]
        torch.testing.assert_close(found[0], found[1], atol=2e-5, rtol=0)


@pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="no bfloat16 on this CPU")
def test_bfloat16_gradients_are_near_plain_ones() -> None:
    """The same round gives nearly the same direction."""
    gradients: list[Tensor] = []
    for bf16 in (False, True):
        config = dataclasses.replace(CONFIG, bf16=bf16, update_epochs=1, num_minibatches=1)
        learner = learner_for(config)
        gradient = learner.optimiser.gradient

        def watched(loss: Tensor, gradient: Callable[[Tensor], Tensor] = gradient) -> Tensor:
            gradients.append(gradient(loss))
            return gradients[-1].clone()

        learner.optimiser.gradient = watched  # type: ignore[method-assign]
        learner.update([acted(model_for(CONFIG), num_steps=64)], 0.0)
    assert torch.cosine_similarity(gradients[0], gradients[1], dim=0) > 0.99
    assert not torch.equal(gradients[0], gradients[1])


def test_normalised_rewards_are_divided_by_the_deviation_of_returns() -> None:
    """The round's own returns count towards the deviation, and the clip comes after the division."""
    config = dataclasses.replace(CONFIG, clip_reward=0.3)
    unroll = acted(model_for(config), num_steps=64)
    scaled = learner_for(dataclasses.replace(config, normalize_reward=True))
    scaled.update([unroll], 0.0)
    assert scaled.model.rewards is not None
    divisor = scaled.model.rewards.divisor
    assert divisor > 2.0
    plain = learner_for(config)
    plain.update([changed(unroll, reward=unroll.reward / divisor)], 0.0)
    assert torch.equal(parameters_of(plain.model), parameters_of(scaled.model))


# ------------------------------------------------------------------------------------------------------ what goes wrong


def test_a_loss_that_is_not_finite() -> None:
    """`raise`: a typed error, and the weights of before. `cut`: the minibatches with it are skipped and counted."""
    unroll = acted(model_for(CONFIG), num_steps=32)
    reward = unroll.reward.copy()
    reward[31, 0] = math.inf
    broken = changed(unroll, reward=reward)
    learner = learner_for(CONFIG)
    before = parameters_of(learner.model)
    with pytest.raises(NonFiniteUpdate, match="gradient has norm nan"):
        learner.update([changed(unroll, reward=np.full_like(reward, math.nan))], 0.0)
    assert torch.equal(before, parameters_of(learner.model))
    learner = learner_for(dataclasses.replace(CONFIG, nonfinite="cut", num_minibatches=64))
    skipped = learner.update([broken], 0.0)["losses/skipped_minibatches"]
    assert 0 < skipped < 4 * 64
    found = parameters_of(learner.model)
    assert torch.isfinite(found).all() and not torch.equal(before, found)
    assert learner.update([unroll], 0.0)["losses/skipped_minibatches"] == 0


@pytest.mark.parametrize("gru_size", [0, 8])
def test_an_update_is_reproducible(gru_size: int) -> None:
    """The same seed and unrolls give the same bits."""
    config = dataclasses.replace(CONFIG, gru_size=gru_size)
    found = []
    for _ in range(2):
        learner = learner_for(config)
        learner.update([acted(learner.model)], 0.0)
        found.append(parameters_of(learner.model))
    assert torch.equal(*found)


def test_normalisers_follow_training_rows_alone() -> None:
    """Statistics count the valid rows of an update, after it: the round itself is learned with those it acted with."""
    config = dataclasses.replace(CONFIG, normalize_obs=True, update_epochs=1, num_minibatches=1, learning_rate=0.0)
    learner = learner_for(config)
    normaliser = learner.model.normaliser
    assert normaliser is not None
    for round_ in range(2):
        unroll = lost_at(acted(learner.model), 10, [1])
        assert abs(learner.update([unroll], 0.0)["losses/old_approx_kl"]) < 1e-5
        assert normaliser.state_dict()["moments.0.count"].item() == (round_ + 1) * unroll.num_valid
