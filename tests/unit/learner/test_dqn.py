"""DQN against a plain one written here, and against what each of its rules says."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from asyncrl.buffers.replay import Sample
from asyncrl.collector.unroll import UnrollBuilder
from asyncrl.config import ApexConfig, DQNConfig
from asyncrl.errors import ConfigError
from asyncrl.learner.actor_critic import NonFiniteUpdate
from asyncrl.learner.dqn import DQN
from asyncrl.learner.noisy import NoisyLinear
from asyncrl.learner.q_network import QNetwork
from asyncrl.policy import Acted
from asyncrl.records import Array, Unroll
from asyncrl.wire.flags import FIRST, NO_TRANSITION, TRUNCATED
from asyncrl.wire.step_rows import StepRows
from tests.rig.probe_envs import Probe, Step
from tests.rig.sync_driver import spec_of
from tests.unit.learner.q_unrolls import CONFIG, collected, learner_for, masked
from tests.unit.learner.spaces_served import served
from tests.unit.learner.test_q_losses import plain_projection
from tests.unit.learner.unrolls import cartpole


class Endless(Probe):
    """Never ends."""

    def step(self, action: np.int64) -> Step:
        return self.first(), 1.0, False, False, {}


def changed(**changes: Any) -> DQNConfig:
    return dataclasses.replace(CONFIG, **changes)


def parameters_of(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


def watched_samples(learner: DQN) -> list[Sample]:
    """What the learner will draw, in copies."""
    seen: list[Sample] = []
    sample = learner.replay.sample

    def watched(count: int, rng: np.random.Generator, beta: float = 0.0) -> Sample:
        found = sample(count, rng, beta)
        seen.append(copy.deepcopy(found))
        return found

    learner.replay.sample = watched  # type: ignore[method-assign]
    return seen


# ------------------------------------------------------------------------------------------------ against a plain one


def plain_target(model: QNetwork, target: QNetwork, sample: Sample, config: DQNConfig) -> list[Any]:
    """A number a row, or the atoms' masses, by loops over rows and actions."""
    obs = [torch.from_numpy(leaf.copy()) for leaf in sample.next_obs]
    scores, online = target.scores(obs), model.q_values(obs)
    values = target.means(scores)
    found: list[Any] = []
    for row in range(len(sample.reward)):
        by = online[row] if config.double else values[row]
        allowed = [a for a in range(2) if sample.next_mask is None or sample.next_mask[row, a]]
        action = max(allowed, key=lambda a, by=by: float(by[a]))  # type: ignore[misc]
        reward, discount = float(sample.reward[row]), float(sample.discount[row])
        if config.num_atoms:
            pmf = torch.softmax(scores[row, action], -1).tolist()
            atoms = np.linspace(config.v_min, config.v_max, config.num_atoms).tolist()
            found.append(plain_projection(pmf, reward, discount, atoms))
        else:
            found.append(reward + discount * float(values[row, action]))
    return found


def plain_update(model: QNetwork, target: QNetwork, samples: list[Sample], config: DQNConfig) -> list[Tensor]:
    """One step of torch's Adam a sample; the priorities of each."""
    optimiser = torch.optim.Adam(model.parameters(), lr=config.learning_rate, eps=config.adam_eps)
    priorities = []
    for sample in samples:
        with torch.no_grad():
            wanted = torch.tensor(plain_target(model, target, sample, config))
        scores = model.scores([torch.from_numpy(leaf.copy()) for leaf in sample.obs])
        taken = scores[torch.arange(len(scores)), torch.from_numpy(sample.action[0])]
        if config.num_atoms:
            loss = priority = -(wanted * torch.log_softmax(taken, -1)).sum(-1)
        else:
            huber = nn.functional.huber_loss(taken, wanted, reduction="none")
            loss = huber if config.loss == "huber" else (taken - wanted) ** 2
            priority = (taken - wanted).abs()
        priorities.append(priority.detach() + 1e-6)
        optimiser.zero_grad()
        (loss * torch.from_numpy(sample.weights)).mean().backward()  # type: ignore[no-untyped-call]
        if config.max_grad_norm:
            nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        optimiser.step()
    return priorities


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss": "huber", "max_grad_norm": 0.5, "double": True, "dueling": True},
        {"prioritized": True, "n_step": 3},
        {"num_atoms": 11, "v_max": 20.0, "prioritized": True},
        {"num_atoms": 11, "double": True, "dueling": True, "n_step": 2},
    ],
    ids=str,
)
def test_an_update_equals_a_plain_one(changes: dict[str, Any], masks: bool) -> None:
    """Six gradient steps on the same draws: the same parameters to 1e-6, and the same priorities."""
    config = changed(gradient_steps=6, target_network_frequency=10_000, **changes)
    spec = dataclasses.replace(spec_of(cartpole()), mask_size=2 if masks else 0)
    learner = learner_for(config, spec)
    with torch.no_grad():  # online and target are not the same, and differ in what is best
        learner.target.advantage.weight.mul_(-1.0)
    plain, target = copy.deepcopy((learner.model, learner.target))
    samples, told = watched_samples(learner), list[Any]()
    tell = learner.replay.update_priorities

    def watched(rows: Any, generations: Any, priorities: Any) -> int:
        told.append(priorities)
        return tell(rows, generations, priorities)

    learner.replay.update_priorities = watched  # type: ignore[method-assign]
    (unroll,) = collected(learner, 8)
    unroll = masked(unroll) if masks else unroll
    learner.update([unroll], 0.0)
    assert len(samples) == 6
    expected = plain_update(plain, target, samples, config)
    torch.testing.assert_close(parameters_of(learner.model), parameters_of(plain), atol=1e-6, rtol=0)
    if config.prioritized:
        np.testing.assert_allclose(told, torch.stack(expected), atol=1e-4, rtol=1e-4)
        assert any((sample.weights < 1).any() for sample in samples)
    else:
        assert not told


