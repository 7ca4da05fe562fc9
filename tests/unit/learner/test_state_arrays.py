"""Tensors to arrays and back."""

from __future__ import annotations

import torch

from asyncrl.learner.state_arrays import on_host, to_arrays, to_tensors, under


def test_tensors_survive_and_are_copies() -> None:
    """Of every dtype and shape; what is loaded shares no memory with what was read."""
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(True), "c": torch.tensor([], dtype=torch.int64)}
    arrays = to_arrays(tensors)
    back = to_tensors(arrays)
    assert all(torch.equal(back[name], tensors[name]) and back[name].dtype == tensors[name].dtype for name in tensors)
    arrays["a"][0, 0] = 7.0
    assert back["a"][0, 0] == 0.0


def test_parts_are_found_by_their_prefix() -> None:
    """Each gets its own tensors back, as they were when they were taken; a prefix inside of a name is none."""
    weights, target = {"a/weight": torch.ones(2, requires_grad=True)}, {"weight": torch.zeros(3)}
    state = on_host("model/", weights) | on_host("a/", target)
    with torch.no_grad():
        weights["a/weight"].add_(1.0)
    found = under("model/", state)
    assert found.keys() == {"a/weight"}
    assert torch.equal(found["a/weight"], torch.ones(2)) and not found["a/weight"].requires_grad
    assert torch.equal(under("a/", state)["weight"], target["weight"])
