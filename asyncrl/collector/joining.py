"""Rows of many lanes as those of one forward, and its answers as those of each lane.

Invariants: every lane gets its own rows back (test_lanes_get_their_own_rows_back); one lane alone is not copied
(test_one_lane_alone_is_not_copied).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from asyncrl.policy import Acted, Policy
from asyncrl.wire.tensors import Array


class ActRequest(NamedTuple):
    """What one lane shows the policy: B rows. The arrays must not change until the answer is there."""

    lane: int  # its place in the fleet; orders the rows of a batch
    obs: Sequence[Array]  # per leaf [B, *shape]
    first: Array  # b1 [B]
    mask: Array | None = None  # b1 [B, mask_size]
    carry: Sequence[Array] = ()  # per carry leaf [B, *shape]
    keys: Array | None = None  # u8 [B]: of the rows' noise
    to_play: Array | None = None  # i4 [B]; None: a single player. Policies are not shown it, searches are


class Joiner:
    """Reused memory for joined rows: fresh megabytes for every batch would cost a page fault per 4 KiB."""

    SPARE: Final = 1.25

    def __init__(self) -> None:
        self._buffers: dict[str, Array] = {}

    def act(self, policy: Policy, requests: Sequence[ActRequest]) -> list[Acted]:
        """One forward for all, one answer for each."""
        if len(requests) == 1:
            (one,) = requests
            return [policy.act(one.obs, one.mask, one.first, one.carry, one.keys)]
        all_rows = self.join(requests)
        acted = policy.act(all_rows.obs, all_rows.mask, all_rows.first, all_rows.carry, all_rows.keys)
        return split(acted, [len(request.first) for request in requests])

    def join(self, requests: Sequence[ActRequest]) -> ActRequest:
        """The rows of all as those of one, that of the first lane; valid until the next call."""
        obs = self._join_leaves("obs", [request.obs for request in requests])
        first = self._join("first", [request.first for request in requests])
        carry = self._join_leaves("carry", _carries(requests))
        keys = self._join_if_all("keys", [request.keys for request in requests])
        to_play = self._join_if_all("to_play", [request.to_play for request in requests])
        return ActRequest(requests[0].lane, obs, first, self._join_masks(requests), carry, keys, to_play)

    def _join(self, name: str, parts: Sequence[Array]) -> Array:
        """[B_i, *shape] each -> [sum of B_i, *shape], valid until the next call with this name."""
        rows = sum(map(len, parts))
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < rows:
            buffer = np.empty((int(rows * self.SPARE), *parts[0].shape[1:]), parts[0].dtype)
            self._buffers[name] = buffer
        return np.concatenate(parts, out=buffer[:rows])

    def _join_leaves(self, name: str, leaves: Sequence[Sequence[Array]]) -> list[Array]:
        """`leaves[i]` are the leaves of lane i."""
        return [self._join(f"{name}{index}", parts) for index, parts in enumerate(zip(*leaves, strict=True))]

    def _join_masks(self, requests: Sequence[ActRequest]) -> Array | None:
        """b1 [N, mask_size]; a lane without a mask allows everything."""
        widths = [request.mask.shape[1] for request in requests if request.mask is not None]
        if not widths:
            return None
        parts = [
            np.ones((len(request.first), widths[0]), np.bool_) if request.mask is None else request.mask
            for request in requests
        ]
        return self._join("mask", parts)

    def _join_if_all(self, name: str, parts: Sequence[Array | None]) -> Array | None:
        """[N], if all lanes have it."""
        there = [part for part in parts if part is not None]
        return self._join(name, there) if len(there) == len(parts) else None


def _carries(requests: Sequence[ActRequest]) -> list[Sequence[Array]]:
    """Of each lane; zeros for one that acts for the first time beside others that do not."""
    known = next((request.carry for request in requests if request.carry), ())
    return [
        request.carry or [np.zeros((len(request.first), *leaf.shape[1:]), leaf.dtype) for leaf in known]
        for request in requests
    ]


def split(acted: Acted, sizes: Sequence[int]) -> list[Acted]:
    """Views of each lane's rows."""
    parts: list[Acted] = []
    start = 0
    for size in sizes:
        rows = slice(start, start + size)
        action, carry, env_action, kept = (
            [leaf[rows] for leaf in leaves] for leaves in (acted.action, acted.carry, acted.env_action, acted.kept)
        )
        parts.append(Acted(action, acted.log_prob[rows], acted.value[rows], acted.version, carry, env_action, kept))
        start += size
    return parts
