"""Building the slots of a lane: alike, in order, as many as can be had."""

from __future__ import annotations

import pytest
from gymnasium import spaces

from asyncrl.errors import ServerRefused
from envserver.gym_spec import BadValue
from envserver.recipe import Recipe
from envserver.registry import parse_env_option
from envserver.slot import Slot
from envserver.slot_building import build_slots, make_alike
from envserver.slot_keeper import SlotKeeper
from tests.unit.envserver import zoo


def scripted(faults: dict[str, str]) -> Recipe:
    zoo.ScriptedEnv.built = 0
    alias = parse_env_option(zoo.options("scripted", "scripted"))
    alias.kwargs["faults"] = faults
    return Recipe(alias, {})


def slots(count: int) -> list[Slot]:
    return [Slot(row, 0, SlotKeeper(lambda: 0.0)) for row in range(count)]


def test_slots_that_fail_are_recorded_and_the_others_built() -> None:
    """In order, with progress for every one; the first that succeeds is the lane's model."""
    recorded: list[tuple[int, str]] = []
    seen: list[int] = []
    made = slots(4)
    template = build_slots(
        scripted({"build:0": "raise", "build:2": "raise"}),
        made,
        lambda row, _slot, error, during: recorded.append((row, f"{during}: {type(error).__name__}")),
        lambda step, _total: seen.append(step),
    )
    assert [slot.env is not None for slot in made] == [False, True, False, True]
    assert template is made[1].env
    assert recorded == [(0, "creating it: RuntimeError"), (2, "creating it: RuntimeError")]
    assert seen == [1, 2, 3, 4]


@pytest.mark.parametrize("count", [0, 3])
def test_a_lane_of_which_nothing_can_be_built_is_refused(count: int) -> None:
    """With the first reason, also where a lane without slots only wants a spec. Its story is told once."""
    told: list[Exception] = []
    with pytest.raises(ServerRefused, match=r"BUILD_FAILED.*creating scripted raised RuntimeError") as refused:
        build_slots(
            scripted({"build:*": "raise"}), slots(count), lambda _r, _s, error, _d: told.append(error), lambda *_: None
        )
    assert len(told) == count
    assert isinstance(refused.value.__cause__, RuntimeError) == (count == 0)


def test_an_environment_of_other_spaces_is_a_fault() -> None:
    """A lane has one spec; the text names both spaces."""
    recipe = scripted({})
    box, discrete = zoo.ScriptedEnv.observation_space, zoo.ScriptedEnv.action_space
    make_alike(recipe, (box, discrete))
    with pytest.raises(BadValue, match=r"action space Discrete\(3\) is not the lane's Discrete\(4\)"):
        make_alike(recipe, (box, spaces.Discrete(4)))
    with pytest.raises(BadValue, match="its observation space"):
        make_alike(recipe, (spaces.Discrete(4), discrete))
