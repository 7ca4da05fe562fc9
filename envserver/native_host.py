"""The host of a vector environment that Gymnasium registered as `vector_entry_point`.

Trust nothing: what such an environment can do is what is declared here, not what it accepts. All of
them share one random generator among the rows, a masked reset resets everything without saying so,
and the step after an end resets, whatever its action. So: next-step autoreset, one seed, whole resets.

An exception leaves all rows in an unknown state. It is an ENV_FAULT of the whole lane, and so is
every call after it.

Invariants: rows and statistics equal those of the environment stepped directly
(test_native_rows_equal_those_of_the_environment); flags keep to the row table
(test_native_rows_keep_to_the_row_table).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode

from asyncrl.errors import ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.flags import FIRST, NO_TRANSITION
from asyncrl.wire.frame_stack import Encoder, StackEncoder
from asyncrl.wire.requests import ResetRequest
from asyncrl.wire.step_rows import StepRows
from asyncrl.wire.tensors import Array
from envserver import faults, gym_batches
from envserver.episode_stats import EpisodeCounter
from envserver.host import LaneWish, Progress
from envserver.live_slots import LiveSlots
from envserver.recipe import Recipe
from envserver.row_buffers import ACTION_MASK

log = logging.getLogger("envserver")
_SKIP: Final = frozenset({ACTION_MASK})


class NativeHost:
    """B rows of one vector environment; see `envserver.host.Host`."""

    kind: pb.Host.ValueType = pb.NATIVE
    autoreset: pb.Autoreset.ValueType = pb.NEXT_STEP
    per_slot_seeds = False
    masked_reset = False
    soft_ends = False
    live: LiveSlots | None = None

    def __init__(
        self,
        recipe: Recipe,
        wish: LaneWish,
        progress: Progress,
        reason: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reason = reason
        self._num_slots = count = wish.num_slots
        self._clock = clock
        self._env = self._make(recipe, wish)
        progress(count, count)
        self.single_observation_space = self._observation_space()
        self.single_action_space = self._env.single_action_space
        self.spec = recipe.spec(self.single_observation_space, self.single_action_space)
        self._stats = EpisodeCounter(count, clock)
        self._ended = np.zeros(count, np.bool_)  # rows whose next step is a reset
        self._any_ended = False
        self._started = False
        self._broken = ""

    def _make(self, recipe: Recipe, wish: LaneWish) -> Any:
        return gymnasium.make_vec(
            recipe.alias.env_id or "",
            num_envs=wish.num_slots,
            vectorization_mode="vector_entry_point",
            **recipe.kwargs,
        )

    def _observation_space(self) -> gymnasium.Space[Any]:
        """What one row shows."""
        space: gymnasium.Space[Any] = self._env.single_observation_space
        return space

    @staticmethod
    def why_not(recipe: Recipe, wish: LaneWish) -> str:
        """Why it cannot serve this wish, and what to pass instead; empty where it can."""
        mode = _declared_autoreset(recipe)
        if mode != AutoresetMode.NEXT_STEP:
            return f"its vector environment declares {mode}, and only next-step ones are served natively"
        if wish.autoreset != pb.NEXT_STEP:
            return f"its vector environment resets in the next step, not {_words(wish.autoreset)}: pass NEXT_STEP"
        if wish.per_slot_seeds:
            return "its rows share one random generator: do without seeds per slot"
        if wish.masked_reset:
            return "its vector environment resets all rows or none: do without masked resets"
        return ""

    def adopt(self, wish: LaneWish) -> None:
        """Nothing to take over: rows of a vector environment are not rebuilt one by one."""

    def stack_encoder(self) -> Encoder:
        """Whatever such an environment stacks, it is compared."""
        return StackEncoder()

    def reset(self, request: ResetRequest) -> StepRows:
        """First observations of all rows, seeded with the first of the seeds."""
        if request.mask is not None and not request.mask.all():
            raise ServerRefused("UNSUPPORTED", "this native host resets all rows or none; open the lane with SLOTS")
        given: dict[str, Any] = {}
        if request.seeds is not None and request.seeds[0] is not None:
            given["seed"] = request.seeds[0]
        if request.options is not None:
            given["options"] = dict(request.options)
        return self._guard("reset", lambda: self._reset(given))

    def step(self, action: Sequence[Array]) -> StepRows:
        """One step of all rows; those that ended before are reset, and their action is ignored."""
        if not self._started:
            raise ServerRefused("BAD_REQUEST", "step before the first reset")
        return self._guard("step", lambda: self._step(action))

    def _reset(self, given: dict[str, Any]) -> StepRows:
        obs, infos = self._env.reset(**given)
        self._started = True
        self._ended[:] = False
        self._any_ended = False
        self._stats.begin(np.arange(self._num_slots))
        flags = np.full(self._num_slots, FIRST | NO_TRANSITION, np.uint8)
        return self._rows(obs, np.zeros(self._num_slots), flags, infos)

    def _step(self, action: Sequence[Array]) -> StepRows:
        batch = gym_batches.action_batch(self.single_action_space, action)
        obs, reward, terminated, truncated, infos = self._env.step(batch)
        # A copy even of a float64 array: the environment may write into its own.
        rewards = np.array(reward, np.float64)
        ended = terminated | truncated
        any_ended = bool(np.count_nonzero(ended))
        plain = not (any_ended or self._any_ended)
        flags = ended.astype(np.uint8)  # 1: TERMINATED
        if not plain:
            flags += truncated > terminated  # 1 + 1: TRUNCATED
            if self._any_ended:
                self._reset_rows(flags, rewards, ended)
        rows = self._rows(obs, rewards, flags, infos)
        rows.stats = self._stats.add(rewards, flags, plain)
        self._ended, self._any_ended = ended, any_ended
        return rows

    def _reset_rows(self, flags: Array, rewards: Array, ended: Array) -> None:
        fresh = self._ended
        flags[fresh] = FIRST | NO_TRANSITION
        rewards[fresh] = 0.0
        ended[fresh] = False
        self._stats.begin(fresh)

    def _rows(self, obs: Any, rewards: Array, flags: Array, infos: dict[str, Any]) -> StepRows:
        leaves = gym_batches.read_batch(self.single_observation_space, obs, self._num_slots)
        rows = StepRows(leaves, rewards, flags)
        if infos:
            if self.spec.mask_size and ACTION_MASK in infos:
                mask = np.asarray(infos[ACTION_MASK])
                rows.mask = mask.reshape(self._num_slots, self.spec.mask_size).astype(np.bool_)
            skip = _SKIP if self.spec.mask_size else frozenset[str]()
            rows.infos, rows.infos_dropped = gym_batches.info_columns(infos, self._num_slots, skip)
        return rows

    def _guard(self, during: str, call: Callable[[], StepRows]) -> StepRows:
        if self._broken:
            raise ServerRefused("ENV_FAULT", self._broken)
        try:
            return call()
        except Exception as error:
            self._broken = faults.describe(error, f"{during} of the vector environment")
            log.warning("native host: %s", self._broken, exc_info=error)
            raise ServerRefused("ENV_FAULT", self._broken) from error

    def render(self, rows: Sequence[int]) -> list[Array]:
        """Native hosts show nothing; a lane that wants images gets slots."""
        raise ServerRefused("UNSUPPORTED", "native hosts cannot render; open the lane with render")

    def close(self) -> None:
        """Close the vector environment; safe to call twice."""
        try:
            self._env.close()
        except Exception as error:
            log.warning("closing a native host: %s", faults.describe(error, "close"))


def _declared_autoreset(recipe: Recipe) -> Any:
    """What the class of the vector environment says; None where it says nothing."""
    entry_point: Any = None if recipe.registered is None else recipe.registered.vector_entry_point
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    metadata = getattr(creator, "metadata", None)
    return metadata.get("autoreset_mode") if isinstance(metadata, dict) else None


def _words(mode: pb.Autoreset.ValueType) -> str:
    return pb.Autoreset.Name(mode)
