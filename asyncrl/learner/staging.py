"""`Staging`: arrays of the host become tensors of the device and the other way round.

On the CPU nothing is copied: tensors share the arrays' memory. Elsewhere arrays go through page-locked buffers, reused
from call to call, and copies are asynchronous until `download` waits for all of them at once.

Invariants: what comes down belongs to the caller (test_what_comes_down_is_not_written_again); buffers grow with the
rows and give the values that went in (test_values_go_through_the_buffers_unchanged).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from asyncrl.wire.tensors import Array

_SPARE: Final = 1.25

# Arrays off the wire are read-only, and torch warns of that, once in a process. Nothing here writes into them.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(b"\0", np.uint8))


class Staging:
    """For one thread, and for one stream of the device. `share`: whether the CPU's arrays are used in place."""

    def __init__(self, device: torch.device, *, share: bool = True) -> None:
        self._device = device
        self._shares = device.type == "cpu" and share
        self._pins = device.type == "cuda"
        self._buffers: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}  # on the host, on the device

    def upload(self, name: str, arrays: Sequence[Array]) -> list[Tensor]:
        """[N, *shape] each; valid until the next call with this name. The arrays may change after the next download."""
        if self._shares:
            return [torch.from_numpy(array) for array in arrays]
        return [self._send((name, index), array) for index, array in enumerate(arrays)]

    def download(self, tensors: Sequence[Tensor]) -> list[Array]:
        """Arrays of the caller's own. Waits for everything that this stream was given."""
        if self._shares:
            return [tensor.numpy() for tensor in tensors]
        # Pinned memory per call: torch keeps freed blocks, and hands one out again once its copies are over.
        hosts = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pins) for tensor in tensors]
        for host, tensor in zip(hosts, tensors, strict=True):
            host.copy_(tensor, non_blocking=True)
        if self._pins:
            torch.cuda.current_stream(self._device).synchronize()
        return [host.numpy() for host in hosts]

    def _send(self, place: tuple[str, int], array: Array) -> Tensor:
        source = torch.from_numpy(array)
        rows = len(source)
        pair = self._buffers.get(place)
        if pair is None or len(pair[0]) < rows:
            shape = (int(rows * _SPARE), *source.shape[1:])
            host = torch.empty(shape, dtype=source.dtype, pin_memory=self._pins)
            pair = self._buffers[place] = (host, torch.empty(shape, dtype=source.dtype, device=self._device))
        host, device = pair[0][:rows], pair[1][:rows]
        host.copy_(source)
        return device.copy_(host, non_blocking=True)
