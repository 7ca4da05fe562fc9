"""The host of ALE's own vector environment: preprocessed Atari games in one call.

What it can do was measured, not believed: row b follows its own seed; a masked reset leaves the
other rows as they are, also one that waits for its next-step reset; a lost life goes on. Its
options `episodic_life` (it restarts the game) and `reward_clipping` are never used; soft ends follow
from the lives that it reports, by the rule of the slots.

Time limits are counted here: ALE's own shows the frame before the last one as the final observation,
from which a learner would bootstrap.

Stacks are put together here as well, and only for a client that wants them: ALE returns newest frames, most clients
send for no more, and four times as much memory need not be filled, compared and copied at every step.

One thread: the lanes of a server are what its cores are shared among.

Invariants: frames equal those of the slots bit by bit, whether the client gets stacks or newest ones
(test_native_frames_equal_those_of_the_slots); a soft end ends no game
(test_breakout_plays_on_past_its_first_life).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any, Final

import gymnasium
import numpy as np

from asyncrl.errors import ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.flags import FIRST, NO_TRANSITION, SOFT, TERMINATED, TRUNCATED
from asyncrl.wire.frame_stack import Encoder, FrameEncoder, FrameRing
from asyncrl.wire.infos import InfoColumn
from asyncrl.wire.requests import ResetRequest
from asyncrl.wire.step_rows import StepRows, final_rows_of
from asyncrl.wire.tensors import Array
from envserver.host import LaneWish, Progress
from envserver.native_host import NativeHost
from envserver.recipe import Recipe

_INFOS: Final = ("lives", "episode_frame_number", "frame_number")
_SEED_MASK: Final = 2**31 - 1
_NO_LIMIT: Final = 2**31 - 1
MEASURED: Final = (0, 12)  # what is said above was not so in 0.11.2


class NativeAtariHost(NativeHost):
    """B games of one `AtariVectorEnv`, same-step or next-step."""

    per_slot_seeds = True
    masked_reset = True

    def __init__(
        self,
        recipe: Recipe,
        wish: LaneWish,
        progress: Progress,
        reason: str = "",
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.autoreset = wish.autoreset
        self.soft_ends = recipe.soft_ends
        assert recipe.atari is not None
        self._depth = recipe.atari.stack
        if clock is None:
            super().__init__(recipe, wish, progress, reason)
        else:
            super().__init__(recipe, wish, progress, reason, clock)
        self._born = np.zeros(wish.num_slots, np.bool_)
        self._all_born = False
        self._lives = np.zeros(wish.num_slots, np.int32)
        self._limit = self.spec.max_episode_steps
        self._steps = np.zeros(wish.num_slots, np.int64)  # of the episode
        self._expired = np.zeros(wish.num_slots, np.bool_)  # rows that our limit ended; next-step only
        self._every_row = np.arange(wish.num_slots, dtype="<u4")
        shown = self.spec.observation.leaves[0]
        self._ring = FrameRing(wish.num_slots, self._depth, shown.shape[1:], shown.dtype)
        self._shows_stacks = True

    def _observation_space(self) -> gymnasium.spaces.Box:
        _, *frame_shape = self._env.single_observation_space.shape
        return gymnasium.spaces.Box(0, 255, (self._depth, *frame_shape), np.uint8)

    def stack_encoder(self) -> Encoder:
        """From now on rows show newest frames."""
        self._shows_stacks = False
        return FrameEncoder(self._ring)

    def _make(self, recipe: Recipe, wish: LaneWish) -> Any:
        from ale_py.vector_env import AtariVectorEnv

        settings = recipe.atari
        assert settings is not None
        return AtariVectorEnv(
            settings.game,
            wish.num_slots,
            num_threads=min(recipe.alias.threads, wish.num_slots),
            max_num_frames_per_episode=_NO_LIMIT,
            repeat_action_probability=settings.repeat_action_probability,
            full_action_space=settings.full_action_space,
            autoreset_mode="SameStep" if wish.autoreset == pb.SAME_STEP else "NextStep",
            img_height=settings.screen_size,
            img_width=settings.screen_size,
            grayscale=settings.grayscale,
            stack_num=1,
            frameskip=settings.frameskip,
            maxpool=settings.frameskip > 1,
            noop_max=settings.noop_max,
            episodic_life=False,
            reward_clipping=False,
            use_fire_reset=False,
        )

    @staticmethod
    def why_not(recipe: Recipe, wish: LaneWish) -> str:
        """Why it cannot serve this wish, and what to pass instead; empty where it can."""
        settings = recipe.atari
        if settings is None:
            return "only preprocessed games have a native host: serve the alias without preprocess=false"
        if ale_version() < MEASURED:
            return f"ale-py is older than {'.'.join(map(str, MEASURED))}, where a masked reset fails: upgrade it"
        if wish.autoreset not in (pb.SAME_STEP, pb.NEXT_STEP):
            return "ALE's vector environment cannot do without autoreset: pass SAME_STEP or NEXT_STEP"
        if settings.mode is not None or settings.difficulty is not None:
            return "ALE's vector environment knows neither mode nor difficulty: leave them out"
        return ""

    def reset(self, request: ResetRequest) -> StepRows:
        """First observations; rows outside the mask go on where they are."""
        mask = np.ones(self._num_slots, np.bool_) if request.mask is None else np.asarray(request.mask, np.bool_)
        if not mask.any():
            raise ServerRefused("BAD_REQUEST", "a reset without rows")
        return self._guard("reset", lambda: self._reset_masked(mask, request.seeds))

    def _reset_masked(self, mask: Array, given: Sequence[int | None] | None) -> StepRows:
        # The first reset has to be a whole one; rows that nobody asked for stay unborn on the wire.
        whole = mask if self._started else np.ones(self._num_slots, np.bool_)
        seeds = np.full(self._num_slots, -1, np.int64)
        for row, seed in enumerate(given or ()):
            if seed is not None:
                seeds[row] = seed & _SEED_MASK
        obs, infos = self._env.reset(seed=seeds[whole], options={"reset_mask": whole})
        self._started = True
        self._born |= mask
        self._all_born = bool(self._born.all())
        self._ended &= ~whole
        self._expired &= ~whole
        self._steps[whole] = 0
        self._any_ended = bool(self._ended.any())
        self._stats.begin(mask)
        self._lives = infos["lives"].copy()
        flags = np.where(mask, FIRST | NO_TRANSITION, NO_TRANSITION).astype(np.uint8)
        self._begin_stacks(whole, obs)
        return self._atari_rows(np.zeros(self._num_slots), flags, infos)

    def _step(self, action: Sequence[Array]) -> StepRows:
        obs, reward, terminated, truncated, infos = self._env.step(action[0].copy())
        rewards = reward.astype(np.float64)
        self._steps += 1
        ended = terminated | truncated
        expired = (self._steps >= self._limit) & ~ended
        flags = ended.astype(np.uint8)
        flags[(truncated | expired) & ~terminated] = TRUNCATED
        if not self._all_born:
            for array in (rewards, flags, ended, expired):
                array[~self._born] = 0
        finals = None
        if self.autoreset == pb.NEXT_STEP:
            self._end_next_step(obs, rewards, flags, expired, infos)
        elif flags.any():
            finals = self._end_same_step(obs, flags, expired, infos)
        if self.soft_ends:
            flags[(flags == 0) & (infos["lives"] < self._lives)] = TERMINATED | FIRST | SOFT
        if not self._all_born:
            flags[~self._born] = NO_TRANSITION
        self._lives = infos["lives"].copy()
        self._ring.push(obs[:, 0])
        self._begin_stacks((flags & (FIRST | SOFT)) == FIRST, obs)
        rows = self._atari_rows(rewards, flags, infos)
        if finals is not None:
            rows.final_rows, rows.final_obs = final_rows_of(flags), [finals]
        rows.stats = self._stats.add(rewards, flags, not flags.any())
        return rows

    def _end_same_step(self, obs: Array, flags: Array, expired: Array, infos: dict[str, Array]) -> Array:
        """The true last stacks `[R, ...]`; `obs` has the first frames of the next episodes from now on."""
        over = flags != 0
        flags[over] |= FIRST
        finals: Array = obs[over]
        by_game = ~expired[over]
        if by_game.any():
            finals[by_game] = infos["final_obs"][over & ~expired]
        self._restart(expired, obs, infos)
        self._steps[over] = 0
        return np.concatenate([self._ring.stacks(over)[:, 1:], finals], axis=1)

    def _begin_stacks(self, mask: Array, obs: Array) -> None:
        """Rows of the mask show what ALE shows of a new game: its first frame, and nothing before it."""
        if mask.any():
            begun = np.zeros((int(mask.sum()), self._depth, *obs.shape[2:]), np.uint8)
            begun[:, -1:] = obs[mask]
            self._ring.put(np.flatnonzero(mask), begun)

    def _end_next_step(self, obs: Array, rewards: Array, flags: Array, expired: Array, infos: dict[str, Array]) -> None:
        ended = flags != 0
        if self._any_ended:
            fresh = self._ended
            # ALE knows nothing of our time limit, and has stepped these rows once more.
            self._restart(self._expired, obs, infos)
            self._steps[fresh] = 0
            expired[fresh] = False
            self._reset_rows(flags, rewards, ended)
        self._ended, self._any_ended, self._expired = ended, bool(ended.any()), expired

    def _restart(self, mask: Array, obs: Array, infos: dict[str, Array]) -> None:
        """New games in the rows of the mask, put into `obs` and `infos`."""
        if mask.any():
            seeds = np.full(int(mask.sum()), -1)
            first, first_infos = self._env.reset(seed=seeds, options={"reset_mask": mask})
            obs[mask] = first[mask]
            for key in _INFOS:
                infos[key][mask] = first_infos[key][mask]

    def _atari_rows(self, rewards: Array, flags: Array, infos: dict[str, Array]) -> StepRows:
        shown = self._ring.stacks() if self._shows_stacks else self._ring.frames[-1][:, None]
        rows = StepRows([shown], rewards, flags)
        rows.infos = [InfoColumn(key, self._every_row, infos[key]) for key in _INFOS]
        return rows


def ale_version() -> tuple[int, ...]:
    """Major and minor version of the installed ale-py."""
    return tuple(int(part) for part in metadata.version("ale-py").split(".")[:2])
