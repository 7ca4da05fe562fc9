"""The small part of JSON Schema by which an alias says what keyword arguments a client may send.

An object schema with `properties`; each property may have `type` (boolean, integer, number,
string), `enum`, `minimum`, `maximum`, `maxLength`, `default` and `description`. Nothing else is
accepted, so that nobody relies on a keyword that is not checked.

Invariant: what passes has only keys and values that the schema names (test_kwargs_table).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any, Final

from asyncrl.errors import ConfigError, ServerRefused

MAX_STRING: Final = 256
_KEYWORDS: Final = frozenset({"type", "enum", "minimum", "maximum", "maxLength", "default", "description"})
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
}

Schema = Mapping[str, Any]


def object_schema(properties: Mapping[str, Schema]) -> dict[str, Any]:
    """The schema of an alias's kwargs."""
    return {
        "type": "object",
        "properties": {key: dict(value) for key, value in properties.items()},
        "additionalProperties": False,
    }


def check_property_schema(key: str, schema: object) -> None:
    """Raise ConfigError where an owner's own schema of one keyword cannot be enforced."""
    if not isinstance(schema, dict):
        raise ConfigError(f'the schema of {key!r} must be an object such as {{"type": "boolean"}}')
    unknown = sorted(set(schema) - _KEYWORDS)
    if unknown:
        raise ConfigError(f"the schema of {key!r} uses {unknown}; known are {sorted(_KEYWORDS)}")
    if schema.get("type") not in tuple(_TYPES):
        raise ConfigError(f"the schema of {key!r} needs a type out of {sorted(_TYPES)}")
    if "enum" in schema and not isinstance(schema["enum"], list):
        raise ConfigError(f"the enum of {key!r} must be a list")
    for bound in ("minimum", "maximum", "maxLength"):
        if bound in schema and not _is_of_type(schema[bound], "number"):
            raise ConfigError(f"{bound} of {key!r} must be a number")


def check(kwargs: Mapping[str, Any], schema: Schema, fixed: Mapping[str, Any], alias: str) -> None:
    """Raise ServerRefused(BAD_KWARGS) unless every kwarg is allowed; `fixed` are the owner's, which may be repeated."""
    properties: Mapping[str, Schema] = schema.get("properties", {})
    for key, value in kwargs.items():
        if key in fixed:
            if value != fixed[key] or isinstance(value, bool) != isinstance(fixed[key], bool):
                raise _refused(alias, f"{key!r} is fixed to {fixed[key]!r} by the owner of the server")
        elif key not in properties:
            raise _refused(alias, _unknown(key, [*properties, *fixed]))
        else:
            wrong = _what_is_wrong(value, properties[key])
            if wrong is not None:
                raise _refused(alias, f"{key!r} is {_shown(value)}, but {wrong}")


def _refused(alias: str, text: str) -> ServerRefused:
    return ServerRefused("BAD_KWARGS", f"{alias}: {text}")


def _unknown(key: str, allowed: list[str]) -> str:
    if not allowed:
        return f"takes no keyword arguments, but got {_shown(key)}"
    near = difflib.get_close_matches(key[:MAX_STRING], allowed, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"no keyword argument {_shown(key)}{hint} Allowed: {', '.join(sorted(allowed))}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _is_of_type(value: object, name: str) -> bool:
    # bool is an int to Python, but not to JSON.
    if isinstance(value, bool) and name != "boolean":
        return False
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, _TYPES[name])


def _what_is_wrong(value: Any, schema: Schema) -> str | None:
    if not _is_of_type(value, schema["type"]):
        return f"must be of type {schema['type']}"
    if "enum" in schema and value not in schema["enum"]:
        return f"must be one of {schema['enum']}"
    if "minimum" in schema and value < schema["minimum"]:
        return f"must be at least {schema['minimum']}"
    if "maximum" in schema and value > schema["maximum"]:
        return f"must be at most {schema['maximum']}"
    limit = int(schema.get("maxLength", MAX_STRING))
    if isinstance(value, str) and len(value) > limit:
        return f"must have at most {limit} characters"
    return None
