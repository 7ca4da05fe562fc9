"""Waves of look-ahead: every entry is restore, steps, save, in an environment that no client ever sees.

Invariants: a live slot is never touched (test_simulating_changes_no_live_slot); one entry's failure is its own, and
leaves no snapshot (test_entries_fail_one_by_one); what was computed before a deadline or a cancellation is kept
(test_a_deadline_keeps_what_was_done), and neither has to wait for the end of an entry
(test_a_long_entry_is_stopped_on_its_way).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.flags import TERMINATED, TRUNCATED
from asyncrl.wire.outcomes import Outcome
from asyncrl.wire.requests import check_actions
from asyncrl.wire.snapshot_bodies import Earlier, Rollout, SimulateEntry, Status
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.tensors import Array
from envserver import faults, gym_spec
from envserver.row_buffers import ACTION_MASK, TO_PLAY, read_mask, read_player
from envserver.slot import as_reward
from envserver.snapshots.codec import AnyEnv, BadState, CannotCapture, Codec, MakeEnv
from envserver.snapshots.pacing import Interrupted, Pace, Stopped
from envserver.snapshots.store import Position, QuotaExceeded, Snapshot, SnapshotStore

ReadState = Callable[[bytes], Snapshot]  # BadState for a state that is not to be believed


class EntryFailed(Exception):
    """One entry has no outcome. `code` says why to programs, the text to people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Wave:
    """What a request asks for. `entries` has a status in the place of one that made no sense."""

    entries: Sequence[SimulateEntry | Status]
    interrupted: Interrupted
    read_state: ReadState


@dataclass(slots=True)
class _Run:
    """Where an entry stands: what the last step gave, and the game so far."""

    position: Position
    obs: Any  # as the environment gave it; None: no step was taken
    player: int | None  # whoever was named last, be it some steps ago
    info: dict[Any, Any] = field(default_factory=dict)
    rewards: list[float] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return bool(self.flags) and self.flags[-1] != 0

    def step(self, env: AnyEnv, action: Any) -> float:
        self.obs, reward, terminated, truncated, self.info = env.step(action)
        self.rewards.append(reward if reward.__class__ is float else as_reward(reward))
        self.flags.append(TERMINATED if terminated else TRUNCATED if truncated else 0)
        if self.info and TO_PLAY in self.info:
            self.player = read_player(self.info[TO_PLAY])
        return self.rewards[-1]


