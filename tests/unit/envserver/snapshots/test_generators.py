"""Where generators are found, and that all of them begin anew."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from gymnasium import wrappers

from asyncrl.wire._generated import env_pb2 as pb
from envserver.snapshots.chain import reseed_all
from envserver.snapshots.copying import CopyCodec
from envserver.snapshots.generators import generators_of, is_drawn_from, reseed
from tests.unit.envserver.snapshots.toys import DeskLane, NestedEnv, WalkEnv, adapter, look, option, sampling


@dataclass(slots=True)
class Slotted:
    """An agent without a dict."""

    empty: Any
    rng: Any


class Bag(dict[str, Any]):
    """A container with attributes."""


def bag(rng: Any) -> Bag:
    made = Bag()
    made.rng = rng  # type: ignore[attr-defined]
    return made


def nested_deep(rng: Any) -> Any:
    value = rng
    for _ in range(40):
        value = [value]
    return value


def wrapped(rng: Any) -> Any:
    env = WalkEnv()
    env.luck = rng  # type: ignore[attr-defined]
    return wrappers.TimeLimit(env, 9)


PLACES: dict[str, Callable[[Any], Any]] = {
    "itself": lambda rng: rng,
    "a long list": lambda rng: [*range(1000), rng],
    "a long tuple of dicts": lambda rng: tuple({"agent": each} for each in [*[0] * 100, rng]),
    "a large dict": lambda rng: {**dict.fromkeys(range(100)), "last": rng},
    "a queue": lambda rng: deque([rng]),
    "an array of objects": lambda rng: np.array([[None, rng]], dtype=object),
    "slots": lambda rng: Slotted(None, rng),
    "an attribute of a dict": bag,
    "very deep": nested_deep,
    "another environment, and what that wraps": wrapped,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["_inner", "env"])
def test_generators_are_found_wherever_they_are(place: str, name: str) -> None:
    """In containers of any size and depth, slots, and environments of environments, also one that is called `env`."""
    env, rng = NestedEnv(), np.random.default_rng(5)
    setattr(env, name, PLACES[place](rng))
    assert any(found is rng for found in generators_of(env))


def test_every_generator_is_found_once() -> None:
    """One that two attributes share too, and in the same order each time; what a wrapper wraps is not its own."""
    env = NestedEnv()
    env.reset(seed=1)
    env.part.rng = np.random.default_rng(3)  # type: ignore[attr-defined]
    env.again = env.own  # type: ignore[attr-defined]
    env.part.inner = env.part  # walks in a circle
    env.several = [np.random.RandomState(1)]  # type: ignore[attr-defined]
    found = list(generators_of(env))
    assert len(found) == 4
    assert {id(each) for each in found} >= {id(env.own), id(env.np_random)}
    assert list(map(id, generators_of(env))) == list(map(id, found))
    assert len(list(generators_of(env, {"several"}))) == 3
    assert list(generators_of(wrappers.TimeLimit(env, 9))) == []


def test_empty_slots_hold_no_generator() -> None:
    """A slot that nothing was put into is passed by."""
    env, agent = NestedEnv(), Slotted(None, 3)
    del agent.empty
    env.agent = agent  # type: ignore[attr-defined]
    assert list(generators_of(env)) == [env.own]


def test_spaces_have_generators_once_they_are_drawn_from() -> None:
    """A space in a space too; one that nobody has sampled is left alone."""
    env: Any = sampling()
    assert not is_drawn_from(env.observation_space)
    assert list(generators_of(env)) == []
    env.reset(seed=1)
    assert is_drawn_from(env.observation_space)
    assert len(list(generators_of(env))) > 1


def test_each_generator_is_seeded_once() -> None:
    """One that two layers share gets one stream, and the others streams of their own."""
    shared, other = np.random.default_rng(0), np.random.default_rng(0)
    reseed([shared, other, shared], 3)
    first = shared.normal(), other.normal()
    reseed([shared, other], 3)
    assert (shared.normal(), other.normal()) == first
    env = NestedEnv()
    env.reset(seed=1)
    reseed_all(env, 3)
    draws = env.own.normal(), env.np_random.normal()
    reseed_all(env, 3)
    assert (env.own.normal(), env.np_random.normal()) == draws


@pytest.mark.parametrize("kind", ["adapter", "crowd"])
def test_no_planner_sees_the_dice_of_an_inner_environment(kind: str) -> None:
    """Resampled, every seed tosses anew, though the generators are in another environment or in a long list."""
    lane = DeskLane(option(kind))
    lane.snapshot([1])
    wave = [look(1, lane, 1, rng=pb.RESAMPLE, seed=seed) for seed in (0, 0, 1, 2)]
    first, again, *others = lane.simulate(*wave).rewards[:, 0].tolist()
    live = lane.step(1, 1).rewards[0]
    assert first == again
    assert len({first, *others, live}) == 4


@pytest.mark.parametrize(
    ("kind", "codec"), [("unseeded", "fields"), ("unseeded_adapter", "deepcopy"), ("unseeded_own_state", "own state")]
)
def test_a_generator_that_was_not_used_yet_belongs_to_the_state(kind: str, codec: str) -> None:
    """Frozen, the first toss after an unseeded reset is the one that the slot then makes, every time."""
    lane = DeskLane(option(kind))
    assert lane.desk._codec.name == codec
    lane.snapshot([1])
    found = lane.simulate(look(1, lane, 1), look(1, lane, 1), look(1, lane, 1, rng=pb.RESAMPLE, seed=1))
    tosses = found.rewards[:, 0].tolist()
    assert tosses[0] == tosses[1] == lane.step(1, 1).rewards[0]
    assert tosses[2] != tosses[0]


def test_copies_begin_anew_in_all_they_hold() -> None:
    """The codec of copies reseeds what its environments hold."""
    env = adapter()
    env.reset(seed=1)
    codec = CopyCodec(env)
    state, _ = codec.capture(env)
    futures = [codec.restore(env, state, seed).step(1)[1] for seed in (None, 3, 3, 4)]
    assert futures[1] == futures[2]
    assert len(set(futures)) == 3
