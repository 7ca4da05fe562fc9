"""Composite heads against their parts, and which head a space gets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from asyncrl.errors import ConfigError
from asyncrl.keyed_noise import uniform
from asyncrl.learner.box_heads import GaussianHead, StateDependentHead
from asyncrl.learner.composite_head import CompositeHead, build_head
from asyncrl.learner.heads import BernoulliHead, CategoricalHead
from asyncrl.learner.model_config import ModelConfig
from asyncrl.wire.spec import LaneSpec
from envserver.gym_spec import space_spec
from tests.unit.learner.spaces_served import VECTOR, AnySpace, served

MIXED = spaces.Dict(
    {
        "move": spaces.Box(-1.0, 1.0, (2,), np.float32),
        "fire": spaces.MultiBinary(3),
        "item": spaces.Tuple([spaces.Discrete(4, start=1), spaces.MultiDiscrete([2, 3])]),
    }
)


def test_parts_of_an_action_are_independent() -> None:
    """Log-probability and entropy are the sums of those of the parts, each over its own stretch of parameters."""
    torch.manual_seed(1)
    head = build_head(served(VECTOR, MIXED), 8, ModelConfig())
    assert isinstance(head, CompositeHead)
    params = head.project(torch.randn(6, 8) * 50).detach()
    noise = torch.from_numpy(uniform(1, np.arange(6, dtype=np.uint64), head.num_noise))
    actions, drawn = head.draw(params, None, noise)
    assert [tuple(leaf.shape) for leaf in actions] == [(6, 3), (6,), (6, 2), (6, 2)]  # fire, item/0, item/1, move
    log_prob, entropy = head.evaluate(params, None, actions)
    assert torch.allclose(drawn, log_prob, atol=1e-6)
    starts, sums = (0, 0), (torch.zeros(6), torch.zeros(6))
    for part, leaf in zip(head._heads, actions, strict=True):
        share = params[:, starts[0] : starts[0] + part.num_params]
        own = noise[:, starts[1] : starts[1] + part.num_noise]
        assert torch.equal(part.sample(share, None, own)[0], leaf)
        found = part.evaluate(share, None, [leaf])
        sums = (sums[0] + found[0], sums[1] + found[1])
        starts = (starts[0] + part.num_params, starts[1] + part.num_noise)
    assert torch.allclose(log_prob, sums[0], atol=1e-5)
    assert torch.allclose(entropy, sums[1], atol=1e-5)
    assert torch.allclose(head.entropy(params, None), entropy, atol=1e-5)
    assert starts == (params.shape[1], noise.shape[1])


def test_parts_are_stored_and_sent_each_in_their_way() -> None:
    """Dtypes of the wire for what is countable, float32 and clipped for what is not."""
    head = build_head(served(VECTOR, MIXED), 8, ModelConfig(log_std_init=2.0))
    noise = torch.from_numpy(uniform(1, np.arange(50, dtype=np.uint64), head.num_noise))
    actions, _ = head.draw(torch.zeros(50, head.num_params), None, noise)
    stored = head.stored([leaf.detach().numpy() for leaf in actions])
    sent = head.env_action(stored)
    assert [leaf.dtype.str for leaf in stored] == ["|i1", "<i8", "<i8", "<f4"]
    assert [leaf.dtype.str for leaf in sent] == ["|i1", "<i8", "<i8", "<f4"]
    assert np.abs(stored[3]).max() > 1.0 == np.abs(sent[3]).max()
    assert all(np.array_equal(a, b) for a, b in zip(stored[:3], sent[:3], strict=True))
    plain = build_head(served(VECTOR, spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)])), 8, ModelConfig())
    assert plain.env_action([np.zeros(1, np.int64)] * 2) == []


def test_a_box_in_a_tuple_explores_as_the_box_does() -> None:
    """With gSDE it keeps its noise for as many steps."""
    box = spaces.Box(-1.0, 1.0, (2,), np.float32)
    config = ModelConfig(use_sde=True, sde_sample_freq=8)
    spaces_of: list[AnySpace] = [box, spaces.Tuple([box]), spaces.Dict({"a": box})]
    heads = [build_head(served(VECTOR, space), 8, config) for space in spaces_of]
    assert [(head.noise_period, head.num_noise) for head in heads] == [(8, heads[0].num_noise)] * 3
    assert build_head(served(VECTOR, MIXED), 8, ModelConfig()).noise_period == 1


def test_a_mask_over_a_composite_reaches_its_parts() -> None:
    """Masks lie side by side in the order of the leaves that can be masked."""
    space = spaces.Tuple([spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.Discrete(3)])
    spec = LaneSpec("Test-v0", space_spec(VECTOR), space_spec(space), mask_size=5)
    head = build_head(spec, 8, ModelConfig())
    mask = torch.tensor([[0, 1, 1, 0, 0]]).bool()
    assert [leaf.tolist() for leaf in head.mode(torch.zeros(1, head.num_params), mask)][::2] == [[1], [0]]
    assert head.entropy(torch.zeros(1, head.num_params), mask).item() == pytest.approx(1.4189385)  # of the Gaussian


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (spaces.Discrete(3), CategoricalHead),
        (spaces.MultiDiscrete([2, 3]), CategoricalHead),
        (spaces.MultiBinary(2), BernoulliHead),
        (spaces.Box(-1.0, 1.0, (2,)), GaussianHead),
        (MIXED, CompositeHead),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_every_action_space_gets_its_head(space: AnySpace, kind: type[object]) -> None:
    """By kind of the root; a mask of the right size is taken where there is one."""
    assert type(build_head(served(VECTOR, space, masked=True), 8, ModelConfig())) is kind


def test_what_no_head_can_do_is_refused() -> None:
    """Text, an empty space, gSDE for choices, and a mask of another size are configuration errors that say why."""
    with pytest.raises(ConfigError, match="Text"):
        build_head(served(VECTOR, spaces.Text(3)), 8, ModelConfig())
    empty: list[AnySpace] = [spaces.Tuple([]), spaces.Box(-1.0, 1.0, (0,))]
    for space in empty:
        with pytest.raises(ConfigError, match="empty"):
            build_head(served(VECTOR, space), 8, ModelConfig())
    with pytest.raises(ConfigError, match="use_sde"):
        build_head(served(VECTOR, spaces.Discrete(3)), 8, ModelConfig(use_sde=True))
    boxes = spaces.Tuple([spaces.Box(-1.0, 1.0, (2,)), spaces.Box(-1.0, 1.0, (2,))])
    with pytest.raises(ConfigError, match="use_sde"):
        build_head(served(VECTOR, boxes), 8, ModelConfig(use_sde=True))
    unmaskable: list[AnySpace] = [boxes, spaces.MultiBinary(1)]
    for space in unmaskable:
        with pytest.raises(ConfigError, match="masks over 1 actions, and its action space has 0"):
            build_head(LaneSpec("T", space_spec(VECTOR), space_spec(space), mask_size=1), 8, ModelConfig())
    with pytest.raises(ConfigError, match="masks over 4 actions"):
        build_head(LaneSpec("T", space_spec(VECTOR), space_spec(spaces.Discrete(3)), mask_size=4), 8, ModelConfig())
    box = served(VECTOR, spaces.Box(-1.0, 1.0, (2,)))
    assert type(build_head(box, 8, ModelConfig(use_sde=True))) is StateDependentHead
