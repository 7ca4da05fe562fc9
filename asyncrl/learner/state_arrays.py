"""A learner's state: its parts by name, and as NumPy arrays and back, as what writes checkpoints knows no torch."""

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


def on_host(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies, their names behind the prefix."""
    return {f"{prefix}{name}": tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those whose names begin with it, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
