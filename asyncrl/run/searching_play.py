"""Whole episodes played by looking ahead: `asyncrl search`, and `asyncrl eval RUN --search`.

Invariants: what is looked ahead from is what is played (test_a_plan_is_played_where_it_was_made); on which machine that
is done changes nothing (test_states_travel_to_servers_for_searching).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from asyncrl.client.credentials import Access
from asyncrl.client.fleet import Fleet
from asyncrl.config import RunConfig
from asyncrl.errors import AsyncRLError, CheckpointMismatch, ConfigError
from asyncrl.gym_spaces import space_of
from asyncrl.learner.actor_critic import ActorCriticLearner
from asyncrl.learner.prior_policy import prior_policy, proposing_policy
from asyncrl.learner.rewards import train_reward
from asyncrl.policy import Policy
from asyncrl.records import Array
from asyncrl.run.checkpoints import Checkpoint
from asyncrl.run.evaluation import Evaluation, OnEpisode, evaluate_actor
from asyncrl.run.learning import Learning, Saved
from asyncrl.run.manifests import Identity
from asyncrl.run.searching import SearchActor, SearchStats, SearchWish
from asyncrl.run.searching_lanes import simulation_lanes
from asyncrl.run.serving import serving
from asyncrl.search import SearchConfig
from asyncrl.search.lane_actions import check_support, num_actions
from asyncrl.search.local import UniformProposals
from asyncrl.search.remote import RemoteCounts

GROUPS: Final = 2  # one looks ahead while the leaves of the other are judged


@dataclass(frozen=True, kw_only=True)
class SearchPlayWish:
    """What is played and how."""

    plan: SearchConfig
    episodes: int = 10
    num_envs: int = 4  # side by side
    seed: int = 1  # environment i begins with seed + i
    checkpoint: tuple[str, Checkpoint] | None = None  # algorithm and weights that judge leaves
    search_servers: str | Sequence[str] | None = None  # where to look ahead; None: where the environments are


class SearchPlayed(NamedTuple):
    """What came of it."""

    evaluation: Evaluation
    stats: SearchStats
    counts: RemoteCounts
    wall_s: float


async def play_by_search(
    config: RunConfig,
    wish: SearchPlayWish,
    servers: str | Sequence[str] | None,
    access: Access | None = None,
    on_episode: OnEpisode = lambda ret, length: None,
) -> SearchPlayed:
    """Play on `servers`, or on an env server of our own. Cancelled, it closes everything.

    Raises ConfigError where the environment holds no states, or where the plan or the search servers do not suit it;
    CheckpointMismatch where the weights are of another one; AsyncRLError where in all these episodes no simulation came
    back.
    """
    num_envs = min(wish.num_envs, wish.episodes)
    settings: dict[str, Any] = {"auto_reset": False, "seed": wish.seed, "snapshots": True}
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(serving(config, servers, access, num_envs))
        fleet = await stack.enter_async_context(found.fleet(num_envs=num_envs, lanes=config.lanes, **settings))
        others = await simulation_lanes(stack, found, wish.search_servers)
        check_support(fleet.lanes, exports=bool(others))
        assert fleet.spec is not None
        if not num_actions(fleet.spec) and not wish.plan.num_sampled:
            raise ConfigError(
                f"actions of {config.env_id} cannot be listed: --num-sampled (num_sampled) says how many are drawn for"
                " each state"
            )
        policy, reward, brief = None, None, True
        if wish.checkpoint is not None:
            policy, reward, brief = await asyncio.to_thread(_judge, config, wish, fleet)
        searched = SearchWish(
            plan=lambda step: wish.plan,
            seed=wish.seed,
            num_groups=GROUPS,
            reward=reward,
            brief=brief,
            propose=_by_chance(fleet) if wish.plan.num_sampled else None,
        )
        began = time.perf_counter()
        actor = SearchActor(fleet.lanes, searched, policy, others)
        async with actor:
            played = await evaluate_actor(fleet, actor, wish.episodes, wish.seed, on_episode)
        if not actor.stats.simulations:
            raise AsyncRLError(f"nothing was found out: of the simulations none came back ({_failures(actor.stats)})")
        return SearchPlayed(played, actor.stats, actor.simulator.counts, time.perf_counter() - began)


def _failures(stats: SearchStats) -> str:
    return ", ".join(f"{count} {name}" for name, count in (stats.failures + stats.refused).items())


def _by_chance(fleet: Fleet) -> UniformProposals:
    """Any action of the space is as good as another."""
    assert fleet.spec is not None
    return UniformProposals(space_of(fleet.spec.action))


def _judge(config: RunConfig, wish: SearchPlayWish, fleet: Fleet) -> tuple[Policy, Callable[[Array], Array], bool]:
    """The network of a run, what it was rewarded with, and whether its forwards are brief."""
    assert wish.checkpoint is not None
    assert fleet.spec is not None
    algorithm, saved = wish.checkpoint
    Identity(algorithm, config.env_id, fleet.spec.hash().hex()).check(saved.manifest.identity, saved.path)
    learning = Learning(config, fleet.spec)
    learning.load(Saved.of(saved.parts), to_act=True)
    threads = learning.threads.acting
    policy: Policy
    if wish.plan.num_sampled:
        policy = proposing_policy(learning.learner, wish.plan.num_sampled, threads=threads)
    else:
        policy = prior_policy(learning.learner, None, threads=threads)
    return policy, reward_of(learning, config), learning.acts_briefly


def reward_of(learning: Learning, config: RunConfig) -> Callable[[Array], Array]:
    """From raw rewards to those that the values of this learner are of."""
    learner = learning.learner
    if not isinstance(learner, ActorCriticLearner):
        raise CheckpointMismatch(f"{type(learner).__name__} has no value to search with")
    scaler = learner.model.rewards
    return partial(train_reward, config=config, divisor=1.0 if scaler is None else scaler.divisor)
