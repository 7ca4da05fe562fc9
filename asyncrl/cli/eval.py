"""`asyncrl eval RUN`: plays the policy of a run, by itself or by searching with it, and films it if wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from asyncrl.cli.search import SearchHow, plan_of
from asyncrl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Eval(SearchHow):
    """Plays whole episodes of a run's policy, every environment the same number, and says their mean return."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The directory of a run."""

    episodes: Annotated[int, tyro.conf.arg(metavar="N")] = 100
    """How many."""

    which: Literal["latest", "best"] = "latest"
    """Which of its checkpoints."""

    num_envs: Annotated[int, tyro.conf.arg(metavar="N")] = 16
    """Environments that are played side by side."""

    seed: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: that of the run)")] = None
    """Environment i begins with seed + i."""

    sampled: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Draw actions, as in training, instead of taking the likeliest."""

    video: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Film one episode, into video/ of the run."""

    search: Literal["off", "puct", "gumbel"] = "off"
    """Look ahead in the simulator before each action; the run's network says what states are worth."""


def run(arguments: Sequence[str]) -> int:
    """The command; its exit status."""
    options = tyro.cli(Eval, prog="asyncrl eval", args=list(arguments))
    if options.episodes < 1 or options.num_envs < 1:
        raise ConfigError("--episodes and --num-envs are 1 or more")
    if options.search == "off" and options.changed():
        names = ", ".join("--" + name.replace("_", "-") for name in options.changed())
        raise ConfigError(f"{names}: for --search puct or gumbel only")
    options.check()
    if options.search != "off" and (options.video or options.sampled):
        raise ConfigError("--search plays what it finds best, and is not filmed: leave out --sampled and --video")

    from asyncrl.client.loop_factory import new_event_loop
    from asyncrl.run.playing import PlayWish, play_run
    from asyncrl.run.run_dir import RunDir
    from asyncrl.run.session import saved_config

    folder = RunDir(options.run)
    if not folder.config.exists():
        raise ConfigError(f"{options.run} is no run: it has no config.json; `asyncrl runs` lists them")
    video = folder.video / f"{options.which}.mp4" if options.video else None
    wish = PlayWish(
        episodes=options.episodes,
        which=options.which,
        num_envs=options.num_envs,
        seed=options.seed,
        deterministic=not options.sampled,
        video=video,
        plan=None if options.search == "off" else plan_of(options, options.search, "", saved_config(folder)[1].gamma),
        search_servers=options.search_servers,
    )
    access = options.access if options.servers else None
    playing = play_run(folder, wish, options.servers, access)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        found = runner.run(playing)
    shortest, longest = min(found.lengths), max(found.lengths)
    print(f"mean return {found.mean:.2f} ± {found.std:.2f} over {len(found.returns)} episodes of {options.run}")
    print(f"returns {min(found.returns):.2f} to {max(found.returns):.2f}, lengths {shortest} to {longest}")
    if video is not None:
        print(f"film {video}")
    return 0
