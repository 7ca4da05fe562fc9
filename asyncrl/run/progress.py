"""Where a run stands, beside its learner; and its form in a checkpoint.

Invariants: what a checkpoint holds of it is what goes on (test_progress_reads_back); a later round, or a later life of
the run, has the higher serial (test_serials_grow_with_rounds_and_lives).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from asyncrl.collector.counts import CollectorState
from asyncrl.run.checkpoint_parts import Arrays, Part
from asyncrl.wire.tensors import Array


@dataclass
class Progress:
    """After a whole round."""

    round: int = 0  # the next one; so many have been trained on
    steps: int = 0  # environment steps that were trained on
    elapsed_s: float = 0.0
    learner_epoch: int = 0  # fleets that the run has opened
    run_id: str = field(default_factory=lambda: secrets.token_hex(8))
    incarnations: Array | None = None  # i8 [num_envs], of the environments that there are now
    collector: CollectorState | None = None

    @property
    def serial(self) -> int:
        """Of a checkpoint, among those of the run. Whoever went back to an earlier one has a higher epoch since."""
        return self.learner_epoch << 32 | self.round

    def collected_step(self, max_ahead: int | None) -> int:
        """Where collection goes on that may be `max_ahead` rounds ahead: what was collected of rounds that nobody
        trained on is not part of the run; without rounds (None) it all is."""
        return self.steps if self.collector is None or max_ahead is not None else self.collector.steps

    def parts(self) -> dict[str, Part]:
        """What `of` reads."""
        rest = {
            "round": self.round,
            "steps": self.steps,
            "elapsed_s": self.elapsed_s,
            "learner_epoch": self.learner_epoch,
            "run_id": self.run_id,
        }
        arrays: dict[str, Array] = {}
        if self.incarnations is not None:
            arrays["incarnations"] = self.incarnations
        if self.collector is not None:
            # Environments are made anew when a run goes on: their carries begin anew, too.
            arrays["act_steps"] = self.collector.act_steps
            rest["collected_steps"] = self.collector.steps
        return {"run": rest, "slots": Arrays(arrays)}

    @staticmethod
    def of(parts: Mapping[str, Part]) -> Progress:
        rest, slots = parts["run"], parts["slots"]
        assert isinstance(rest, dict)
        assert isinstance(slots, Arrays)
        fields = {name: rest[name] for name in ("round", "steps", "elapsed_s", "learner_epoch", "run_id")}
        progress = Progress(**fields, incarnations=_i8(slots.arrays.get("incarnations")))
        act_steps = _i8(slots.arrays.get("act_steps"))
        if act_steps is not None:
            progress.collector = CollectorState(act_steps, [], progress.round, rest["collected_steps"])
        return progress


def _i8(array: Array | None) -> Array | None:
    return None if array is None else array.astype(np.int64)
