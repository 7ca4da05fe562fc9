"""The `envserver` command: reads its options, explains what is wrong with them, and starts the server.

Modules that take long to import are imported where they are used, so that `--help` and every complaint come at once
(test_help_pulls_in_nothing_heavy). Exit status: 0, or 2 where an option, a file or an environment id is to blame
(test_mistakes_exit_with_2_and_name_the_fix).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import tyro

from asyncrl.errors import ConfigError
from envserver.config import LauncherName
from envserver.options import DEFAULT_LISTEN, Options
from envserver.running import run

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

    num_envs: Annotated[int, tyro.conf.arg(metavar="N")] = Options.num_envs
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

    drain_s: Annotated[float, tyro.conf.arg(metavar="S")] = Options.drain_s
    """On the first Ctrl-C or SIGTERM clients get this long to finish; the second one ends the server at once."""

    quota: Annotated[Repeated, tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """A bound on what a client may use, such as lane_memory_bytes=1073741824. A wrong name lists all of them."""

    launcher: LauncherName = "auto"
    """How lane processes start: forked by a small nursery process, or one exec each."""

    core: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(optional)")] = None
    """Stay on this core, with lanes whose steps are brief: for a client that takes turns with one lane, there."""

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
    return run(Options(**vars(options)))
