"""Tensors to arrays and back."""

from __future__ import annotations

import torch

from asyncrl.learner.state_arrays import to_arrays, to_tensors


def test_tensors_survive_and_are_copies() -> None:
    """Of every dtype and shape; what is loaded shares no memory with what was read."""
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(True), "c": torch.tensor([], dtype=torch.int64)}
    arrays = to_arrays(tensors)
    back = to_tensors(arrays)
    assert all(torch.equal(back[name], tensors[name]) and back[name].dtype == tensors[name].dtype for name in tensors)
    arrays["a"][0, 0] = 7.0
    assert back["a"][0, 0] == 0.0
