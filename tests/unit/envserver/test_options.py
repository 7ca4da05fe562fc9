"""Options to settings: quotas, schemas of kwargs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asyncrl.errors import ConfigError, ServerRefused
from envserver.config import Quotas
from envserver.options import quotas_from, registry_from

SCHEMA = {"properties": {"size": {"type": "integer", "minimum": 1, "maximum": 64}}}


def test_every_quota_can_be_changed() -> None:
    """Each bound by its own name."""
    for name, value in vars(Quotas()).items():
        assert getattr(quotas_from([f"{name}={value + 1}"]), name) == value + 1


def schema_file(folder: Path, value: Any) -> str:
    path = folder / "schema.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def test_a_schema_file_is_all_that_clients_may_send(tmp_path: Path) -> None:
    """What the file names may be sent within its bounds, and nothing of the built-in schema is left."""
    path = schema_file(tmp_path, SCHEMA)
    alias = registry_from(["mine=json:loads", "CartPole-v1"], [f"mine={path}"]).get("mine")
    alias.check_kwargs({"size": 64})
    for kwargs in ({"size": 65}, {"size": "1"}, {"max_episode_steps": 5}, {"other": 1}):
        with pytest.raises(ServerRefused, match="BAD_KWARGS"):
            alias.check_kwargs(kwargs)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("{", "is no JSON"),
        ([], "write it as"),
        ({"type": "object"}, "write it as"),
        ({**SCHEMA, "additionalProperties": True}, "allowed and nothing else"),
        ({"properties": {"size": {"type": "any"}}}, "needs a type"),
        ({"properties": {"size": {"type": "integer", "$ref": "#"}}}, "$ref"),
        ({"properties": {"fixed": {"type": "integer"}}}, "'fixed' is fixed by --env"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused(tmp_path: Path, value: Any, says: str) -> None:
    """Anything that would allow more than the reader of the file thinks stops the start."""
    with pytest.raises(ConfigError) as caught:
        registry_from(['mine=json:loads{"fixed": 1}'], [f"mine={schema_file(tmp_path, value)}"])
    assert says in str(caught.value)
