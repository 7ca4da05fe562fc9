"""Which codec serves the environments of a lane: the best one whose states come back as they were.

A probe plays an episode, captures it, plays on, and plays the same actions again from the captured state: in another
environment, in the same one, from a state captured right after a restore, and from its bytes. Every observation,
reward and end has to be equal bit by bit. Only ALE games in nothing but wrappers that are known here are not tried:
tests have tried them.

Invariants: a codec that loses a part of the state is not used (test_a_codec_that_loses_state_is_not_used); only
environments made for it take part, and all but the one that is handed on are closed (test_what_was_tried_is_closed).
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.tensors import Array
from envserver.gym_spec import AnySpace, reader
from envserver.snapshots import plain
from envserver.snapshots.chain import ChainCodec, FieldsPart
from envserver.snapshots.codec import AnyEnv, BadState, CannotCapture, Codec, MakeEnv
from envserver.snapshots.copying import CopyCodec
from envserver.snapshots.replay import ReplayCodec
from envserver.snapshots.simulators import key_state_codec, simulator_codec

log = logging.getLogger("envserver.snapshots")

# Steps before the snapshot, and after it.
TRIALS: Final = (*((before, 6) for before in range(16)), (40, 40))
# Steps of other actions before a restore, so that what it leaves alone is not right by chance.
DIRTY: Final = 3
# A simulator that takes seconds for a step is believed after the first trial.
PATIENCE_S: Final = 5.0

MakeCodec = Callable[[AnyEnv], Codec]
Steps = list[tuple[list[Array], float, bool, bool]]


class Chosen(NamedTuple):
    """A codec that passed, and an environment for it that nobody else uses."""

    codec: Codec
    scratch: AnyEnv


class Mismatch(Exception):
    """The same actions gave something else."""


def fields_codec(template: AnyEnv) -> ChainCodec:
    """Simulator and wrappers by their attributes."""
    return ChainCodec("fields", pb.SNAPSHOT_PROBED, template, FieldsPart())


def candidates(mode: str) -> Sequence[MakeCodec]:
    """Codecs to try, best first. A model environment is one of its own kind, chosen automatically."""
    if mode == "native":
        return (simulator_codec,)
    if mode == "key_state":
        return (key_state_codec,)
    if mode == "replay":
        return (lambda _: ReplayCodec(),)
    return (simulator_codec, fields_codec, CopyCodec)


def choose(mode: str, make_env: MakeEnv) -> tuple[Chosen | None, str]:
    """The codec, if there is one, and for people why it is this one or none."""
    reasons: list[str] = []
    for make_codec in candidates(mode):
        made: list[AnyEnv] = []
        try:
            made.append(make_env())
            made[0].reset(seed=1)
            codec = make_codec(made[0])
            if not _is_known(codec):
                made.append(make_env())
                _probe(codec, *made)
        except Exception as error:  # an environment that is made or stepped may raise anything
            reasons.append(reason_of(error))
            close_all(*made)
            continue
        close_all(*made[:-1])
        return Chosen(codec, made[-1]), f"{codec.name}{'' if codec.exportable else ', not exportable'}"
    return None, "; ".join(reasons)


def _is_known(codec: Codec) -> bool:
    """Not to be probed: it was, with these very wrappers (test_games_come_back_with_all_their_wrappers)."""
    return isinstance(codec, ChainCodec) and codec.name == "ale" and codec.knows_its_wrappers


def reason_of(error: Exception) -> str:
    """For people: our own words, or what an environment raised."""
    is_ours = isinstance(error, CannotCapture | BadState | Mismatch)
    return str(error) if is_ours else f"{type(error).__name__}: {error}"


def close_all(*envs: AnyEnv) -> None:
    """Whatever becomes of it."""
    for env in envs:
        try:
            env.close()
        except Exception as error:
            log.debug("closing a probed environment: %s", error)


def _probe(codec: Codec, first: AnyEnv, second: AnyEnv) -> None:
    """Mismatch, or whatever else goes wrong, unless states come back as they were."""
    actions = copy.deepcopy(first.action_space)
    actions.seed(0)
    second.reset(seed=2)
    began = time.monotonic()
    for number, (before, after) in enumerate(TRIALS):
        if number and time.monotonic() - began > PATIENCE_S:
            return
        first.reset(seed=number)
        for _ in range(before):
            if _ends(first.step(actions.sample())):
                first.reset()
        state, _ = codec.capture(first)
        taken: list[Any] = []
        wanted: Steps = []
        _play(first, [actions.sample() for _ in range(after)], wanted, taken)
        _Again(codec, actions, taken, wanted).everywhere(first, second, state)


class _Again(NamedTuple):
    """Actions that were taken from a state, and what they gave."""

    codec: Codec
    other_actions: AnySpace
    taken: list[Any]
    wanted: Steps

    def everywhere(self, first: AnyEnv, second: AnyEnv, state: Any) -> None:
        """Mismatch unless they give the same, wherever the state is restored and however it travelled."""
        codec = self.codec
        self.compare(self.restored(second, state), "in another environment")
        self.compare(self.restored(first, state), "in the same environment")
        again, _ = codec.capture(self.restored(second, state))
        self.compare(self.restored(second, again), "from a state captured after a restore")
        if not codec.exportable:
            return
        try:
            written = plain.dump(codec.dump(state))
        except plain.NotPlain as error:
            log.info("%s: not exportable: %s", codec.name, error)
            codec.exportable = False
            return
        self.compare(self.restored(second, codec.load(plain.load(written))), "from bytes")

    def restored(self, env: AnyEnv, state: Any) -> AnyEnv:
        env.reset()
        for _ in range(DIRTY):
            if _ends(env.step(self.other_actions.sample())):
                env.reset()
        return self.codec.restore(env, state, None)

    def compare(self, env: AnyEnv, where: str) -> None:
        found: Steps = []
        _play(env, copy.deepcopy(self.taken), found, [])
        for number, (ours, theirs) in enumerate(zip(found, self.wanted, strict=False), 1):
            same_obs = all(a.tobytes() == b.tobytes() for a, b in zip(ours[0], theirs[0], strict=True))
            if not same_obs or repr(ours[1:]) != repr(theirs[1:]):
                raise Mismatch(f"step {number} after a restore {where} differs")
        if len(found) != len(self.wanted):
            raise Mismatch(f"the episode ends elsewhere after a restore {where}")


def _play(env: AnyEnv, actions: list[Any], into: Steps, taken: list[Any]) -> None:
    """Step until the episode ends; what came of it, and the actions."""
    read = reader(env.observation_space)
    for action in actions:
        taken.append(copy.deepcopy(action))
        obs, reward, terminated, truncated, _ = env.step(action)
        into.append(([np.array(leaf) for leaf in read(obs)], float(reward), bool(terminated), bool(truncated)))
        if terminated or truncated:
            return


def _ends(result: tuple[Any, ...]) -> bool:
    return bool(result[2] or result[3])
