"""Settings of one search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from asyncrl.errors import ConfigError
from asyncrl.search.simulator import RngMode

CRITIC_SPAN: Final = 1.0  # `min_span` where a learned critic judges leaves


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Defaults are sequential PUCT with a network's values; docs/search.md says which settings suit what."""

    algorithm: Literal["puct", "gumbel", "rollouts"] = "puct"
    """`rollouts` has no tree: it averages rollouts over each action of the root."""
    num_simulations: int = 50
    discount: float = 0.99
    waves: int = 1
    """Most simulations of a root that are in flight at once; 1 is the sequential search."""
    groups: int = 1
    """Roots are split into so many groups, which are under way side by side. It changes no result."""

    c1: float = 1.25
    c2: float = 19652.0
    min_span: float = 1e-8
    """Values of a node are compared on the scale from its lowest to its highest, which is no shorter than this. With
    1 differences that are small beside a reward of 1 weigh little, such as those by which a critic's noise differs."""

    max_considered: int = 16
    """Gumbel: actions of the root that are tried at all."""
    gumbel_scale: float = 1.0
    """Gumbel: 0 for play without noise."""
    value_scale: float = 0.1
    maxvisit_init: float = 50.0
    use_mixed_value: bool = True
    """Gumbel: actions that were not tried count as a mix of values seen; otherwise as the leaf value of their state."""

    noise_fraction: float = 0.0
    """Share of Dirichlet noise in the prior of the root (PUCT)."""
    noise_alpha: float | None = None
    """Default: 10 divided by the number of legal actions."""
    temperature: float = 0.0
    """Of the action that is played, not of the training target; 0: the best one."""
    epsilon: float = 0.0
    """Share of uniformly random legal actions among those played."""

    leaf: Literal["evaluate", "rollout", "zero"] = "evaluate"
    """What a leaf is worth: what `evaluate` says, what a random rollout returns, or nothing."""
    rollout_steps: int = 1000
    rng: RngMode = "resample"
    """Luck of the steps. `frozen` knows the future of an environment that rolls dice: for deterministic ones only."""
    num_sampled: int = 0
    """Actions drawn for each state where they cannot be enumerated; 0: they can."""

    deadline_s: float | None = None
    """After this time the search returns what it has; the evaluation of the roots is waited for."""
    keep_tree: bool = False
    """The states in the trees stay with the simulator, for `advance` or `release_tree`."""

    def __post_init__(self) -> None:
        if self.num_simulations < 0 or self.waves < 1 or self.groups < 1 or self.max_considered < 1:
            raise ConfigError("num_simulations is at least 0; waves, groups and max_considered are at least 1")
        if not 0 <= self.discount <= 1:
            raise ConfigError(f"discount is {self.discount:g}: it lies between 0 and 1")
        if self.algorithm == "rollouts" and self.leaf != "rollout":
            raise ConfigError('algorithm="rollouts" averages rollouts: pass leaf="rollout" with it')
        if self.leaf == "rollout" and self.rollout_steps < 1:
            raise ConfigError('leaf="rollout" needs rollout_steps of at least 1')
        if not self.min_span > 0:
            raise ConfigError("min_span is more than 0: values that are all equal are divided by it")
        if not (0 <= self.noise_fraction <= 1 and 0 <= self.epsilon <= 1 and self.temperature >= 0):
            raise ConfigError("noise_fraction and epsilon lie between 0 and 1; temperature is not negative")
        if self.keep_tree and (self.algorithm != "puct" or self.rng == "open_loop"):
            raise ConfigError("only trees of PUCT can be searched on, and not those of rng='open_loop': no keep_tree")
