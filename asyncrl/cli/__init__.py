"""The `asyncrl` command: finds the subcommand, and turns errors into one line and an exit status.

Subcommands are imported when they are called, so that `--version`, `--help` and mistakes answer at once
(test_help_pulls_in_nothing_heavy). Exit status: what the subcommand says, 1 for a typed error, 2 for a mistake on the
command line, 130 for Ctrl-C (test_mistakes_name_the_nearest). Ctrl-C while the interpreter ends has no traceback
(test_an_impatient_ctrl_c_has_no_traceback).
"""

from __future__ import annotations

import difflib
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import asyncrl
from asyncrl.errors import AsyncRLError, ConfigError

# name -> (module, what it does); each module has `run(arguments) -> exit status`
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "train": ("asyncrl.cli.train", "train on environments, here or on env servers"),
    "eval": ("asyncrl.cli.eval", "play the policy of a run, and film it"),
    "search": ("asyncrl.cli.search", "play by looking ahead in the simulator"),
    "runs": ("asyncrl.cli.runs", "list runs: how far, what they return, whether they live"),
    "plot": ("asyncrl.cli.plot", "draw the curves of runs"),
    "check-server": ("asyncrl.cli.check_server", "try on an env server what the protocol demands of it"),
    "top": ("asyncrl.cli.top", "watch env servers: capacity, use, round-trip time"),
}


def command() -> int:
    """The console script: `main`, where the process has nothing else to do afterwards."""
    try:
        return main()
    finally:
        # The end of an interpreter that has imported torch takes most of a second.
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and gives its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except ConfigError as error:
        print(f"asyncrl: {error}", file=sys.stderr)
        return 2
    except AsyncRLError as error:
        print(f"asyncrl: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    name, rest = arguments[0], arguments[1:]
    if name in ("-V", "--version", "version"):
        print(f"asyncrl {asyncrl.__version__}")
        return 0
    # `check_server` is as good as `check-server`.
    found = COMMANDS.get(name.replace("_", "-"))
    if found is None:
        raise ConfigError(f"there is no command {name!r}{_nearest(name)}; `asyncrl --help` lists them")
    status: int = import_module(found[0]).run(rest)
    return status


def usage() -> str:
    """The list of commands."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            f"asyncrl {asyncrl.__version__}: simulators on other machines, driven from one loop",
            "",
            *lines,
            "",
            "`asyncrl COMMAND --help` has the options. Servers are started with `envserver`.",
        ]
    )


def _nearest(name: str) -> str:
    close = difflib.get_close_matches(name, [*COMMANDS, "--version", "--help"], n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
