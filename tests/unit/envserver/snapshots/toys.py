"""Small environments with one peculiarity each, and a lane's desk without the lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import EzPickle

from asyncrl.wire import snapshot_bodies as bodies
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.outcomes import Outcomes, decode_outcomes
from asyncrl.wire.requests import ResetRequest
from asyncrl.wire.snapshot_bodies import Earlier, SimulateEntry
from asyncrl.wire.step_rows import StepRows
from asyncrl.wire.tensors import Array
from envserver.building import build_host
from envserver.host import Host, LaneWish
from envserver.opening import desk_for
from envserver.registry import EnvAlias, Registry, parse_env_option
from envserver.snapshots.codec import layers_of
from envserver.snapshots.desk import SnapshotDesk
from envserver.snapshots.rules import SnapshotRules

HERE = __name__
KEY = b"k" * 32
Info = dict[str, Any]


class WalkEnv(gymnasium.Env[Any, Any]):
    """A noisy walk on a line; its observation is one buffer that it writes into again and again."""

    observation_space: gymnasium.Space[Any] = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space: gymnasium.Space[Any] = spaces.Discrete(3)
    length = 50

    def __init__(self) -> None:
        self.where = 0.0
        self.t = 0
        self._buffer = np.zeros(3)

    def _obs(self) -> Any:
        self._buffer[:] = self.where, self.t, self.where * self.t
        return self._buffer

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.where, self.t = float(self.np_random.normal()), 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self.where += float(self.np_random.normal()) + int(action) - 1
        self.t += 1
        return self._obs(), self.where, abs(self.where) > 20, self.t >= self.length, {}


class LongWalkEnv(WalkEnv):
    """Hardly ever ends."""

    length = 100_000

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, False, truncated, info


def long_walk() -> gymnasium.Env[Any, Any]:
    return LongWalkEnv()


def walk() -> gymnasium.Env[Any, Any]:
    return WalkEnv()


class WalkerEnv(WalkEnv):
    """A walk that is a model of itself."""

    def get_key_state(self) -> Any:
        return self.where, self.t

    def set_key_state(self, state: Any) -> None:
        self.where, self.t = state


def walker() -> gymnasium.Env[Any, Any]:
    return WalkerEnv()


class UnseededEnv(WalkEnv):
    """Nobody seeds it: Gymnasium makes its generator when a step first uses it."""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        self.where, self.t = 0.0, 0
        self._np_random = None
        return self._obs(), {}


def unseeded() -> gymnasium.Env[Any, Any]:
    return UnseededEnv()


def unseeded_adapter() -> gymnasium.Env[Any, Any]:
    env = AdapterEnv()
    env._inner = UnseededEnv()
    return env


class UnseededOwnEnv(UnseededEnv):
    """And it says its state itself."""

    def get_state(self) -> Any:
        return self.where, self.t

    def set_state(self, state: Any) -> None:
        self.where, self.t = state


def unseeded_own_state() -> gymnasium.Env[Any, Any]:
    return UnseededOwnEnv()


class CoinEnv(gymnasium.Env[Any, Any]):
    """One step: action 1 pays +1 or -1 by a fair coin, action 0 pays 0.1."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        coin = 1.0 if self.np_random.random() < 0.5 else -1.0
        return 1, coin if action else 0.1, True, False, {}


def coin() -> gymnasium.Env[Any, Any]:
    return CoinEnv()


class AdapterEnv(gymnasium.Env[Any, Any]):
    """No wrapper: it holds the environment that it shows in an attribute."""

    def __init__(self) -> None:
        self._inner = WalkEnv()
        self.observation_space, self.action_space = self._inner.observation_space, self._inner.action_space

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        return self._inner.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        return self._inner.step(action)


def adapter() -> gymnasium.Env[Any, Any]:
    return AdapterEnv()


class CrowdEnv(WalkEnv):
    """A generator for each of a hundred walkers."""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        found = super().reset(seed=seed)
        self.lucks = [np.random.default_rng([seed or 0, each]) for each in range(100)]
        return found

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(self.lucks[self.t].normal()), terminated, truncated, info


