"""`Published`: what is copied, and on CUDA in which order both sides wait for each other."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from asyncrl.learner.publishing import Published, mailbox_for, publish, tensors_of


class Watched:
    """Stands in for an event of CUDA, which there is none of here: a log of what was asked of it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name, self._log = name, log

    def wait(self) -> None:
        self._log.append(f"wait {self._name}")

    def record(self) -> None:
        self._log.append(f"record {self._name}")


class Noting(Published):
    """Notes when it copies."""

    def __init__(self, model: nn.Module, log: list[str]) -> None:
        super().__init__(model)
        self.log = log
        events: Any = (Watched("ready", log), Watched("taken", log))
        self._ready, self._taken = events


def model() -> nn.Module:
    """With a buffer beside its parameters."""
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def test_parameters_and_buffers_travel() -> None:
    """All of them, into memory of its own, and out of it into tensors that stay where they are."""
    one, other = model(), model()
    with torch.no_grad():
        for number, tensor in enumerate(tensors_of(one)):
            tensor.fill_(number + 2)
    box = mailbox_for(one)
    publish(one, box, 4)
    places = [tensor.data_ptr() for tensor in tensors_of(other)]
    with box.reading() as parcel:
        assert parcel is not None
        assert parcel.version == 4
        assert not {tensor.data_ptr() for tensor in parcel.payload.tensors} & {t.data_ptr() for t in tensors_of(one)}
        parcel.payload.copy_to(tensors_of(other))
    assert all(map(torch.equal, tensors_of(other), tensors_of(one)))
    assert [tensor.data_ptr() for tensor in tensors_of(other)] == places


def test_each_side_waits_for_the_others_copy() -> None:
    """The learner before it writes, until the reader's copy is over; the reader before it reads, until there is one."""
    log: list[str] = []
    payload = Noting(model(), log)
    payload.fill(tensors_of(model()))
    payload.copy_to(tensors_of(model()))
    assert log == ["wait taken", "record ready", "wait ready", "record taken"]
