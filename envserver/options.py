"""What one env server is asked for: `Options`, as text and numbers, and the config that they make.

Invariant: every mistake in them raises a ConfigError that says what to pass instead
(test_mistakes_exit_with_2_and_name_the_fix).
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError
from envserver import kwargs_schema, listening
from envserver.config import LauncherName, Quotas, ServerConfig
from envserver.registry import Registry, parse_env_option
from envserver.snapshots import rules
from envserver.snapshots.rules import SnapshotRules

DEFAULT_LISTEN = ("127.0.0.1:50051",)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Those of the `envserver` command, whose help explains them, and `embedded`: the server is a child of the program
    that uses it, and ends when its standard input closes."""

    env: tuple[str, ...]
    num_envs: int = 64
    listen: tuple[str, ...] = ()  # none: DEFAULT_LISTEN
    lanes: int = 0
    warm: bool = False
    env_kwargs_schema: tuple[str, ...] = ()
    snapshots: tuple[str, ...] = ()
    snapshot_key_file: str | None = None
    token_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    drain_s: float = 10.0
    quota: tuple[str, ...] = ()
    launcher: LauncherName = "auto"
    core: int | None = None
    verbose: bool = False
    embedded: bool = False


def config_from(options: Options) -> ServerConfig:
    """The options as a config."""
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


def with_snapshot_rules(registry: Registry, options: Options, quotas: Quotas) -> Registry:
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