def crowd() -> gymnasium.Env[Any, Any]:
    return CrowdEnv()


class Part:
    """An object that an environment keeps its state in."""

    def __init__(self) -> None:
        self.speed = 1.0
        self.trail: list[float] = []
        self.inner: Part | None = None


class NestedEnv(WalkEnv):
    """State in objects, containers, sets and a generator of its own, and a table that never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Part()
        self.part.inner = Part()
        self.seen: set[int] = set()
        self.own = np.random.default_rng(5)
        self.table = {row: [(row, column, 0.5) for column in range(10)] for row in range(10)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self.part.speed += float(self.own.normal())
        self.part.trail.append(self.part.speed)
        assert self.part.inner is not None
        self.part.inner.speed = sum(self.part.trail)
        self.seen.add(int(self.where))
        row = self.table[self.t % 10][int(action)]
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward + self.part.inner.speed + len(self.seen) + row[2], terminated, truncated, info


def nested() -> gymnasium.Env[Any, Any]:
    return NestedEnv()


class OwnStateEnv(WalkEnv):
    """It says its state itself, and hands out what it goes on to write into."""

    def __init__(self) -> None:
        super().__init__()
        self._hidden = iter(range(1 << 40))  # neither plain nor to be copied with the state
        self.state = np.zeros(2)

    def get_state(self) -> Any:
        self.state[:] = self.where, self.t
        return {"state": self.state, "name": "walk"}

    def set_state(self, state: Any) -> None:
        assert state["name"] == "walk"
        self.state = state["state"]
        self.where, self.t = float(self.state[0]), int(self.state[1])
        self.state[:] = -1.0


def own_state() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(OwnStateEnv(), 30)


class ShyEnv(OwnStateEnv):
    """Where no probe looks: between steps 20 and 40 it does not tell its state, and at step 30 one goes in by half."""

    def get_state(self) -> Any:
        if 20 < self.t < 40:
            raise RuntimeError("not in the middle of it")
        return super().get_state()

    def set_state(self, state: Any) -> None:
        there = self.t == 30
        super().set_state(state)
        if there:
            raise RuntimeError("half way")


def shy() -> gymnasium.Env[Any, Any]:
    return ShyEnv()


class ForgetfulEnv(OwnStateEnv):
    """It leaves the time out of its state, which its observations show."""

    def get_state(self) -> Any:
        return self.where

    def set_state(self, state: Any) -> None:
        self.where = state


def forgetful() -> gymnasium.Env[Any, Any]:
    return ForgetfulEnv()


class KeyStateEnv(gymnasium.Env[Any, Any]):
    """Deterministic; it tells where it is, and can be put there."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(3)

    def __init__(self, gain: float = 1.0) -> None:
        self._gain = gain
        self._closure = [0.0, 0.0]
        self._handle = iter(())  # no codec but by key variables gets past this

    def _obs(self) -> Any:
        return np.array(self._closure)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self._closure = [float(self.np_random.integers(5)), 0.0]
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self._closure[1] += self._gain * (int(action) - 1)
        self._closure[0] += self._closure[1]
        return self._obs(), self._closure[0], False, False, {}

    def get_key_state(self) -> Any:
        return list(self._closure)

    def set_key_state(self, state: Any) -> None:
        self._closure = state


def key_state(gain: float = 1.0) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(KeyStateEnv(gain), 25)


class ModelEnv(KeyStateEnv):
    """A light model of KeyStateEnv, whose states any codec can hold."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__(gain)
        del self._handle


def model(gain: float = 1.0) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(ModelEnv(gain), 25)


class UncopyableEnv(KeyStateEnv):
    """An iterator inside, which no codec gets past; nothing else is said of the state."""

    get_key_state = None  # type: ignore[assignment]
    set_key_state = None  # type: ignore[assignment]

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("cannot copy a simulator")


def uncopyable() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(UncopyableEnv(), 25)


class Licensed(KeyStateEnv):
    """Of which so many may exist at once."""

    left = 1

    def __init__(self, gain: float = 1.0) -> None:
        if not Licensed.left:
            raise RuntimeError("no licence is left")
        super().__init__(gain)
        Licensed.left -= 1

    def close(self) -> None:
        Licensed.left += 1


def licensed() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(Licensed(), 25)


class CopyOnlyEnv(WalkEnv):
    """An array of objects: not plain, but it can be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.objects = np.array([{"speed": 0.0}], dtype=object)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self.objects[0]["speed"] += float(self.np_random.normal())
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward + self.objects[0]["speed"], terminated, truncated, info


