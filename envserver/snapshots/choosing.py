"""From the owner's rules to what a lane can do about snapshots: its codec, its scratch environment, and the model's.

Invariants: a lane that cannot have snapshots opens all the same, and does everything else
(test_without_support_everything_else_works), also where no further environment can be made
(test_an_environment_that_allows_one_instance_opens_without); what was made in vain is closed
(test_a_model_that_fails_leaves_nothing_open).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gymnasium.wrappers import TimeLimit

from envserver.snapshots.codec import AnyEnv, CannotCapture, Codec, MakeEnv, layers_of
from envserver.snapshots.plain import copied, revived
from envserver.snapshots.probing import choose, close_all, reason_of
from envserver.snapshots.simulators import KEY_STATE

log = logging.getLogger("envserver.snapshots")


@dataclass(frozen=True)
class Capability:
    """`capture_live` captures the environment of a slot; `codec` does everything about those that look ahead."""

    codec: Codec
    scratch: AnyEnv
    make_scratch: MakeEnv
    capture_live: Callable[[AnyEnv], tuple[Any, int]]
    restores_live: bool


def capability_of(mode: str, make_env: MakeEnv, make_model: MakeEnv | None) -> tuple[Capability | None, str]:
    """What a lane of such environments can do, and for people why; None where it can do nothing.

    With `make_model` it is a model environment that looks ahead.
    """
    chosen, reason = choose(mode if make_model is None else "auto", make_model or make_env)
    if chosen is None:
        return None, reason
    codec, scratch = chosen
    if make_model is None:
        return Capability(codec, scratch, make_env, codec.capture, True), reason
    made = [scratch]
    try:
        made.append(make_env())
        made.append(make_model())
        capture = ModelRoots(codec, *made[1:])
    except Exception as error:  # what an environment raises, too
        close_all(*made)
        return None, reason_of(error)
    close_all(made[1])
    return Capability(codec, scratch, make_model, capture, False), f"a model environment, {reason}"


class ModelRoots:
    """The state that a model environment has once it was told the key variables of the real one. `real` is only looked
    at, `vessel` is kept."""

    def __init__(self, codec: Codec, real: AnyEnv, vessel: AnyEnv) -> None:
        self._codec, self._vessel = codec, vessel
        self._get = _method(real, KEY_STATE[0], "the environment")
        self._put = _method(vessel, KEY_STATE[1], "its model")
        spaces = ((env.observation_space, env.action_space) for env in (real, vessel))
        if len(set(map(repr, spaces))) != 1:
            raise CannotCapture("the model's spaces are not those of the environment")
        vessel.reset(seed=0)

    def __call__(self, env: AnyEnv) -> tuple[Any, int]:
        key = copied(getattr(env.unwrapped, self._get)())
        getattr(self._vessel.unwrapped, self._put)(revived(key, None))
        for real, model in itertools.product(_limits(env), _limits(self._vessel)):
            model._elapsed_steps = real._elapsed_steps
        return self._codec.capture(self._vessel)


def _limits(env: AnyEnv) -> list[TimeLimit[Any, Any]]:
    return [layer for layer in layers_of(env) if isinstance(layer, TimeLimit)]


def _method(env: AnyEnv, name: str, whose: str) -> str:
    if not callable(getattr(env.unwrapped, name, None)):
        raise CannotCapture(f"{whose} has no {name}")
    return name
