"""The parts of a state that simulators give themselves: ALE, and methods of an environment's own.

An environment says what its state is by a pair of methods, `get_state()` and `set_state(state)` or `clone_state()` and
`restore_state(state)`, whose state is a plain value; one that can tell only its key variables, by `get_key_state()` and
`set_key_state(state)`. The environment's `np_random` belongs to the state in any case.

Invariants: what an environment handed out is not changed by what it does later (test_own_states_are_copies); a game
whose state lacks something is refused (test_ale_with_sticky_actions_of_its_own_is_refused).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Final

from asyncrl.wire._generated import env_pb2 as pb
from envserver.snapshots.chain import ChainCodec, Part
from envserver.snapshots.codec import AnyEnv, CannotCapture
from envserver.snapshots.generators import generators_of
from envserver.snapshots.plain import (
    RANDOMNESS_BYTES,
    Randomness,
    apply_randomness,
    copied,
    randomness_of,
    revived,
    size_of,
)

OWN_STATES: Final = (("get_state", "set_state"), ("clone_state", "restore_state"))
KEY_STATE: Final = ("get_key_state", "set_key_state")


def methods_of(env: AnyEnv, pairs: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
    """The first pair of methods that the simulator has: one without arguments, one that takes the state."""
    for get, put in pairs:
        if _takes(getattr(env.unwrapped, get, None), 0) and _takes(getattr(env.unwrapped, put, None), 1):
            return get, put
    return None


def _takes(method: Any, count: int) -> bool:
    """Whether it can be called with so many arguments: MuJoCo's `set_state(qpos, qvel)` is no such method."""
    if not callable(method):
        return False
    try:
        inspect.signature(method).bind(*[None] * count)
    except (TypeError, ValueError):
        return False
    return True


class OwnPart:
    """A simulator with methods for its state."""

    def __init__(self, get: str, put: str) -> None:
        self._get, self._put = get, put

    def capture(self, layer: Any) -> tuple[Any, int]:
        state = copied(getattr(layer, self._get)())
        return (state, randomness_of(layer.__dict__.get("_np_random"))), size_of(state) + RANDOMNESS_BYTES

    def restore(self, layer: Any, state: Any) -> None:
        own, generator = state
        getattr(layer, self._put)(revived(own, None))
        _restore_generator(layer, generator)

    def generators(self, layer: Any, state: Any) -> Iterable[Any]:
        return generators_of(layer)

    def dump(self, state: Any) -> Any:
        return state

    def load(self, value: Any) -> Any:
        own, generator = value
        return own, generator


class AlePart:
    """An ALE game. Its state lacks the action that ALE's own sticky actions would repeat: it must have none."""

    def __init__(self, env: Any) -> None:
        from ale_py import ALEState

        self._make_state = ALEState
        if env.ale.getFloat("repeat_action_probability") > 0.0:
            raise CannotCapture("ALE does not tell the action that it may repeat: preprocess it, or set no probability")

    def capture(self, layer: Any) -> tuple[Any, int]:
        data = layer.ale.cloneState(include_rng=False).serialize()
        return (data, randomness_of(layer.__dict__.get("_np_random"))), len(data) + RANDOMNESS_BYTES

    def restore(self, layer: Any, state: Any) -> None:
        data, generator = state
        layer.ale.restoreState(self._make_state(data))
        _restore_generator(layer, generator)

    def generators(self, layer: Any, state: Any) -> Iterable[Any]:
        return [layer._np_random] if layer.__dict__.get("_np_random") is not None else []

    def dump(self, state: Any) -> Any:
        return state

    def load(self, value: Any) -> Any:
        data, generator = value
        if type(data) is not bytes:
            raise TypeError("not the state of a game")
        return data, generator


def _restore_generator(layer: Any, saved: Randomness | None) -> None:
    if saved is not None:
        layer._np_random = apply_randomness(saved, layer.__dict__.get("_np_random"))


def simulator_codec(template: AnyEnv) -> ChainCodec:
    """The codec of a simulator that gives its own state. CannotCapture where it gives none."""
    simulator = template.unwrapped
    part: Part
    if hasattr(simulator, "ale"):
        part, name = AlePart(simulator), "ale"
    else:
        methods = methods_of(template, OWN_STATES)
        if methods is None:
            raise CannotCapture("it has no get_state and set_state, nor clone_state and restore_state")
        part, name = OwnPart(*methods), "own state"
    return ChainCodec(name, pb.SNAPSHOT_EXACT, template, part)


def key_state_codec(template: AnyEnv) -> ChainCodec:
    """The codec of a simulator that tells its key variables. CannotCapture where it tells none."""
    methods = methods_of(template, (KEY_STATE,))
    if methods is None:
        raise CannotCapture("it has no get_key_state and set_key_state")
    return ChainCodec("key state", pb.SNAPSHOT_PROBED, template, OwnPart(*methods))