def copy_only() -> gymnasium.Env[Any, Any]:
    return CopyOnlyEnv()


class SamplingEnv(WalkEnv):
    """Its observations are samples of its space, whose generator is part of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(deep=spaces.Tuple([spaces.Discrete(1000)]))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        return self.observation_space.sample(), *super().step(action)[1:]


def sampling() -> gymnasium.Env[Any, Any]:
    return SamplingEnv()


class PickleEnv(CopyOnlyEnv, EzPickle):
    """Its copies come back as fresh as it began."""

    def __init__(self) -> None:
        CopyOnlyEnv.__init__(self)
        EzPickle.__init__(self)


def ez_pickle() -> gymnasium.Env[Any, Any]:
    return PickleEnv()


class TurnsEnv(gymnasium.Env[Any, Any]):
    """Two players in turn, six moves. Illegal ones pay as no legal ones do: probes make them, rollouts must not."""

    observation_space = spaces.Discrete(100)
    action_space = spaces.Discrete(4)

    def __init__(self) -> None:
        self.moves: list[int] = []

    def _info(self) -> Info:
        mask = np.ones(4, np.int8)
        mask[len(self.moves) % 4] = 0
        return {"action_mask": mask, "to_play": len(self.moves) % 2}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.moves = []
        return 0, self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        legal = self._info()["action_mask"][action]
        reward = 1.0 if legal else 2.0 ** (9 + len(self.moves))  # which no sum of others is
        self.moves.append(int(action))
        return len(self.moves), reward, len(self.moves) == 6, False, self._info()


def turns() -> gymnasium.Env[Any, Any]:
    return TurnsEnv()


class MuteEnv(TurnsEnv):
    """Says at the reset alone that player 1 moves, and may only take 0; then infos are empty or of something else."""

    def _info(self) -> Info:
        if not self.moves:
            return {"action_mask": np.array([1, 0, 0, 0], np.int8), "to_play": 1}
        return {} if len(self.moves) % 2 else {"moves": len(self.moves)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self.moves.append(int(action))
        return len(self.moves), float(action), len(self.moves) == 6, False, self._info()


def mute() -> gymnasium.Env[Any, Any]:
    return MuteEnv()


class BreakingEnv(WalkEnv):
    """Action 2 raises once the walk has come to step 4."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        if action == 2 and self.t >= 4 and getattr(self, "fragile", False):
            raise RuntimeError("it fell over in /home/me/secret/place")
        return super().step(action)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        found = super().reset(seed=seed)
        self.fragile = (options or {}).get("fragile", False)
        return found


def breaking() -> gymnasium.Env[Any, Any]:
    return BreakingEnv()


def option(name: str, entry_point: str = "", kwargs: str = "") -> str:
    """An `--env` option for an environment of this module."""
    return f"{name}={HERE}:{entry_point or name}{kwargs}"


