"""What a run is asked for: one flat frozen dataclass per algorithm, for Python and for the command line.

Hyperparameters are spelt as in CleanRL. Steps are environment steps (Atari: four frames each), everywhere.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from asyncrl.errors import ConfigError

_MODE: Final = re.compile(r"sync|async|lag ?([1-9][0-9]*)")


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Proximal policy optimisation. The defaults are CleanRL's for classic control."""

    # What is trained on.
    env_id: str = "CartPole-v1"
    env_kwargs: str = "{}"  # JSON
    num_envs: int = 4
    lanes: int | None = None  # None: 2 to 4 per core of the servers
    host: Literal["auto", "native", "slots"] = "auto"
    autoreset: Literal["auto", "same_step", "next_step"] = "auto"  # auto: next_step where only that is native

    # How much, and how it is drawn.
    total_timesteps: int = 500_000
    seed: int = 1
    num_steps: int = 128  # of an unroll
    mode: str = "sync"  # sync; lag N: collection is at most N rounds ahead; async: free-running
    max_lag: int = 100  # versions after which data is dropped, in mode async
    act_groups: int = 2  # fixed groups of lanes that act together, in mode sync

    # The update.
    learning_rate: float = 2.5e-4
    anneal_lr: bool = True
    adam_eps: float = 1e-5
    gamma: float = 0.99
    gae_lambda: float = 0.95
    num_minibatches: int = 4
    update_epochs: int = 4
    norm_adv: bool = True
    clip_coef: float = 0.2  # 0: no clip
    anneal_clip: bool = False
    clip_vloss: bool = True
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    target_kl: float | None = None
    correction: Literal["auto", "none", "vtrace"] = "auto"  # for data of older versions; auto: vtrace unless sync

    # The model.
    network: str = "auto"  # mlp, nature, impala, auto, or module:function
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu", "elu"] = "tanh"
    share_trunk: bool = False
    gru_size: int = 0  # 0: feed-forward
    log_std_init: float = 0.0
    use_sde: bool = False
    sde_sample_freq: int = -1
    normalize_obs: bool = False
    normalize_reward: bool = False
    clip_obs: float = 10.0
    clip_reward: float = 0.0  # 0: not; with normalize_reward after scaling; sign: 1 in Atari's convention
    sign_reward: bool = False

    # The machine.
    device: str = "auto"
    bf16: bool = False
    compile: bool = False
    learner_threads: int = 0  # 0: chosen and printed
    act_threads: int = 0
    nonfinite: Literal["cut", "raise"] = "raise"

    # What is kept.
    run_dir: str = "runs"
    run_name: str = ""  # "": {env_id}__ppo__{seed}__{unix_time}
    resume: str = "auto"  # auto, no, or a run directory
    checkpoint_every: int = 100_000  # steps; 0: at the end alone
    keep_checkpoints: int = 3
    eval_every: int = 50_000  # steps; 0: at the end alone
    eval_episodes: int = 10
    final_eval_episodes: int = 100
    eval_envs: int = 4
    tb_style: Literal["cleanrl", "sb3", "both"] = "cleanrl"
    track: bool = True  # TensorBoard

    def __post_init__(self) -> None:
        _check(self)

    @property
    def batch_size(self) -> int:
        """Steps of one round."""
        return self.num_envs * self.num_steps

    @property
    def num_rounds(self) -> int:
        return self.total_timesteps // self.batch_size

    @property
    def max_ahead(self) -> int | None:
        """Rounds that collection may be ahead of the learner: 0 in sync; None in async, where rounds do not count."""
        if self.mode == "async":
            return None
        return 0 if self.mode == "sync" else int(self.mode.removeprefix("lag"))

    @property
    def kwargs(self) -> dict[str, Any]:
        """`env_kwargs` as a mapping."""
        try:
            found = json.loads(self.env_kwargs)
        except ValueError as error:
            raise ConfigError(f"env_kwargs is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise ConfigError("env_kwargs has to be a JSON object, such as '{\"noop_max\": 0}'")
        return found


def _check(config: PPOConfig) -> None:
    """Raises ConfigError naming the field, its value and what it may be."""
    if not _MODE.fullmatch(config.mode):
        raise ConfigError(f"mode {config.mode!r}: sync, lag N (such as 'lag 1') or async")
    for name in ("num_envs", "num_steps", "num_minibatches", "update_epochs", "act_groups", "keep_checkpoints"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} is {getattr(config, name)}: 1 or more")
    for name in ("gamma", "gae_lambda"):
        if not 0 <= getattr(config, name) <= 1:
            raise ConfigError(f"{name} is {getattr(config, name)}: 0 to 1")
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value < 0 and field.name not in _SIGNED:
            raise ConfigError(f"{field.name} is {value}: 0 or more")
    if config.total_timesteps < config.batch_size:
        rows = f"num_envs {config.num_envs} x num_steps {config.num_steps} = {config.batch_size}"
        raise ConfigError(f"total_timesteps is {config.total_timesteps}: less than one round of {rows}")
    if config.batch_size % config.num_minibatches:
        raise ConfigError(
            f"num_minibatches is {config.num_minibatches}: it has to divide a round of {config.batch_size} steps"
        )
    assert config.kwargs is not None


_SIGNED: Final = frozenset({"log_std_init", "sde_sample_freq"})
