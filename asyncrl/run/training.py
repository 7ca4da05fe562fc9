"""A training run: servers, fleet, collector, learner, from the first round to the last.

A run is a row of *segments*. Within one a fleet is open; between two the lanes are created anew, under the next
incarnations and a higher learner epoch. A run that is resumed begins with a new segment, and so equals one that
created its lanes anew at the same round without being stopped.

Invariants: a sync run that was killed and resumed equals, bit for bit, one that created its lanes anew at that round
(test_exact_resume); whatever ends a run but its learner, its last whole round is in a checkpoint
(test_a_stopped_run_keeps_its_last_round, test_a_run_that_loses_its_servers_keeps_its_last_round); a learner that fails
ends the run with its error, also while it is being stopped, and what it holds then is never kept
(test_a_failing_learner_ends_the_run, test_a_learner_that_fails_while_it_is_stopped_keeps_nothing); `stop` ends whatever
the run waits for (test_stop_while_lanes_are_built).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from asyncrl.buffers.handoff import Handoff
from asyncrl.client.credentials import Access
from asyncrl.client.fleet import Fleet
from asyncrl.client.fleet_lane import FleetLane
from asyncrl.client.loop_lag import LoopTicks
from asyncrl.collector.collector import Collector
from asyncrl.collector.counts import CollectorConfig, CollectorState, EpisodesEnded
from asyncrl.config import RunConfig
from asyncrl.learner.loop import LearnerThread, Standing, ThreadWish, Update
from asyncrl.learner.machine import use_threads
from asyncrl.learner.schedules import crossings
from asyncrl.run.bare_errors import bare_errors
from asyncrl.run.curves import LAG
from asyncrl.run.evaluation import Evaluation
from asyncrl.run.examining import Examiner
from asyncrl.run.keeping import Keeper
from asyncrl.run.learning import Learning, Saved
from asyncrl.run.measuring import Measuring
from asyncrl.run.progress import Progress
from asyncrl.run.recorders import EpisodeWindow, Recorder
from asyncrl.run.run_log import RunLog
from asyncrl.run.searching_lanes import simulation_lanes
from asyncrl.run.searching_training import actor_maker, searching
from asyncrl.run.serving import Serving, core_for_turns, serving
from asyncrl.wire.spec import LaneSpec


class Training:
    """Of one run. `stop` ends it early, as if its budget were used up, without the last evaluation."""

    def __init__(
        self,
        algorithm: str,
        config: RunConfig,
        recorder: Recorder,
        window: EpisodeWindow,
        progress: Progress,
        *,
        saved: Saved | None = None,
        recreate_at: Sequence[int] = (),
    ) -> None:
        """From `progress` on, with the learner that `saved` is a copy of; segments end at the rounds `recreate_at`."""
        self.algorithm = algorithm
        self.config = config
        self.window = window
        self.progress = progress
        self.learning: Learning | None = None
        self.fleet: Fleet | None = None
        self.collector: Collector | None = None
        self.learner: LearnerThread | None = None
        self.examiner: Examiner | None = None
        self.state = "starting"
        self.log = RunLog(recorder, lambda: (self.elapsed_s, self.progress.steps))
        self.metrics: dict[str, float] = {}  # of the last update
        self._measuring: Measuring | None = None
        self._recorder = recorder
        self._searching = searching(config)
        self._simulation_lanes: list[FleetLane] = []  # of the segment
        self._saved = saved
        self._recreate_at = sorted(recreate_at)
        self._on_begin: Callable[[], Awaitable[None]] | None = None
        self._work: asyncio.Task[None] | None = None
        self._may_be_cancelled = False  # the work: nothing would be lost by it
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time() - progress.elapsed_s
        self.stopping = False  # somebody has called `stop`

    @property
    def elapsed_s(self) -> float:
        """Of the whole run, with what came before it was resumed."""
        return self._loop.time() - self._began_s

    @property
    def finished(self) -> bool:
        return self.progress.round >= self.config.num_rounds

    @property
    def keeper(self) -> Keeper | None:
        return None if self.examiner is None else self.examiner.keeper

    @property
    def last_eval(self) -> tuple[int, Evaluation] | None:
        """With the step that it is of."""
        return None if self.examiner is None else self.examiner.last_eval

    @property
    def evaluated(self) -> bool:
        """At its end, over all episodes that were asked for."""
        return self.examiner is not None and self.examiner.evaluated_last

    def time_split(self) -> dict[str, float]:
        """What lanes wait for, of the time since this fleet was opened; shares of 1."""
        if self.collector is None:
            return {}
        stats = self.collector.stats
        spent = {"act": stats.acting_s, "wait": stats.env_s, "train": stats.learner_s}
        total = sum(spent.values())
        return {name: seconds / total for name, seconds in spent.items()} if total else {}

    def snapshot(self) -> Progress:
        """A copy for a checkpoint, with the incarnations that there are now."""
        progress, fleet = self.progress, self.fleet
        incarnations = progress.incarnations
        if fleet is not None and fleet.lanes:
            incarnations = np.concatenate([lane.next_incarnation for lane in fleet.lanes])
        return replace(progress, elapsed_s=self.elapsed_s, incarnations=incarnations)

    # ------------------------------------------------------------------ what its owner does

    def stop(self) -> None:
        """The round that is trained on is finished; what is collected of the next one is dropped. Waiting for servers
        and evaluating end at once. Idempotent."""
        self.stopping, self.state = True, "stopping"
        if self.examiner is not None:
            self.examiner.stop()
        if self._may_be_cancelled and self._work is not None:
            self._work.cancel()
        elif self.collector is not None:
            self.collector.stop()

    async def run(
        self,
        servers: str | Sequence[str] | None,
        access: Access | None,
        make_keeper: Callable[[Learning], Keeper],
        on_begin: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Until the budget is used up or `stop`. `make_keeper` is called once the environments' spec is known,
        `on_begin` before the first round, when nothing is left that could refuse the run.

        Raises what broke it: no servers, a fleet that is gone, a learner that failed. Cancelled, it closes everything
        and keeps nothing; `stop` is the way to end a run.
        """
        self._on_begin = on_begin
        try:
            async with bare_errors(), asyncio.TaskGroup() as group:
                if not self.stopping:
                    self._may_be_cancelled = True
                    self._work = group.create_task(self._carry_out(servers, access, make_keeper))
            await self._keep_last()
        except Exception:
            await self._keep_last()
            raise
        finally:
            self.state = "finished" if self.finished and not self.stopping else "stopped"
            if self.keeper is not None:
                self.keeper.close()

    async def _carry_out(
        self, servers: str | Sequence[str] | None, access: Access | None, make_keeper: Callable[[Learning], Keeper]
    ) -> None:
        config = self.config
        num_envs = config.num_envs + config.eval_envs
        async with serving(config, servers, access, num_envs, core_for_turns(config)) as found:
            async with bare_errors(), asyncio.TaskGroup() as group:
                while self.learning is None or not (self.finished or self.stopping):
                    ends = [at for at in self._recreate_at if at > self.progress.round]
                    await self._segment(found, min([*ends, config.num_rounds]), make_keeper, group)
            await self._keep_last()
            if not self.stopping:
                assert self.examiner is not None
                self.state, self._may_be_cancelled = "evaluating", True
                await self.examiner.evaluate_last()
                self._may_be_cancelled = False

    async def _keep_last(self) -> None:
        """A checkpoint of the last whole round, if there is one and it is not kept yet."""
        if self.learner is not None and self.learner.failure is not None:
            return  # its weights may be of no whole round
        if (
            self.examiner is not None
            and self.progress.round
            and self.progress.steps != self.examiner.keeper.newest_step
        ):
            self.state = "saving"
            await self.examiner.keep_last()

    # ------------------------------------------------------------------ a segment

    async def _segment(
        self, servers: Serving, until: int, make_keeper: Callable[[Learning], Keeper], group: asyncio.TaskGroup
    ) -> None:
        """With one fleet, from the round that is due to round `until`."""
        config, progress = self.config, self.progress
        progress.learner_epoch += 1
        settings: dict[str, Any] = {
            "num_envs": config.num_envs,
            "lanes": servers.own_lanes(config.num_envs) if config.lanes is None else config.lanes,
            "host": config.host,
            "autoreset": config.autoreset,
            "seed": config.seed,
            "run_id": progress.run_id,
            "learner_epoch": progress.learner_epoch,
            "incarnations": None if progress.incarnations is None else (progress.incarnations + 1).tolist(),
            "resumable": not servers.embedded,
            "snapshots": self._searching is not None,
        }
        self.state, self._may_be_cancelled = "starting", True
        async with contextlib.AsyncExitStack() as stack:
            self.fleet = await stack.enter_async_context(servers.fleet(self.log.of_fleet, **settings))
            assert self.fleet.spec is not None
            if self._searching is not None:
                others = self._searching.search_servers
                self._simulation_lanes = await simulation_lanes(stack, servers, others)
            learning = self.learning
            if learning is None:
                learning = await self._open_learner(self.fleet.spec, servers, make_keeper, group)
                assert self.examiner is not None
                await self.examiner.check_room(self.fleet)
                self._may_be_cancelled = False
                if self._on_begin is not None:
                    await self._on_begin()
            self.state, self._may_be_cancelled = "training", False
            with servers.one_core(learning):
                await self._collect_and_learn(self.fleet, learning, until)
            progress.incarnations = np.concatenate([lane.next_incarnation for lane in self.fleet.lanes])
        self.fleet = None

    async def _open_learner(
        self, spec: LaneSpec, servers: Serving, make_keeper: Callable[[Learning], Keeper], group: asyncio.TaskGroup
    ) -> Learning:
        """Off the loop: a large model takes seconds to make, and servers want to hear from us."""
        learning = await asyncio.to_thread(self._make_learning, spec)
        keeper = make_keeper(learning)  # raises where the checkpoint is of something else
        if self._saved is not None:
            await asyncio.to_thread(learning.load, self._saved)
            self._saved = None
        learning.publish(self.progress.round)
        self.learning = learning
        self.examiner = Examiner(self, learning, keeper, servers, self._recorder, group)
        return learning

    def _make_learning(self, spec: LaneSpec) -> Learning:
        use_threads(1)  # the last bits of the first weights depend on how many there are
        return Learning(self.config, spec)

    async def _collect_and_learn(self, fleet: Fleet, learning: Learning, until: int) -> None:
        progress = self.progress
        handoff = Handoff(len(fleet.lanes) * (1 + (self.config.max_ahead or 1)))
        state = progress.collector or CollectorState.fresh(self.config.num_envs, learning.carry)
        steps = progress.collected_step(self.config.max_ahead)
        # The environments are new, whatever the carries were.
        state = CollectorState(state.act_steps, [leaf.copy() for leaf in learning.carry], progress.round, steps)
        wish = self._collector_config(len(fleet.lanes))
        make_actor = None
        if self._searching is not None:
            make_actor = actor_maker(self._searching, learning, fleet.lanes, self._simulation_lanes)
        self.collector = collector = Collector(
            fleet, learning.policy(), handoff, wish, state, self._episodes, make_actor
        )
        progress.collector = state
        if self.stopping or progress.round >= until:
            return
        self.learner = LearnerThread(
            handoff,
            learning.learner,
            learning.box,
            learning.config,
            lambda update: self._updated(update, until),
            standing=Standing(progress.round, progress.steps),
            wish=ThreadWish(last_round=until, on_hang=self.log.learner_hangs),
        )
        ticks = LoopTicks()
        self._measuring = Measuring(len(fleet.lanes), fleet.stats, collector.stats, self.learner, ticks.lag)
        try:
            with self.log.watching(collector.stats):
                await collector.run()
        finally:
            ticks.close()
            handoff.stop()
            await self.learner.close()
            await asyncio.sleep(0)  # what it told the loop last
            # Whatever ended collection did so while an update was under way, and nobody else looks at how that ended.
            if self.learner.failure is not None:
                raise self.learner.failure

    def _collector_config(self, num_lanes: int) -> CollectorConfig:
        config = self.config
        groups = min(config.act_groups, num_lanes) if config.max_ahead == 0 else 0
        return CollectorConfig(
            num_steps=config.num_steps,
            lag=config.max_ahead,
            act_groups=groups,
            # The learner waits while lanes act: the way to another thread and back would be for nothing.
            act_on_loop=groups > 0 and self.learning is not None and self.learning.may_act_on_loop(groups),
            nonfinite=config.nonfinite,
        )

    # ------------------------------------------------------------------ what the learner and the fleet tell

    def _updated(self, update: Update, until: int) -> None:
        """On the loop, after every round: publish is done, the collector may go on."""
        assert self.collector is not None
        try:
            self._round_ended(update, until)
        except Exception as error:  # a callback has nobody to raise to, and the collector would wait for ever
            self.collector.fail(error)

    def _round_ended(self, update: Update, until: int) -> None:
        progress, collector = self.progress, self.collector
        assert collector is not None
        assert self.learner is not None
        assert self.examiner is not None
        assert self._measuring is not None
        before = progress.steps
        progress.round, progress.steps = update.rounds, progress.steps + update.steps
        progress.collector = collector.state()
        self.metrics = self._measuring.metrics(update, progress, self.elapsed_s)
        every = self.config.log_every
        if not every or crossings(before, progress.steps, every) or progress.round >= until:
            self._recorder.scalars(progress.steps, self.metrics)
            if self.config.max_ahead != 0:
                self._recorder.histogram(progress.steps, LAG, self._measuring.lags())
        if not self.stopping:
            self.examiner.round_ended(before, self.learner)
        if progress.round >= until:
            collector.stop()
        else:
            # Last: what was asked of the learner above comes before it takes the next round.
            collector.trained(progress.round)

    def _episodes(self, ended: EpisodesEnded) -> None:
        for value, length in zip(ended.returns.tolist(), ended.lengths.tolist(), strict=True):
            if math.isfinite(value):  # one NaN would be in the mean of a hundred episodes
                self.window.add(value, length)
                self._recorder.episode(ended.steps, value, length, self.elapsed_s)
