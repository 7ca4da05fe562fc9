"""A training run as the command line shows it: what is about to happen, the dashboard, and where everything is."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from asyncrl.client.credentials import Access
from asyncrl.config import RunConfig
from asyncrl.run.dashboard import Dashboard
from asyncrl.run.running import Ran, run_to_the_end


def train_in_console(
    algorithm: str, config: RunConfig, servers: str | Sequence[str] | None, access: Access | None
) -> int:
    """The run; its exit status."""
    dashboard = Dashboard(Console(highlight=False))
    steps = f"{config.num_rounds * config.batch_size:,} steps, {config.num_envs} x {config.num_steps} a round"
    if config.batch_size != config.num_envs * config.num_steps:
        steps += f", {config.batch_size:,} an update"
    dashboard.say(f"{algorithm} on {config.env_id}: {steps}, {config.mode}, seed {config.seed}")
    dashboard.say(f"environments: {servers or 'an env server of our own'}")
    ran = run_to_the_end(algorithm, config, servers, access, dashboard=dashboard, say=dashboard.say)
    named = servers if servers is None or isinstance(servers, str) else ",".join(servers)
    for line in closing_lines(algorithm, ran, named):
        dashboard.say(line)
    return 0


def closing_lines(algorithm: str, ran: Ran, servers: str | None = None) -> list[str]:
    """What came out, and where it is."""
    result, folder = ran.result, ran.folder
    if not folder.exists():
        return ["stopped before the first round was trained on: nothing is kept"]
    lines = [f"{result.env_steps:,} steps in {result.wall_s:,.1f} s, {result.sps:,.0f} steps/s"]
    if result.eval_return_mean is not None:
        spread = f" ± {result.eval_return_std:.2f}" if result.eval_return_std is not None else ""
        lines.append(
            f"evaluation: mean return {result.eval_return_mean:.2f}{spread} over {result.eval_episodes} episodes"
        )
    lines.append(f"run     {folder}")
    if result.checkpoint is not None:
        lines.append(f"model   {folder / result.checkpoint}")
    if result.plot is not None:
        lines.append(f"plot    {folder / result.plot}")
    command = f"eval {folder}" if ran.finished else f"train {algorithm} --resume {folder}"
    lines.append(f"next    asyncrl {command}" + ("" if servers is None else f" --servers {servers}"))
    lines.append(f"        tensorboard --logdir {folder.parent}")
    return lines
