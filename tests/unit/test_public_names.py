"""The public names of the package: the list, the lazy homes, and what they load."""

from __future__ import annotations

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
