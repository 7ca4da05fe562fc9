"""Running statistics against NumPy over all rows at once, and when they change."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces
from safetensors.torch import load_file, save_file

from asyncrl.learner.encoders import observation_nodes
from asyncrl.learner.model import ActorCritic, build_model
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.normalisers import ObsNormaliser, RewardScaler, RunningMoments
from envserver.gym_spec import space_spec
from tests.unit.learner.spaces_served import FRAMES, VECTOR, rows_of, served, tensors

NEVER = np.zeros((20, 20), np.bool_)


def test_statistics_are_those_of_all_rows_at_once() -> None:
    """Batches of any size, far from zero, merge into the mean and variance of their union."""
    rng = np.random.default_rng(1)
    rows = rng.normal(1e4, [0.1, 5.0, 100.0], (1000, 3))
    moments = RunningMoments((3,))
    assert moments.variance.tolist() == [1.0] * 3  # before the first row
    for part in np.split(rows, [1, 2, 2, 500]):
        moments.update(torch.from_numpy(part))
    assert moments.count.item() == 1000
    assert np.allclose(moments.mean, rows.mean(0), rtol=1e-13)
    assert np.allclose(moments.variance, rows.var(0), rtol=1e-9)
    assert moments.mean.dtype == torch.float64


def test_observations_are_centred_scaled_and_clipped() -> None:
    """Minus mean, over deviation, within ± clip; the first forwards of a run see plain observations."""
    rng = np.random.default_rng(2)
    rows = rng.normal(50.0, [0.5, 9.0, 1.0, 1.0], (4000, 4)).astype(np.float32)
    normaliser = ObsNormaliser(observation_nodes(space_spec(VECTOR)), clip=3.0)
    plain = torch.tensor([[1.0, 2.0, 2.5, -9.0]])
    assert normaliser([plain])[0].tolist() == [[1.0, 2.0, 2.5, -3.0]]
    normaliser.update([torch.from_numpy(rows)], torch.ones(4000, dtype=torch.bool))
    (found,) = normaliser([torch.from_numpy(rows)])
    expected = np.clip((rows - rows.mean(0)) / rows.std(0), -3, 3)
    assert np.allclose(found, expected, atol=1e-3)
    assert found.abs().max() == 3.0


def test_rows_that_are_no_transitions_do_not_count() -> None:
    """Void rows, whatever is in them, leave the statistics alone, over [T, B]."""
    rows = torch.randn(5, 3, 4)
    valid = torch.rand(5, 3) < 0.5
    valid[0, 0], valid[0, 1] = True, False
    rows[~valid] = torch.nan
    one = ObsNormaliser(observation_nodes(space_spec(VECTOR)), 10.0)
    other = ObsNormaliser(observation_nodes(space_spec(VECTOR)), 10.0)
    one.update([rows], valid)
    other.update([rows[valid]], torch.ones(int(valid.sum()), dtype=torch.bool))
    for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)
        assert bool(a.isfinite().all())


def test_images_and_countable_leaves_pass() -> None:
    """Frames stay uint8, numbers of states stay numbers; Boxes beside them are normalised."""
    space = spaces.Dict({"frames": FRAMES, "state": spaces.Discrete(5), "x": VECTOR})
    normaliser = ObsNormaliser(observation_nodes(space_spec(space)), 10.0)
    leaves = tensors(rows_of(space, 6))
    normaliser.update(leaves, torch.ones(6, dtype=torch.bool))
    frames, state, x = normaliser(leaves)
    assert frames is leaves[0]
    assert state is leaves[1]
    assert x.std(0, correction=0).tolist() == [1.0] * 4 or torch.allclose(x.std(0, correction=0), torch.ones(4))


def test_returns_are_discounted_and_cut_at_ends() -> None:
    """The divisor is the deviation of every slot's running return, by a slow loop over slots and unrolls."""
    rng = np.random.default_rng(3)
    scaler = RewardScaler(num_slots=5, gamma=0.9)
    assert math.isclose(scaler.divisor, 1.0, rel_tol=1e-6)
    running, seen = [0.0] * 5, list[float]()
    for _ in range(4):
        slots = rng.permutation(5)[:3]
        reward, ended, valid = rng.normal(1, 2, (7, 3)), rng.random((7, 3)) < 0.2, rng.random((7, 3)) < 0.8
        reward[~valid] = np.nan
        scaler.update(reward, NEVER[:7, :3], ended, valid, slots)
        for place, slot in enumerate(slots):
            for t in range(7):
                if valid[t, place]:
                    running[slot] = running[slot] * 0.9 + reward[t, place]
                    seen.append(running[slot])
                    if ended[t, place]:
                        running[slot] = 0.0
        assert math.isclose(scaler.divisor, math.sqrt(np.var(seen) + 1e-8), rel_tol=1e-9)
        assert np.allclose(scaler.returns, running)


