"""The host that is a loop over single environments: every autoreset mode, and faults that cost one slot.

Per slot it does what `gymnasium.vector.SyncVectorEnv` does, in the same order, with the wire's flags
in the place of Gymnasium's autoreset conventions. An exception out of an environment's constructor,
`reset` or `step`, and a value that is not of its space, cost that slot alone.

Invariants: rows equal those of SyncVectorEnv (test_slots_step_as_gymnasium_does); flags follow the row
table whatever environments do (test_faulty_environments_keep_to_the_row_table); a slot is created anew
with the seed of its incarnation, so the same faults give the same data
(test_the_same_faults_give_the_same_rows).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from asyncrl.errors import ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.flags import CUT, FIRST, NO_TRANSITION, SOFT, TERMINATED, TRUNCATED, RowState
from asyncrl.wire.frame_stack import Encoder, StackEncoder
from asyncrl.wire.handshake import rebuilt_seed
from asyncrl.wire.requests import ResetRequest
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import Rebuilt, StepRows
from asyncrl.wire.tensors import Array
from envserver import faults, gym_spec
from envserver.atari import SOFT_END
from envserver.episode_stats import EpisodeCounter
from envserver.host import LaneWish, Progress
from envserver.live_slots import LiveSlots
from envserver.recipe import Recipe
from envserver.row_buffers import RowBuffers
from envserver.slot import Slot, as_reward
from envserver.slot_building import build_slots, make_alike
from envserver.slot_keeper import SlotKeeper

MAX_PAUSE_S: Final = 0.1  # of a step in which no slot can move

log = logging.getLogger("envserver")


class SlotsHost:
    """B environments in a loop; see `envserver.host.Host`. Clock and sleep can be replaced by simulated ones."""

    kind: pb.Host.ValueType = pb.SLOTS
    per_slot_seeds = True
    masked_reset = True

    def __init__(
        self,
        recipe: Recipe,
        wish: LaneWish,
        progress: Progress,
        reason: str = "",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        count = wish.num_slots
        self.reason = reason
        self.autoreset = wish.autoreset
        self.soft_ends = recipe.soft_ends
        self._recipe, self._sleep = recipe, sleep
        self._slots = [Slot(row, 0, SlotKeeper(clock)) for row in range(count)]
        self.adopt(wish)
        self._lives = np.zeros(count, np.int64)  # transitions of each slot's incarnation
        template = build_slots(recipe, self._slots, self._record, progress)
        self.spec: LaneSpec = recipe.spec(template.observation_space, template.action_space)
        self._spaces = (template.observation_space, template.action_space)
        self._unbatch = gym_spec.unbatcher(template.action_space)
        self._rows = RowBuffers(self.spec, template.observation_space, count)
        self._stats = EpisodeCounter(count, clock)
        self.live: LiveSlots | None = LiveSlots(
            self._slots, self._rows, self._stats, lambda: make_alike(recipe, self._spaces), self._fault
        )
        if count == 0:
            template.close()

    def adopt(self, wish: LaneWish) -> None:
        """Before the first reset: the slots get the fleet slots, incarnations and run seed of another wish."""
        self._run_seed = wish.run_seed
        for slot, fleet_slot in zip(self._slots, wish.fleet_slots, strict=False):
            slot.fleet_slot = fleet_slot
        for slot, incarnation in zip(self._slots, wish.incarnations, strict=False):
            slot.incarnation = incarnation

    def stack_encoder(self) -> Encoder:
        """Stacks are the wrappers', who need not be trusted."""
        return StackEncoder()

    # ------------------------------------------------------------------------------------------------ reset and step

    def reset(self, request: ResetRequest) -> StepRows:
        """First observations; rows outside the mask keep their state and their observation."""
        self._check_alive()
        rows = self._rows
        rows.begin(keep_masks=True)
        for row, slot in enumerate(self._slots):
            if request.mask is not None and not request.mask[row]:
                rows.flags[row] = NO_TRANSITION
            elif slot.env is None:
                self._try_rebuild(row, slot, NO_TRANSITION)
            else:
                seed = None if request.seeds is None else request.seeds[row]
                self._reset_row(row, slot, seed, request.options)
        return rows.rows(None)

    def step(self, action: Sequence[Array]) -> StepRows:
        """One step of every slot. Sleeps for at most MAX_PAUSE_S where every slot waits to be created anew."""
        self._check_alive()
        rows = self._rows
        rows.begin(keep_masks=False)
        rewards, write_obs, plain = rows.rewards, rows.write_obs, True
        for row, (slot, act) in enumerate(zip(self._slots, self._unbatch(action), strict=True)):
            if not slot.plain:
                plain = False
                self._wait_row(row, slot)
                continue
            try:
                obs, reward, terminated, truncated, info = slot.step(act)
                if reward.__class__ is not float:
                    reward = as_reward(reward)
                if terminated or truncated:
                    plain = False
                    self._end_row(row, slot, obs, info, TERMINATED if terminated else TRUNCATED)
                else:
                    write_obs(row, obs)
                    if info:
                        plain &= self._take_info(row, info)
                rewards[row] = reward
            except Exception as error:
                plain = False
                self._fault(row, slot, error, "step")
        return self._finish_step(plain)

    def _finish_step(self, plain: bool) -> StepRows:
        rows = self._rows
        if plain:
            self._lives += 1
        else:
            self._lives += (rows.flags & NO_TRANSITION) == 0
        return rows.rows(self._stats.add(rows.rewards, rows.flags, plain))

    def _take_info(self, row: int, info: dict[Any, Any]) -> bool:
        """Whether the row stays an ordinary one."""
        soft = self.soft_ends and bool(info.pop(SOFT_END, False))
        if info:
            self._rows.add_info(row, info)
        if soft:
            self._rows.flags[row] = TERMINATED | FIRST | SOFT
        return not soft

    def _end_row(self, row: int, slot: Slot, obs: Any, info: dict[Any, Any], flag: int) -> None:
        rows = self._rows
        if self.autoreset != pb.SAME_STEP:
            rows.write_obs(row, obs)
            if info:
                rows.add_info(row, info)
            rows.flags[row] = flag
            slot.set_state(RowState.ENDED)
            return
        rows.add_final(row, obs, info)
        try:
            self._first_obs(row, slot, None, None)
        except Exception as error:
            # The transition is good and the episode has its end; only the next one has no beginning.
            rows.withdraw_final(row)
            rows.flags[row] = flag
            slot.set_state(RowState.ENDED)
            self._lose(row, slot, error, "reset", rebuild=False)
        else:
            rows.flags[row] = flag | FIRST

    def _wait_row(self, row: int, slot: Slot) -> None:
        """A row whose action cannot be executed."""
        if slot.env is None:
            self._try_rebuild(row, slot, NO_TRANSITION)
        elif slot.state == RowState.ENDED and self.autoreset == pb.NEXT_STEP:
            self._reset_row(row, slot, None, None)
        else:
            self._rows.flags[row] = NO_TRANSITION

    def _reset_row(self, row: int, slot: Slot, seed: int | None, options: dict[str, Any] | None) -> None:
        try:
            self._first_obs(row, slot, seed, options)
        except Exception as error:
            self._fault(row, slot, error, "reset")
        else:
            self._begin_row(row, slot, FIRST | NO_TRANSITION)

    def _first_obs(self, row: int, slot: Slot, seed: int | None, options: dict[str, Any] | None) -> None:
        assert slot.env is not None
        # Every environment gets a dict of its own: some take entries out of it.
        given: dict[str, Any] = {"options": dict(options)} if options is not None else {}
        if seed is not None:
            given["seed"] = seed
        obs, info = slot.env.reset(**given)
        self._rows.write_obs(row, obs)
        self._rows.clear_mask(row)
        if info:
            self._rows.add_info(row, info)

    def _begin_row(self, row: int, slot: Slot, flag: int) -> None:
        self._rows.flags[row] = flag
        self._stats.begin(np.array([row]))
        slot.set_state(RowState.RUNNING)

    # ------------------------------------------------------------------------------------------------ faults

    def _fault(self, row: int, slot: Slot, error: Exception, during: str) -> None:
        cut = CUT if slot.state == RowState.RUNNING else 0
        self._rows.flags[row] = cut | NO_TRANSITION
        if cut:
            slot.set_state(RowState.ENDED)
        self._lose(row, slot, error, during, rebuild=True)

    def _lose(self, row: int, slot: Slot, error: Exception, during: str, rebuild: bool) -> None:
        self._record(row, slot, error, during)
        slot.discard()
        if rebuild:
            self._try_rebuild(row, slot, int(self._rows.flags[row]))

    def _record(self, row: int, slot: Slot, error: Exception, during: str) -> None:
        slot.cause = faults.describe(error, during)
        slot.keeper.fault(int(self._lives[row]))
        self._lives[row] = 0
        log.warning("slot %d (fleet slot %d): %s", row, slot.fleet_slot, slot.cause, exc_info=error)

    def _try_rebuild(self, row: int, slot: Slot, flag: int) -> None:
        """Create a broken slot anew if its time has come; `flag` is the row's without a new episode."""
        self._rows.flags[row] = flag
        while slot.keeper.retry_in_s() <= 0.0:
            slot.incarnation += 1
            seed = rebuilt_seed(self._run_seed, slot.fleet_slot, slot.incarnation)
            cause = slot.cause
            try:
                slot.install(make_alike(self._recipe, self._spaces))
                self._first_obs(row, slot, seed, None)
            except Exception as error:
                self._record(row, slot, error, "creating it anew")
                slot.discard()
            else:
                slot.keeper.restored()
                self._rows.rebuilt.append(Rebuilt(row, slot.incarnation, "ENV_FAULT", cause))
                self._begin_row(row, slot, flag | FIRST)
                return

    def _check_alive(self) -> None:
        """Keep a lane without a living slot from spinning, and say so once all of them are in quarantine."""
        if not self._slots or any(slot.env is not None for slot in self._slots):
            return
        wait = min(slot.keeper.retry_in_s() for slot in self._slots)
        if wait > 0.0 and all(slot.keeper.quarantined for slot in self._slots):
            raise ServerRefused(
                "QUARANTINED",
                f"every slot of this lane failed too often; the first: {self._slots[0].cause}",
                retryable=True,
                retry_after_s=wait,
            )
        if wait > 0.0:
            self._sleep(min(wait, MAX_PAUSE_S))

    # ------------------------------------------------------------------------------------------------ the rest

    def render(self, rows: Sequence[int]) -> list[Array]:
        """One u1 image `[height, width, channels]` per row."""
        if not self._recipe.render:
            raise ServerRefused("UNSUPPORTED", "this lane was opened without render")
        return [self._render(row) for row in rows]

    def _render(self, row: int) -> Array:
        env = self._slots[row].env
        if env is None or self._slots[row].state == RowState.UNBORN:
            raise ServerRefused("ENV_FAULT", f"slot {row} has nothing to show: reset it, or wait until it is rebuilt")
        try:
            image = np.asarray(env.render())
        except Exception as error:
            raise ServerRefused("ENV_FAULT", faults.describe(error, "render")) from error
        if image.dtype != np.uint8 or image.ndim not in (2, 3):
            raise ServerRefused("ENV_FAULT", f"render gave {image.dtype}{list(image.shape)}, no u1 image")
        return image if image.ndim == 3 else image[:, :, None]

    def close(self) -> None:
        """Close every environment; safe to call twice."""
        for slot in self._slots:
            slot.discard()
