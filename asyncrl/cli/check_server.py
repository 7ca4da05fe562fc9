"""`asyncrl check-server`: the conformance checks as a table. Exit status 0 if none failed, 1 otherwise."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from asyncrl.cli.access import Reach
from asyncrl.client.grpc_transport import GrpcConnector
from asyncrl.client.loop_factory import new_event_loop
from asyncrl.conformance import CHECKS, Result, refusal_of, run_checks
from asyncrl.errors import ConfigError
from asyncrl.wire._generated import env_pb2 as pb

STYLES: Final = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


@dataclass(frozen=True, kw_only=True)
class CheckServer(Reach):
    """Tries on a running env server, in whatever language it is written, what env.proto demands of one.

    It opens small lanes, plays, misbehaves on purpose, and leaves nothing behind. Exit status 1 if a check failed.
    """

    address: tyro.conf.Positional[str]
    """HOST:PORT, [IPV6]:PORT or unix:PATH."""

    env: Annotated[str | None, tyro.conf.arg(metavar="ALIAS", help_behavior_hint="(default: the first)")] = None
    """Which of its environments to play."""

    kwargs: Annotated[str, tyro.conf.arg(metavar="JSON")] = "{}"
    """Keyword arguments for that environment."""

    only: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="CHECK")] = ()
    """Run this check alone; may be given several times."""

    json: Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(optional)")] = None
    """Also write the results here; - for standard output, instead of the table."""

    verbose: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show for every check what it did and saw, not only for those that failed."""


def run(arguments: Sequence[str]) -> int:
    options = tyro.cli(CheckServer, prog="asyncrl check-server", args=list(arguments))
    for name in options.only:
        if name not in CHECKS:
            close = difflib.get_close_matches(name, CHECKS, n=1, cutoff=0.3)
            raise ConfigError(
                f"there is no check {name!r}; did you mean {close[0] if close else next(iter(CHECKS))!r}?"
            )
    if options.json not in (None, "-") and not Path(options.json).parent.is_dir():
        raise ConfigError(f"there is no directory {Path(options.json).parent} for {Path(options.json).name}")
    console = Console(stderr=options.json == "-", highlight=False)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        results = runner.run(_check(options, console))
    _summary(results, console)
    if options.json is not None:
        _write(results, options)
    return 1 if any(result.status == "failed" for result in results) else 0


async def _check(options: CheckServer, console: Console) -> list[Result]:
    connector = GrpcConnector(options.address, options.access)
    try:
        reply = await connector.describe(pb.DescribeRequest())
        env = _choose(options.env, [offer.alias for offer in reply.envs])
        console.print(
            f"{escape(options.address)}: {escape(reply.server or 'unnamed server')}, environment {escape(env)}"
        )
        kwargs = _kwargs(options.kwargs)
        refused = await refusal_of(connector, env, kwargs)
        if refused is not None:
            # No check can say anything of a server that was right to open nothing.
            raise ConfigError(f"--kwargs {options.kwargs}: the server opens no lane with them: {refused}")
        return await run_checks(
            connector,
            env,
            kwargs,
            only=options.only or None,
            on_result=lambda result: _print(result, console, options.verbose),
        )
    finally:
        await connector.close()


def _choose(wanted: str | None, aliases: list[str]) -> str:
    if not aliases:
        raise ConfigError("the server describes no environment, so there is nothing to check")
    if wanted is not None and wanted not in aliases:
        raise ConfigError(f"--env {wanted}: the server has {', '.join(aliases)}")
    return wanted or aliases[0]


def _kwargs(text: str) -> dict[str, Any]:
    try:
        kwargs = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--kwargs is no JSON: {error}") from None
    if not isinstance(kwargs, dict):
        raise ConfigError("--kwargs has to be a JSON object, such as '{\"size\": 8}'")
    return kwargs


def _print(result: Result, console: Console, verbose: bool) -> None:
    style = STYLES[result.status]
    console.print(f"[{style}]{result.status:7}[/] {result.check.name} [dim]({result.seconds:.1f} s)[/]", soft_wrap=True)
    if result.status == "failed":
        console.print(f"        [dim]demanded:[/] {escape(result.check.demand)}", soft_wrap=True)
        console.print(f"        [dim]by:[/]       env.proto, {escape(result.check.section)}", soft_wrap=True)
    if result.reason:
        console.print(f"        [{style}]{escape(result.reason)}[/]", soft_wrap=True)
    if verbose or result.status == "failed":
        for note in result.notes:
            console.print(f"        [dim]- {escape(note)}[/]", soft_wrap=True)


def _summary(results: list[Result], console: Console) -> None:
    table = Table(title="check-server", title_justify="left")
    for heading in ("result", "checks"):
        table.add_column(heading)
    for status, style in STYLES.items():
        names = [result.check.name for result in results if result.status == status]
        shown = ", ".join(names) if names and status != "passed" else ""
        table.add_row(f"[{style}]{status}[/]", f"{len(names)}{f': {shown}' if shown else ''}")
    console.print(table)


def _write(results: list[Result], options: CheckServer) -> None:
    text = json.dumps({"address": options.address, "results": [result.to_json() for result in results]}, indent=2)
    if options.json == "-":
        print(text)
    else:
        assert options.json is not None
        Path(options.json).write_text(text + "\n")