class Simulator:
    """Runs waves in its scratch environment, which is made anew where it breaks."""

    def __init__(self, codec: Codec, scratch: AnyEnv, make_env: MakeEnv, spec: LaneSpec, store: SnapshotStore) -> None:
        self._codec = codec
        self._env: AnyEnv | None = scratch
        self._make_env = make_env
        self._spec = spec
        self._store = store
        self._read_obs = gym_spec.reader(scratch.observation_space)
        self._unbatch = gym_spec.unbatcher(scratch.action_space)
        self._sampler = copy.deepcopy(scratch.action_space)
        self._pace = Pace(lambda: "")  # of the wave that is being run

    def run(self, wave: Wave) -> list[Outcome]:
        """One outcome for each entry, whatever becomes of the others."""
        self._pace = Pace(wave.interrupted)
        outcomes: list[Outcome] = []
        for entry in self._checked(wave.entries):
            try:
                if isinstance(entry, Status):
                    raise EntryFailed(entry.code, entry.detail)
                self._pace.enter()
                outcomes.append(self._run(entry, wave, outcomes))
            except Stopped as error:
                outcomes.append(Outcome(Status(error.code, "the wave was stopped before this entry began")))
            except EntryFailed as error:
                outcomes.append(Outcome(Status(error.code, str(error))))
        return outcomes

    def close(self) -> None:
        """Close the scratch environment."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    # ------------------------------------------------------------------ one entry

    def _run(self, entry: SimulateEntry, wave: Wave, outcomes: Sequence[Outcome]) -> Outcome:
        parent = self._parent(entry, wave, outcomes)
        actions = self._unbatch(entry.actions)
        keeps = entry.keep_as is not None and entry.keep_as not in self._store
        if keeps:
            self._check_room(parent.nbytes)
        env = self._restored(parent, entry)
        run = _Run(parent.position, None, parent.position.to_play)
        with _FaultsOf(self, "a simulated step"):
            left = self._pace.steps
            for action in actions:
                if not left:
                    left = self._pace.look()
                left -= 1
                run.step(env, action)
                if run.over:
                    break
            obs = self._observe(env, run)
        if keeps and not run.over:
            self._save(entry, env, run, (obs, parent))
        shown = self._shown(obs, entry, len(run.rewards)) if entry.want_obs else ()
        outcome = Outcome(Status(), tuple(run.rewards), tuple(run.flags), shown)
        outcome.mask, outcome.to_play = run.position.mask, run.position.to_play
        if entry.rollout is not None:
            try:
                self._roll_out(env, run, outcome, entry.rollout)
            except EntryFailed:
                if keeps and entry.keep_as is not None:
                    self._store.release([entry.keep_as])
                raise
        return outcome

    def _parent(self, entry: SimulateEntry, wave: Wave, outcomes: Sequence[Outcome]) -> Snapshot:
        if isinstance(entry.parent, bytes):
            try:
                return wave.read_state(entry.parent)
            except BadState as error:
                raise EntryFailed("BAD_STATE", str(error)) from None
        if isinstance(entry.parent, Earlier):
            return self._earlier(entry.parent.entry, wave, outcomes)
        found = self._store.get(entry.parent)
        if found is None:
            raise EntryFailed("SNAPSHOT_GONE", f"there is no snapshot {entry.parent} in this lane (any more)")
        return found

    def _earlier(self, number: int, wave: Wave, outcomes: Sequence[Outcome]) -> Snapshot:
        child: Snapshot | None = None
        if number < len(outcomes) and outcomes[number].status.ok:
            earlier = wave.entries[number]
            assert isinstance(earlier, SimulateEntry)
            child = None if earlier.keep_as is None else self._store.get(earlier.keep_as)
        if child is None:
            raise EntryFailed("PARENT_FAILED", f"entry {number} is not one before this that left a child")
        return child

    def _checked(self, entries: Sequence[SimulateEntry | Status]) -> Sequence[SimulateEntry | Status]:
        """With a status in the place of an illegal action. To look at all of them takes as long as to look at one."""
        readable = [entry.actions for entry in entries if isinstance(entry, SimulateEntry)]
        if not readable or self._wrong([np.concatenate(parts) for parts in zip(*readable, strict=True)]) is None:
            return entries
        checked = list(entries)
        for number, entry in enumerate(entries):
            wrong = self._wrong(entry.actions) if isinstance(entry, SimulateEntry) else None
            if wrong is not None:
                checked[number] = Status("BAD_ACTION", wrong)
        return checked

    def _wrong(self, actions: Sequence[Array]) -> str | None:
        return check_actions(actions, self._spec.action)

    def _check_room(self, nbytes: int) -> None:
        """Before anything is computed for a child that there would be no room for."""
        try:
            self._store.check_room(nbytes)
        except QuotaExceeded as error:
            raise EntryFailed("QUOTA", str(error)) from None

    def _restored(self, parent: Snapshot, entry: SimulateEntry) -> AnyEnv:
        with _FaultsOf(self, "restoring it"):
            if self._env is None:
                self._env = self._make_env()
                self._env.reset(seed=0)
            seed = None if entry.rng == pb.FROZEN else entry.seed
            self._env = self._codec.restore(self._env, parent.state, seed, self._pace)
        return self._env

    def _observe(self, env: AnyEnv, run: _Run) -> Sequence[Array]:
        """The observation per leaf, which may be the environment's own memory; `run.position` follows."""
        before = run.position
        if run.obs is None:
            return self._read_obs(self._codec.observe(env)) if before.obs is None else before.obs
        obs = self._read_obs(run.obs)
        game_return = before.game_return + sum(run.rewards)
        game_length = before.game_length + len(run.rewards)
        run.position = Position(None, self._mask_of(run.info), run.player, game_return, game_length)
        return obs

    def _shown(self, obs: Sequence[Array], entry: SimulateEntry, steps: int) -> list[Array]:
        """What the reply says of it, in memory that no environment writes into. Stacks are those of our own Atari stack
        of wrappers, which moves on by a frame a step."""
        shown = list(obs)
        leaf = self._spec.stack_leaf
        if entry.newest_frames and leaf is not None and steps < len(shown[leaf]):
            shown[leaf] = shown[leaf][len(shown[leaf]) - steps :]
        return [np.array(part) for part in shown]

    def _mask_of(self, info: dict[Any, Any]) -> Array | None:
        """After a step, as live slots have it: no mask allows everything."""
        if info and self._spec.mask_size and ACTION_MASK in info:
            return read_mask(info[ACTION_MASK], self._spec.mask_size)
        return None

    def _save(self, entry: SimulateEntry, env: AnyEnv, run: _Run, of: tuple[Sequence[Array], Snapshot]) -> None:
        obs, parent = of
        assert entry.keep_as is not None
        with _FaultsOf(self, "saving its state"):
            try:
                state, nbytes = self._codec.capture(env)
                snapshot = snapshot_of(self._codec, state, nbytes, (run.position, obs), parent.origin)
                self._store.put(entry.keep_as, snapshot)
            except QuotaExceeded as error:
                raise EntryFailed("QUOTA", str(error)) from None
            except CannotCapture as error:
                raise EntryFailed("UNSUPPORTED", str(error)) from None

    # ------------------------------------------------------------------ rollouts

    def _roll_out(self, env: AnyEnv, run: _Run, outcome: Outcome, tail: Rollout) -> None:
        """Uniform random actions to the end of the episode, or of the tail. In a game of two the return is that of who
        moves first in it."""
        discount, mask, first = 1.0, run.position.mask, run.player
        self._sampler.seed(tail.seed)
        with _FaultsOf(self, "a rollout"):
            left = self._pace.steps
            while outcome.rollout_steps < tail.steps and not run.over:
                if not left:
                    left = self._pace.look()
                left, mover = left - 1, run.player
                reward = run.step(env, sample(self._sampler, mask))
                outcome.rollout_return += discount * (reward if mover == first else -reward)
                outcome.rollout_steps += 1
                discount *= tail.gamma
                mask = self._mask_of(run.info)
        outcome.rollout_ended = run.over

    def discard(self) -> None:
        """The scratch environment is broken: the next entry gets another one."""
        env, self._env = self._env, None
        if env is not None:
            try:
                env.close()
            except Exception:  # it has failed before, and that was reported
                return


