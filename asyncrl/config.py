"""What a run is asked for: one flat frozen dataclass per algorithm, for Python and for the command line.

Hyperparameters are spelt as in CleanRL. Steps are environment steps (Atari: four frames each), everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["sync", "lag", "async"]


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
    mode: Mode = "sync"
    lag: int = 1  # rounds that collection may be ahead, in mode lag
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
    clip_coef: float = 0.2
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

    @property
    def batch_size(self) -> int:
        """Steps of one round."""
        return self.num_envs * self.num_steps

    @property
    def num_rounds(self) -> int:
        return self.total_timesteps // self.batch_size
