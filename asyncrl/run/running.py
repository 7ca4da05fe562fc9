"""From a session to a result: everything that surrounds a `Training` on the disk and on the screen.

Invariants: the first SIGTERM or SIGINT ends a run with a checkpoint and status 0, the second at once
(test_E1_a_signal_ends_with_a_checkpoint); the last line says where everything is (test_the_end_says_where_things_are).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from asyncrl.client.addresses import parse
from asyncrl.client.connecting import addresses
from asyncrl.client.credentials import Access
from asyncrl.client.loop_factory import new_event_loop
from asyncrl.config import PPOConfig
from asyncrl.errors import ConfigError
from asyncrl.run.checkpoints import CheckpointStore
from asyncrl.run.dashboard import Dashboard
from asyncrl.run.keeping import Keeper
from asyncrl.run.learning import Saved
from asyncrl.run.manifests import Identity
from asyncrl.run.plots import plot_runs
from asyncrl.run.progress import Progress
from asyncrl.run.recorders import hyperparameters
from asyncrl.run.recording import open_recording
from asyncrl.run.result import Result, commit_of, write_result
from asyncrl.run.session import Session, open_session
from asyncrl.run.training import Training
from asyncrl.run.view import View

SHOW_EVERY_S: Final = 0.2
DRAIN_S: Final = 5.0

Say = Callable[[str], None]


def run_to_the_end(
    algorithm: str,
    config: PPOConfig,
    servers: str | Sequence[str] | None = None,
    access: Access | None = None,
    *,
    dashboard: Dashboard | None = None,
    say: Say = lambda text: None,
    recreate_at: Sequence[int] = (),
) -> tuple[Result, Path]:
    """Train, evaluate, write the result; and the run's directory. Blocks.

    Raises what ended the run early: ConfigError, ConnectionFailed, the learner's or the fleet's error. Its checkpoints
    stay.
    """
    for address in () if servers is None else addresses(servers):
        parse(address)  # a mistake in it should leave no directory
    session = open_session(algorithm, config)
    run = _Run(session, algorithm, config, dashboard, say, recreate_at)
    try:
        with session.folder.lock(), asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(run.carry_out(servers, access)), session.folder.path
    finally:
        if run.is_empty:
            shutil.rmtree(session.folder.path, ignore_errors=True)


class _Run:
    """One session."""

    def __init__(
        self,
        session: Session,
        algorithm: str,
        config: PPOConfig,
        dashboard: Dashboard | None,
        say: Say,
        recreate_at: Sequence[int],
    ) -> None:
        self._session = session
        self._algorithm = algorithm
        self._config = config
        self._dashboard = dashboard
        self._say = say
        self._recreate_at = recreate_at
        self._training: Training | None = None

    @property
    def is_empty(self) -> bool:
        """A new run that never came to its first round: nobody wants its directory."""
        steps = 0 if self._training is None else self._training.progress.steps
        return self._session.checkpoint is None and not steps

    async def carry_out(self, servers: str | Sequence[str] | None, access: Access | None) -> Result:
        session, config = self._session, self._config
        checkpoint = session.checkpoint
        recording = open_recording(
            session.folder,
            config.env_id,
            self._say,
            track=config.track,
            style=config.tb_style,
            resume_step=None if checkpoint is None else checkpoint.step,
        )
        self._recorder = recording.recorder
        progress = Progress() if checkpoint is None else Progress.of(checkpoint.parts)
        training = Training(
            self._algorithm,
            config,
            recording.recorder,
            recording.window,
            began_s=progress.elapsed_s,
            recreate_at=self._recreate_at,
        )
        self._training = training
        if checkpoint is None:
            recording.recorder.text(0, "hyperparameters", hyperparameters(session.folder.read_config()))
        else:
            training.resume(progress, Saved.of(checkpoint.parts))
            for damage in checkpoint.damaged:
                training.tell("checkpoint_damaged", f"passed over {damage}")
            self._say(f"resumes {session.folder.path} at step {checkpoint.step:,}")
        try:
            with self._showing(training), _stopping_by_signal(training, self._say):
                await training.run(servers, access, self._on_open)
        finally:
            await asyncio.to_thread(recording.recorder.close)
        return await asyncio.to_thread(self._finish, training)

    def _finish(self, training: Training) -> Result:
        """The result and the picture, of a run that came to its end or was stopped."""
        folder, keeper = self._session.folder, training.keeper
        last = training.last_eval
        plot = self._plot() if training.finished else None
        result = Result(
            algorithm=self._algorithm,
            env_id=self._config.env_id,
            seed=self._config.seed,
            env_steps=training.progress.steps,
            wall_s=round(training.elapsed_s, 2),
            sps=round(training.progress.steps / max(training.elapsed_s, 1e-9), 1),
            eval_return_mean=None if last is None else last[1].mean,
            eval_return_std=None if last is None else last[1].std,
            eval_episodes=0 if last is None else len(last[1].returns),
            commit=commit_of(Path(__file__).parent),
            checkpoint=None if keeper is None or keeper.newest is None else str(keeper.newest.relative_to(folder.path)),
            plot=plot,
        )
        if training.finished:
            write_result(folder.result, result)
        return result

    def _plot(self) -> str | None:
        """Its name in the run's directory; None where matplotlib is not installed."""
        folder = self._session.folder
        try:
            plot_runs([folder], folder.plot)
        except ConfigError as error:
            self._say(str(error))
            return None
        return folder.plot.name

    def _on_open(self, training: Training) -> Keeper:
        """The environments' spec is known: whose checkpoints these are, and on what machine they are made."""
        learning = training.learning
        assert learning is not None
        self._say(f"{learning.num_parameters:,} parameters; torch: {learning.threads.why}")
        identity = Identity(self._algorithm, self._config.env_id, learning.spec.hash().hex())
        if self._session.checkpoint is not None:
            identity.check(self._session.checkpoint.manifest.identity, self._session.checkpoint.path)
        store = CheckpointStore(self._session.folder.checkpoints, identity, keep=self._config.keep_checkpoints)
        drain = self._recorder.drain
        return Keeper(store, lambda text: training.tell("checkpoint", text), lambda: drain(DRAIN_S))

    @contextlib.contextmanager
    def _showing(self, training: Training) -> Iterator[None]:
        """Snapshots for the dashboard, by a timer of the loop."""
        dashboard = self._dashboard
        if dashboard is None:
            yield
            return
        view, loop = View(training, str(self._session.folder.path)), asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def show() -> None:
            nonlocal timer
            dashboard.show(view.snapshot())
            timer = loop.call_later(SHOW_EVERY_S, show)

        show()
        with dashboard:
            try:
                yield
            finally:
                if timer is not None:
                    timer.cancel()
                dashboard.show(view.snapshot())


@contextlib.contextmanager
def _stopping_by_signal(training: Training, say: Say) -> Iterator[None]:
    """The first signal stops the run at its round, the second the process."""
    loop = asyncio.get_running_loop()

    def caught(number: int) -> None:
        if training.stopping:
            os._exit(128 + number)
        say(f"{signal.Signals(number).name}: stops after this round, with a checkpoint; again: at once")
        training.stop()

    with contextlib.ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):  # Windows; not the main thread
                loop.add_signal_handler(number, caught, number)
                stack.callback(loop.remove_signal_handler, number)
        yield
