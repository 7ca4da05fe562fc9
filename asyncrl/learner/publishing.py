"""`Published`: one of the two sets of a `ParamMailbox`, all parameters and buffers of a model in memory that stays."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from asyncrl.params import ParamMailbox


class Published:
    """Tensors of the form of the model's own, on the model's device. The mailbox guards them on the host's side.

    On CUDA copies are asynchronous: `ready` is recorded behind the learner's, `taken` behind the reader's, and each
    side's stream waits for the other's event. No host thread waits.
    """

    def __init__(self, model: nn.Module) -> None:
        self.tensors = [tensor.detach().clone() for tensor in tensors_of(model)]
        device = self.tensors[0].device
        self._ready = torch.Event(device) if device.type == "cuda" else None
        self._taken = torch.Event(device) if device.type == "cuda" else None

    def fill(self, source: list[Tensor]) -> None:
        """On the learner's stream."""
        if self._taken is not None:
            self._taken.wait()
        _copy(self.tensors, source)
        if self._ready is not None:
            self._ready.record()

    def copy_to(self, target: list[Tensor]) -> None:
        """On the reader's stream."""
        if self._ready is not None:
            self._ready.wait()
        _copy(target, self.tensors)
        if self._taken is not None:
            self._taken.record()


def publish(model: nn.Module, box: ParamMailbox[Published], version: int) -> None:
    """Copies the model into the mailbox as `version`; called by the learner between updates."""
    with box.writing(version) as payload:
        payload.fill(tensors_of(model))


def mailbox_for(model: nn.Module) -> ParamMailbox[Published]:
    return ParamMailbox((Published(model), Published(model)))


def tensors_of(model: nn.Module) -> list[Tensor]:
    """Parameters and persistent buffers, in the order of the state dict; the model's own memory."""
    return list(model.state_dict().values())


@torch.no_grad()
def _copy(target: list[Tensor], source: list[Tensor]) -> None:
    torch._foreach_copy_(target, source)
