"""`TorchPolicy` beside a learner: what it draws, when it changes version, and what it leaves alone."""

from __future__ import annotations

import itertools
import math
import threading
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from asyncrl.keyed_noise import row_keys
from asyncrl.learner.model import ActorCritic, build_model
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.publishing import mailbox_for, publish, tensors_of
from asyncrl.learner.torch_policy import TorchPolicy
from asyncrl.policy import Acted, Policy
from asyncrl.wire.tensors import Array
from tests.unit.learner.spaces_served import FRAMES, VECTOR, AnySpace, rows_of, served

N = 8
DISCRETE = spaces.Discrete(5)
BOX = spaces.Box(-0.5, 0.5, (2,), np.float32)


def made(action: AnySpace = DISCRETE, observation: AnySpace = VECTOR, **settings: Any) -> ActorCritic:
    return build_model(served(observation, action), ModelConfig(**settings), seed=1)


def rows(num: int = N, seed: int = 0) -> tuple[list[Array], Array, Array]:
    """Observations, `first` and keys of `num` slots."""
    return rows_of(VECTOR, num, seed), np.zeros(num, np.bool_), row_keys(np.arange(num), np.full(num, 3))


def act(policy: Policy, num: int = N, mask: Array | None = None) -> Acted:
    obs, first, keys = rows(num)
    return policy.act(obs, mask, first, (), keys)


def set_all(model: ActorCritic, number: float) -> None:
    with torch.no_grad():
        for tensor in tensors_of(model):
            tensor.fill_(number)


def test_acting_gives_arrays_of_the_wire() -> None:
    """Actions, log-probabilities and values have the shapes and dtypes that unrolls keep."""
    acted = act(TorchPolicy(made(), seed=1))
    assert acted.action[0].dtype == np.int64
    assert acted.action[0].shape == acted.log_prob.shape == acted.value.shape == (N,)
    assert acted.log_prob.dtype == acted.value.dtype == np.float32
    assert acted.sent_action[0] is acted.action[0]
    assert acted.version == 0
    box = act(TorchPolicy(made(BOX, log_std_init=1.0), seed=1))
    assert np.array_equal(box.sent_action[0], np.clip(box.action[0], -0.5, 0.5))
    assert np.abs(box.action[0]).max() > 0.5


def test_log_probabilities_and_values_are_those_of_the_model() -> None:
    """What acting says of its actions is what the learner's model says of them."""
    for space in (DISCRETE, BOX):
        model = made(space)
        acted = act(TorchPolicy(model, seed=1))
        obs, first, _ = rows()
        with torch.no_grad():
            out = model.step([torch.from_numpy(obs[0])], torch.from_numpy(first), [])
            log_prob = model.head.log_prob(out.params, None, [torch.from_numpy(leaf) for leaf in acted.action])
        assert np.allclose(acted.log_prob, log_prob, atol=1e-6)
        assert np.allclose(acted.value, out.value, atol=1e-6)


@pytest.mark.parametrize("space", [DISCRETE, BOX, spaces.MultiDiscrete([3, 4])], ids=["discrete", "box", "multi"])
def test_rows_draw_the_same_in_any_batch(space: AnySpace) -> None:
    """A row's action depends on its observation, its key and the seed, not on its neighbours; another seed differs."""
    model = made(space)
    policy = TorchPolicy(model, seed=1)
    obs, first, keys = rows(64)
    whole = policy.act(obs, None, first, (), keys)
    order = np.random.default_rng(1).permutation(64)
    for part in np.split(order, [5, 6, 40]):
        some = policy.act([obs[0][part]], None, first[part], (), keys[part])
        assert np.allclose(some.action[0], whole.action[0][part], atol=1e-6)
    assert np.array_equal(policy.act(obs, None, first, (), keys).action[0], whole.action[0])
    assert not np.array_equal(TorchPolicy(model, seed=2).act(obs, None, first, (), keys).action[0], whole.action[0])
    later = policy.act(obs, None, first, (), keys + np.uint64(1))
    assert not np.array_equal(later.action[0], whole.action[0])