class DeskLane:
    """A slots host and its desk, driven as a lane process does it."""

    def __init__(
        self, *options: str, num_slots: int = 2, rules: SnapshotRules | None = None, seed: int = 3, **reset: Any
    ) -> None:
        aliases = [replace(parse_env_option(each), snapshots=rules or SnapshotRules(key=KEY)) for each in options]
        self.alias: EnvAlias = aliases[0]
        self.num_slots = num_slots
        wish = LaneWish(
            self.alias.alias,
            num_slots=num_slots,
            fleet_slots=range(num_slots),
            incarnations=[0] * num_slots,
            snapshots=True,
        )
        self.host: Host = build_host(self.alias, wish, lambda *_: None)
        desk = desk_for(Registry(aliases), self.alias, self.host, wish)
        assert desk is not None, "no snapshots"
        self.desk: SnapshotDesk = desk
        if num_slots:
            self.saw(self.host.reset(ResetRequest(None, [seed + row for row in range(num_slots)], reset or None)))

    def saw(self, rows: StepRows) -> StepRows:
        self.desk.saw(rows)
        self.rows = rows
        return rows

    def step(self, *action: Any) -> StepRows:
        leaf = self.host.spec.action.leaves[0]
        return self.saw(self.host.step([np.asarray(action, leaf.dtype).reshape(self.num_slots, *leaf.shape)]))

    def snapshot(self, ids: Sequence[int], rows: Sequence[int] | None = None) -> pb.SnapshotResult:
        rows = range(len(ids)) if rows is None else rows
        return pb.SnapshotResult.FromString(self.desk.snapshot(pb.Snapshot(rows=rows, ids=ids).SerializeToString()))

    def simulate(self, *entries: SimulateEntry, interrupted: Any = lambda: "") -> Outcomes:
        body = bodies.encode_simulate(entries, self.host.spec)
        asked = [len(entry.actions[0]) for entry in entries]
        return decode_outcomes(self.desk.simulate(body, interrupted), self.host.spec, asked)

    def sent(self, *entries: SimulateEntry) -> list[list[bytes]]:
        """The observation leaves of the reply, as they travel."""
        body = self.desk.simulate(bodies.encode_simulate(entries, self.host.spec), lambda: "")
        return [list(outcome.obs) for outcome in pb.SimulateResult.FromString(body).outcomes]

    def restore(self, row: int, snapshot_id: int, incarnation: int = 0, t: int = 0) -> StepRows:
        body = pb.Restore(row=row, id=snapshot_id, expect_incarnation=incarnation, expect_t=t)
        return self.saw(self.desk.restore(body.SerializeToString()))

    def release(self, *ids: int, everything: bool = False) -> pb.Released:
        return pb.Released.FromString(self.desk.release(pb.Release(ids=ids, all=everything).SerializeToString()))

    def export(self, *ids: int) -> pb.Exported:
        return pb.Exported.FromString(self.desk.export(pb.Export(ids=ids).SerializeToString()))

    def import_(self, ids: Sequence[int], states: Sequence[bytes]) -> pb.SnapshotResult:
        body = pb.Import(ids=ids, states=states).SerializeToString()
        return pb.SnapshotResult.FromString(self.desk.import_(body))

    def action(self, *values: Any) -> list[Array]:
        """The actions of an entry, one per step."""
        leaf = self.host.spec.action.leaves[0]
        return [np.asarray(values, leaf.dtype).reshape(len(values), *leaf.shape)]

    def random_actions(self, count: int, seed: int = 0) -> list[Any]:
        """`count` actions of the space."""
        space = self.host.live.make().action_space if self.host.live is not None else None
        assert space is not None
        space.seed(seed)
        return [space.sample() for _ in range(count)]


def look(parent: int | bytes | Earlier, lane: DeskLane, *actions: Any, **fields: Any) -> SimulateEntry:
    """An entry that goes on with the very luck of the snapshot, unless it says otherwise."""
    return SimulateEntry(parent, lane.action(*actions), **{"rng": pb.FROZEN, **fields})


def digest(lane: DeskLane) -> list[Any]:
    """Everything that a client could ever see of the live slots, read without stepping them."""
    live = lane.host.live
    assert live is not None
    found: list[Any] = []
    for row in range(lane.num_slots):
        env: Any = live.env(row)
        state, _ = lane.desk._can.capture_live(env)
        if lane.desk._codec.name == "deepcopy":  # an object of its own each time
            state = [sorted(vars(layer).items()) for layer in layers_of(env)], env.np_random.bit_generator.state
        found.append((repr(state), [leaf.tobytes() for leaf in live.position(row)[1]]))
    return found
