"""The copy that acts against the model that learns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from gymnasium import spaces

from asyncrl.learner.acting_copy import LARGE, acting_copy
from asyncrl.learner.machine import has_bf16
from asyncrl.learner.model import ActorCritic, build_model
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.publishing import Published, tensors_of
from asyncrl.wire.spec import LaneSpec
from tests.unit.learner.spaces_served import FRAMES, VECTOR, AnySpace, rows_of, served, tensors

CPU = torch.device("cpu")
KINDS: list[tuple[AnySpace, dict[str, Any]]] = [
    (FRAMES, {}),
    (FRAMES, {"network": "impala"}),
    (VECTOR, {"hidden_sizes": (64, LARGE // 64)}),
    (VECTOR, {"gru_size": 8}),
]
SHORT = pytest.param(True, marks=pytest.mark.skipif(not has_bf16(CPU), reason="no bfloat16 on this CPU"))


def made(observation: AnySpace, seed: int, **settings: Any) -> ActorCritic:
    return build_model(served(observation, spaces.Discrete(3)), ModelConfig(**settings), seed)


def said(model: ActorCritic, observation: AnySpace) -> torch.Tensor:
    """Parameters and values [N, P + 1] of five rows."""
    with torch.inference_mode():
        obs = tensors(rows_of(observation, 5))
        out = model.step(obs, torch.zeros(5, dtype=torch.bool), model.initial_carry(5))
        return torch.cat([out.params, out.value.unsqueeze(1)], 1)


@pytest.mark.parametrize("bf16", [False, SHORT])
@pytest.mark.parametrize(("observation", "settings"), KINDS, ids=["nature", "impala", "wide", "gru"])
def test_the_copy_computes_what_the_model_does(observation: AnySpace, settings: dict[str, Any], bf16: bool) -> None:
    """Up to the order of sums; in bfloat16 from the same weights that autocast makes."""
    model = made(observation, 1, bf16=bf16, **settings)
    copied = acting_copy(model, CPU)
    torch.testing.assert_close(said(copied, observation), said(model, observation), rtol=0, atol=2e-3 if bf16 else 1e-5)
    assert not copied.training
    assert not any(p.requires_grad for p in copied.parameters())
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("bf16", [False, SHORT])
def test_new_weights_keep_the_form(bf16: bool) -> None:
    """What is written into the copy's tensors is another model's, and computes as it does."""
    copied, other = acting_copy(made(FRAMES, 1, bf16=bf16), CPU), made(FRAMES, 2, bf16=bf16)
    layouts = [(t.dtype, t.stride()) for t in tensors_of(copied)]
    Published(other).copy_to(tensors_of(copied))
    torch.testing.assert_close(said(copied, FRAMES), said(other, FRAMES), rtol=0, atol=2e-3 if bf16 else 1e-5)
    assert [(t.dtype, t.stride()) for t in tensors_of(copied)] == layouts


def test_layers_that_wait_for_memory_are_laid_down_anew() -> None:
    """Convolutions with their channels side by side, large dense layers by columns; a custom torso as it came."""
    copied = acting_copy(made(FRAMES, 1), CPU)
    strides = {name: p.stride() for name, p in copied.named_parameters()}
    first = next(stride for name, stride in strides.items() if name.endswith("convs.0.weight"))
    assert first[1] == 1
    dense = next(stride for name, stride in strides.items() if name.endswith("out.weight") and name.startswith("torso"))
    assert dense == (1, 512)
    custom = acting_copy(made(VECTOR, 1, network=large_layer, bf16=has_bf16(CPU)), CPU)
    assert all(p.dtype == torch.float32 and p.is_contiguous() for p in custom.parameters())


class LargeLayer(torch.nn.Linear):
    """A user's network: one layer that would be laid down anew if it were ours."""

    num_features = LARGE // 4

    def forward(self, obs: Sequence[torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        return super().forward(obs[0])


def large_layer(_spec: LaneSpec, _config: ModelConfig) -> torch.nn.Module:
    return LargeLayer(4, LARGE // 4)