# ------------------------------------------------------------------------------------------------------- what is due


@pytest.mark.parametrize("gradient_steps", [1, 3, 40, -1])
def test_the_replay_ratio_is_held(gradient_steps: int) -> None:
    """Rounds of 8, 32 and 60 steps, as in async mode: gradient steps are those of rounds of 32, to less than one."""
    config = changed(gradient_steps=gradient_steps, minibatch_size=2, learning_starts=50)
    learner = learner_for(config)
    unrolls = [u for length in (2, 8, 15) for u in collected(learner, length, count=8)]
    for index in np.random.default_rng(1).permutation(len(unrolls)):
        before = learner.num_updates
        metrics = learner.update([unrolls[index]], 0.0)
        counted = max(learner.steps - 50, 0)
        due = counted if gradient_steps == -1 else counted * gradient_steps / 32
        assert due - 1 < learner.num_updates <= due
        assert learner.steps > 50 or learner.num_updates == before
    assert learner.steps == 8 * 100
    ratio = 1.0 if gradient_steps == -1 else gradient_steps / 32
    assert metrics["replay/ratio"] == pytest.approx(ratio, abs=1 / 750)


def test_no_gradient_step_before_learning_starts() -> None:
    """Up to and with that step the weights are the first ones; of the round that passes it a part counts."""
    learner = learner_for(changed(learning_starts=80, gradient_steps=32))
    before = parameters_of(learner.model)
    unrolls = collected(learner, 8, count=3)
    for unroll in unrolls[:2]:
        assert "losses/td_loss" not in learner.update([unroll], 0.0)
    assert torch.equal(parameters_of(learner.model), before)
    assert "losses/td_loss" in learner.update([unrolls[2]], 0.0)
    assert learner.num_updates == 96 - 80


def test_the_target_follows_in_an_endless_episode() -> None:
    """Every 64 environment steps, to the bit, though nothing ever ends, and also before learning has started."""
    config = changed(target_network_frequency=64, learning_starts=130)
    learner = learner_for(config, spec_of(Endless()))
    with torch.no_grad():
        learner.model.advantage.bias.add_(1.0)
    fires = []
    for unroll in collected(learner, 8, Endless, count=10):
        before = parameters_of(learner.target)
        learner.update([unroll], 0.0)
        after = parameters_of(learner.target)
        if not torch.equal(before, after):
            fires.append(learner.steps)
            assert torch.equal(after, parameters_of(learner.model))
    assert fires == [64, 192, 256, 320]  # at 128 nothing had been learned since


def test_target_updates_are_by_crossings() -> None:
    """Three environments and rounds of 21 steps, every 1000: as often as multiples of it are passed."""
    learner = learner_for(changed(num_envs=3, num_steps=7, target_network_frequency=1000, learning_starts=10**6))
    times = list[int]()
    learner._follow = times.append  # type: ignore[method-assign, assignment]
    for unroll in collected(learner, 7, count=200):
        learner.update([unroll], 0.0)
    assert learner.steps == 4200
    assert sum(times) == 4
    assert [index for index, fired in enumerate(times) if fired] == [47, 95, 142, 190]


