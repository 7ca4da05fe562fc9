"""`asyncrl search`: plays episodes by looking ahead, with a run's network or with none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import tyro

from asyncrl.cli.access import Reach
from asyncrl.errors import ConfigError

if TYPE_CHECKING:
    from asyncrl.config import RunConfig
    from asyncrl.run.checkpoints import Checkpoint
    from asyncrl.run.searching_play import SearchPlayed
    from asyncrl.search import SearchConfig

Servers = Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT,...", help_behavior_hint="(default: our own)")]
Number = Annotated[int, tyro.conf.arg(metavar="N")]
Share = Annotated[float, tyro.conf.arg(metavar="X")]
Algorithm = Literal["puct", "gumbel", "best-of"]

DEFAULT_GAMMA: Final = 0.99
NO_KWARGS: Final = "{}"
ROLLOUT_STEPS: Final = 1000


@dataclass(frozen=True, kw_only=True)
class SearchHow(Reach):
    """How a search is done; `asyncrl eval` has these, too."""

    sims: Number = 50
    """Simulations before each action."""

    waves: Number = 8
    """Most simulations of one state that are under way at once."""

    rng: Literal["resample", "frozen", "open_loop"] = "resample"
    """Luck of simulated steps: drawn anew; that of the real environment, for those without luck only; or drawn anew
    from the root on."""

    num_sampled: Number = 0
    """Actions that are drawn for each state where they cannot be listed; 0: they can."""

    search_servers: Annotated[
        str | None, tyro.conf.arg(metavar="HOST:PORT,...", help_behavior_hint="(default: where the environments are)")
    ] = None
    """Env servers to look ahead on; states travel to them from those of --servers."""

    servers: Servers = None
    """Env servers; without them one is started as a child process."""

    def changed(self) -> list[str]:
        """Names of the options of a search that are not at their defaults."""
        own = [field for field in fields(SearchHow) if field.name in SearchHow.__annotations__.keys() - {"servers"}]
        return [field.name for field in own if getattr(self, field.name) != field.default]

    def check(self) -> None:
        if self.sims < 1 or self.waves < 1 or self.num_sampled < 0:
            raise ConfigError("--sims and --waves are 1 or more, --num-sampled is 0 or more")
        if self.search_servers is not None and self.servers is None:
            raise ConfigError(
                "--search-servers need --servers, all with one --snapshot-key-file: nobody else's server believes the"
                " states of a child process"
            )


@dataclass(frozen=True, kw_only=True)
class Search(SearchHow):
    """Plays whole episodes by search in the real simulator, and says what they return and what they cost."""

    env_id: Annotated[str | None, tyro.conf.arg(metavar="ID", help_behavior_hint="(default: that of the run)")] = None
    """Environment: an id, or an alias of the servers."""

    env_kwargs: Annotated[str, tyro.conf.arg(metavar="JSON")] = NO_KWARGS
    """Keyword arguments for the environment; a run has its own."""

    algorithm: Algorithm = "puct"
    """best-of: no tree, the mean of rollouts over each action."""

    leaf: Annotated[str, tyro.conf.arg(metavar="rollout|zero|RUN")] = "rollout"
    """What a state at the end of a simulation is worth: what random actions return from there, nothing, or what the
    network of the run in this directory says."""

    rollout_steps: Annotated[
        int | None, tyro.conf.arg(metavar="N", help_behavior_hint=f"(default: {ROLLOUT_STEPS})")
    ] = None
    """Longest rollout, with --leaf rollout."""

    gamma: Annotated[
        float | None, tyro.conf.arg(metavar="X", help_behavior_hint="(default: 0.99, or that of the run)")
    ] = None
    """Discount."""

    episodes: Number = 10
    """How many."""

    num_envs: Number = 4
    """Environments that are played side by side."""

    seed: Number = 1
    """Environment i begins with seed + i."""

    def check(self) -> None:
        super().check()
        if self.episodes < 1 or self.num_envs < 1:
            raise ConfigError("--episodes and --num-envs are 1 or more")
        if self.gamma is not None and not 0 <= self.gamma <= 1:
            raise ConfigError(f"--gamma {self.gamma:g}: a discount lies between 0 and 1")
        if self.algorithm == "best-of" and self.leaf != "rollout":
            raise ConfigError("--algorithm best-of averages rollouts: it has no other --leaf")
        if self.rollout_steps is None:
            return
        if self.leaf != "rollout":
            raise ConfigError("--rollout-steps is for --leaf rollout: no other has rollouts")

        from asyncrl.wire.snapshot_bodies import MAX_STEPS

        if not 1 <= self.rollout_steps <= MAX_STEPS:
            raise ConfigError(f"--rollout-steps {self.rollout_steps}: 1 to {MAX_STEPS} are possible")


def plan_of(
    how: SearchHow, algorithm: Algorithm, leaf: str, gamma: float, rollout_steps: int = ROLLOUT_STEPS
) -> SearchConfig:
    """For play: no noise anywhere."""
    from asyncrl.search.config import CRITIC_SPAN, SearchConfig

    kinds: dict[str, Literal["rollout", "zero"]] = {"rollout": "rollout", "zero": "zero"}
    names: dict[str, Literal["puct", "gumbel", "rollouts"]] = {"puct": "puct", "gumbel": "gumbel"}
    return SearchConfig(
        algorithm=names.get(algorithm, "rollouts"),
        num_simulations=how.sims,
        waves=how.waves,
        rng=how.rng,
        leaf=kinds.get(leaf, "evaluate"),
        discount=gamma,
        rollout_steps=rollout_steps,
        gumbel_scale=0.0,
        min_span=SearchConfig.min_span if leaf in kinds else CRITIC_SPAN,
        num_sampled=how.num_sampled,
    )


def run(arguments: Sequence[str]) -> int:
    """The command; its exit status."""
    options = tyro.cli(Search, prog="asyncrl search", args=list(arguments))
    options.check()
    config, checkpoint = _played(options)

    from asyncrl.client.loop_factory import new_event_loop
    from asyncrl.run.searching_play import SearchPlayWish, play_by_search

    gamma = options.gamma
    if gamma is None:
        gamma = DEFAULT_GAMMA if checkpoint is None else config.gamma
    wish = SearchPlayWish(
        plan=plan_of(options, options.algorithm, options.leaf, gamma, options.rollout_steps or ROLLOUT_STEPS),
        episodes=options.episodes,
        num_envs=options.num_envs,
        seed=options.seed,
        checkpoint=checkpoint,
        search_servers=options.search_servers,
    )
    access = options.access if options.servers else None
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        played = runner.run(play_by_search(config, wish, options.servers, access, _Episodes().ended))
    _say(played, options, config.env_id)
    return 0


def _played(options: Search) -> tuple[RunConfig, tuple[str, Checkpoint] | None]:
    """What is played, and the weights that judge it."""
    from asyncrl.config import RunConfig

    if options.leaf in ("rollout", "zero"):
        if options.env_id is None:
            raise ConfigError("--env-id is missing: there is no run that says what to play")
        return RunConfig(env_id=options.env_id, env_kwargs=options.env_kwargs), None

    from asyncrl.run.checkpoints import load_newest
    from asyncrl.run.run_dir import RunDir
    from asyncrl.run.session import saved_config

    folder = RunDir(Path(options.leaf))
    if not folder.config.exists():
        raise ConfigError(f"--leaf {options.leaf}: rollout, zero, or the directory of a run, which this is not")
    algorithm, config = saved_config(folder)
    if options.env_id not in (None, config.env_id):
        raise ConfigError(f"--leaf {options.leaf} is a run of {config.env_id}, not of {options.env_id}")
    if options.env_kwargs != NO_KWARGS:
        raise ConfigError(f"--leaf {options.leaf} has the --env-kwargs of its run: leave them out")
    return config, (algorithm, load_newest(folder.checkpoints, to_act=True))


class _Episodes:
    """Says what each returned."""

    def __init__(self) -> None:
        self._count = 0

    def ended(self, ret: float, length: int) -> None:
        self._count += 1
        print(f"episode {self._count}: return {ret:.2f}, {length} steps", flush=True)


def _say(played: SearchPlayed, options: Search, env_id: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    found, stats, counts = played.evaluation, played.stats, played.counts
    table = Table(title=f"{env_id}, {options.algorithm}, {options.sims} simulations, leaf {options.leaf}")
    table.add_column("")
    table.add_column("", justify="right")
    failures = ", ".join(f"{count} {name}" for name, count in stats.failures.items()) or "none"
    refused = "".join(f", {count} more refused: {name}" for name, count in stats.refused.items())
    rows = {
        "return": f"{found.mean:.2f} ± {found.std:.2f} over {len(found.returns)} episodes",
        "returns": f"{min(found.returns):.2f} to {max(found.returns):.2f}",
        "steps played": f"{sum(found.lengths):,}",
        "states searched": f"{stats.roots:,}{refused}",
        "simulations": f"{stats.simulations:,}, failed: {failures}",
        "simulations/s": f"{stats.simulations / max(stats.searching_s, 1e-9):,.0f}",
        "steps of simulators": f"{counts.steps:,}",
        "per frame": f"{counts.entries / max(counts.frames, 1):.1f} of {counts.frames:,} frames",
        "seconds": f"{played.wall_s:.1f}",
    }
    for name, value in rows.items():
        table.add_row(name, escape(value))
    Console(highlight=False).print(table)
