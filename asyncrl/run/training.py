"""A training run: servers, fleet, collector, learner, evaluation, checkpoints, from the first round to the result.

A run is a row of *segments*. Within one a fleet is open; between two the lanes are created anew, under the next
incarnations and a higher learner epoch. A run that is resumed begins with a new segment, and so equals one that
created its lanes anew at the same round without being stopped.

Invariants: a sync run that was killed and resumed equals, bit for bit, one that created its lanes anew at that round
(test_exact_resume); what ends a run, its last whole round is in a checkpoint (test_a_stopped_run_keeps_its_last_round);
a learner that fails ends the run with its error (test_a_failing_learner_ends_the_run).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from asyncrl.buffers.handoff import Handoff
from asyncrl.client.credentials import Access
from asyncrl.client.fleet import Fleet
from asyncrl.client.fleet_config import FAULTS, FleetEvent
from asyncrl.collector.collector import Collector
from asyncrl.collector.counts import CollectorConfig, CollectorState, EpisodesEnded
from asyncrl.config import PPOConfig
from asyncrl.errors import LocalProtocolError
from asyncrl.learner.loop import LearnerThread, Update
from asyncrl.run.evaluation import Evaluation, evaluate
from asyncrl.run.keeping import Keeper
from asyncrl.run.learning import Learning, Saved
from asyncrl.run.progress import Progress
from asyncrl.run.recorders import EpisodeWindow, Recorder
from asyncrl.run.serving import Serving, serving
from asyncrl.wire.spec import LaneSpec

# Evaluation has seeds of its own: environments that nobody trains on.
EVAL_SEED: Final = 1_000_003
KEPT_EVENTS: Final = 1000


class Training:
    """Of one run. `stop` ends it early, as if its budget were used up, without the last evaluation."""

    def __init__(
        self,
        algorithm: str,
        config: PPOConfig,
        recorder: Recorder,
        window: EpisodeWindow,
        *,
        began_s: float = 0.0,
        recreate_at: Sequence[int] = (),
    ) -> None:
        self.algorithm = algorithm
        self.config = config
        self.window = window
        self.progress = Progress()
        self.learning: Learning | None = None
        self.fleet: Fleet | None = None
        self.collector: Collector | None = None
        self.learner: LearnerThread | None = None
        self.keeper: Keeper | None = None
        self.state = "starting"
        self.events: deque[tuple[float, str]] = deque(maxlen=KEPT_EVENTS)  # (elapsed_s, text), newest last
        self.num_events = 0
        self.losses_by_lane: Counter[int] = Counter()
        self.metrics: dict[str, float] = {}  # of the last update
        self.last_eval: tuple[int, Evaluation] | None = None  # with the step that it is of
        self._recorder = recorder
        self._recreate_at = sorted(recreate_at)
        self._stopped = asyncio.Event()
        self._servers: Serving | None = None
        self._evaluating: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None
        self._resumed: Saved | None = None
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time() - began_s

    @property
    def elapsed_s(self) -> float:
        """Of the whole run, with what came before it was resumed."""
        return self._loop.time() - self._began_s

    @property
    def finished(self) -> bool:
        return self.progress.round >= self.config.num_rounds

    @property
    def stopping(self) -> bool:
        """Somebody has called `stop`."""
        return self._stopped.is_set()

    def time_split(self) -> dict[str, float]:
        """What lanes wait for, of the time since this fleet was opened; shares of 1."""
        if self.collector is None:
            return {}
        stats = self.collector.stats
        spent = {"act": stats.acting_s, "wait": stats.env_s, "train": stats.learner_s}
        total = sum(spent.values())
        return {name: seconds / total for name, seconds in spent.items()} if total else {}

    def stop(self) -> None:
        """The round that is trained on is finished; what is collected of the next one is dropped."""
        self.state = "stopping"
        self._stopped.set()
        if self.collector is not None:
            self.collector.stop()

    def resume(self, progress: Progress, saved: Saved) -> None:
        """Before `run`: go on from a checkpoint."""
        self.progress, self._resumed = progress, saved

    async def run(
        self, servers: str | Sequence[str] | None, access: Access | None, on_open: Callable[[Training], Keeper]
    ) -> None:
        """Until the budget is used up or `stop`. `on_open` is called once the environments' spec is known.

        Raises what broke it: no servers, a fleet that is gone, a learner that failed. Cancelled, it closes everything
        and keeps nothing; `stop` is the way to end a run.
        """
        config = self.config
        async with serving(config, servers, access, config.num_envs + config.eval_envs) as self._servers:
            async with bare_errors(), asyncio.TaskGroup() as self._group:
                while not (self.finished or self._stopped.is_set()):
                    ends = [at for at in self._recreate_at if at > self.progress.round]
                    await self._segment(self._servers, min([*ends, config.num_rounds]), on_open)
                if self._evaluating is not None and self._stopped.is_set():
                    self._evaluating.cancel()
            assert self.keeper is not None
            self.state = "saving"
            await self._keep()
            if not self._stopped.is_set():
                self.state = "evaluating"
                await self._evaluate(config.final_eval_episodes, self._learning.frozen_policy(deterministic=True), None)

    # ------------------------------------------------------------------ a segment

    async def _segment(self, servers: Serving, until: int, on_open: Callable[[Training], Keeper]) -> None:
        """With one fleet, from the round that is due to round `until`."""
        config, progress = self.config, self.progress
        progress.learner_epoch += 1
        incarnations = None if progress.incarnations is None else (progress.incarnations + 1).tolist()
        settings: dict[str, Any] = {
            "num_envs": config.num_envs,
            "lanes": config.lanes,
            "host": config.host,
            "autoreset": config.autoreset,
            "seed": config.seed,
            "run_id": progress.run_id,
            "learner_epoch": progress.learner_epoch,
            "incarnations": incarnations,
            "resumable": not servers.embedded,
        }
        async with servers.fleet(self._event, **settings) as self.fleet:
            self.state = "training"
            assert self.fleet.spec is not None
            self._open_learner(self.fleet.spec, on_open)
            await self._collect_and_learn(self.fleet, until)
            progress.incarnations = np.concatenate([lane.next_incarnation for lane in self.fleet.lanes])
        self.fleet = None

    def _open_learner(self, spec: LaneSpec, on_open: Callable[[Training], Keeper]) -> None:
        if self.learning is None:
            self.learning = Learning(self.algorithm, self.config, spec)
            if self._resumed is not None:
                self.learning.load(self._resumed)
            self.keeper = on_open(self)
        self.learning.publish(self.progress.round)

    async def _collect_and_learn(self, fleet: Fleet, until: int) -> None:
        config, learning = self.config, self._learning
        ahead = config.max_ahead
        handoff = Handoff(len(fleet.lanes) * (1 + (ahead or 1)))
        groups = min(config.act_groups, len(fleet.lanes)) if ahead == 0 else 0
        wish = CollectorConfig(num_steps=config.num_steps, lag=ahead, act_groups=groups)
        state = self.progress.collector or CollectorState.fresh(config.num_envs, learning.carry)
        # The environments are new, whatever the carries were.
        state = CollectorState(state.act_steps, [leaf.copy() for leaf in learning.carry], state.round, state.steps)
        self.progress.collector = state
        collector = Collector(fleet, learning.policy(), handoff, wish, state, self._episodes)
        self.collector = collector
        learner = LearnerThread(
            handoff,
            learning.ppo,
            learning.box,
            learning.config,
            lambda update: self._updated(update, until),
            rounds=self.progress.round,
        )
        self.learner = learner
        try:
            if not self._stopped.is_set():
                await collector.run()
        finally:
            handoff.stop()
            await learner.close()
            await asyncio.sleep(0)  # what it told the loop last

    # ------------------------------------------------------------------ what the learner and the fleet tell

    def _updated(self, update: Update, until: int) -> None:
        """On the loop, after every round: publish is done, the collector may go on."""
        progress, collector, learner = self.progress, self.collector, self.learner
        assert collector is not None
        assert learner is not None
        before = progress.steps
        progress.round, progress.steps = update.rounds, progress.steps + update.steps
        progress.collector = collector.state()
        self._record(update)
        if crossed(before, progress.steps, self.config.checkpoint_every):
            self._start(self._keep())
        if crossed(before, progress.steps, self.config.eval_every):
            self._start_evaluation()
        if progress.round >= until:
            collector.stop()
        else:
            # Last: what was asked of the learner above comes before it takes the next round.
            collector.trained(progress.round)

    def _record(self, update: Update) -> None:
        progress, collector = self.progress, self.collector
        assert collector is not None
        assert self.fleet is not None
        assert self.learner is not None
        counts, stats = self.learner.staleness, self.fleet.stats
        self.metrics = update.metrics | {
            "charts/SPS": progress.steps / max(self.elapsed_s, 1e-9),
            "charts/SPS_learner": update.steps / max(update.update_s, 1e-9),
            "perf/update_s": update.update_s,
            "perf/wait_s": update.wait_s,
            "time/wall_s": self.elapsed_s,
            "async/policy_lag_mean": counts.mean_lag,
            "async/policy_lag_max": float(max(counts.lags, default=0)),
            "async/dropped_stale": float(counts.steps_dropped),
            "async/lost_steps": float(collector.stats.lost_steps),
            "async/restarts": float(stats.faults["lane_lost"]),
            "async/reconnects": float(stats.faults["stream_resumed"]),
            "async/loop_lag_max_ms": 1e3 * stats.loop_lag_max_s,
        }
        self._recorder.scalars(progress.steps, self.metrics)

    def _episodes(self, ended: EpisodesEnded) -> None:
        for value, length in zip(ended.returns.tolist(), ended.lengths.tolist(), strict=True):
            self.window.add(value, length)
            self._recorder.episode(ended.steps, value, length, self.elapsed_s)

    def _event(self, event: FleetEvent) -> None:
        if event.kind in FAULTS:
            self.losses_by_lane[event.lane] += event.kind == "lane_lost"
            text = f"lane {event.lane} at {event.address}: {event.cause} {event.text}".strip()
            self.tell(event.kind, text)

    def tell(self, kind: str, text: str) -> None:
        """Something that whoever reads the curves should know."""
        self.num_events += 1
        self.events.append((self.elapsed_s, f"{kind}: {text.splitlines()[0] if text else ''}"))
        self._recorder.event(self.progress.steps, kind, text)

    # ------------------------------------------------------------------ beside it

    @property
    def _learning(self) -> Learning:
        assert self.learning is not None
        return self.learning

    def _start(self, work: Any) -> asyncio.Task[None]:
        assert self._group is not None
        task: asyncio.Task[None] = self._group.create_task(work)
        return task

    async def _between_updates(self, function: Callable[[], Any]) -> Any:
        """In the learner's thread while there is one."""
        learner = self.learner
        try:
            return await learner.call(function) if learner is not None else function()
        except LocalProtocolError:  # it ended
            return function()

    def _snapshot(self) -> Progress:
        """A copy for a checkpoint, with the incarnations that there are now."""
        progress, fleet = self.progress, self.fleet
        incarnations = progress.incarnations
        if fleet is not None:
            incarnations = np.concatenate([lane.next_incarnation for lane in fleet.lanes])
        return replace(progress, elapsed_s=self.elapsed_s, incarnations=incarnations)

    async def _keep(self) -> None:
        """A checkpoint of the last whole round."""
        assert self.keeper is not None
        progress = self._snapshot()
        saved = await self._between_updates(self._learning.save)
        await self.keeper.keep(progress, saved)

    def _start_evaluation(self) -> None:
        if self._evaluating is not None and not self._evaluating.done():
            return  # it takes longer than the time between two: the next one will do
        self._evaluating = self._start(self._evaluate_now())

    async def _evaluate_now(self) -> None:
        learning, progress = self._learning, self._snapshot()

        def freeze() -> tuple[Any, Saved]:
            return learning.frozen_policy(deterministic=True), learning.save()

        policy, saved = await self._between_updates(freeze)
        await self._evaluate(self.config.eval_episodes, policy, (progress, saved))

    async def _evaluate(self, episodes: int, policy: Any, of: tuple[Progress, Saved] | None) -> None:
        """Play, record, and mark the best. Trouble with the evaluation's lanes costs the evaluation alone."""
        config, servers = self.config, self._servers
        assert servers is not None
        steps = self.progress.steps if of is None else of[0].steps
        # At the end, the environments of training are free for it.
        room = config.eval_envs if of is not None else config.num_envs + config.eval_envs
        settings: dict[str, Any] = {"num_envs": min(room, episodes), "auto_reset": False}
        settings |= {"autoreset": config.autoreset, "host": config.host, "seed": config.seed + EVAL_SEED}
        async with servers.fleet(self._event, **settings) as fleet:
            found = await evaluate(fleet, policy, episodes, config.seed + EVAL_SEED)
        self.last_eval = steps, found
        scalars = {"eval/episodic_return": found.mean, "eval/episodic_length": float(np.mean(found.lengths))}
        self._recorder.scalars(steps, scalars | {"eval/return_std": found.std, "eval/episodes": float(episodes)})
        best = self.progress.best_eval
        if of is not None and (best is None or found.mean >= best):
            self.progress.best_eval = found.mean
            assert self.keeper is not None
            await self.keeper.keep(*of, found.mean)


@contextlib.asynccontextmanager
async def bare_errors() -> AsyncIterator[None]:
    """The first error instead of the group of all: the others followed from it."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from group


def crossed(before: int, now: int, every: int) -> bool:
    """Whether a multiple of `every` lies in (before, now]; never for 0."""
    return every > 0 and now // every > before // every