def test_a_share_of_the_online_network() -> None:
    """With τ the target moves that part of the way; two updates that fall into one round are two."""
    learner = learner_for(changed(tau=0.25, target_network_frequency=16, learning_starts=10**6))
    with torch.no_grad():
        learner.model.advantage.bias.add_(1.0)
    before = learner.target.advantage.bias.clone()
    learner.update(collected(learner, 8), 0.0)
    torch.testing.assert_close(learner.target.advantage.bias - before, torch.full((2,), 1 - 0.75**2))


def test_what_a_network_counts_is_taken_over() -> None:
    """A buffer of integers, such as batch normalisation has, has no share: the target has that of the network."""
    learner = learner_for(changed(tau=0.25))
    for network in (learner.model, learner.target):
        network.register_buffer("seen", torch.zeros((), dtype=torch.int64))
    learner.model.get_buffer("seen").fill_(7)
    learner.update(collected(learner, 8), 0.0)
    assert learner.target.get_buffer("seen") == 7


@pytest.mark.parametrize("noisy", [False, True])
def test_no_gradient_reaches_the_target(noisy: bool) -> None:
    """Its parameters ask for none, have none, and stay what they are between updates, noise or not."""
    learner = learner_for(changed(target_network_frequency=10**6, gradient_steps=8, double=True, noisy=noisy))
    before = parameters_of(learner.target)
    learner.update(collected(learner, 8), 0.0)
    assert torch.equal(parameters_of(learner.target), before)
    assert not torch.equal(parameters_of(learner.model), before)
    assert all(not p.requires_grad and p.grad is None for p in learner.target.parameters())
    assert not learner.target.training


def test_online_and_target_noise_differ() -> None:
    """Each forward of a gradient step has its own: target, choice and loss; and the next step has others."""
    learner = learner_for(changed(noisy=True, double=True))
    drawn: list[Tensor] = []

    def watch(model: QNetwork) -> None:
        set_noise = model.noise.set_noise

        def watched(z: Tensor | None) -> None:
            assert z is not None
            drawn.append(z)
            set_noise(z)

        model.noise.set_noise = watched  # type: ignore[method-assign]

    unrolls = collected(learner, 8, count=2)
    watch(learner.model)
    watch(learner.target)
    for unroll in unrolls:
        learner.update([unroll], 0.0)
    assert len(drawn) == 6
    assert len({tuple(z.tolist()) for z in drawn}) == 6
    of_online, of_target = (
        next(m for m in model.modules() if isinstance(m, NoisyLinear)) for model in (learner.model, learner.target)
    )
    assert not torch.equal(of_online.weight - of_online.weight_mu, of_target.weight - of_target.weight_mu)


# --------------------------------------------------------------------------------------------------------- schedules


def test_beta_goes_by_the_budget() -> None:
    """From .4 to 1 in a straight line over the progress of the run, whatever was learned."""
    learner = learner_for(changed(prioritized=True))
    seen: list[float] = []
    sample = learner.replay.sample

    def watched(count: int, rng: np.random.Generator, beta: float = 0.0) -> Sample:
        seen.append(beta)
        return sample(count, rng, beta)

    learner.replay.sample = watched  # type: ignore[method-assign]
    for unroll, progress in zip(collected(learner, 8, count=3), (0.0, 0.5, 1.0), strict=True):
        learner.update([unroll], progress)
    np.testing.assert_allclose(seen, [0.4, 0.7, 1.0])


@pytest.mark.parametrize("gradient_steps", [1, 16])
def test_epsilon_does_not_know_of_gradient_steps(gradient_steps: int) -> None:
    """What is said of a round is ε at the environment step that it begins with."""
    learner = learner_for(changed(gradient_steps=gradient_steps, total_timesteps=640, exploration_fraction=0.5))
    said = [learner.update([u], 0.0)["charts/epsilon"] for u in collected(learner, 8, count=12)]
    expected = [max(1.0 - 0.95 * 32 * i / 320, 0.05) for i in range(12)]
    np.testing.assert_allclose(said, expected, atol=1e-12)


def test_the_learning_rate_goes_by_the_budget() -> None:
    """Constant as a rule, in a straight line to 0 if asked for."""
    for anneal, expected in ((False, 1e-3), (True, 0.25e-3)):
        learner = learner_for(changed(anneal_lr=anneal))
        assert learner.update(collected(learner, 8), 0.75)["charts/learning_rate"] == pytest.approx(expected)


# ------------------------------------------------------------------------------------------------------ what goes in


