"""The `envserver` command: reads its options, explains what is wrong with them, and starts the server.

Modules that take long to import are imported where they are used, so that `--help` and every complaint come at once
(test_help_pulls_in_nothing_heavy). Exit status: 0, or 2 where an option, a file or an environment id is to blame
(test_mistakes_exit_with_2_and_name_the_fix).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import tyro

from asyncrl.errors import ConfigError
from envserver import kwargs_schema, listening
from envserver.config import LauncherName, Quotas, ServerConfig
from envserver.env_ids import EnvIdCheck
from envserver.registry import Registry, parse_env_option
from envserver.server_log import log_to_stderr
from envserver.snapshots import rules
from envserver.snapshots.rules import SnapshotRules

DEFAULT_LISTEN = ("127.0.0.1:50051",)
Repeated: TypeAlias = tyro.conf.UseAppendAction[tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class NewToken:
    """Makes a token file, mode 0600. The token itself is not shown."""

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PATH")] = "envserver-token.txt"
    """Where to write it; nothing is overwritten."""

    role: Literal["learner", "observer"] = "learner"
    """What its holders may do: everything, or only see whether the server is well."""


@dataclass(frozen=True, kw_only=True)
class NewCert:
    """Makes a CA and a server certificate, signed by it, with their keys. Needs `pip install 'asyncrl[tls]'`."""

    out: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Folder to write to; nothing is overwritten."""

    host: Annotated[Repeated, tyro.conf.arg(metavar="NAME", help_behavior_hint="(required, repeatable)")]
    """What clients dial: a host name or an IP address."""

    client: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(optional)")] = None
    """Also make a certificate for this client, for servers with --tls-client-ca."""


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Serves environments to other machines over gRPC.

    envserver --env CartPole-v1 --num-envs 64
        for this machine alone

    envserver --env pong=ALE/Pong-v5 --listen 0.0.0.0:50051 --token-file T --tls-cert C --tls-key K
        for others; `envserver token new` and `envserver cert new` make the files
    """

    env: Annotated[Repeated, tyro.conf.arg(metavar="ID", help_behavior_hint="(required, repeatable)")]
    """What clients may open: CartPole-v1, pong=ALE/Pong-v5{"frameskip":4}, or a function: mine=my_pkg.envs:make_env"""

    num_envs: Annotated[int, tyro.conf.arg(metavar="N")] = 64
    """Capacity: how many environments may exist at once, over all clients."""

    listen: Annotated[
        Repeated, tyro.conf.arg(metavar="ADDR", help_behavior_hint=f"(repeatable, default: {DEFAULT_LISTEN[0]})")
    ] = ()
    """HOST:PORT, [IPV6]:PORT or unix:PATH. What other machines can reach needs --token-file, --tls-cert, --tls-key."""

    lanes: Annotated[int, tyro.conf.arg(metavar="N", help_behavior_hint="(default: 3 per core)")] = 0
    """Advice to clients: over how many processes to spread the environments."""

    warm: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Build environments at once instead of when the first client asks."""

    env_kwargs_schema: Annotated[Repeated, tyro.conf.arg(metavar="NAME=FILE.json")] = ()
    """JSON Schema of the kwargs that clients may send, in place of max_episode_steps and the settings of Atari."""

    snapshots: Annotated[Repeated, tyro.conf.arg(metavar="MODE", help_behavior_hint="(repeatable, default: auto)")] = ()
    """How states are captured: auto, native, key_state, replay or model:ALIAS; NAME=MODE for one of --env alone."""

    snapshot_key_file: Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(optional)")] = None
    """States may leave their lane, signed with this file's bytes; servers with the same file take each other's."""

    token_file: Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(optional)")] = None
    """Clients have to show one of the tokens in this file; it is read again when it changes."""

    tls_cert: Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(optional)")] = None
    """PEM certificate chain of this server; it is read again when it changes."""

    tls_key: Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(optional)")] = None
    """PEM private key of that certificate."""

    tls_client_ca: Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(optional)")] = None
    """Clients have to show a certificate signed by this CA, besides their token."""

    drain_s: Annotated[float, tyro.conf.arg(metavar="S")] = 10.0
    """On the first Ctrl-C or SIGTERM clients get this long to finish; the second one ends the server at once."""

    quota: Annotated[Repeated, tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """A bound on what a client may use, such as lane_memory_bytes=1073741824. A wrong name lists all of them."""

    launcher: LauncherName = "auto"
    """How lane processes start: forked by a small nursery process, or one exec each."""

    core: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(optional)")] = None
    """Stay on this core, with lanes whose steps are brief: for a client that takes turns with one lane, there."""

    embedded: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """For programs that start a server as their child: it ends when its standard input closes."""

    verbose: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Log more."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and gives its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        match arguments:
            case ["token", "new", *rest]:
                return new_token(rest)
            case ["cert", "new", *rest]:
                return new_cert(rest)
            case ["token" | "cert" as word, *_]:
                raise ConfigError(f"say `envserver {word} new --help`")
        return run_server(arguments)
    except ConfigError as error:
        print(f"envserver: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def new_token(arguments: list[str]) -> int:
    from envserver import credentials

    options = tyro.cli(NewToken, prog="envserver token new", args=arguments)
    print(credentials.new_token(options.path, options.role))
    return 0


def new_cert(arguments: list[str]) -> int:
    from envserver import credentials

    options = tyro.cli(NewCert, prog="envserver cert new", args=arguments)
    print(credentials.new_certificates(options.out, options.host, options.client))
    return 0


def run_server(arguments: list[str]) -> int:
    options = tyro.cli(Serve, prog="envserver", args=arguments)
    config = config_from(options)
    log_to_stderr(logging.DEBUG if options.verbose else logging.INFO)
    # A program that starts a server as its child gets the same complaints from its first Open, and a faster start.
    ids = None if config.embedded else EnvIdCheck(config.registry)
    schedule_for_throughput()
    if options.core is not None and sys.platform == "linux":
        os.sched_setaffinity(0, {options.core})

    from envserver.server import serve  # grpc: imported while the ids are looked up

    if ids is not None:
        ids.finish()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(serve(config))


def schedule_for_throughput() -> None:
    """Waking up preempts nobody, in this process and in the lanes, which inherit it: the relay and a lane take turns
    anyway, and each switch between them costs more than it gives. docs/benchmarks.md has the figures. A policy that the
    owner chose stays (test_a_policy_that_the_owner_chose_stays), and where none may be chosen the server starts too."""
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def config_from(options: Serve) -> ServerConfig:
    """The options as a config; every mistake in them raises a ConfigError that says what to pass instead."""
    quotas = quotas_from(options.quota)
    registry = registry_from(options.env, options.env_kwargs_schema)
    registry = with_snapshot_rules(registry, options, quotas)
    config = ServerConfig(
        registry=registry if options.core is None else with_cores_of_lanes(registry, options.core),
        num_envs=options.num_envs,
        lanes=options.lanes,
        warm=options.warm,
        listen=options.listen or DEFAULT_LISTEN,
        token_file=options.token_file,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        tls_client_ca=options.tls_client_ca,
        embedded=options.embedded,
        launcher=options.launcher,
        drain_s=options.drain_s,
        quotas=quotas,
    )
    listening.check(config)
    return config


def registry_from(envs: Sequence[str], schemas: Sequence[str]) -> Registry:
    """The aliases. A schema file says everything that clients may send for its alias, and replaces what was there."""
    if not envs:
        raise ConfigError("nothing to serve: pass --env CartPole-v1, or --env NAME=MODULE:FUNCTION")
    aliases = {alias.alias: alias for alias in Registry(map(parse_env_option, envs))}
    for option in schemas:
        name, equals, path = option.partition("=")
        if not equals or name not in aliases:
            raise ConfigError(f"--env-kwargs-schema {option}: say NAME=FILE.json with a NAME of {', '.join(aliases)}")
        schema = kwargs_schema.object_schema(read_schema(path, aliases[name].kwargs))
        aliases[name] = replace(aliases[name], kwargs_schema=schema)
    return Registry(aliases.values())


def with_snapshot_rules(registry: Registry, options: Serve, quotas: Quotas) -> Registry:
    """The aliases, and how states of their environments are captured, bounded and signed."""
    modes = rules.modes_from(options.snapshots, registry.aliases)
    if options.snapshot_key_file is not None:
        key = rules.read_key(options.snapshot_key_file)
    else:
        # A server of its client's own has nobody to keep states from, and no other server to share them with.
        key = secrets.token_bytes(rules.KEY_BYTES) if options.embedded else b""
    return Registry(
        replace(alias, snapshots=SnapshotRules(modes[alias.alias], quotas.snapshot_bytes, quotas.snapshots, key))
        for alias in registry
    )


def with_cores_of_lanes(registry: Registry, core: int) -> Registry:
    """The aliases of a server that stays on `core`: their lanes may use the cores that this process has now."""
    cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    if core not in cores:
        there = f"choose one of {', '.join(map(str, cores))}" if cores else "only Linux has this; leave it out"
        raise ConfigError(f"--core {core}: {there}")
    return Registry(replace(alias, cores=cores) for alias in registry)


def read_schema(path: str, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The `properties` of a JSON Schema file."""
    try:
        schema = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the schema {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}") from None
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or schema.get("additionalProperties", False) is not False:
        example = '{"properties": {"size": {"type": "integer", "maximum": 64}}}'
        raise ConfigError(f"{path}: what it names is allowed and nothing else; write it as {example}")
    for key, value in properties.items():
        kwargs_schema.check_property_schema(key, value)
        if key in fixed:
            raise ConfigError(f"{path}: {key!r} is fixed by --env; leave it out of one of them")
    return properties


def quotas_from(options: Sequence[str]) -> Quotas:
    """Quotas with some of them changed."""
    kinds = {each.name: int if isinstance(each.default, int) else float for each in fields(Quotas)}
    changed: dict[str, Any] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in kinds:
            raise ConfigError(f"--quota {option}: there are {', '.join(kinds)}")
        try:
            changed[name] = kinds[name](value)
        except ValueError:
            raise ConfigError(f"--quota {option}: say {name}={'INTEGER' if kinds[name] is int else 'NUMBER'}") from None
    return replace(Quotas(), **changed)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed and not switched off."""
    if os.environ.get("ASYNCRL_UVLOOP") == "0":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
