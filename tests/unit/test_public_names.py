"""The public names of the package: the list, the lazy homes, and what they load."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import asyncrl


def test_the_list_and_the_homes_are_equal_and_sorted() -> None:
    """`__all__` and the table of homes name the same things, in order."""
    assert asyncrl.__all__ == sorted(asyncrl._HOMES) == [name for name in dir(asyncrl) if name in asyncrl._HOMES]


@pytest.mark.parametrize("name", asyncrl.__all__)
def test_every_public_name_loads_from_its_home(name: str) -> None:
    """The attribute is what its module defines under that name."""
    value = getattr(asyncrl, name)
    assert value.__module__.startswith(asyncrl._HOMES[name])
    assert value.__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A misspelling raises what Python raises for any module."""
    with pytest.raises(AttributeError, match="'asyncrl' has no attribute 'conect'"):
        _ = asyncrl.conect


@pytest.mark.parametrize(("told", "expected"), [(None, "ERROR"), ("debug", "debug")])
def test_grpc_is_quiet_unless_told_otherwise(told: str | None, expected: str) -> None:
    """Importing the package says so, on both ends, before gRPC looks."""
    script = "import sys, asyncrl, os; assert 'grpc' not in sys.modules; print(os.environ['GRPC_VERBOSITY'])"
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    environment |= {} if told is None else {"GRPC_VERBOSITY": told}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