def test_rewards_are_clipped_on_their_way_in() -> None:
    """The replay learns from signs; the unroll stays raw, for whoever reports returns."""
    learner = learner_for(changed(sign_reward=True, gradient_steps=4))
    samples = watched_samples(learner)
    (unroll,) = collected(learner, 8)
    unroll.reward *= np.where(np.arange(8) % 2, -7.0, 7.0)[:, None]
    raw = unroll.reward.copy()
    learner.update([unroll], 0.0)
    assert {float(r) for sample in samples for r in sample.reward} == {-1.0, 1.0}
    np.testing.assert_array_equal(unroll.reward, raw)


def test_actors_say_what_surprised_them() -> None:
    """Before any learning priorities are |r + γ max Q' - Q(s, a)| of the acting forward, row by row."""
    config = ApexConfig(
        num_envs=4, hidden_sizes=(16,), n_step=1, alpha=1.0, learning_starts=10**6, mode="sync", minibatch_size=20_000
    )
    learner = learner_for(config)
    learner.update(collected(learner, 20), 0.0)
    drawn = learner.replay.sample(20_000, np.random.default_rng(1))
    model = learner.model
    with torch.no_grad():
        q, following = (model.q_values([torch.from_numpy(x[0].copy())]).numpy() for x in (drawn.obs, drawn.next_obs))
    error = drawn.reward + drawn.discount * following.max(1) - q[np.arange(len(q)), drawn.action[0]]
    rows, index, counts = np.unique(drawn.rows, return_index=True, return_counts=True)
    share = np.abs(error)[index]
    np.testing.assert_allclose(counts / counts.sum(), share / share.sum(), atol=0.01)
    assert len(rows) > 50


# ------------------------------------------------------------------------------------------------ trouble, and saving


def test_a_loss_that_is_not_finite() -> None:
    """The run ends, or the minibatch is left out; the weights stay in both cases."""
    for nonfinite in ("raise", "cut"):
        learner = learner_for(changed(nonfinite=nonfinite))
        unrolls = collected(learner, 8)
        with torch.no_grad():
            learner.target.advantage.bias.fill_(torch.nan)
        before = parameters_of(learner.model)
        if nonfinite == "raise":
            with pytest.raises(NonFiniteUpdate, match="the loss is nan"):
                learner.update(unrolls, 0.0)
        else:
            metrics = learner.update(unrolls, 0.0)
            assert "losses/td_loss" not in metrics and metrics["losses/skipped_minibatches"] == 1
        assert torch.equal(parameters_of(learner.model), before)


@pytest.mark.parametrize(
    "changes",
    [{}, {"prioritized": True, "n_step": 3, "gradient_steps": 5}, {"noisy": True, "num_atoms": 5, "double": True}],
    ids=str,
)
def test_a_loaded_learner_goes_on_bit_for_bit(changes: dict[str, Any]) -> None:
    """Weights, target, optimiser, replay, generator and counters: the second half of a run is the same in both."""
    config = changed(**changes)
    first, second = learner_for(config), learner_for(dataclasses.replace(config, seed=5))
    unrolls = collected(first, 8, count=6)
    for unroll in unrolls[:3]:
        first.update([unroll], 0.25)
    second.load(*first.state())
    second.replay.load(first.replay.state())
    for unroll in unrolls[3:]:
        assert first.update([unroll], 0.5) == second.update([unroll], 0.5)
    ours, theirs = first.state(), second.state()
    assert ours[1] == theirs[1]
    assert all(torch.equal(tensor, theirs[0][name]) for name, tensor in ours[0].items())


def test_the_state_of_another_network_is_refused() -> None:
    """Of other sizes, or without the parts that this one has."""
    other = learner_for(changed(hidden_sizes=(9,))).state()
    with pytest.raises(RuntimeError):
        learner_for().load(*other)
    with pytest.raises((RuntimeError, ValueError, LookupError)):
        learner_for(changed(dueling=True)).load(*learner_for().state())


def test_the_state_is_a_copy() -> None:
    """The next update writes into the learner, not into what was saved."""
    learner = learner_for(changed(gradient_steps=4))
    unrolls = collected(learner, 8, count=3)
    learner.update(unrolls[:1], 0.0)
    tensors, rest = learner.state()
    before, counters = {name: tensor.clone() for name, tensor in tensors.items()}, copy.deepcopy(rest)
    for unroll in unrolls[1:]:
        learner.update([unroll], 0.0)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in before.items())
    assert rest == counters
    now = learner.state()[0]
    assert not torch.equal(now["model/advantage.bias"], before["model/advantage.bias"])
    assert not torch.equal(now["target/advantage.bias"], before["target/advantage.bias"])


