"""Aliases: the only names by which a client can ask for an environment, and what it may say about one.

The owner of the server writes `--env OPTION`; a client sends an alias and a JSON object of
keyword arguments, never an id, a module or a path.

    CartPole-v1                             a Gymnasium id; the alias is the id
    pong=ALE/Pong-v5{"noop_max": 0}         an alias of its own; these keyword arguments are fixed
    mine=my_pkg.envs:make_env               a function that returns an environment
    theirs=their_pkg:Theirs-v0              import their_pkg, then the id that it registered

Keys of the JSON that start with `$` speak to the server: `{"$allow": {"size": {"type": "integer",
"maximum": 64}}}` lets clients choose `size`; `{"$threads": 2}` has a native host step its
rows with two threads. For `ALE/*` ids `"preprocess": false` serves the bare
environment; otherwise they get the standard Atari preprocessing, whose settings clients may choose.

Invariants: a name with a colon never comes from the wire (test_alias_table); importing this module
imports no simulator (test_the_registry_imports_no_simulator).
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from asyncrl.errors import ConfigError, ServerRefused
from envserver import kwargs_schema
from envserver.snapshots.rules import SnapshotRules

ALIAS: Final = re.compile(r"[A-Za-z0-9_.\-/]{1,80}")
_ENTRY_POINT: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_ENV_ID: Final = re.compile(r"([A-Za-z_][\w.]*:)?[A-Za-z0-9_.\-/]{1,80}")
_ALLOW: Final = "$allow"
_THREADS: Final = "$threads"
MAX_THREADS: Final = 64
_STEPS: Final = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
_PROBABILITY: Final = {"type": "number", "minimum": 0.0, "maximum": 1.0}

GENERIC_KWARGS: Final[dict[str, dict[str, Any]]] = {
    "max_episode_steps": {**_STEPS, "description": "truncate after so many steps"},
}
ATARI_KWARGS: Final[dict[str, dict[str, Any]]] = {
    "frameskip": {"type": "integer", "minimum": 1, "maximum": 60, "default": 4},
    "noop_max": {"type": "integer", "minimum": 0, "maximum": 1000, "default": 30},
    "screen_size": {"type": "integer", "minimum": 8, "maximum": 210, "default": 84},
    "grayscale": {"type": "boolean", "default": True},
    "stack": {"type": "integer", "minimum": 1, "maximum": 32, "default": 4},
    "soft_ends": {"type": "boolean", "default": False, "description": "a lost life is a soft end"},
    "repeat_action_probability": {**_PROBABILITY, "description": "sticky actions; default as registered (v5: 0.25)"},
    "full_action_space": {"type": "boolean", "default": False},
    "max_episode_steps": {**_STEPS, "description": "in steps of the agent; default 108000 frames"},
    "mode": {"type": "integer", "minimum": 0, "maximum": 255},
    "difficulty": {"type": "integer", "minimum": 0, "maximum": 255},
}
BARE_ATARI_KWARGS: Final[dict[str, dict[str, Any]]] = {
    "frameskip": {"type": "integer", "minimum": 1, "maximum": 60},
    "obs_type": {"type": "string", "enum": ["rgb", "grayscale", "ram"]},
    "repeat_action_probability": _PROBABILITY,
    "full_action_space": {"type": "boolean"},
    "max_episode_steps": _STEPS,
    "mode": {"type": "integer", "minimum": 0, "maximum": 255},
    "difficulty": {"type": "integer", "minimum": 0, "maximum": 255},
}


@dataclass(frozen=True)
class EnvAlias:
    """One environment that the owner serves. Exactly one of `env_id` and `entry_point` is set.

    `kwargs` are fixed by the owner; `kwargs_schema` is the JSON Schema of those that a client may
    choose. `preprocess` says that the Atari preprocessing wraps it, `threads` how many step a lane of it. `cores`:
    those that lanes may use, on a server that stays on one; none: the server's.
    """

    alias: str
    env_id: str | None = None
    entry_point: str | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    kwargs_schema: dict[str, Any] = field(default_factory=lambda: kwargs_schema.object_schema(GENERIC_KWARGS))
    preprocess: bool = False
    threads: int = 1
    cores: list[int] = field(default_factory=list)
    snapshots: SnapshotRules = field(default_factory=SnapshotRules)

    @property
    def atari(self) -> bool:
        return self.env_id is not None and self.env_id.startswith("ALE/")

    @property
    def summary(self) -> str:
        """One line for people."""
        return f"{self.env_id or self.entry_point}{' (Atari preprocessing)' if self.preprocess else ''}"

    def check_kwargs(self, kwargs: Mapping[str, Any]) -> None:
        """Raise ServerRefused(BAD_KWARGS) unless a client may send these."""
        kwargs_schema.check(kwargs, self.kwargs_schema, self.kwargs, self.alias)

    def merged(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What the environment is built with: the owner's kwargs and a client's, which were checked."""
        return {**kwargs, **self.kwargs}

    def to_json(self) -> dict[str, Any]:
        return {
            "alias": self.alias,
            "env_id": self.env_id,
            "entry_point": self.entry_point,
            "kwargs": self.kwargs,
            "kwargs_schema": self.kwargs_schema,
            "preprocess": self.preprocess,
            "threads": self.threads,
            "cores": self.cores,
            "snapshots": self.snapshots.to_json(),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> EnvAlias:
        return EnvAlias(**{**value, "snapshots": SnapshotRules.from_json(value["snapshots"])})


def parse_env_option(text: str) -> EnvAlias:
    """An alias from the owner's command line; ConfigError says what is wrong with the option."""
    head, brace, rest = text.strip().partition("{")
    name, equals, target = head.strip().rpartition("=")
    target = target.strip()
    options = _options(brace + rest, text)
    is_entry_point = _ENTRY_POINT.fullmatch(target) is not None
    if not is_entry_point and _ENV_ID.fullmatch(target) is None:
        raise ConfigError(f"--env {text!r}: {target!r} is neither a Gymnasium id nor a module:function")
    if ":" in target and not equals:
        suggestion = re.sub(r"[^A-Za-z0-9_.\-/]", "-", target.rpartition(":")[2])
        raise ConfigError(f"--env {text!r}: give it a name that clients can use, such as {suggestion}={target}")
    alias = name.strip() if equals else target
    if ALIAS.fullmatch(alias) is None:
        raise ConfigError(f"--env {text!r}: the alias {alias!r} may have 1 to 80 letters, digits and _ . - / only")
    return _make(alias, target, is_entry_point, options)


def _options(text: str, whole: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--env {whole!r}: what follows the id must be a JSON object: {error}") from None
    assert isinstance(value, dict)  # it starts with a brace
    return value


def _make(alias: str, target: str, is_entry_point: bool, options: dict[str, Any]) -> EnvAlias:
    allow = options.pop(_ALLOW, {})
    threads = options.pop(_THREADS, 1)
    unknown = [key for key in options if key.startswith("$")]
    if unknown:
        raise ConfigError(f"{alias}: {unknown[0]!r} is no option of the server; there are {_ALLOW!r} and {_THREADS!r}")
    if not isinstance(allow, dict):
        raise ConfigError(f"{alias}: {_ALLOW!r} must be an object of schemas by keyword")
    for key, schema in allow.items():
        kwargs_schema.check_property_schema(key, schema)
    base, preprocess = GENERIC_KWARGS, False
    if not is_entry_point and target.startswith("ALE/"):
        preprocess = options.pop("preprocess", True)
        if not isinstance(preprocess, bool):
            raise ConfigError(f"{alias}: 'preprocess' must be true or false")
        base = ATARI_KWARGS if preprocess else BARE_ATARI_KWARGS
    if type(threads) is not int or not 1 <= threads <= MAX_THREADS:
        raise ConfigError(f"{alias}: {_THREADS!r} is {threads!r}; 1 to {MAX_THREADS} are possible")
    if threads > 1 and not preprocess:
        raise ConfigError(f"{alias}: only preprocessed ALE/* games step with threads; leave {_THREADS!r} out")
    properties = {key: value for key, value in {**base, **allow}.items() if key not in options}
    return EnvAlias(
        alias=alias,
        env_id=None if is_entry_point else target,
        entry_point=target if is_entry_point else None,
        kwargs=options,
        kwargs_schema=kwargs_schema.object_schema(properties),
        preprocess=preprocess,
        threads=threads,
    )


class Registry:
    """The aliases of one server, by name."""

    def __init__(self, aliases: Iterable[EnvAlias]) -> None:
        self._aliases: dict[str, EnvAlias] = {}
        for alias in aliases:
            if alias.alias in self._aliases:
                raise ConfigError(f"the alias {alias.alias!r} is given twice")
            self._aliases[alias.alias] = alias

    def __iter__(self) -> Iterator[EnvAlias]:
        return iter(self._aliases.values())

    def __len__(self) -> int:
        return len(self._aliases)

    @property
    def aliases(self) -> list[str]:
        """Their names, in the owner's order."""
        return list(self._aliases)

    def get(self, alias: str) -> EnvAlias:
        """The alias of that name, as a client asked for it; ServerRefused(UNKNOWN_ENV) lists those there are."""
        if ALIAS.fullmatch(alias) is None:
            raise ServerRefused(
                "UNKNOWN_ENV",
                f"{alias[:80]!r} is no alias: 1 to 80 letters, digits and _ . - / are. This server has "
                f"{', '.join(self._aliases)}",
            )
        found = self._aliases.get(alias)
        if found is None:
            raise ServerRefused(
                "UNKNOWN_ENV", f"no environment {alias!r} here. This server has {', '.join(self._aliases)}"
            )
        return found

    def to_json(self) -> list[dict[str, Any]]:
        return [alias.to_json() for alias in self._aliases.values()]

    @staticmethod
    def from_json(value: Iterable[Mapping[str, Any]]) -> Registry:
        return Registry(EnvAlias.from_json(one) for one in value)

    def preload(self) -> None:
        """Import what the aliases need: the nursery does so once, and what it forks shares the pages.

        A module that cannot be imported is left to the lane that asks for it, whose client gets the reason.
        """
        names = {"gymnasium", "envserver.building"}
        for alias in self._aliases.values():
            target = alias.entry_point or alias.env_id or ""
            if ":" in target:
                names.add(target.partition(":")[0])
            if alias.atari:
                names |= {"ale_py", "ale_py.vector_env", "cv2"}
        for name in sorted(names):
            _import_if_possible(name)


def _import_if_possible(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:  # any module may fail in any way; the lane that needs it reports it
        import logging

        logging.getLogger("envserver").warning("cannot preload %s: %s", name, error)
