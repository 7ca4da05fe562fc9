"""`TorchPolicy`: acts for lanes with a copy of the model of its own, which follows a mailbox.

Invariants: the acting copy's tensors are written into and never replaced
(test_the_acting_copy_keeps_its_memory); one forward is of one version, which it is stamped with
(test_a_new_version_is_taken_between_forwards); what a row draws follows from the seed and its key alone
(test_rows_draw_the_same_in_any_batch).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence

import numpy as np
import torch

from asyncrl.keyed_noise import uniform
from asyncrl.learner.model import ActorCritic
from asyncrl.learner.publishing import Published, tensors_of
from asyncrl.params import ParamMailbox
from asyncrl.policy import Acted
from asyncrl.wire.tensors import Array

# What arrives from the wire is read-only, and torch warns of that once in a process. Nothing here writes into it.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(b"\0", np.uint8))


class TorchPolicy:
    """Implements `asyncrl.policy.Policy`. `act` is for one thread at a time."""

    def __init__(
        self,
        model: ActorCritic,
        seed: int,
        box: ParamMailbox[Published] | None = None,
        *,
        deterministic: bool = False,
        version: int = 0,
    ) -> None:
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        self._tensors = tensors_of(self._model)
        self._seed = seed
        self._box = box
        self._deterministic = deterministic
        self.version = version

    def act(
        self, obs: Sequence[Array], mask: Array | None, first: Array, carry: Sequence[Array], keys: Array | None
    ) -> Acted:
        with torch.inference_mode():
            self._refresh()
            model, head = self._model, self._model.head
            out = model.step(
                [torch.from_numpy(leaf) for leaf in obs],
                torch.from_numpy(first),
                [torch.from_numpy(leaf) for leaf in carry],
            )
            allowed = None if mask is None else torch.from_numpy(mask)
            noise = None
            if not self._deterministic:
                assert keys is not None
                noise = torch.from_numpy(uniform(self._seed, keys, head.num_noise))
            action, log_prob = head.draw(out.params, allowed, noise)
            stored = head.stored([leaf.numpy() for leaf in action])
            sent = head.env_action(stored)
            return Acted(
                stored,
                log_prob.numpy(),
                out.value.numpy(),
                self.version,
                [leaf.numpy() for leaf in out.carry],
                () if all(a is b for a, b in zip(stored, sent, strict=True)) else sent,
            )

    def _refresh(self) -> None:
        box = self._box
        if box is None or box.version <= self.version:
            return
        with box.reading(newer_than=self.version) as parcel:
            if parcel is not None:
                parcel.payload.copy_to(self._tensors)
                self.version = parcel.version