def test_without_keys_noise_is_still_noise() -> None:
    """Every call then draws anew."""
    policy = TorchPolicy(made(BOX), seed=1)
    obs, first, _ = rows()
    one, two = (policy.act(obs, None, first, (), None).action[0] for _ in range(2))
    assert len(np.unique(np.concatenate([one, two]))) == 4 * N


def test_deterministic_takes_the_mode() -> None:
    """The likeliest action, whatever the keys are."""
    policy = TorchPolicy(made(), seed=1, deterministic=True)
    obs, first, keys = rows()
    acted = policy.act(obs, None, first, (), keys)
    assert np.array_equal(acted.action[0], policy.act(obs, None, first, (), None).action[0])
    with torch.no_grad():
        params = made().step([torch.from_numpy(obs[0])], torch.from_numpy(first), []).params
    assert np.array_equal(acted.action[0], params.argmax(1))
    assert np.allclose(acted.log_prob, params.log_softmax(1).amax(1), atol=1e-6)


def test_masks_are_obeyed() -> None:
    """One allowed action per row is the action, with probability 1."""
    allowed = np.arange(N) % 5
    mask = np.zeros((N, 5), np.bool_)
    mask[np.arange(N), allowed] = True
    acted = act(TorchPolicy(made(), seed=1), mask=mask)
    assert np.array_equal(acted.action[0], allowed)
    assert (acted.log_prob == 0.0).all()


def test_a_new_version_is_taken_between_forwards() -> None:
    """Parameters and buffers of the newest version are those of the next forward, stamped with it; others wait."""
    model = made(normalize_obs=True)
    box = mailbox_for(model)
    policy = TorchPolicy(model, 1, box, version=5)
    assert act(policy).version == 5
    set_all(model, 0.25)
    assert act(policy).version == 5
    before = act(policy).value
    publish(model, box, 6)
    set_all(model, 0.5)
    publish(model, box, 8)
    after = act(policy)
    assert after.version == 8
    assert not np.allclose(after.value, before)
    assert all(bool((tensor == 0.5).all()) for tensor in policy._tensors)
    with box.reading() as parcel:
        assert parcel is not None
        assert len(parcel.payload.tensors) == len(model.state_dict())


def test_the_acting_copy_keeps_its_memory() -> None:
    """Ten versions later every tensor of the acting model lies where it lay; none is the learner's."""
    model = made(BOX, normalize_obs=True)
    box = mailbox_for(model)
    policy = TorchPolicy(model, 1, box)
    places = [tensor.data_ptr() for tensor in tensors_of(policy._model)]
    for version in range(1, 11):
        set_all(model, float(version))
        publish(model, box, version)
        assert act(policy).version == version
    assert [tensor.data_ptr() for tensor in tensors_of(policy._model)] == places
    assert not set(places) & {tensor.data_ptr() for tensor in tensors_of(model)}


def test_a_forward_is_of_one_version_beside_a_learner() -> None:
    """While another thread publishes as fast as it can, the values of a batch are all of the version it names."""
    model = made(network="mlp", hidden_sizes=())
    box = mailbox_for(model)
    policy = TorchPolicy(model, 1, box)
    stop = threading.Event()

    def learn() -> None:
        version = 0
        while not stop.is_set():
            version += 1
            set_all(model, float(version))
            publish(model, box, version)

    learner = threading.Thread(target=learn)
    learner.start()
    try:
        obs, first, keys = [np.ones((N, 4), np.float32)], np.zeros(N, np.bool_), row_keys(np.arange(N), np.zeros(N))
        versions = set[int]()
        while len(versions) < 50:
            acted = policy.act(obs, None, first, (), keys)
            if acted.version:
                assert (acted.value == 5.0 * acted.version).all()  # four weights and a bias
                versions.add(acted.version)
    finally:
        stop.set()
        learner.join()


