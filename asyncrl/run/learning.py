"""The learner's side of a run: model, update, mailbox, and how their state goes into a checkpoint and comes back.

Invariants: what was saved is what is loaded, bit for bit (test_a_learner_survives_its_checkpoint); a policy made here
acts with the weights that the learner has now (test_a_policy_acts_with_the_newest_weights).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from asyncrl.buffers.replay import ReplayState
from asyncrl.config import RunConfig
from asyncrl.errors import CheckpointMismatch
from asyncrl.learner.algorithms import open_learner
from asyncrl.learner.machine import choose_device, flops_per_row, threads_for
from asyncrl.learner.publishing import Published, mailbox_for, publish
from asyncrl.learner.state_arrays import to_arrays, to_tensors
from asyncrl.params import ParamMailbox
from asyncrl.policy import Policy
from asyncrl.run.checkpoint_parts import Arrays, Blocks, Part, Tensors
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.tensors import Array

BRIEF_FLOPS: Final = 2e7  # of one forward of all environments: 1024 rows of the default MLP
# The same where nobody else acts or is stepped meanwhile, and the loop has nothing better to do: two or three ms.
LONE_FLOPS: Final = 2e8


@dataclass(frozen=True)
class Saved:
    """A consistent copy of the learner, made between two updates."""

    arrays: Mapping[str, Array]
    rest: dict[str, Any]  # JSON
    replay: ReplayState | None = None  # of learners that have one

    def parts(self) -> dict[str, Part]:
        parts: dict[str, Part] = {"learner": Tensors(self.arrays), "learner_rest": self.rest}
        if self.replay is not None:
            parts["replay"] = Blocks(self.replay.keys, self.replay.read)
            parts["replay_rest"] = Arrays(self.replay.arrays)
        return parts

    @staticmethod
    def of(parts: Mapping[str, Part]) -> Saved:
        tensors, rest = parts["learner"], parts["learner_rest"]
        assert isinstance(tensors, Tensors)
        assert isinstance(rest, dict)
        return Saved(tensors.arrays, rest, _replay_of(parts))


class Learning:
    """Made once the environments' spec is known. Its methods but `policy` belong to the learner's thread."""

    def __init__(self, config: RunConfig, spec: LaneSpec) -> None:
        self.spec = spec
        device = choose_device(config.device)
        self.learner = open_learner(config, spec, device)
        model = self.learner.model
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        self.carry: list[Array] = [leaf.cpu().numpy() for leaf in model.initial_carry(config.num_envs)]
        self.threads = threads_for(model, spec, config)
        flops = flops_per_row(model, spec) * config.num_envs
        self.acts_briefly = device.type == "cpu" and flops < BRIEF_FLOPS
        self._acts_briefly_alone = device.type == "cpu" and flops < LONE_FLOPS
        self.config = replace(config, learner_threads=self.threads.learner, act_threads=self.threads.acting)
        self.box: ParamMailbox[Published] = mailbox_for(model)

    def may_act_on_loop(self, num_groups: int) -> bool:
        """Whether so many groups of lanes, with no learner beside them, are best acted for on the event loop."""
        return self.acts_briefly or (num_groups == 1 and self._acts_briefly_alone)

    @property
    def takes_turns_with_a_lane(self) -> bool:
        """Whether a round of one lane in sync mode is done by one thread after another, and never by two at once."""
        return self.may_act_on_loop(1) and self.threads.learner == self.threads.acting == 1

    def publish(self, version: int) -> None:
        """What the model holds is what `version` rounds have taught it; nothing is done where that is known."""
        if version > self.box.version:
            publish(self.learner.model, self.box, version)

    def policy(self, *, deterministic: bool = False) -> Policy:
        """Of training: follows the mailbox."""
        return self.learner.policy(self.box, deterministic=deterministic, threads=self.threads.acting)

    def frozen_policy(self, *, deterministic: bool) -> Policy:
        """Of evaluation: the weights of now, whatever is learned meanwhile."""
        return self.learner.policy(None, deterministic=deterministic, threads=self.threads.acting)

    def save(self) -> Saved:
        """Copies: the next update writes into what the model holds. What it writes into the replay is copied then."""
        tensors, rest = self.learner.state()
        replay = self.learner.replay
        return Saved(to_arrays(tensors), rest, None if replay is None else replay.state())

    def load(self, saved: Saved, *, to_act: bool = False) -> None:
        """CheckpointMismatch: the parameters are those of another network. `to_act`: without what only learning needs,
        which may be gigabytes."""
        try:
            self.learner.load(to_tensors(saved.arrays), saved.rest)
            if self.learner.replay is not None and not to_act:
                if saved.replay is None:
                    raise LookupError("it has no replay")
                self.learner.replay.load(saved.replay)
        except (LookupError, RuntimeError, ValueError) as error:
            why = " ".join(str(error).split())[:300]
            raise CheckpointMismatch(f"the checkpoint is of another network than the settings say: {why}") from error


def _replay_of(parts: Mapping[str, Part]) -> ReplayState | None:
    if "replay" not in parts:
        return None
    blocks, arrays = parts["replay"], parts["replay_rest"]
    assert isinstance(blocks, Blocks)
    assert isinstance(arrays, Arrays)
    return ReplayState(arrays.arrays, blocks.keys, blocks.read)
