"""`asyncrl train ALGORITHM`: one training run, from options to the last line that says where everything is.

Invariants: a setting has one name and one help text, that of the configuration (test_every_setting_is_an_option,
test_every_setting_has_its_help_text);
`--preset` and `--config` stand behind the options of the command line (test_the_command_line_wins), and the settings of
a run that is resumed by its path behind all of them (test_a_path_to_resume_brings_its_settings); a signal while torch
is imported is a stop, too (test_E1_a_signal_before_there_is_a_run).
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, cast

import tyro

from asyncrl.cli.access import Reach
from asyncrl.config import RunConfig
from asyncrl.errors import ConfigError
from asyncrl.run import options
from asyncrl.run.session import run_to_resume, saved_config
from asyncrl.run.signals import StopSignals

FIRST_RUN: Final = ("ppo", "--preset", "start")  # what `asyncrl train` alone does
_SETTING: Final = re.compile(r"^    (\w+): .*?  # (.+)$", re.MULTILINE)  # a field of a configuration, and its comment
_Servers = Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT,...", help_behavior_hint="(default: our own)")]
_Name = Annotated[str, tyro.conf.arg(metavar="NAME")]
_File = Annotated[Path | None, tyro.conf.arg(metavar="FILE.yaml", help_behavior_hint="(optional)")]


@dataclass(frozen=True, kw_only=True)
class Where(Reach):
    """Trains on environments, of env servers or of its own; evaluates, keeps checkpoints, resumes.

    Settings come from the defaults, then --preset, then --config, then the command line.
    """

    servers: _Servers = None
    """Env servers; without them one is started as a child process."""

    preset: _Name = ""
    """Settings by name; `--preset list` lists them."""

    config: _File = None
    """Settings of a file."""


def run(arguments: Sequence[str]) -> int:
    """The command; its exit status."""
    algorithm, rest = split(arguments or FIRST_RUN)
    options.config_type(algorithm)
    if _ahead(rest).preset == "list":
        print("\n".join(options.preset_names(algorithm)))
        return 0
    wanted = parse(algorithm, rest)
    # Only now: torch takes seconds to import, and mistakes should not.
    with StopSignals() as signals:
        from asyncrl.run.console import train_in_console
    if signals.caught:
        return 0
    return train_in_console(algorithm, config_of(algorithm, wanted), wanted.servers, wanted.access)


def split(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The algorithm, and its options. Without one it is that of the run which is resumed, else ppo."""
    first, *rest = arguments
    if not first.startswith("-"):
        return first, rest
    resumed = _ahead(arguments).resume
    return (saved_config(run_to_resume(resumed))[0] if resumed else "ppo"), list(arguments)


def parse(algorithm: str, arguments: Sequence[str]) -> Where:
    """Everything the command line says, over preset, file, and the run that is resumed."""
    joined = _join_mode(arguments)
    sources = _ahead(joined)
    before: dict[str, Any] | None = None
    if sources.resume:
        was, settings = saved_config(run_to_resume(sources.resume))
        if was != algorithm:
            raise ConfigError(f"--resume {sources.resume} is a run of {was}, not of {algorithm}")
        before = dataclasses.asdict(settings)
    base = options.resolve(algorithm, preset_name=sources.preset, config=sources.config, before=before)
    command = command_type(algorithm)
    default = command(**dataclasses.asdict(base), preset=sources.preset, config=sources.config)
    return tyro.cli(command, prog=f"asyncrl train {algorithm}", args=joined, default=default)


def command_type(algorithm: str) -> type[Where]:
    """The settings of the algorithm and `Where`, as one flat set of options."""
    config = options.config_type(algorithm)
    # tyro looks for comments in the source of the class that it is given, and this one has none: they go into its
    # docstring, where tyro looks first.
    texts = "".join(f"    {name}: {text}\n" for name, text in help_texts(config).items())
    made = dataclasses.make_dataclass(
        "Train",
        [],
        bases=(config, Where),
        frozen=True,
        kw_only=True,
        namespace={"__doc__": f"{Where.__doc__}\n\nArgs:\n{texts}"},
    )
    return cast(type[Where], made)


def help_texts(config: type[RunConfig]) -> dict[str, str]:
    """By the name of a setting the comment behind it, where there is one."""
    texts: dict[str, str] = {}
    for base in reversed(config.__mro__[:-1]):
        texts |= dict(_SETTING.findall(inspect.getsource(base)))
    return texts


def config_of(algorithm: str, wanted: Where) -> RunConfig:
    config = options.config_type(algorithm)
    return config(**{field.name: getattr(wanted, field.name) for field in dataclasses.fields(config)})


def _ahead(arguments: Sequence[str]) -> argparse.Namespace:
    """`--preset`, `--config` and a path to `--resume`, which decide what the other options default to."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--preset", default="")
    parser.add_argument("--config", type=Path, default=None)
    parser.add_argument("--resume", default="")
    found = parser.parse_known_args(list(arguments))[0]
    if found.resume in ("auto", "no"):
        found.resume = ""
    return found


def _join_mode(arguments: Sequence[str]) -> list[str]:
    """`--mode lag 2` is one value."""
    joined = list(arguments)
    for place in range(len(joined) - 2):
        if joined[place] == "--mode" and joined[place + 1] == "lag":
            joined[place + 1 : place + 3] = [f"lag {joined[place + 2]}"]
            break
    return joined