def test_acting_changes_nothing_in_the_model() -> None:
    """Neither the learner's model nor the acting copy, statistics included, differs after acting."""
    model = made(normalize_obs=True, normalize_reward=True, num_envs=N)
    policy = TorchPolicy(model, seed=1)
    before = [tensor.clone() for tensor in tensors_of(model)]
    for _ in range(3):
        act(policy)
    for tensor, own, old in zip(tensors_of(model), tensors_of(policy._model), before, strict=True):
        assert torch.equal(tensor, old)
        assert torch.equal(own, old)


def test_what_was_acted_is_not_written_again() -> None:
    """Arrays of an earlier forward keep their values; the observations may be overwritten after it."""
    policy = TorchPolicy(made(gru_size=4), seed=1)
    obs, first, keys = rows()
    one = policy.act(obs, None, first, [np.zeros((N, 4), np.float32)], keys)
    kept = [array.copy() for array in (*one.action, one.log_prob, one.value, *one.carry)]
    obs[0][:] = 9.0
    policy.act(obs, None, first, one.carry, keys + np.uint64(1))
    for array, copy in zip((*one.action, one.log_prob, one.value, *one.carry), kept, strict=True):
        assert np.array_equal(array, copy)


def test_the_carry_goes_round() -> None:
    """It is the caller's between forwards, and a row that begins an episode does not see it."""
    policy = TorchPolicy(made(gru_size=4), seed=1)
    obs, first, keys = rows()
    fresh = policy.act(obs, None, first, [np.zeros((N, 4), np.float32)], keys)
    assert [leaf.shape for leaf in fresh.carry] == [(N, 4)]
    first[::2] = True
    after = policy.act(obs, None, first, fresh.carry, keys)
    assert np.allclose(after.value[::2], fresh.value[::2])
    assert not np.isclose(after.value[1::2], fresh.value[1::2]).any()


def test_gsde_keeps_its_matrix_for_its_steps() -> None:
    """The noise of a slot changes when its step crosses a multiple of the frequency, and not before."""
    policy = TorchPolicy(made(BOX, use_sde=True, sde_sample_freq=4), seed=1)
    obs, first, _ = rows()
    draws = [
        policy.act(obs, None, first, (), row_keys(np.arange(N), np.full(N, step))).action[0] for step in range(2, 10)
    ]
    same = [np.array_equal(a, b) for a, b in itertools.pairwise(draws)]
    assert same == [True, False, True, True, True, False, True]
    assert len(np.unique(draws[0])) == 2 * N  # a matrix for each slot


def test_frames_are_uint8_until_the_network() -> None:
    """Read-only frames off the wire go in as they are; white is 1 for the network and black 0."""
    policy = TorchPolicy(made(observation=FRAMES), seed=1)
    frames = np.frombuffer(bytes(255 for _ in range(2 * 4 * 84 * 84)), np.uint8).reshape(2, 4, 84, 84)
    acted = policy.act([frames], None, np.zeros(2, np.bool_), (), np.arange(2, dtype=np.uint64))
    model = policy._model
    assert isinstance(model, ActorCritic)
    convolutions = model.torso.get_submodule("convolutions.0")
    with torch.no_grad():
        value = model.value_out(convolutions(torch.ones(2, 4, 84, 84)))[:, 0]
    assert np.allclose(acted.value, value, atol=1e-5)
    assert math.isfinite(acted.log_prob.sum())


def test_threads_are_those_of_whoever_acts() -> None:
    """The thread that calls `act` computes with the count it was given, others keep theirs."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    policy, seen = TorchPolicy(made(), seed=1, threads=1), list[int]()

    def run() -> None:
        act(policy)
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert [*seen, torch.get_num_threads()] == [1, 2]
    torch.set_num_threads(before)
