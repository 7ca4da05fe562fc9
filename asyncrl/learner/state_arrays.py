"""A learner's state as NumPy arrays and back: what writes checkpoints knows no torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from asyncrl.wire.tensors import Array


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Views of tensors on the host."""
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def to_tensors(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    """Copies."""
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
