"""The codec of simulators that cannot be copied: how an episode began, and every action since.

`Recorder` is a wrapper that remembers this. An unseeded reset would depend on all episodes before: it gives each of
them a seed of its own, drawn from that of the last seeded reset.

Invariants: a recorded environment is restored by a seed and its actions (test_replay_restores_deterministic_games); an
episode's past is shared by all that follow from it (test_pasts_are_shared); a long one can be stopped, and nothing goes
on from where it stood (test_a_long_past_is_stopped_on_its_way).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import gymnasium
import numpy as np

from asyncrl.wire._generated import env_pb2 as pb
from envserver.snapshots.chain import reseed_all
from envserver.snapshots.codec import AnyEnv, BadState, CannotCapture
from envserver.snapshots.pacing import Pace
from envserver.snapshots.plain import copied, size_of

MAX_EVENTS: Final = 1_000_000


class Past(NamedTuple):
    """The last event of an episode so far, and what was before it: a list that grows at one end and is shared."""

    kind: str  # begin, act, reseed
    value: Any  # (seed, options), the action, the seed
    before: Past | None
    length: int

    def events(self) -> list[Past]:
        """Oldest first."""
        found: list[Past] = []
        last: Past | None = self
        while last is not None:
            found.append(last)
            last = last.before
        return found[::-1]


class Recorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Remembers seed, options and actions of the running episode."""

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self.past: Past | None = None
        self._seeds = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._seeds = np.random.default_rng([seed, 1])
        used = int(self._seeds.integers(1 << 31)) if seed is None else seed
        self.past = Past("begin", (used, copied(options)), None, 1)
        return self.env.reset(seed=used, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        past = self.past
        self.past = Past("act", copied(action), past, 1 if past is None else past.length + 1)
        return self.env.step(action)

    def reseed(self, seed: int) -> None:
        """Begin every generator anew, as part of the episode."""
        assert self.past is not None
        reseed_all(self.env, seed)
        self.past = Past("reseed", seed, self.past, self.past.length + 1)

    def go_to(self, past: Past, pace: Pace) -> None:
        """Play what was played there; only the rest, where this episode is the beginning of that one. Stopped on the
        way, it stands somewhere in between."""
        events = past.events()
        if self.past is not None and self.past.length <= len(events) and events[self.past.length - 1] is self.past:
            events = events[self.past.length :]
        left = pace.steps
        for event in events:
            if not left:
                left = pace.look()
            left -= 1
            if event.kind == "begin":
                seed, options = event.value
                self.env.reset(seed=seed, options=copied(options))
            elif event.kind == "act":
                self.env.step(copied(event.value))
            else:
                reseed_all(self.env, event.value)
            self.past = event


class ReplayCodec:
    """A state is the past of an episode."""

    name = "replay"
    support: pb.SnapshotSupport.ValueType = pb.SNAPSHOT_PROBED
    exportable = True
    remembers_obs = False

    def capture(self, env: AnyEnv) -> tuple[Any, int]:
        past = _recorder(env).past
        if past is None:
            raise CannotCapture("it was not reset yet")
        # What came before belongs to the parent's state; a state whose parents are gone is charged for one event too.
        return past, 128 + size_of(past.value)

    def restore(self, env: AnyEnv, state: Any, seed: int | None, pace: Pace | None = None) -> AnyEnv:
        recorder = _recorder(env)
        try:
            recorder.go_to(state, Pace(lambda: "") if pace is None else pace)
            if seed is not None:
                recorder.reseed(seed)
        except Exception:  # the environment's, or Stopped
            recorder.past = None  # somewhere on the way, where nothing goes on from
            raise
        return env

    def observe(self, env: AnyEnv) -> Any:
        return None

    def dump(self, state: Any) -> Any:
        return [(event.kind, event.value) for event in state.events()]

    def load(self, value: Any) -> Any:
        past: Past | None = None
        for number, event in enumerate(_events(value), 1):
            past = Past(*event, past, number)
        if past is None or past.events()[0].kind != "begin":
            raise BadState("not the past of an episode")
        return past


def _events(value: Any) -> list[tuple[str, Any]]:
    if type(value) is not list or len(value) > MAX_EVENTS:
        raise BadState("not the past of an episode")
    for number, event in enumerate(value):
        if type(event) is not tuple or len(event) != 2 or event[0] not in ("begin", "act", "reseed"):
            raise BadState("not the past of an episode")
        if (event[0] == "begin") != (number == 0) or (event[0] == "reseed" and type(event[1]) is not int):
            raise BadState("not the past of an episode")
    return value


def _recorder(env: AnyEnv) -> Recorder:
    if not isinstance(env, Recorder):
        raise CannotCapture("it was not opened for snapshots, so that its actions were not recorded")
    return env