class _FaultsOf:
    """What an environment raises fails the entry, and costs the environment. Being stopped costs the entry alone: the
    next one restores the environment wherever it stands."""

    def __init__(self, simulator: Simulator, during: str) -> None:
        self._simulator, self._during = simulator, during

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _traceback: object) -> None:
        if error is None or isinstance(error, EntryFailed) or not isinstance(error, Exception):
            return
        if isinstance(error, Stopped):
            raise EntryFailed(error.code, f"the wave was stopped within this entry ({self._during})") from None
        self._simulator.discard()
        if isinstance(error, BadState):
            raise EntryFailed("BAD_STATE", str(error)) from None
        raise EntryFailed("ENV_FAULT", faults.describe(error, self._during)) from error


def snapshot_of(
    codec: Codec, state: Any, nbytes: int, at: tuple[Position, Sequence[Array]], origin: tuple[int, int] | None
) -> Snapshot:
    """A snapshot with the position that belongs to it; observations that the codec remembers are not kept twice."""
    position, obs = at
    if codec.remembers_obs:
        kept = None
    else:
        kept = [np.array(leaf) for leaf in obs]  # an environment may write into its own
        nbytes += sum(112 + leaf.nbytes for leaf in obs)
    position = Position(kept, position.mask, position.to_play, position.game_return, position.game_length)
    return Snapshot(state, nbytes + 200, position, origin)


def sample(space: gym_spec.AnySpace, mask: Array | None) -> Any:
    """A uniform action out of those that the mask `[mask_size]` allows."""
    if mask is None or not mask.any():
        return space.sample()
    if isinstance(space, spaces.MultiDiscrete):
        parts = np.split(mask.astype(np.int8), np.cumsum(space.nvec.reshape(-1))[:-1])
        return space.sample(mask=tuple(parts))
    return space.sample(mask=mask.astype(np.int8))
