"""The codec of last resort: the environment itself, copied by `copy.deepcopy`. Its states cannot leave the process.

Invariant: an environment that says how to copy itself by being built anew (`EzPickle`) is refused: it would come back
as fresh as it began (test_ez_pickle_is_refused).
"""

from __future__ import annotations

import copy
from typing import Any, Final

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import EzPickle

from asyncrl.wire._generated import env_pb2 as pb
from envserver.snapshots.chain import reseed_all
from envserver.snapshots.codec import AnyEnv, BadState, CannotCapture, layers_of
from envserver.snapshots.generators import begin_generators, is_drawn_from
from envserver.snapshots.pacing import Pace

# Nobody can tell what a copied object takes. What is charged for it keeps their number down.
ASSUMED_BYTES: Final = 64 * 1024


class CopyCodec:
    """A state is an environment that nobody steps."""

    name = "deepcopy"
    support: pb.SnapshotSupport.ValueType = pb.SNAPSHOT_PROBED
    exportable = False
    remembers_obs = False

    def __init__(self, template: AnyEnv) -> None:
        for layer in layers_of(template):
            if isinstance(layer, EzPickle):
                raise CannotCapture(f"{type(layer).__name__} is copied by being built anew")
        self.capture(template)

    def capture(self, env: AnyEnv) -> tuple[Any, int]:
        try:
            begin_generators(env)
            return copied_env(env), ASSUMED_BYTES
        except Exception as error:  # whatever an object raises that is not made to be copied
            raise CannotCapture(f"it cannot be copied: {type(error).__name__}: {error}") from None

    def restore(self, env: AnyEnv, state: Any, seed: int | None, pace: Pace | None = None) -> AnyEnv:
        # The environment that is replaced is not closed: copies may share with it what closing takes away.
        restored = copied_env(state)
        if seed is not None:
            reseed_all(restored, seed)
        return restored

    def observe(self, env: AnyEnv) -> Any:
        return None

    def dump(self, state: Any) -> Any:
        raise CannotCapture("a copied environment has no bytes; it stays in its lane")

    def load(self, value: Any) -> Any:
        raise BadState("states of this environment stay in their lane")


def copied_env(env: AnyEnv) -> AnyEnv:
    """A deep copy. Specs are shared, and so are spaces that nobody samples from."""
    shared: dict[int, Any] = {}
    for layer in layers_of(env):
        for value in layer.__dict__.values():
            if isinstance(value, EnvSpec) or (isinstance(value, gymnasium.Space) and not is_drawn_from(value)):
                shared[id(value)] = value
    return copy.deepcopy(env, shared)
