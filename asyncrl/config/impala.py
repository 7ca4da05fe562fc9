"""`ImpalaConfig` and `APPOConfig`: settings of learners whose data is older than their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from asyncrl.config.ppo import ActorCriticConfig, PPOConfig
from asyncrl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ImpalaConfig(ActorCriticConfig):
    """Policy gradients corrected by V-trace, one pass over each batch of whatever unrolls came first."""

    FIXED: ClassVar[tuple[str, ...]] = (*ActorCriticConfig.FIXED, "mode")

    num_envs: int = 64  # environments that are stepped side by side
    num_steps: int = 20  # per environment and unroll
    mode: str = "async"  # sync; lag N: collection is at most N rounds ahead; async: free-running
    batch_steps: int = 640  # async: steps of an update, however many environments there are; 0: a round
    learning_rate: float = 6.0e-4  # of the optimiser
    max_grad_norm: float = 40.0  # of all gradients together; 0: not limited. 40 is for sums
    gae_lambda: float = 1.0  # of the traces
    rho_bar: float = 1.0  # most that the weight of a row may be
    c_bar: float = 1.0  # most that the weight of a trace's step may be
    reduction: Literal["sum", "mean"] = "sum"  # of the rows' losses

    def check(self) -> None:
        super().check()
        for name in ("rho_bar", "c_bar"):
            if getattr(self, name) <= 0.0:
                raise ConfigError(f"{name} is {getattr(self, name)}: more than 0")
        if self.c_bar > self.rho_bar:
            raise ConfigError(f"c_bar is {self.c_bar}: at most rho_bar, {self.rho_bar}, or V-trace need not converge")


@dataclass(frozen=True, kw_only=True)
class APPOConfig(PPOConfig):
    """PPO that does not wait: advantages by V-trace, the surrogate clipped around the policy that acted."""

    FIXED: ClassVar[tuple[str, ...]] = (*PPOConfig.FIXED, "mode")

    num_envs: int = 64  # environments that are stepped side by side
    num_steps: int = 32  # per environment and unroll
    mode: str = "async"  # sync; lag N: collection is at most N rounds ahead; async: free-running
    batch_steps: int = 1024  # async: steps of an update, however many environments there are; 0: a round
    num_minibatches: int = 2  # of an epoch
    update_epochs: int = 2  # over each batch
    learning_rate: float = 5.0e-4  # of the optimiser
    clip_vloss: bool = False  # clip the value loss by the same
    correction: Literal["auto", "none", "vtrace"] = "vtrace"  # for data of older versions; auto: vtrace unless sync
