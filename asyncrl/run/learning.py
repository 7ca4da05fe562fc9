"""The learner's side of a run: model, update, mailbox, and how their state goes into a checkpoint and comes back.

Invariants: what was saved is what is loaded, bit for bit (test_a_learner_survives_its_checkpoint); a policy made here
acts with the weights that the learner has now (test_a_policy_acts_with_the_newest_weights).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from asyncrl.config import PPOConfig
from asyncrl.errors import CheckpointMismatch
from asyncrl.learner.machine import choose_device, flops_per_row, threads_for
from asyncrl.learner.model import build_model
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.ppo import PPO, a2c
from asyncrl.learner.publishing import Published, mailbox_for, publish
from asyncrl.learner.state_arrays import to_arrays, to_tensors
from asyncrl.learner.torch_policy import TorchPolicy
from asyncrl.params import ParamMailbox
from asyncrl.run.checkpoint_parts import Part, Tensors
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.tensors import Array

BRIEF_FLOPS: Final = 2e7  # of one forward of all environments: well below a millisecond


@dataclass(frozen=True)
class Saved:
    """A consistent copy of the learner, made between two updates."""

    arrays: Mapping[str, Array]
    rest: dict[str, Any]  # JSON

    def parts(self) -> dict[str, Part]:
        return {"learner": Tensors(self.arrays), "learner_rest": self.rest}

    @staticmethod
    def of(parts: Mapping[str, Part]) -> Saved:
        tensors, rest = parts["learner"], parts["learner_rest"]
        assert isinstance(tensors, Tensors)
        assert isinstance(rest, dict)
        return Saved(tensors.arrays, rest)


class Learning:
    """Made once the environments' spec is known. Its methods but `policy` belong to the learner's thread."""

    def __init__(self, algorithm: str, config: PPOConfig, spec: LaneSpec) -> None:
        self.spec = spec
        device = choose_device(config.device)
        config = a2c(config) if algorithm == "a2c" else config
        model = build_model(spec, ModelConfig.of(config), config.seed)
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        self.carry: list[Array] = [leaf.numpy() for leaf in model.initial_carry(config.num_envs)]
        self.threads = threads_for(model.to(device), spec, config)
        flops = flops_per_row(model, spec) * config.num_envs
        self.acts_briefly = device.type == "cpu" and flops < BRIEF_FLOPS
        self.config = replace(config, learner_threads=self.threads.learner, act_threads=self.threads.acting)
        self.ppo = PPO(model, self.config, device)
        self.box: ParamMailbox[Published] = mailbox_for(self.ppo.model)

    def publish(self, version: int) -> None:
        """What the model holds is what `version` rounds have taught it; nothing is done where that is known."""
        if version > self.box.version:
            publish(self.ppo.model, self.box, version)

    def policy(self, *, deterministic: bool = False) -> TorchPolicy:
        """Of training: follows the mailbox."""
        return self._policy(self.box, deterministic)

    def frozen_policy(self, *, deterministic: bool) -> TorchPolicy:
        """Of evaluation: the weights of now, whatever is learned meanwhile."""
        return self._policy(None, deterministic)

    def _policy(self, box: ParamMailbox[Published] | None, deterministic: bool) -> TorchPolicy:
        seed, threads = self.config.seed, self.config.act_threads
        return TorchPolicy(self.ppo.model, seed, box, deterministic=deterministic, version=-1, threads=threads)

    def save(self) -> Saved:
        """Copies: the next update writes into what the model holds."""
        tensors, rest = self.ppo.state()
        return Saved(to_arrays(tensors), rest)

    def load(self, saved: Saved) -> None:
        """CheckpointMismatch: the parameters are those of another network."""
        try:
            self.ppo.load(to_tensors(saved.arrays), saved.rest)
        except (LookupError, RuntimeError, ValueError) as error:
            why = " ".join(str(error).split())[:300]
            raise CheckpointMismatch(f"the checkpoint is of another network than the settings say: {why}") from error
