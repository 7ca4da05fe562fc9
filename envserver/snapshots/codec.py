"""The seam between snapshots and the simulators that they are of: `Codec`, and the wrappers around an environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import gymnasium

from asyncrl.wire._generated import env_pb2 as pb
from envserver.snapshots.pacing import Pace

AnyEnv = gymnasium.Env[Any, Any]
MakeEnv = Callable[[], AnyEnv]  # one more environment of the lane's kind, not reset yet


class CannotCapture(Exception):
    """This codec cannot hold the state of this environment; the text says why."""


class BadState(ValueError):
    """A state that does not fit the environment, or bytes that are no state."""


class Codec(Protocol):
    """How the state of an environment with all its wrappers is captured and restored.

    `support` is EXACT where the simulator's own means are used, else PROBED. States are never written into.
    """

    name: str
    support: pb.SnapshotSupport.ValueType
    exportable: bool
    remembers_obs: bool  # states have the last observation in them, and `observe` gives it

    def capture(self, env: AnyEnv) -> tuple[Any, int]:
        """The state, and about how many bytes it takes. CannotCapture where it cannot be held."""
        ...

    def restore(self, env: AnyEnv, state: Any, seed: int | None, pace: Pace | None = None) -> AnyEnv:
        """The environment that has the state now: `env`, or another one in its place.

        `seed` None: random generators go on as they were captured; else they begin anew. BadState where it does not
        fit. What takes steps looks at `pace` between them, and lets its Stopped through.
        """
        ...

    def observe(self, env: AnyEnv) -> Any:
        """The last observation; None where the environment does not remember it."""
        ...

    def dump(self, state: Any) -> Any:
        """A plain value for export."""
        ...

    def load(self, value: Any) -> Any:
        """The state that `dump` gave. BadState where it is none."""
        ...


def layers_of(env: AnyEnv) -> list[AnyEnv]:
    """The environment and what it wraps, the outermost first."""
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers
