"""`Stage` and `Batch`: the unrolls of one update side by side as [T, N, ...], on the device of the learner.

Each array is copied once, from the unrolls into memory that is used again by the next update: pinned and sent on
without waiting where there is a GPU, used in place where there is none. Leaves stay in the dtypes of the wire until
the network (images are a quarter of what they are as floats). On a CPU, stacks of frames have their channels side by
side in memory (test_frames_lie_side_by_side).

Invariants: row [t, n] is row [t, b] of the unroll that slot n came from, and so are the ends (test_rows_side_by_side);
images are uint8 on the device (test_images_stay_uint8); void rows hold nothing that a forward could spread
(test_void_rows_are_zeros).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.errors import LocalProtocolError
from asyncrl.learner.encoders import has_planes
from asyncrl.records import Array, Unroll


@dataclass(slots=True)
class Batch:
    """What one update trains on: N slots of all its unrolls, in order. E ends want a bootstrap."""

    # On the device.
    obs: list[Tensor]  # per leaf [T, N, *shape]
    action: list[Tensor]  # per action leaf [T, N, *shape]
    mask: Tensor | None  # b1 [T, N, M]
    first: Tensor  # b1 [T, N], false in void rows, of which `begins` says it, too
    carry: list[Tensor]  # per carry leaf [N, *shape]: before row 0
    after: list[Tensor]  # per leaf [N + E, *shape]: last_obs of each slot, then end_obs of each end
    after_first: Tensor  # b1 [N + E]: true at a last_obs that begins an episode
    # On the host.
    reward: Array  # f8 [T, N], raw
    log_prob: Array  # f4 [T, N]
    value: Array  # f4 [T, N]
    version: Array  # i8 [T, N]
    valid: Array  # b1 [T, N]
    begins: Array  # b1 [T, N]: an episode begins before the row
    terminated: Array  # b1 [T, N], false in void rows
    ended: Array  # b1 [T, N], false in void rows
    end_rows: Array  # i8 [E, 2] of (t, n)
    fleet_slots: Array  # i8 [N]

    @property
    def num_steps(self) -> int:
        return len(self.valid)

    @property
    def num_slots(self) -> int:
        return len(self.fleet_slots)

    def acts(self, rows: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """Action leaves [M, *shape] and mask [M, size] of the rows t * N + n."""
        mask = None if self.mask is None else self.mask.flatten(0, 1).index_select(0, rows)
        return [leaf.flatten(0, 1).index_select(0, rows) for leaf in self.action], mask


class Stage:
    """Memory on the host and, if that is elsewhere, on the device. A batch is good until the next `load`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._is_remote = device.type != "cpu"
        self._pin = device.type == "cuda"
        self._held: dict[str, Tensor] = {}

    def load(self, unrolls: Sequence[Unroll]) -> Batch:
        """Side by side, in the order given. Raises LocalProtocolError if there are none, or of several lengths."""
        lengths = {unroll.num_steps for unroll in unrolls}
        if len(lengths) != 1:
            raise LocalProtocolError(f"unrolls of lengths {sorted(lengths)} in one batch: they must be of one length")
        valid = _beside([unroll.valid for unroll in unrolls])
        terminated = _beside([unroll.terminated for unroll in unrolls]) & valid
        ended = _beside([unroll.ended for unroll in unrolls]) & valid
        first = [unroll.first & unroll.valid for unroll in unrolls]
        void = ~valid
        no_ends = [np.zeros(len(unroll.end_rows), np.bool_) for unroll in unrolls]
        return Batch(
            obs=self._leaves("obs", [unroll.obs for unroll in unrolls], void=void if void.any() else None),
            action=self._leaves("action", [unroll.action for unroll in unrolls]),
            mask=self._masks(unrolls),
            first=self._put("first", first, 1),
            carry=self._leaves("carry", [unroll.carry for unroll in unrolls], 0),
            after=self._after(unrolls),
            after_first=self._put("after_first", [*(unroll.last_first for unroll in unrolls), *no_ends], 0),
            reward=np.where(valid, _beside([unroll.reward for unroll in unrolls]), 0.0),
            log_prob=np.where(valid, _beside([unroll.log_prob for unroll in unrolls]), np.float32(0.0)),
            value=np.where(valid, _beside([unroll.value for unroll in unrolls]), np.float32(0.0)),
            version=_beside([np.broadcast_to(unroll.version[:, None], unroll.valid.shape) for unroll in unrolls]),
            valid=valid,
            begins=_beside([unroll.first for unroll in unrolls]),
            terminated=terminated,
            ended=ended,
            end_rows=_end_rows(unrolls),
            fleet_slots=np.concatenate([unroll.fleet_slots for unroll in unrolls]),
        )

    def _leaves(
        self, name: str, leaves: Sequence[list[Array]], axis: int = 1, void: Array | None = None
    ) -> list[Tensor]:
        """One tensor per leaf, of what each unroll has of it."""
        return [self._put(f"{name}/{i}", parts, axis, void) for i, parts in enumerate(zip(*leaves, strict=True))]

    def _masks(self, unrolls: Sequence[Unroll]) -> Tensor | None:
        widths = [unroll.mask.shape[2] for unroll in unrolls if unroll.mask is not None]
        if not widths:
            return None
        # A lane whose rows all came without one allows everything.
        masks = [
            np.ones((*unroll.valid.shape, widths[0]), np.bool_) if unroll.mask is None else unroll.mask
            for unroll in unrolls
        ]
        return self._put("mask", masks, 1)

    def _after(self, unrolls: Sequence[Unroll]) -> list[Tensor]:
        last = zip(*(unroll.last_obs for unroll in unrolls), strict=True)
        ends = zip(*(unroll.end_obs for unroll in unrolls), strict=True)
        return [self._put(f"after/{i}", [*a, *b], 0) for i, (a, b) in enumerate(zip(last, ends, strict=True))]

    def _put(self, name: str, parts: Sequence[Array], axis: int, void: Array | None = None) -> Tensor:
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        if not self._is_remote and has_planes(tuple(shape[axis + 1 :]), parts[0].dtype):
            return self._put_planes(name, parts, axis, shape, void)
        host = self._memory(name, tuple(shape), parts[0].dtype)
        array = host.numpy()
        np.concatenate(parts, axis, out=array)
        if void is not None:
            array[void] = 0  # it may hold NaN, and a NaN times a gradient of zero is NaN
        return host.to(self.device, non_blocking=True) if self._is_remote else host

    def _put_planes(
        self, name: str, parts: Sequence[Array], axis: int, shape: Sequence[int], void: Array | None
    ) -> Tensor:
        """Frames [..., C, H, W] with their channels side by side in memory, where convolutions on a CPU want them."""
        *lead, channels, height, width = shape
        host = self._memory(name, (*lead, height, width, channels), parts[0].dtype)
        array = host.numpy()
        for channel in range(channels):  # three times as fast as all of them at once
            np.concatenate([part[..., channel, :, :] for part in parts], axis, out=array[..., channel])
        if void is not None:
            array[void] = 0
        return host.movedim(-1, -3)

    def _memory(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        """A tensor on the host, the start of one that is kept; made anew when it is too small."""
        size = int(np.prod(shape))
        kept = self._held.get(name)
        wanted = torch.from_numpy(np.empty(0, dtype)).dtype
        if kept is None or len(kept) < size or kept.dtype != wanted:
            kept = self._held[name] = torch.empty(size, dtype=wanted, pin_memory=self._pin)
        return kept[:size].view(shape)


def _beside(parts: Sequence[Array]) -> Array:
    return np.concatenate(parts, axis=1)


def _end_rows(unrolls: Sequence[Unroll]) -> Array:
    """i8 [E, 2] in the order of `end_obs`: by unroll."""
    starts = accumulate((unroll.num_slots for unroll in unrolls[:-1]), initial=0)
    return np.concatenate(
        [unroll.end_rows + np.array([0, start]) for unroll, start in zip(unrolls, starts, strict=True)]
    )
