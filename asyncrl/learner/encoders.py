"""Observation leaves as the wire has them, `[N, *shape]` in its dtypes, become float tensors, once, inside the network.

Vectors are flattened, countable spaces become one-hot, all of them side by side in one `[N, F]`; images become
`[N, C, H, W]`. uint8 is divided by its largest value (255 for frames) here and nowhere else
(test_bytes_are_divided_once); a one-hot has one 1 per place, at value minus start (test_countable_spaces_are_one_hot);
channels come first whatever order the environment has (test_images_come_with_channels_first). Text has no encoder and
is refused by name (test_text_is_refused_by_name).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.errors import ConfigError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.tensors import Array

MIN_SIDE = 36  # pixels that the convolutions of Nature need in height and width


def observation_nodes(space: SpaceSpec) -> list[Node]:
    """The nodes of the leaves, in wire order; ConfigError for what no network can take."""
    nodes = [node for node in space.nodes if node.is_leaf]
    for index, node in enumerate(space.nodes):
        if node.kind == pb.TEXT:
            raise ConfigError(
                f"observation {space.path(index) or 'root'!r} is Text, which no network here reads: turn it into "
                "numbers in a wrapper of the environment, or leave it out of the observation"
            )
    if not sum(leaf.nbytes for leaf in space.leaves):
        raise ConfigError("the observation space is empty: there is nothing to learn from")
    return nodes


def is_image(node: Node) -> bool:
    """A Box with two sides that convolutions can work on: frames, with or without channels or a stack of frames."""
    if node.kind != pb.BOX or node.bf16 or not 2 <= len(node.shape) <= 4:
        return False
    if len(node.shape) == 2 and node.dtype != np.uint8:
        return False
    return min(_sides(node.shape)) >= MIN_SIDE


def is_normalisable(node: Node) -> bool:
    """Numbers that have a mean: a Box that is no image."""
    return node.kind == pb.BOX and not is_image(node)


def as_float(x: Tensor, node: Node) -> Tensor:
    """Numbers of any dtype of the wire as float32."""
    if node.bf16:
        return x.view(torch.bfloat16).float()
    return x if x.dtype == torch.float32 else x.float()


def largest_byte(node: Node) -> float:
    """What a uint8 leaf is divided by: its upper bound; 1 (not at all) for zeros and ones."""
    if node.dtype != np.uint8 or node.kind != pb.BOX:
        return 1.0
    return max(float(node.high.max()), 1.0) if node.high is not None and node.high.size else 255.0


class FlatEncoder(nn.Module):
    """All leaves, or all but images: tensors [N, *shape] -> [N, num_features]."""

    def __init__(self, nodes: Sequence[Node], *, flatten_images: bool = False) -> None:
        super().__init__()
        self._codecs: list[tuple[int, Callable[[Tensor], Tensor]]] = []
        self.num_features = 0
        for index, node in enumerate(nodes):
            if flatten_images or not is_image(node):
                codec, width = _codec(node)
                self._codecs.append((index, codec))
                self.num_features += width

    def forward(self, obs: Sequence[Tensor]) -> Tensor:
        """`obs`: all leaves of the space, in wire order."""
        parts = [codec(obs[index]) for index, codec in self._codecs]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class ImageEncoder(nn.Module):
    """One image leaf: [N, *shape] -> float32 or bfloat16 [N, channels, height, width]."""

    def __init__(self, node: Node, *, bf16: bool = False) -> None:
        super().__init__()
        self._dtype = torch.bfloat16 if bf16 else torch.float32  # bytes are exact in either
        self.channels, self.height, self.width = _image_shape(node.shape)
        self._shape = node.shape
        self._scale = 1.0 / largest_byte(node)
        self._order = _channels_first(node.shape)

    def forward(self, x: Tensor) -> Tensor:
        if self._order is not None:
            x = x.permute(0, *(axis + 1 for axis in self._order))
        x = x.reshape(len(x), self.channels, self.height, self.width)
        # Channels side by side suit CPUs, and tensor cores in bfloat16.
        if x.is_cuda and self._dtype != torch.bfloat16:
            found = x.to(self._dtype, memory_format=torch.contiguous_format)
        elif x.is_cuda or lies_side_by_side(x):
            found = x.to(self._dtype, memory_format=torch.channels_last)
        else:
            found = _side_by_side(x, self._dtype)
        if self._scale == 1.0:
            return found
        return found * self._scale if found is x else found.mul_(self._scale)


def has_planes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether a row of this shape is a stack of frames, [C, H, W] in bytes."""
    return dtype == np.uint8 and len(shape) == 3 and _channels_first(shape) is None and min(shape[1:]) >= MIN_SIDE


