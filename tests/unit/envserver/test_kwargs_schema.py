"""The table of keyword arguments: what passes, what does not, and what the refusal says."""

from __future__ import annotations

from typing import Any

import pytest

from asyncrl.errors import ConfigError, ServerRefused
from envserver import kwargs_schema
from envserver.registry import ATARI_KWARGS, BARE_ATARI_KWARGS, GENERIC_KWARGS

SCHEMA = kwargs_schema.object_schema(
    {
        "flag": {"type": "boolean"},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "rate": {"type": "number", "minimum": 0.0, "maximum": 1.0},
        "name": {"type": "string", "maxLength": 4},
        "kind": {"type": "string", "enum": ["a", "b"]},
        "long": {"type": "string"},
    }
)
FINE: list[dict[str, Any]] = [
    {},
    {"flag": True, "count": 1, "rate": 0, "name": "abcd", "kind": "b"},
    {"count": 9, "rate": 1.0, "name": ""},
    {"long": "x" * 256},
    {"fixed": 1},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"flag": 1}, "'flag' is 1, but must be of type boolean"),
    ({"count": True}, "type integer"),
    ({"count": 1.0}, "type integer"),
    ({"count": 0}, "at least 1"),
    ({"count": 10}, "at most 9"),
    ({"count": None}, "type integer"),
    ({"rate": float("nan")}, "type number"),
    ({"rate": float("inf")}, "type number"),
    ({"rate": 1.1}, "at most 1.0"),
    ({"rate": "0.5"}, "type number"),
    ({"name": "abcde"}, "at most 4 characters"),
    ({"name": ["a"]}, "type string"),
    ({"kind": "c"}, "one of ['a', 'b']"),
    ({"long": "x" * 257}, "at most 256"),
    ({"long": {"a": 1}}, "type string"),
    ({"cuont": 3}, "did you mean 'count'?"),
    ({"render_mode": "human"}, "Allowed: count, fixed, flag, kind, long, name, rate"),
    ({"fixed": 2}, "fixed to 1"),
    ({"fixed": True}, "fixed to 1"),
]


@pytest.mark.parametrize("kwargs", FINE)
def test_kwargs_table(kwargs: dict[str, Any]) -> None:
    """Values within their schema pass, and so does the repetition of what is fixed."""
    kwargs_schema.check(kwargs, SCHEMA, {"fixed": 1}, "env")


@pytest.mark.parametrize(("kwargs", "why"), REFUSED)
def test_refused_kwargs_table(kwargs: dict[str, Any], why: str) -> None:
    """BAD_KWARGS names the alias, the key and the way out."""
    with pytest.raises(ServerRefused) as refused:
        kwargs_schema.check(kwargs, SCHEMA, {"fixed": 1}, "env")
    assert refused.value.code == "BAD_KWARGS"
    assert refused.value.text.startswith("env: ")
    assert why in refused.value.text


def test_long_values_and_keys_are_shortened() -> None:
    """A refusal does not echo what a client sent at length."""
    for kwargs in ({"x" * 100_000: 1}, {"count": "y" * 100_000}):
        with pytest.raises(ServerRefused) as refused:
            kwargs_schema.check(kwargs, SCHEMA, {}, "env")
        assert len(refused.value.text) < 400


def test_an_alias_without_kwargs_says_so() -> None:
    """No list of what is allowed where nothing is."""
    with pytest.raises(ServerRefused, match="takes no keyword arguments"):
        kwargs_schema.check({"a": 1}, kwargs_schema.object_schema({}), {}, "env")


@pytest.mark.parametrize(
    "schema",
    [
        [],
        "boolean",
        {},
        {"type": "object"},
        {"type": ["integer"]},
        {"type": "integer", "pattern": "x"},
        {"type": "string", "enum": "ab"},
        {"type": "integer", "minimum": "1"},
        {"type": "integer", "maximum": True},
    ],
)
def test_schemas_that_cannot_be_enforced_are_refused(schema: object) -> None:
    """Nobody relies on a keyword that is not checked."""
    with pytest.raises(ConfigError):
        kwargs_schema.check_property_schema("key", schema)


def test_own_schemas_are_of_that_kind() -> None:
    """The tables of the registry, and their defaults, obey the same rules."""
    for table in (ATARI_KWARGS, BARE_ATARI_KWARGS, GENERIC_KWARGS):
        for key, schema in table.items():
            kwargs_schema.check_property_schema(key, schema)
            if "default" in schema:
                kwargs_schema.check({key: schema["default"]}, kwargs_schema.object_schema(table), {}, "env")
