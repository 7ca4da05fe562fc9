"""Aliases: what an owner may write, what a client may ask for, and what neither may do."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from asyncrl.errors import ConfigError, ServerRefused
from envserver.registry import EnvAlias, Registry, parse_env_option

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("CartPole-v1", {"alias": "CartPole-v1", "env_id": "CartPole-v1"}),
    ("ALE/Pong-v5", {"alias": "ALE/Pong-v5", "env_id": "ALE/Pong-v5", "preprocess": True}),
    (' pong = ALE/Pong-v5 {"frameskip": 3}', {"alias": "pong", "env_id": "ALE/Pong-v5", "kwargs": {"frameskip": 3}}),
    ('p=ALE/Pong-v5{"preprocess":false}', {"alias": "p", "preprocess": False, "kwargs": {}}),
    ("mine=my_pkg.envs:make_env", {"alias": "mine", "env_id": None, "entry_point": "my_pkg.envs:make_env"}),
    ("theirs=their_pkg:Theirs-v0", {"alias": "theirs", "env_id": "their_pkg:Theirs-v0", "entry_point": None}),
    ('two=ALE/Pong-v5{"$threads":2}', {"alias": "two", "env_id": "ALE/Pong-v5", "kwargs": {}, "threads": 2}),
    ('a=B-v1{"text":"x=y{z}"}', {"alias": "a", "env_id": "B-v1", "kwargs": {"text": "x=y{z}"}}),
]
BROKEN = [
    ("", "neither a Gymnasium id"),
    ("a b", "neither a Gymnasium id"),
    ("../../x;rm", "neither a Gymnasium id"),
    ("my_pkg.envs:make_env", "such as make_env=my_pkg.envs:make_env"),
    ("x:y=CartPole-v1", "the alias 'x:y'"),
    ("=CartPole-v1", "the alias ''"),
    ("a" * 81 + "=CartPole-v1", "the alias"),
    ('a=CartPole-v1{"b":', "must be a JSON object"),
    ("a=CartPole-v1{b}", "must be a JSON object"),
    ('a=CartPole-v1{"$alow":{}}', "'$alow' is no option"),
    ('a=CartPole-v1{"$allow":[]}', "'$allow' must be an object"),
    ('a=CartPole-v1{"$allow":{"x":{"pattern":"y"}}}', "uses"),
    ('a=ALE/Pong-v5{"preprocess":1}', "must be true or false"),
    ('a=ALE/Pong-v5{"$threads":0}', "'$threads' is 0; 1 to 64"),
    ('a=ALE/Pong-v5{"$threads":true}', "'$threads' is True; 1 to 64"),
    ('a=CartPole-v1{"$threads":2}', "only preprocessed ALE"),
]
ALIASES = [
    ("CartPole-v1", True),
    ("ALE/Pong-v5", True),
    ("a", True),
    ("a" * 80, True),
    ("A.b_c-d/e", True),
    ("", False),
    ("a" * 81, False),
    ("os:system", False),
    ("a b", False),
    ("a\n", False),
    ("ä", False),
    ("a;b", False),
    ("a\x00", False),
    ("a\\b", False),
]


@pytest.mark.parametrize(("text", "expected"), OPTIONS)
def test_options_of_the_owner(text: str, expected: dict[str, Any]) -> None:
    """Ids, names of one's own, fixed keyword arguments, functions and modules."""
    alias = parse_env_option(text)
    assert {key: getattr(alias, key) for key in expected} == expected


@pytest.mark.parametrize(("text", "why"), BROKEN)
def test_broken_options_say_what_is_wrong(text: str, why: str) -> None:
    """A ConfigError that quotes the option."""
    with pytest.raises(ConfigError) as refused:
        parse_env_option(text)
    assert why in str(refused.value)


@pytest.mark.parametrize(("name", "legal"), ALIASES)
def test_alias_table(name: str, legal: bool) -> None:
    """What looks like an alias is looked up and what does not is refused before; nothing is ever imported."""
    registry = Registry([parse_env_option("CartPole-v1")])
    if legal and name == "CartPole-v1":
        assert registry.get(name).env_id == name
        return
    with pytest.raises(ServerRefused, match=r"UNKNOWN_ENV.*CartPole-v1") as refused:
        registry.get(name)
    assert ("no alias" in refused.value.text) == (not legal)
    assert len(refused.value.text) < 400


def test_two_aliases_of_one_name_are_refused() -> None:
    """Which of them a client would get must not depend on their order."""
    with pytest.raises(ConfigError, match="twice"):
        Registry([parse_env_option("a=CartPole-v1"), parse_env_option("a=Pendulum-v1")])


def test_fixed_kwargs_win_and_leave_the_schema() -> None:
    """What the owner set is not the client's to choose; the rest of the preprocessing is."""
    alias = parse_env_option('pong=ALE/Pong-v5{"frameskip":3}')
    assert "frameskip" not in alias.kwargs_schema["properties"]
    assert "noop_max" in alias.kwargs_schema["properties"]
    alias.check_kwargs({"frameskip": 3, "noop_max": 0})
    with pytest.raises(ServerRefused, match=r"BAD_KWARGS.*fixed to 3 by the owner"):
        alias.check_kwargs({"frameskip": 4})
    assert alias.merged({"noop_max": 0}) == {"frameskip": 3, "noop_max": 0}


def test_owners_open_further_kwargs() -> None:
    """`$allow` adds keywords to those that a client may choose."""
    alias = parse_env_option('lake=FrozenLake-v1{"$allow":{"is_slippery":{"type":"boolean"}}}')
    alias.check_kwargs({"is_slippery": False, "max_episode_steps": 7})
    with pytest.raises(ServerRefused, match="type boolean"):
        alias.check_kwargs({"is_slippery": 1})
    assert alias.kwargs == {}


def test_registries_travel_as_json() -> None:
    """The nursery and exec'ed lanes get the same aliases."""
    registry = Registry(parse_env_option(text) for text, _ in OPTIONS if "Pong-v5 {" not in text)
    again = Registry.from_json(json.loads(json.dumps(registry.to_json())))
    assert list(again) == list(registry)
    assert len(again) == len(registry) == len(OPTIONS) - 1
    assert isinstance(again.get("p"), EnvAlias)


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout


def test_the_registry_imports_no_simulator() -> None:
    """The server parses options without gymnasium and numpy in its memory."""
    code = "import sys, envserver.registry; print({'gymnasium', 'numpy', 'ale_py'} & set(sys.modules))"
    assert run(code).strip() == "set()"


def test_preloading_imports_what_aliases_need() -> None:
    """The nursery has the simulators before it forks; a module that is missing costs only its own lane."""
    code = (
        "import sys, envserver.registry as r\n"
        "options = ['ALE/Pong-v5', 'x=no_such_module:make', 'y=tests.unit.envserver.zoo:mixed']\n"
        "r.Registry(map(r.parse_env_option, options)).preload()\n"
        "print({'gymnasium', 'ale_py.vector_env', 'cv2', 'tests.unit.envserver.zoo'} - set(sys.modules))"
    )
    assert run(code).strip().splitlines()[-1] == "set()"
