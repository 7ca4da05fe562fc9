"""A training run as the command line shows it: what is about to happen, the dashboard, and where everything is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from asyncrl.client.credentials import Access
from asyncrl.config import PPOConfig
from asyncrl.run.dashboard import Dashboard
from asyncrl.run.result import Result
from asyncrl.run.running import run_to_the_end


def train_in_console(
    algorithm: str, config: PPOConfig, servers: str | Sequence[str] | None, access: Access | None
) -> int:
    """The run; its exit status."""
    console = Console(highlight=False)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False)

    where = servers or "an env server of its own"
    shape = f"{config.num_envs} x {config.num_steps} steps a round, {config.num_rounds * config.batch_size:,} steps"
    say(f"{algorithm} on {config.env_id}, {where}: {shape}, mode {config.mode}, seed {config.seed}")
    result, folder = run_to_the_end(algorithm, config, servers, access, dashboard=Dashboard(console), say=say)
    for line in closing_lines(result, folder):
        say(line)
    return 0


def closing_lines(result: Result, folder: Path) -> list[str]:
    """What came out, and where it is."""
    lines = [f"{result.env_steps:,} steps in {result.wall_s:,.1f} s, {result.sps:,.0f} steps/s"]
    if result.eval_return_mean is not None:
        spread = f" ± {result.eval_return_std:.2f}" if result.eval_return_std is not None else ""
        lines.append(
            f"evaluation: mean return {result.eval_return_mean:.2f}{spread} over {result.eval_episodes} episodes"
        )
    lines.append(f"run     {folder}    (tensorboard --logdir {folder})")
    if result.checkpoint is not None:
        lines.append(f"model   {folder / result.checkpoint}    (asyncrl eval {folder})")
    if result.plot is not None:
        lines.append(f"plot    {folder / result.plot}")
    return lines
