"""`ActorCriticConfig`, the settings of whatever has a policy and a value, and `PPOConfig`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from asyncrl.config.run_config import RunConfig
from asyncrl.config.search import SearchSettings
from asyncrl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(RunConfig):
    """A policy and a value, learnt from the data of newest versions."""

    FIXED: ClassVar[tuple[str, ...]] = (
        *RunConfig.FIXED,
        *("share_trunk", "gru_size", "use_sde"),
        *("normalize_obs", "normalize_reward", "batch_steps"),
    )

    batch_steps: int = 0  # async: steps of an update, however many environments there are; 0: a round
    ent_coef: float = 0.01  # weight of the entropy
    vf_coef: float = 0.5  # weight of the value loss
    gae_lambda: float = 0.95  # of the advantages
    share_trunk: bool = False  # one trunk under policy and value
    gru_size: int = 0  # units of a recurrent layer; 0: feed-forward
    log_std_init: float = 0.0  # of continuous actions
    use_sde: bool = False  # state-dependent exploration, for continuous actions
    sde_sample_freq: int = -1  # steps between draws of its matrix; -1: once a round
    normalize_obs: bool = False  # by running mean and deviation, which are part of the model
    clip_obs: float = 10.0  # of normalised observations
    normalize_reward: bool = False  # by the running deviation of the discounted return

    @property
    def batch_size(self) -> int:
        """Steps of one update."""
        return self.batch_steps if self.batch_steps and self.mode == "async" else super().batch_size

    def check(self) -> None:
        super().check()
        self.check_shares("gae_lambda")
        if self.batch_steps % self.num_steps:
            raise ConfigError(
                f"batch_steps is {self.batch_steps}: a multiple of num_steps, {self.num_steps}, since an environment's "
                f"unroll is in one batch as a whole"
            )


@dataclass(frozen=True, kw_only=True)
class PPOConfig(SearchSettings, ActorCriticConfig):
    """Proximal policy optimisation. The defaults are CleanRL's for classic control."""

    FIXED: ClassVar[tuple[str, ...]] = (*ActorCriticConfig.FIXED, "search")

    num_minibatches: int = 4  # of an epoch
    update_epochs: int = 4  # over each round
    norm_adv: bool = True  # normalise advantages, per minibatch
    clip_coef: float = 0.2  # of the surrogate; 0: no clip
    anneal_clip: bool = False  # linearly to 0
    clip_vloss: bool = True  # clip the value loss by the same
    target_kl: float | None = None  # end a round's epochs early above it
    correction: Literal["auto", "none", "vtrace"] = "auto"  # for data of older versions; auto: vtrace unless sync

    def check(self) -> None:
        super().check()
        self.check_positive("num_minibatches", "update_epochs")
        if self.search != "off" and (self.normalize_reward or self.gru_size):
            raise ConfigError(
                f"search {self.search!r} wants values of the rewards as they are, and a network without memory: "
                "normalize_reward false, gru_size 0"
            )
        if self.batch_size % self.num_minibatches:
            raise ConfigError(
                f"num_minibatches is {self.num_minibatches}: it has to divide the {self.batch_size} steps of an update"
            )
        num_unrolls = self.batch_size // self.num_steps
        if self.gru_size and self.num_minibatches > num_unrolls:
            raise ConfigError(
                f"num_minibatches is {self.num_minibatches}: at most {num_unrolls} with gru_size, since an "
                "environment's unroll is in one minibatch as a whole"
            )


@dataclass(frozen=True, kw_only=True)
class A2CConfig(PPOConfig):
    """Advantage actor-critic: one step on the whole round, no clip, plain advantages."""

    num_envs: int = 16  # environments that are stepped side by side
    num_steps: int = 5  # per environment and round
    learning_rate: float = 7.0e-4  # of the optimiser
    vf_coef: float = 0.25  # weight of the value loss
    gae_lambda: float = 1.0  # of the advantages
    num_minibatches: int = 1  # of an epoch; no other number is A2C
    update_epochs: int = 1  # over each round; no other number is A2C
    clip_coef: float = 0.0  # of the surrogate; no other number is A2C
    clip_vloss: bool = False  # clip the value loss by the same; not in A2C
    norm_adv: bool = False  # normalise advantages, per minibatch

    def check(self) -> None:
        super().check()
        of_a2c = {"num_minibatches": 1, "update_epochs": 1, "clip_coef": 0.0}
        without_use: dict[str, bool | None] = {"clip_vloss": False, "anneal_clip": False, "target_kl": None}
        for name, wanted in (of_a2c | without_use).items():
            if getattr(self, name) != wanted:
                raise ConfigError(f"{name} is {getattr(self, name)}: it is {wanted} in A2C, or the algorithm is ppo")
