"""`TorchPolicy`: acts for lanes with a copy of the model of its own, which follows a mailbox.

What does not depend on what is made of the model's outputs is `ModelPolicy`'s.

Invariants: the acting copy's tensors are written into and never replaced
(test_the_acting_copy_keeps_its_memory); a forward is of one version, which it is stamped with
(test_a_new_version_is_taken_between_forwards); what a row draws follows from the seed and its key alone
(test_rows_draw_the_same_in_any_batch); acting changes no statistics (test_acting_changes_nothing_in_the_model).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import numpy as np
import torch
from torch import Tensor

from asyncrl.keyed_noise import STEP_BITS, uniform
from asyncrl.learner.acting_copy import acting_copy
from asyncrl.learner.machine import check_bf16, use_threads
from asyncrl.learner.model import Model, Outputs
from asyncrl.learner.publishing import Published, tensors_of
from asyncrl.learner.staging import Staging
from asyncrl.params import ParamMailbox
from asyncrl.policy import Acted
from asyncrl.wire.tensors import Array

_STEPS: Final = np.uint64((1 << STEP_BITS) - 1)  # the bits of a key that count steps
_OWN_KEYS: Final = 1 << 63  # where those begin that nobody gave


class ModelPolicy:
    """Implements `asyncrl.policy.Policy` but for `_choose`. `act` is for one thread at a time.

    `threads`: what torch computes with on the CPU, for the thread that acts; 0 leaves it as it is.
    """

    def __init__(
        self,
        model: Model,
        box: ParamMailbox[Published] | None,
        *,
        device: torch.device | str | None,
        version: int,
        threads: int,
    ) -> None:
        self._device = model.device if device is None else torch.device(device)
        if model.config.bf16:
            check_bf16(self._device)
        self._model = acting_copy(model, self._device)
        self._tensors = tensors_of(self._model)
        self._box = box
        self._staging = Staging(self._device)
        self._stream = torch.Stream(self._device) if self._device.type == "cuda" else None
        if self._stream is not None:
            torch.cuda.synchronize(self._device)  # the copy was made on another stream
        self._threads = threads
        self._thread_id = 0
        self._num_own_keys = 0
        self.version = version

    def act(
        self, obs: Sequence[Array], mask: Array | None, first: Array, carry: Sequence[Array], keys: Array | None
    ) -> Acted:
        self._settle()
        if keys is None:
            keys = self._own_keys(len(first))
        with torch.inference_mode(), self._on_stream():
            self._refresh()
            return self._choose(obs, mask, first, carry, keys)

    def _choose(
        self, obs: Sequence[Array], mask: Array | None, first: Array, carry: Sequence[Array], keys: Array
    ) -> Acted:
        """As `act`, with the newest weights in place."""
        raise NotImplementedError

    def _settle(self) -> None:
        """Threads of torch are those of whoever calls it."""
        if self._thread_id != threading.get_ident():
            self._thread_id = threading.get_ident()
            use_threads(self._threads)

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else self._stream

    def _refresh(self) -> None:
        box = self._box
        if box is None or box.version <= self.version:
            return
        with box.reading(newer_than=self.version) as parcel:
            if parcel is not None:
                parcel.payload.copy_to(self._tensors)
                self.version = parcel.version

    def _own_keys(self, rows: int) -> Array:
        """u8 [rows], for whoever gives none."""
        keys = np.arange(self._num_own_keys, self._num_own_keys + rows, dtype=np.uint64) + np.uint64(_OWN_KEYS)
        self._num_own_keys += rows
        return keys


class TorchPolicy(ModelPolicy):
    """Draws from the distribution of the model's head.

    `seed`: of the run, for what is drawn. `deterministic`: the mode is taken instead.
    """

    def __init__(
        self,
        model: Model,
        seed: int,
        box: ParamMailbox[Published] | None = None,
        *,
        device: torch.device | str | None = None,
        deterministic: bool = False,
        version: int = 0,
        threads: int = 0,
    ) -> None:
        super().__init__(model, box, device=device, version=version, threads=threads)
        self._step = torch.compile(self._model.step) if model.config.compile else self._model.step
        self._head = self._model.head
        self._seed = seed
        self._deterministic = deterministic
        self._noise_keys: Array | None = None
        self._noise: Tensor | None = None

    def _choose(
        self, obs: Sequence[Array], mask: Array | None, first: Array, carry: Sequence[Array], keys: Array
    ) -> Acted:
        upload = self._staging.upload
        started, *allowed = upload("rows", [first] if mask is None else [first, mask])
        before = upload("carry", carry) if carry else self._model.initial_carry(len(first))
        out = self._step(upload("obs", obs), started, before)
        noise = None if self._deterministic else self._noise_of(keys)
        action, log_prob = self._head.draw(out.params, allowed[0] if allowed else None, noise)
        told = self._told(out)
        down = self._staging.download([log_prob, out.value, *told, *action, *out.carry])
        told_down, rest = down[2 : 2 + len(told)], down[2 + len(told) :]
        stored = self._head.stored(rest[: len(action)])
        sent = self._head.env_action(stored)
        return Acted(stored, down[0], down[1], self.version, rest[len(action) :], sent, told_down)

    def _told(self, out: Outputs) -> list[Tensor]:
        """What is kept with the actions, per leaf [N, *shape]."""
        return []

    def _noise_of(self, keys: Array) -> Tensor:
        """[N, num_noise] in (0, 1), the same tensor as before for the same keys."""
        period = self._head.noise_period
        if period > 1:
            keys = keys - (keys & _STEPS) % np.uint64(period)
            if self._noise is not None and np.array_equal(keys, self._noise_keys):  # type: ignore[arg-type]
                return self._noise
        self._noise_keys = keys
        (self._noise,) = self._staging.upload("noise", [uniform(self._seed, keys, self._head.num_noise)])
        return self._noise
