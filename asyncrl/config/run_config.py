"""`RunConfig`: the settings that every algorithm has."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, Literal

from asyncrl.errors import ConfigError

_MODE: Final = re.compile(r"sync|async|lag ?([1-9][0-9]*)")
_SIGNED: Final = frozenset({"log_std_init", "sde_sample_freq", "gradient_steps", "v_min", "v_max"})
_POSITIVE: Final = (
    "num_envs",
    "num_steps",
    "act_groups",
    "keep_checkpoints",
    "eval_episodes",
    "final_eval_episodes",
    "eval_envs",
)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What is trained on, how it is collected, on what machine, and what is kept."""

    # With another of these the weights would not fit, or what is counted in rounds would change its meaning.
    FIXED: ClassVar[tuple[str, ...]] = (
        *("env_id", "seed", "num_envs", "num_steps"),
        *("network", "hidden_sizes", "activation", "optimizer"),
    )

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
    max_lag: int = 100  # async: data more than this many versions old is dropped
    act_groups: int = 2  # sync: fixed groups of lanes that act together

    # ---- the update

    learning_rate: float = 2.5e-4  # of the optimiser
    anneal_lr: bool = True  # linearly to 0
    optimizer: Literal["adam", "rmsprop"] = "adam"  # of the update: Adam or RMSprop
    adam_eps: float = 1e-5  # of Adam
    rms_alpha: float = 0.99  # RMSprop: decay of its running means
    rms_eps: float = 1e-5  # of RMSprop
    rms_momentum: float = 0.0  # of RMSprop
    rms_centered: bool = False  # RMSprop: divide by the deviation
    rms_style: Literal["tf", "torch"] = "tf"  # RMSprop: epsilon inside the root, or outside
    max_grad_norm: float = 0.5  # of all gradients together; 0: not limited
    gamma: float = 0.99  # discount
    clip_reward: float = 0.0  # of (normalised) rewards; 0: not
    sign_reward: bool = False  # learn from the sign of rewards alone, as is usual for Atari

    # ---- the network

    network: str = "auto"  # mlp, nature, impala, module:function of your own; auto: by the observations
    hidden_sizes: tuple[int, ...] = (64, 64)  # of mlp
    activation: Literal["tanh", "relu", "elu"] = "tanh"  # of mlp

    # ---- the machine

    device: str = "auto"  # auto, cpu, cuda
    bf16: bool = False  # autocast to bfloat16
    compile: bool = False  # torch.compile
    learner_threads: int = 0  # of torch; 0: chosen, and printed
    act_threads: int = 0  # of torch; 0: chosen, and printed
    nonfinite: Literal["cut", "raise"] = "raise"  # NaN in observations or loss: cut and go on, or stop

    # ---- what is kept

    run_dir: str = "runs"  # folder of all runs
    run_name: str = ""  # default: {env_id}__{algorithm}__{seed}__{unix_time}
    resume: str = "auto"  # auto: where the run's folder has a checkpoint; no; or the folder of a run
    checkpoint_every: int = 100_000  # steps; 0: at the end alone
    checkpoint_minutes: float = 5.0  # the longest without one; 0: by steps alone
    keep_checkpoints: int = 3  # newest ones, beside the best
    eval_every: int = 50_000  # steps; 0: at the end alone
    eval_episodes: int = 10  # of each evaluation
    final_eval_episodes: int = 100  # of the one at the end
    eval_envs: int = 4  # environments of the evaluation
    log_every: int = 0  # steps between points of the curves; 0: every round
    track: bool = True  # write TensorBoard files
    tb_style: Literal["cleanrl", "sb3", "both"] = "cleanrl"  # names of its tags

    def __post_init__(self) -> None:
        self.check()

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

    # ------------------------------------------------------------------ checks

    def check(self) -> None:
        """Raises ConfigError naming the field, its value and what it may be. A configuration adds its own."""
        if not _MODE.fullmatch(self.mode):
            raise ConfigError(f"mode {self.mode!r}: sync, lag N (such as 'lag 1') or async")
        self.check_positive(*_POSITIVE)
        self.check_shares("gamma", "rms_alpha", "rms_momentum")
        for field in fields(self):
            value = getattr(self, field.name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and value < 0 and field.name not in _SIGNED:
                raise ConfigError(f"{field.name} is {value}: 0 or more")
        if self.total_timesteps < self.batch_size:
            rows = f"num_envs {self.num_envs} x num_steps {self.num_steps}"
            raise ConfigError(
                f"total_timesteps is {self.total_timesteps}: less than one round of {self.batch_size} steps ({rows})"
            )
        assert self.kwargs is not None

    def check_positive(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: 1 or more")

    def check_shares(self, *names: str) -> None:
        for name in names:
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: 0 to 1")