def test_returns_begin_where_episodes_do() -> None:
    """The last row before a lane was lost has not ended: the next episode's first row says so."""
    scaler, ones, first = RewardScaler(2, 0.5), np.ones((3, 2)), NEVER[:3, :2].copy()
    never, slots = NEVER[:3, :2], np.arange(2)
    scaler.update(ones, never, never, ~never, slots)
    first[0, 1] = True
    scaler.update(ones, first, never, ~never, slots)
    assert scaler.returns.tolist() == [sum(0.5**k for k in range(6)), 1.75]


def test_a_return_ends_where_its_end_was_left_out() -> None:
    """Data too old is no row of training: neither the last row of an episode nor the next one's first."""
    scaler, never = RewardScaler(1, 1.0), NEVER[:4, :1]
    scaler.update(np.ones((4, 1)), never, never, ~never, np.zeros(1, np.int64))
    first, valid = never.copy(), ~never
    first[1], valid[:2] = True, False
    scaler.update(np.ones((4, 1)), first, never, valid, np.zeros(1, np.int64))
    assert scaler.returns.tolist() == [2.0]


def test_a_slot_may_be_in_a_batch_twice() -> None:
    """As async batches have it: the same returns as with an update for each unroll, ends and holes among them."""
    rng = np.random.default_rng(5)
    slots = np.array([3, 0, 3, 1, 3, 0])
    reward, valid = rng.normal(2, 3, (9, 6)), rng.random((9, 6)) < 0.8
    ended, first = (rng.random((9, 6)) < 0.2 for _ in range(2))
    once, each = RewardScaler(4, 0.9), RewardScaler(4, 0.9)
    once.update(reward, first, ended, valid, slots)
    for n in range(6):
        column = slice(n, n + 1)
        each.update(reward[:, column], first[:, column], ended[:, column], valid[:, column], slots[column])
    assert torch.equal(once.returns, each.returns)
    assert math.isclose(once.divisor, each.divisor, rel_tol=1e-12)


def test_statistics_survive_a_checkpoint_bit_for_bit(tmp_path: Path) -> None:
    """All of them are in the state dict; after saving and loading, forwards and further updates are equal bits."""
    config = ModelConfig(normalize_obs=True, normalize_reward=True, num_envs=4)
    spec = served(VECTOR, spaces.Discrete(2))
    one, other = build_model(spec, config, seed=1), build_model(spec, config, seed=2)
    obs = torch.randn(6, 4, 4) * 7

    def update(model: ActorCritic) -> None:
        assert model.normaliser is not None
        assert model.rewards is not None
        model.normaliser.update([obs], torch.ones(6, 4, dtype=torch.bool))
        never = NEVER[:6, :4]
        model.rewards.update(obs[..., 0].double().numpy(), never, never, ~never, np.arange(4))

    update(one)
    save_file(one.state_dict(), tmp_path / "model.safetensors")
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    for _ in range(2):
        for name, tensor in one.state_dict().items():
            assert torch.equal(tensor, other.state_dict()[name]), name
        with torch.no_grad():
            first = torch.zeros(6, 4, dtype=torch.bool)
            a, b = one.sequence([obs], first, []), other.sequence([obs], first, [])
        assert torch.equal(a.params, b.params)
        assert torch.equal(a.value, b.value)
        assert one.rewards is not None
        assert other.rewards is not None
        assert one.rewards.divisor == other.rewards.divisor
        update(one)
        update(other)


def test_nothing_but_update_changes_them() -> None:
    """Forwards in training and in evaluation mode leave every buffer as it was."""
    model = build_model(served(VECTOR, spaces.Discrete(2)), ModelConfig(normalize_obs=True), seed=1)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    obs, first = [torch.randn(3, 5, 4)], torch.zeros(3, 5, dtype=torch.bool)
    for mode in (True, False):
        model.train(mode)
        model.sequence(obs, first, [])
        model.step([obs[0][0]], first[0], [])
    assert before
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
