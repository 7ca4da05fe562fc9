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

    # ---- what is trained on

    env_id: str = "CartPole-v1"  # environment: an id, or an alias of the servers
    env_kwargs: str = "{}"  # JSON object: keyword arguments for the environment
    num_envs: int = 4  # environments that are stepped side by side
    lanes: int | None = None  # processes that share them; None: by the cores of the servers
    host: Literal["auto", "native", "slots"] = "auto"  # native vector environment, or a loop over single ones
    autoreset: Literal["same_step", "next_step"] = "same_step"  # next_step: all that most native ones can do

    # ---- how much, and how it is collected

    total_timesteps: int = 500_000  # environment steps
    seed: int = 1  # of everything; environment i begins with seed + i
    num_steps: int = 128  # per environment and round
    mode: str = "sync"  # sync; lag N: collection is at most N rounds ahead; async: free-running
    max_lag: int = 100  # async: data this many versions old is dropped
    act_groups: int = 2  # sync: fixed groups of lanes that act together

    # ---- the update

    learning_rate: float = 2.5e-4  # of Adam
    anneal_lr: bool = True  # linearly to 0
    adam_eps: float = 1e-5  # of Adam
    gamma: float = 0.99  # discount
    gae_lambda: float = 0.95  # of the advantages
    num_minibatches: int = 4  # of an epoch
    update_epochs: int = 4  # over each round
    norm_adv: bool = True  # normalise advantages, per minibatch
    clip_coef: float = 0.2  # of the surrogate; 0: no clip
    anneal_clip: bool = False  # linearly to 0
    clip_vloss: bool = True  # clip the value loss by the same
    ent_coef: float = 0.01  # weight of the entropy
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # of all gradients together
    target_kl: float | None = None  # end a round's epochs early above it
    correction: Literal["auto", "none", "vtrace"] = "auto"  # for data of older versions; auto: vtrace unless sync

    # ---- the model

    network: str = "auto"  # mlp, nature, impala, module:function of your own; auto: by the observations
    hidden_sizes: tuple[int, ...] = (64, 64)  # of mlp
    activation: Literal["tanh", "relu", "elu"] = "tanh"  # of mlp
    share_trunk: bool = False  # one trunk under policy and value
    gru_size: int = 0  # units of a recurrent layer; 0: feed-forward
    log_std_init: float = 0.0  # of continuous actions
    use_sde: bool = False  # state-dependent exploration, for continuous actions
    sde_sample_freq: int = -1  # steps between draws of its matrix; -1: once a round
    normalize_obs: bool = False  # by running mean and deviation, which are part of the model
    clip_obs: float = 10.0  # of normalised observations
    normalize_reward: bool = False  # by the running deviation of the discounted return
    clip_reward: float = 0.0  # of (normalised) rewards; 0: not
    sign_reward: bool = False  # learn from the sign of rewards alone, as is usual for Atari

    # ---- the machine

    device: str = "auto"  # auto, cpu, cuda
    bf16: bool = False  # autocast to bfloat16, channels last
    compile: bool = False  # torch.compile
    learner_threads: int = 0  # of torch; 0: chosen, and printed
    act_threads: int = 0  # of torch; 0: chosen, and printed
    nonfinite: Literal["cut", "raise"] = "raise"  # NaN in observations or loss: cut and go on, or stop

    # ---- what is kept

    run_dir: str = "runs"  # folder of all runs
    run_name: str = ""  # default: {env_id}__{algorithm}__{seed}__{unix_time}
    resume: str = "auto"  # auto: where the run's folder has a checkpoint; no; or the folder of a run
    checkpoint_every: int = 100_000  # steps; 0: at the end alone
    keep_checkpoints: int = 3  # newest ones, beside the best
    eval_every: int = 50_000  # steps; 0: at the end alone
    eval_episodes: int = 10  # of each evaluation
    final_eval_episodes: int = 100  # of the one at the end
    eval_envs: int = 4  # environments of the evaluation
    track: bool = True  # write TensorBoard files
    tb_style: Literal["cleanrl", "sb3", "both"] = "cleanrl"  # names of its tags

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
