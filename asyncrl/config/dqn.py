"""`DQNConfig`, the settings of deep Q-learning and its extensions; `C51Config`, `RainbowConfig` and `ApexConfig` are
that with other defaults.

The learner takes `gradient_steps` for each round of num_envs × num_steps environment steps, also where the rounds of
async mode are of other sizes: the ratio is held by counting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from asyncrl.config.run_config import RunConfig
from asyncrl.errors import ConfigError

_ANY_AGE = 1_000_000_000  # what is in a replay is old, and meant to be


@dataclass(frozen=True, kw_only=True)
class DQNConfig(RunConfig):
    """Deep Q-learning. The defaults are CleanRL's for classic control."""

    FIXED: ClassVar[tuple[str, ...]] = (
        *RunConfig.FIXED,
        *("dueling", "num_atoms", "v_min", "v_max", "noisy"),
        *("buffer_size", "n_step", "gamma", "prioritized", "alpha", "sign_reward", "clip_reward"),
    )

    num_envs: int = 1  # environments that are stepped side by side
    lanes: int | None = 1  # processes that share them; None: by the cores of the servers
    num_steps: int = 10  # per environment and round
    max_lag: int = _ANY_AGE  # async: data more than this many versions old is dropped
    anneal_lr: bool = False  # linearly to 0
    adam_eps: float = 1e-8  # of Adam
    max_grad_norm: float = 0.0  # of all gradients together; 0: not limited
    hidden_sizes: tuple[int, ...] = (120, 84)  # of mlp
    activation: Literal["tanh", "relu", "elu"] = "relu"  # of mlp
    log_every: int = 1000  # steps between points of the curves; 0: every round

    # ---- replay

    buffer_size: int = 10_000  # transitions that are kept
    minibatch_size: int = 128  # transitions of one gradient step
    learning_starts: int = 10_000  # environment steps before the first gradient step
    gradient_steps: int = 1  # for each round; -1: as many as it has environment steps
    n_step: int = 1  # rewards before the bootstrap
    prioritized: bool = False  # draw by priority rather than evenly
    alpha: float = 0.6  # exponent of priorities
    beta: float = 0.4  # exponent of the weights that make up for it, at first
    beta_final: float = 1.0  # at the end, in a straight line
    actor_priorities: bool = False  # what is new has the error that acting saw, rather than the largest priority

    # ---- targets

    target_network_frequency: int = 500  # environment steps between updates of the target network
    tau: float = 1.0  # share of the online network in such an update
    loss: Literal["mse", "huber"] = "mse"  # of temporal differences
    double: bool = False  # the online network chooses the action that the target network values

    # ---- the network

    dueling: bool = False  # advantages and a value of the state
    num_atoms: int = 0  # of a distribution of returns; 0: their mean alone
    v_min: float = -10.0  # its lowest return
    v_max: float = 10.0  # its highest return
    noisy: bool = False  # dense layers explore by noise in their weights
    sigma0: float = 0.5  # of that noise, at first

    # ---- exploration

    exploration: Literal["schedule", "ladder"] = "schedule"  # ladder: 0.4 ** linspace(1, 8) over the fleet, at least
    start_e: float = 1.0  # share of random actions, at first
    end_e: float = 0.05  # at the end of the line
    exploration_fraction: float = 0.5  # of total_timesteps that the line takes

    def check(self) -> None:
        super().check()
        self.check_positive("buffer_size", "minibatch_size", "n_step", "target_network_frequency")
        self.check_shares("tau", "start_e", "end_e", "exploration_fraction", "alpha", "beta", "beta_final")
        if self.gradient_steps < 1 and self.gradient_steps != -1:
            raise ConfigError(f"gradient_steps is {self.gradient_steps}: 1 or more, or -1 for one per environment step")
        self._check_buffer()
        if self.num_atoms == 1:
            raise ConfigError("num_atoms is 1: 2 or more, or 0 for no distribution")
        if self.num_atoms and self.v_min >= self.v_max:
            raise ConfigError(f"v_min is {self.v_min}: less than v_max, which is {self.v_max}")
        if self.actor_priorities and (self.num_atoms or not self.prioritized):
            raise ConfigError("actor_priorities are errors of means: they want prioritized, and num_atoms 0")

    def _check_buffer(self) -> None:
        least = 4 * self.batch_size
        if self.buffer_size < least:
            raise ConfigError(f"buffer_size is {self.buffer_size}: at least {least}, which are four rounds")
        least = self.num_envs * (self.num_steps + self.n_step + 1)
        if self.buffer_size < least:
            raise ConfigError(
                f"buffer_size is {self.buffer_size}: at least {least}, or n_step less than {self.n_step}, as rows are "
                "overwritten before their windows are complete"
            )


@dataclass(frozen=True, kw_only=True)
class C51Config(DQNConfig):
    """Learns a distribution of returns. The defaults are CleanRL's for classic control."""

    adam_eps: float = 0.01 / 128  # of Adam
    num_atoms: int = 101  # of a distribution of returns; 0: their mean alone
    v_min: float = -100.0  # its lowest return
    v_max: float = 100.0  # its highest return


@dataclass(frozen=True, kw_only=True)
class RainbowConfig(C51Config):
    """Everything at once: double, dueling, n-step, prioritized, distributional, noisy. The paper's is preset atari."""

    num_steps: int = 4  # per environment and round
    gradient_steps: int = 2  # for each round; -1: as many as it has environment steps
    learning_rate: float = 5.0e-4  # of the optimiser
    learning_starts: int = 1_000  # environment steps before the first gradient step
    double: bool = True  # the online network chooses the action that the target network values
    dueling: bool = True  # advantages and a value of the state
    n_step: int = 3  # rewards before the bootstrap
    prioritized: bool = True  # draw by priority rather than evenly
    alpha: float = 0.5  # exponent of priorities
    noisy: bool = True  # dense layers explore by noise in their weights
    start_e: float = 0.0  # share of random actions, at first
    end_e: float = 0.0  # at the end of the line
    max_grad_norm: float = 10.0  # of all gradients together; 0: not limited


@dataclass(frozen=True, kw_only=True)
class ApexConfig(DQNConfig):
    """Many lanes, each exploring in its own measure, and one learner on what they found surprising."""

    mode: str = "async"  # sync; lag N: collection is at most N rounds ahead; async: free-running
    num_envs: int = 8  # environments that are stepped side by side
    lanes: int | None = None  # processes that share them; None: by the cores of the servers
    num_steps: int = 20  # per environment and round
    gradient_steps: int = 20  # for each round; -1: as many as it has environment steps
    buffer_size: int = 100_000  # transitions that are kept
    learning_starts: int = 1_000  # environment steps before the first gradient step
    double: bool = True  # the online network chooses the action that the target network values
    dueling: bool = True  # advantages and a value of the state
    loss: Literal["mse", "huber"] = "huber"  # of temporal differences
    max_grad_norm: float = 40.0  # of all gradients together; 0: not limited
    n_step: int = 3  # rewards before the bootstrap
    prioritized: bool = True  # draw by priority rather than evenly
    beta_final: float = 0.4  # at the end, in a straight line
    actor_priorities: bool = True  # what is new has the error that acting saw, rather than the largest priority
    exploration: Literal["schedule", "ladder"] = "ladder"  # ladder: 0.4 ** linspace(1, 8) over the fleet, at least
    end_e: float = 0.0  # at the end of the line
    exploration_fraction: float = 0.1  # of total_timesteps that the line takes
