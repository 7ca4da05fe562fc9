"""`Examiner`: what is done with a run beside its training: checkpoints and evaluations, when they are due.

Both begin with a copy of the learner, made between two updates; what follows delays nobody.

Invariants: a checkpoint's counters are those of its weights, also where collection and learning overlap
(test_a_checkpoint_counts_what_its_weights_have_seen); a disk that is slower than the checkpoints come gets every
checkpoint that it has time for, and one at the end (test_a_slow_disk_gets_fewer_checkpoints); trouble with the lanes of
an evaluation costs that evaluation alone (test_trouble_with_an_evaluation_is_an_event); weights that a failed update
left are never kept (test_a_failed_update_is_not_kept); an evaluation whose mean is no number is never the best
(test_nan_is_never_the_best); no evaluation holds a replay (test_an_evaluation_holds_no_replay); whoever is killed loses
what was learned since the last checkpoint or evaluation, and neither is longer ago than `checkpoint_minutes` and the
round that goes on (test_minutes_without_a_checkpoint_bring_one).
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from asyncrl.client.fleet import Fleet
from asyncrl.client.placement import Offer, no_room
from asyncrl.config import RunConfig
from asyncrl.errors import AsyncRLError, ConfigError, LocalProtocolError
from asyncrl.learner.loop import LearnerThread
from asyncrl.learner.schedules import crossings
from asyncrl.policy import Policy
from asyncrl.run.evaluation import Evaluation, evaluate
from asyncrl.run.keeping import Keeper
from asyncrl.run.learning import Learning, Saved
from asyncrl.run.progress import Progress
from asyncrl.run.recorders import Recorder
from asyncrl.run.run_log import RunLog
from asyncrl.run.serving import Serving

# Evaluation has seeds of its own: environments that nobody trains on.
EVAL_SEED: Final = 1_000_003


class Copied(NamedTuple):
    """The learner between two updates."""

    saved: Saved
    policy: Policy | None
    progress: Progress  # what these weights have seen


class Contestant(NamedTuple):
    """What is evaluated, once it is saved: a copy of the learner may stand for gigabytes of replay."""

    policy: Policy
    step: int
    path: Path | None  # of its checkpoint; None: the disk was in the way


class Examined(Protocol):
    """The run as its examiner sees it."""

    config: RunConfig
    progress: Progress
    log: RunLog

    def snapshot(self) -> Progress: ...


class Examiner:
    """Of one run. Belongs to the loop; its tasks are those of `group`."""

    def __init__(
        self,
        run: Examined,
        learning: Learning,
        keeper: Keeper,
        servers: Serving,
        recorder: Recorder,
        group: asyncio.TaskGroup,
    ) -> None:
        self.keeper = keeper
        self.last_eval: tuple[int, Evaluation] | None = None  # with the step that it is of
        self.evaluated_last = False  # `evaluate_last` was not cut short
        self._run = run
        self._learning = learning
        self._servers = servers
        self._recorder = recorder
        self._group = group
        self._checkpoint_is_due = False
        self._newest_copy_s = _now()
        self._evaluating: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ when

    def round_ended(self, before: int, learner: LearnerThread) -> None:
        """After every round, whose first step was `before`: begin what is due."""
        config, now = self._run.config, self._run.progress.steps
        self._checkpoint_is_due |= crossings(before, now, config.checkpoint_every) > 0 or self._is_late
        if self._checkpoint_is_due and not self.keeper.is_busy:
            self._checkpoint_is_due = False
            self._newest_copy_s = _now()
            self._group.create_task(self._keep_now(self._run.snapshot(), learner))
        # One that takes longer than the time between two stands in for the next.
        is_due = crossings(before, now, config.eval_every) > 0
        if is_due and (self._evaluating is None or self._evaluating.done()):
            self._newest_copy_s = _now()
            self._evaluating = self._group.create_task(self._evaluate_now(self._run.snapshot(), learner))

    @property
    def _is_late(self) -> bool:
        """The steps between two checkpoints take longer than anybody should lose: hours, of a slow simulator."""
        config = self._run.config
        return bool(config.checkpoint_every) and 0 < config.checkpoint_minutes <= (_now() - self._newest_copy_s) / 60

    def stop(self) -> None:
        """Give up the evaluation that is going on."""
        if self._evaluating is not None:
            self._evaluating.cancel()

    async def check_room(self, fleet: Fleet) -> None:
        """ConfigError where the servers of an open fleet have no room for evaluations beside it."""
        wanted = self._eval_envs
        if not self._run.config.eval_every or self._servers.embedded:
            return
        for server in fleet.servers:
            server.doubt()  # what it said of itself before our lanes were opened
        offers = [Offer.of(server.address, await server.describe()) for server in fleet.servers]
        if sum(offer.free for offer in offers) < wanted:
            raise ConfigError(
                f"no room for evaluation beside training: {no_room(offers, wanted)}, "
                f"or evaluate at the end alone, with --eval-every 0"
            )

    # ------------------------------------------------------------------ checkpoints

    async def keep_last(self) -> None:
        """Once no learner runs: the last whole round. Cancelled, the write goes on in its thread."""
        await self.keeper.keep(self._run.snapshot(), self._learning.save())

    async def _keep_now(self, progress: Progress, learner: LearnerThread) -> None:
        copied = await self._copy(progress, learner, with_policy=False)
        if copied is not None:
            await self.keeper.keep(copied.progress, copied.saved)

    async def _copy(self, progress: Progress, learner: LearnerThread, *, with_policy: bool) -> Copied | None:
        """None: the learner has failed, and with it the run."""
        learning = self._learning

        def copy() -> Copied | None:
            if learner.failure is not None:
                return None
            # Where collection and learning overlap it may have gone on since `progress` was written down.
            rounds, steps = learner.standing
            policy = learning.frozen_policy(deterministic=True) if with_policy else None
            return Copied(learning.save(), policy, replace(progress, round=rounds, steps=steps))

        try:
            return await learner.call(copy)
        except LocalProtocolError:  # its thread has ended: nobody else touches the weights
            return copy()

    # ------------------------------------------------------------------ evaluations

    @property
    def _eval_envs(self) -> int:
        return min(self._run.config.eval_envs, self._run.config.eval_episodes)

    async def _evaluate_now(self, progress: Progress, learner: LearnerThread) -> None:
        copied = await self._copy(progress, learner, with_policy=True)
        if copied is not None:
            contestant = await self._kept(copied)
            del copied  # with what it holds of a replay, for as long as the evaluation takes
            await self._evaluate(self._run.config.eval_episodes, self._eval_envs, contestant)

    async def evaluate_last(self) -> None:
        """At the end of a run, with the environments of training too; they are free. Cancelled, nothing is left."""
        config, learning = self._run.config, self._learning
        beside = config.eval_envs if config.eval_every or self._servers.embedded else 0
        policy = learning.frozen_policy(deterministic=True)
        contestant = await self._kept(Copied(learning.save(), policy, self._run.snapshot()))
        self.evaluated_last = await self._evaluate(config.final_eval_episodes, config.num_envs + beside, contestant)

    async def _kept(self, copied: Copied) -> Contestant:
        assert copied.policy is not None
        path = await self.keeper.keep(copied.progress, copied.saved, hold=True)
        return Contestant(copied.policy, copied.progress.steps, path)

    async def _evaluate(self, episodes: int, num_envs: int, of: Contestant) -> bool:
        """Play, record, and mark the best; False where something came in between."""
        config, seed = self._run.config, self._run.config.seed + EVAL_SEED
        settings: dict[str, Any] = {"num_envs": min(num_envs, episodes), "auto_reset": False, "seed": seed}
        settings |= {"autoreset": config.autoreset, "host": config.host}
        try:
            async with self._servers.fleet(self._run.log.of_evaluation, **settings) as fleet:
                found = await evaluate(fleet, of.policy, episodes, seed)
        except AsyncRLError as error:
            self._run.log.tell("evaluation_failed", str(error))
            return False
        await self._take_down(found, of)
        return True

    async def _take_down(self, found: Evaluation, of: Contestant) -> None:
        self.last_eval = of.step, found
        scalars = {"eval/episodic_return": found.mean, "eval/episodic_length": float(np.mean(found.lengths))}
        scalars |= {"eval/return_std": found.std, "eval/episodes": float(len(found.returns))}
        self._recorder.scalars(of.step, scalars)
        best = self.keeper.best
        if of.path is not None and math.isfinite(found.mean) and (best is None or found.mean >= best):
            await self.keeper.mark(of.path, found.mean)


def _now() -> float:
    return asyncio.get_running_loop().time()
