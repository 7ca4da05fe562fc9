"""Building the environments of a lane's slots: in order, alike, and as many of them as can be had.

One after the other: constructors hold the GIL (8 ALE games take 0.50 s, and 0.49 s with two threads).

Invariant: every environment of a lane has the same spaces (test_an_environment_of_other_spaces_is_a_fault).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from asyncrl.errors import ServerRefused
from envserver import faults
from envserver.gym_spec import BadValue
from envserver.host import Progress
from envserver.recipe import Recipe
from envserver.slot import Slot

AnyEnv = gymnasium.Env[Any, Any]
Spaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]  # observation, action
Record = Callable[[int, Slot, Exception, str], None]  # row, slot, what was raised, by what


def build_slots(recipe: Recipe, slots: Sequence[Slot], record: Record, progress: Progress) -> AnyEnv:
    """Give every slot its environment; one whose spaces are those of the lane is returned.

    Slots whose constructor fails are left to `record`, unless all of them do: ServerRefused(BUILD_FAILED).
    """
    template: AnyEnv | None = None
    first: Exception | None = None
    for row, slot in enumerate(slots):
        try:
            env = recipe.make() if template is None else make_alike(recipe, _spaces(template))
            template = env if template is None else template
            slot.install(env)
        except Exception as error:
            first = error if first is None else first
            record(row, slot, error, "creating it")
        progress(row + 1, len(slots))
    if not slots:  # such a lane has a spec all the same
        try:
            template = recipe.make()
        except Exception as error:
            first = error
    if template is None:
        assert first is not None
        # Of slots `record` has heard the story.
        raise ServerRefused("BUILD_FAILED", faults.describe(first, f"creating {recipe.alias.alias}")) from (
            None if slots else first
        )
    return template


def make_alike(recipe: Recipe, spaces: Spaces) -> AnyEnv:
    """One more environment; BadValue where its spaces are not those of the lane."""
    env = recipe.make()
    for name, ours, lane in zip(("observation", "action"), _spaces(env), spaces, strict=True):
        if ours != lane:
            raise BadValue(f"its {name} space {ours} is not the lane's {lane}")
    return env


def _spaces(env: AnyEnv) -> Spaces:
    return env.observation_space, env.action_space