def cut_short(num_steps: int, num_slots: int) -> Unroll:
    """Episodes of one step that are truncated; no frame is like another."""
    rng = np.random.default_rng(1)

    def frames() -> list[Array]:
        return [rng.integers(0, 255, (num_slots, 4, 9, 9)).astype(np.uint8)]

    builder, slots, zeros = UnrollBuilder(num_steps, num_slots), np.arange(num_slots), np.zeros(num_slots)
    rows = StepRows(frames(), zeros, np.full(num_slots, FIRST | NO_TRANSITION, np.uint8))
    for step in range(num_steps):
        builder.observed(rows.obs, None, np.ones(num_slots, np.bool_))
        builder.acted(Acted([slots * 0], zeros, zeros, 0))
        flags = np.full(num_slots, TRUNCATED | FIRST, np.uint8)
        rows = StepRows(frames(), zeros, flags, slots.astype(np.uint32), frames())
        builder.replied(rows, slots * 0, slots * 0 + step, slots * 0)
    unroll = builder.finish(0, 0, slots, rows)
    assert unroll is not None
    return unroll


def endless_stacks(num_steps: int) -> Iterator[Unroll]:
    """One slot whose episode never ends; each stack is the one before and a frame more."""
    rng, zeros, nothing = np.random.default_rng(1), np.zeros(1), np.zeros(1, np.int64)
    stack = rng.integers(0, 255, (1, 4, 9, 9)).astype(np.uint8)
    rows = StepRows([stack], zeros, np.full(1, FIRST | NO_TRANSITION, np.uint8))
    for number in itertools.count():
        builder = UnrollBuilder(num_steps, 1)
        for step in range(num_steps):
            builder.observed(rows.obs, None, np.full(1, number + step == 0))
            builder.acted(Acted([nothing], zeros, zeros, 0))
            frame = rng.integers(0, 255, (1, 1, 9, 9)).astype(np.uint8)
            rows = StepRows([np.concatenate([rows.obs[0][:, 1:], frame], 1)], zeros, np.zeros(1, np.uint8))
            builder.replied(rows, nothing, nothing, nothing + number * num_steps + step)
        unroll = builder.finish(0, number, nothing, rows)
        assert unroll is not None
        yield unroll


def test_a_replay_that_cannot_hold_a_round_of_stacks_is_refused() -> None:
    """With episodes of one step each row takes two whole stacks; that is said before there is any row."""
    spec = dataclasses.replace(served(spaces.Box(0, 255, (4, 9, 9), np.uint8), spaces.Discrete(2)), stack_leaf=0)
    least = 2 * 4 * (2 * 10 + 2)

    def made(buffer_size: int) -> DQN:
        return learner_for(changed(num_envs=2, num_steps=10, network="mlp", buffer_size=buffer_size), spec)

    with pytest.raises(
        ConfigError, match=f"buffer_size is {least - 1}: at least {least}, for n_step 1 and stacks of 4"
    ):
        made(least - 1)
    replay = made(least).replay
    for incarnation in range(3):  # none goes on where the one before was
        unroll = cut_short(10, 2)
        unroll.incarnation[:] = incarnation
        assert replay.insert(unroll) == 20


@pytest.mark.parametrize("num_steps", [1, 3, 5])
def test_the_smallest_replay_of_stacks_has_room_for_windows(num_steps: int) -> None:
    """Of an endless episode something can be drawn, once a window of n steps and its first stack are complete."""
    spec = dataclasses.replace(served(spaces.Box(0, 255, (4, 9, 9), np.uint8), spaces.Discrete(2)), stack_leaf=0)
    least = num_steps + 40 + 4
    config = changed(num_envs=1, num_steps=num_steps, n_step=40, network="mlp", learning_starts=10**6)
    with pytest.raises(ConfigError, match=f"at least {least}, "):
        learner_for(dataclasses.replace(config, buffer_size=least - 1), spec)
    replay = learner_for(dataclasses.replace(config, buffer_size=least), spec).replay
    unrolls = endless_stacks(num_steps)
    for _ in range(60):
        replay.insert(next(unrolls))
    assert len(replay) == num_steps


def test_the_smallest_replay_has_room_for_windows() -> None:
    """In an endless episode every row is drawable for a round, from when its window of n steps is complete."""
    config = changed(num_envs=2, n_step=40, buffer_size=2 * (8 + 40 + 1), learning_starts=10**6)
    learner = learner_for(config, spec_of(Endless()))
    for number, unroll in enumerate(collected(learner, 8, Endless, count=12)):
        learner.update([unroll], 0.0)
        assert len(learner.replay) == 2 * min(max(8 * (number + 1) - 40, 0), 8)
