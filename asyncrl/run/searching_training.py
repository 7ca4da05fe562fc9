"""How the lanes of a training run look ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from asyncrl.client.fleet_lane import FleetLane
from asyncrl.config import PPOConfig, RunConfig
from asyncrl.errors import ConfigError
from asyncrl.learner.prior_policy import prior_policy
from asyncrl.learner.rewards import train_reward
from asyncrl.run.learning import Learning
from asyncrl.run.searching import SearchActor, SearchWish
from asyncrl.search import SearchConfig
from asyncrl.search.lane_actions import check_support, num_actions


def searching(config: RunConfig) -> PPOConfig | None:
    """The configuration, of a run that searches."""
    return config if isinstance(config, PPOConfig) and config.search != "off" else None


def plan_of(config: PPOConfig, act_step: int) -> SearchConfig:
    """For the `act_step`-th action of each slot: simulations become more, and what is played has a probability."""
    return SearchConfig(
        algorithm=config.search_algorithm,
        num_simulations=config.simulations(act_step * config.num_envs),
        waves=config.search_waves,
        rng=config.search_rng,
        discount=config.gamma,
        temperature=config.search_temperature,
        epsilon=config.search_epsilon,
        noise_fraction=config.search_noise if config.search_algorithm == "puct" else 0.0,
        noise_alpha=config.search_noise_alpha or None,
    )


def actor_maker(
    config: PPOConfig, learning: Learning, lanes: Sequence[FleetLane], simulation_lanes: Sequence[FleetLane]
) -> Callable[[], SearchActor]:
    """Makes the actor of a collector. ConfigError where the environment or the network cannot be searched with."""
    check_support(lanes, exports=bool(simulation_lanes))
    if not num_actions(learning.spec):
        raise ConfigError(f"search {config.search!r} learns policies over one Discrete action: this is another space")
    policy = prior_policy(learning.learner, learning.box, threads=learning.threads.acting)
    groups = min(config.act_groups, len(lanes)) if config.max_ahead == 0 else len(lanes)
    acts = config.search == "exit"
    wish = SearchWish(
        plan=partial(plan_of, config),
        seed=config.seed,
        num_groups=groups,
        acts=acts,
        share=1.0 if acts else config.search_share,
        keeps=True,
        reward=partial(train_reward, config=config),
        brief=config.max_ahead == 0 and learning.acts_briefly,
    )
    return lambda: SearchActor(lanes, wish, policy, simulation_lanes)
