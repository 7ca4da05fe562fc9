"""`SearchSettings`: how a learner's lanes look ahead, and what is learned from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from asyncrl.config.run_config import RunConfig
from asyncrl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class SearchSettings(RunConfig):
    """Of a policy that searches improve. Where `search` is off, nothing else counts.

    exit is expert iteration: every state is searched, what is found is played, and the policy and the value that were
    found are learned. With ppo-aux a share of the states is searched; PPO plays and learns as ever, and learns the
    policies that were found besides.
    """

    search: Literal["off", "exit", "ppo-aux"] = "off"  # exit: play and learn what searches find; ppo-aux: learn besides
    search_algorithm: Literal["puct", "gumbel"] = "gumbel"  # gumbel improves the policy with few simulations
    search_sims: int = 16  # simulations of a search, once there are as many as there will be
    search_sims_first: int = 4  # simulations of a search in the beginning
    search_ramp: float = 0.5  # share of total_timesteps in which they become more
    search_share: float = 0.25  # ppo-aux: of states that are searched
    search_coef: float = 1.0  # weight of the distance to the policy that searches recommend
    search_window: int = 4  # exit: rounds that are learned from, the newest among them
    search_waves: int = 8  # simulations of a search that are under way at once
    search_rng: Literal["resample", "frozen", "open_loop"] = "resample"  # luck; frozen: for environments without
    search_temperature: float = 1.0  # exit: of what is played
    search_epsilon: float = 0.0  # exit: share of random actions in what is played
    search_noise: float = 0.25  # puct: share of Dirichlet noise in the prior of the root
    search_noise_alpha: float = 0.0  # of that noise; 0: ten divided by the number of actions
    search_servers: str = ""  # env servers to look ahead on; by default the lanes' own

    def simulations(self, steps: int) -> int:
        """Of a search, after so many environment steps of the run."""
        ramp = self.search_ramp * self.total_timesteps
        part = min(steps / ramp, 1.0) if ramp else 1.0
        return round(self.search_sims_first + part * (self.search_sims - self.search_sims_first))

    def check(self) -> None:
        super().check()
        self.check_positive("search_sims", "search_sims_first", "search_waves", "search_window")
        self.check_shares("search_ramp", "search_share", "search_epsilon", "search_noise")
        for name in ("search_temperature", "search_noise_alpha"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: 0 or more")
        if self.search == "exit" and not self.search_temperature:
            raise ConfigError("search_temperature is 0: what is played needs a probability, such as 0.25 gives it")
