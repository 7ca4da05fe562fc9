"""A run's policy, played: `asyncrl eval`, with a film of the first episode if wanted.

Invariant: what is played is the checkpoint that was asked for, with its normalisers
(test_a_run_is_played_as_it_was_evaluated).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from asyncrl.client.credentials import Access
from asyncrl.client.fleet import Fleet
from asyncrl.config import RunConfig
from asyncrl.errors import ConfigError
from asyncrl.policy import Policy
from asyncrl.run.checkpoints import Checkpoint, load_checkpoint, load_newest
from asyncrl.run.evaluation import Evaluation, evaluate
from asyncrl.run.examining import EVAL_SEED
from asyncrl.run.film import film
from asyncrl.run.learning import Learning, Saved
from asyncrl.run.manifests import Identity, best_of
from asyncrl.run.run_dir import RunDir
from asyncrl.run.searching_play import SearchPlayWish, play_by_search
from asyncrl.run.serving import serving
from asyncrl.run.session import saved_config
from asyncrl.search import SearchConfig

Which = Literal["best", "latest"]


@dataclass(frozen=True, kw_only=True)
class PlayWish:
    """How a run's policy is played."""

    episodes: int = 100
    which: Which = "latest"
    num_envs: int = 16  # side by side
    seed: int | None = None  # environment i begins with seed + i; None: as the run's own evaluations
    deterministic: bool = True
    video: Path | None = None  # where a film of one more episode goes
    plan: SearchConfig | None = None  # look ahead with the run's network; None: as its policy says
    search_servers: str | Sequence[str] | None = None  # where to look ahead; None: where the environments are


async def play_run(
    folder: RunDir, wish: PlayWish, servers: str | Sequence[str] | None = None, access: Access | None = None
) -> Evaluation:
    """Play episodes of the run's policy, after filming one of them. Cancelled, it closes everything.

    Raises ConfigError where there is no such run or no room for a film, NoCheckpoint, CheckpointMismatch.
    """
    algorithm, config = saved_config(folder)
    checkpoint = chosen(folder, wish.which)
    if wish.plan is not None:
        return (
            await play_by_search(config, _search_of(wish, config, (algorithm, checkpoint)), servers, access)
        ).evaluation
    num_envs = min(wish.num_envs, wish.episodes)
    start = config.seed + EVAL_SEED if wish.seed is None else wish.seed
    settings: dict[str, Any] = {"auto_reset": False, "autoreset": config.autoreset, "seed": start}
    async with AsyncExitStack() as stack:
        room = num_envs + (wish.video is not None)
        found = await stack.enter_async_context(serving(config, servers, access, room))
        fleet = await stack.enter_async_context(found.fleet(num_envs=num_envs, host=config.host, **settings))
        policy = await asyncio.to_thread(
            policy_of, checkpoint, algorithm, config, fleet, deterministic=wish.deterministic
        )
        if wish.video is not None:
            async with found.fleet(num_envs=1, render=True, **settings) as filmed:
                await film(filmed, policy, start, wish.video)
        return await evaluate(fleet, policy, wish.episodes, start)


def _search_of(wish: PlayWish, config: RunConfig, checkpoint: tuple[str, Checkpoint]) -> SearchPlayWish:
    assert wish.plan is not None
    return SearchPlayWish(
        plan=wish.plan,
        episodes=wish.episodes,
        num_envs=wish.num_envs,
        seed=config.seed + EVAL_SEED if wish.seed is None else wish.seed,
        checkpoint=checkpoint,
        search_servers=wish.search_servers,
    )


def chosen(folder: RunDir, which: Which) -> Checkpoint:
    """The newest whole checkpoint, or the one that evaluated best."""
    if which == "latest":
        return load_newest(folder.checkpoints, to_act=True)
    best = best_of(folder.checkpoints)
    if best is None:
        raise ConfigError(f"{folder.path} has no best checkpoint: it was never evaluated; take --which latest")
    return load_checkpoint(best[0], to_act=True)


def policy_of(
    checkpoint: Checkpoint, algorithm: str, config: RunConfig, fleet: Fleet, *, deterministic: bool
) -> Policy:
    """Acts with the checkpoint's weights. CheckpointMismatch where the fleet's environments have other spaces."""
    assert fleet.spec is not None
    Identity(algorithm, config.env_id, fleet.spec.hash().hex()).check(checkpoint.manifest.identity, checkpoint.path)
    learning = Learning(config, fleet.spec)
    learning.load(Saved.of(checkpoint.parts), to_act=True)
    return learning.frozen_policy(deterministic=deterministic)
