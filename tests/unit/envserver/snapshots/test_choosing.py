"""From the owner's rules to what a lane can do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest

from asyncrl.errors import ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.requests import ResetRequest
from envserver.building import build_host
from envserver.host import LaneWish
from envserver.opening import desk_for, opened_by
from envserver.registry import Registry, parse_env_option
from envserver.snapshots.choosing import capability_of
from envserver.snapshots.rules import SnapshotRules
from tests.unit.envserver.snapshots.toys import (
    DeskLane,
    KeyStateEnv,
    Licensed,
    ModelEnv,
    key_state,
    look,
    model,
    option,
    uncopyable,
    walk,
)


def test_without_support_everything_else_works() -> None:
    """The lane opens with SNAPSHOT_NONE, and steps; the reason is told."""
    capability, reason = capability_of("auto", uncopyable, None)
    assert capability is None
    assert "uncopyable" in reason.lower()
    alias = parse_env_option(option("uncopyable"))
    wish = LaneWish("uncopyable", num_slots=1, fleet_slots=[0], incarnations=[0], snapshots=True)
    host = build_host(alias, wish, lambda *_: None)
    desk = desk_for(Registry([alias]), alias, host, wish)
    opened = opened_by(host, wish, list(pb.Feature.values()), desk)
    assert opened.snapshot_support == pb.SNAPSHOT_NONE
    assert not {pb.SNAPSHOTS, pb.EXPORTS} & set(opened.features)
    host.reset(ResetRequest(None, [1], None))
    assert host.step([np.array([1])]).flags.tolist() == [0]


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("mode", ["auto", "model:light"])
def test_an_environment_that_allows_one_instance_opens_without(
    instances: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A licence, or a port: the slot has it, and what more are needed to look ahead cannot be made."""
    monkeypatch.setattr(Licensed, "left", instances)
    aliases = [parse_env_option(option("licensed")), parse_env_option(option("light", "model"))]
    aliases[0] = replace(aliases[0], snapshots=SnapshotRules(mode))
    wish = LaneWish("licensed", num_slots=1, fleet_slots=[0], incarnations=[0], snapshots=True)
    host = build_host(aliases[0], wish, lambda *_: None)
    desk = desk_for(Registry(aliases), aliases[0], host, wish)
    if mode == "model:light" and instances == 2:
        assert desk is not None, "a model looks ahead; of the environment one more is looked at, and closed"
        return
    assert opened_by(host, wish, [], desk).snapshot_support == pb.SNAPSHOT_NONE
    host.reset(ResetRequest(None, [1], None))
    assert host.step([np.array([1])]).flags.tolist() == [0]


def test_a_model_whose_module_is_gone_costs_the_snapshots() -> None:
    """Not the lane."""
    real, light = parse_env_option(option("real", "key_state")), parse_env_option("light=no_such_module:make")
    real = replace(real, snapshots=SnapshotRules("model:light"))
    wish = LaneWish("real", num_slots=1, fleet_slots=[0], incarnations=[0], snapshots=True)
    host = build_host(real, wish, lambda *_: None)
    assert desk_for(Registry([real, light]), real, host, wish) is None


def test_a_lane_that_wants_none_has_none() -> None:
    """No probe, no scratch environment, no recorder."""
    alias = parse_env_option(option("walk"))
    wish = LaneWish("walk", num_slots=1, fleet_slots=[0], incarnations=[0])
    host = build_host(alias, wish, lambda *_: None)
    assert desk_for(Registry([alias]), alias, host, wish) is None


def test_a_model_looks_ahead_for_the_environment() -> None:
    """It begins where the key variables say, with the time that is left; the live slot stays, and is not restored."""
    lane = DeskLane(option("real", "key_state"), option("light", "model"), rules=SnapshotRules("model:light"))
    for _ in range(20):
        lane.step(2, 0)
    lane.snapshot([1, 2])
    twin = key_state()
    twin.reset(seed=3)
    for _ in range(20):
        twin.step(2)
    wanted = [twin.step(action) for action in (0, 1, 2, 2, 2)]
    found = lane.simulate(look(1, lane, 0, 1, 2, 2, 2, keep_as=3), look(1, lane, 0, keep_as=4), look(4, lane, 1))
    assert found.rewards[0].tolist() == [step[1] for step in wanted]
    assert found.truncated.tolist() == [True, False, False], "the limit of 25 steps"
    assert np.array_equal(found.obs[0][2], wanted[1][0])
    with pytest.raises(ServerRefused, match="model"):
        lane.restore(0, 1, t=20)


def test_a_model_with_other_dynamics_is_used_as_it_is() -> None:
    """The model's rewards are what a search sees: a light model is not the environment."""
    lane = DeskLane(
        option("real", "key_state"), option("light", "model", '{"gain": 3.0}'), rules=SnapshotRules("model:light")
    )
    lane.snapshot([1])
    start = lane.rows.obs[0][0, 0]
    assert lane.simulate(look(1, lane, 2)).rewards[0, 0] == start + 3.0


@pytest.mark.parametrize("failing", ["the environment", "its model", "its reset", "its state"])
def test_a_model_that_fails_leaves_nothing_open(failing: str) -> None:
    """Whatever raises, and whenever: the lane has no snapshots, and all that was made for them is closed."""
    living: list[ModelEnv] = []
    made = 0
    last = 10_000  # of those that are made: what holds the environment's state in the model

    class Model(ModelEnv):
        def __init__(self) -> None:
            nonlocal made
            made += 1
            self.number = made
            if failing == "its model" and made == last:
                raise OSError("no second licence")
            super().__init__()
            living.append(self)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            if failing == "its reset" and self.number == last:
                raise OSError("no second licence")
            return super().reset(seed=seed, options=options)

        def close(self) -> None:
            living.remove(self)

    def real() -> Any:
        if failing == "the environment" and last < 10_000:
            raise OSError("no second licence")
        return walk() if failing == "its state" and last < 10_000 else KeyStateEnv()

    capability, _ = capability_of("model:light", real, Model)
    assert capability is not None
    assert len(living) == 2
    last, made = made, 0
    living.clear()
    capability, reason = capability_of("model:light", real, Model)
    assert capability is None
    assert ("no get_key_state" if failing == "its state" else "OSError: no second licence") in reason
    assert made >= last - 1
    assert living == []


def test_impossible_models_are_refused() -> None:
    """An environment that tells no key variables, a model that takes none, and other spaces."""

    class Wide(KeyStateEnv):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float64)

        def __init__(self) -> None:
            super().__init__()
            del self._handle

    for real, light, says in (
        (walk, model, "the environment has no get_key_state"),
        (key_state, walk, "its model has no set_key_state"),
        (key_state, Wide, "spaces"),
    ):
        capability, reason = capability_of("model:light", real, light)
        assert capability is None
        assert says in reason