def lies_side_by_side(x: Tensor) -> bool:
    """Whether the channels of [N, C, H, W] are next to each other in memory."""
    return x.is_contiguous(memory_format=torch.channels_last)


def _side_by_side(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The same with its channels next to each other: plane by plane, in half the time that `to` takes."""
    found = torch.empty_like(x, dtype=dtype, memory_format=torch.channels_last)
    for channel in range(x.shape[1]):
        found[:, channel] = x[:, channel]
    return found


# ------------------------------------------------------------------------------------------------------------ vectors


def _codec(node: Node) -> tuple[Callable[[Tensor], Tensor], int]:
    """How a leaf becomes [N, width], and that width."""
    size = int(np.prod(node.shape, dtype=np.int64))
    if node.kind == pb.DISCRETE:
        values = np.arange(node.n, dtype=np.int64) + node.start
        return _OneHot(values, np.zeros(node.n, np.int64)), node.n
    if node.kind == pb.MULTI_DISCRETE:
        assert node.nvec is not None
        counts = node.nvec.reshape(-1)
        starts = np.zeros_like(counts) if node.nvec_start is None else node.nvec_start.reshape(-1)
        values = np.concatenate([np.arange(n) + start for n, start in zip(counts, starts, strict=True)])
        return _OneHot(values, np.repeat(np.arange(len(counts)), counts)), int(counts.sum())
    divisor = largest_byte(node)

    def numbers(x: Tensor) -> Tensor:
        # What is float already was normalised.
        is_raw = x.dtype == torch.uint8
        x = as_float(x, node).flatten(1) if x.dim() > 1 else as_float(x, node).unsqueeze(1)
        return x * (1.0 / divisor) if is_raw and divisor != 1.0 else x

    return numbers, size


class _OneHot:
    """[N, *shape] of whole numbers -> [N, width]: column c is 1 where place `places[c]` has `values[c]`."""

    def __init__(self, values: Array, places: Array) -> None:
        self._values = torch.from_numpy(values.astype(np.int64))
        self._places = torch.from_numpy(places.astype(np.int64)) if places.any() else None

    def __call__(self, x: Tensor) -> Tensor:
        if self._values.device != x.device:
            self._values = self._values.to(x.device)
            self._places = None if self._places is None else self._places.to(x.device)
        x = x.reshape(len(x), -1).long()
        if self._places is not None:
            x = x.index_select(1, self._places)
        return (x == self._values).float()


# ------------------------------------------------------------------------------------------------------------- images


def _sides(shape: tuple[int, ...]) -> tuple[int, int]:
    _channels, height, width = _image_shape(shape)
    return height, width


def _channels_first(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The order of axes that brings channels to the front; None where they are there already."""
    if len(shape) == 4:  # a stack of frames with channels [K, H, W, C]
        return (0, 3, 1, 2) if shape[3] < min(shape[1], shape[2]) else None
    return (2, 0, 1) if len(shape) == 3 and shape[2] < shape[0] else None


def _image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(channels, height, width)."""
    order = _channels_first(shape)
    first = shape if order is None else tuple(shape[axis] for axis in order)
    return int(np.prod(first[:-2], dtype=np.int64)), first[-2], first[-1]
