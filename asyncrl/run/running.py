"""From a session to a result: everything that surrounds a `Training` on the disk and on the screen.

Invariants: the first SIGTERM or SIGINT ends a run with a checkpoint and status 0, the second at once
(test_E1_a_signal_ends_with_a_checkpoint, test_E1_the_second_signal_ends_at_once); the last line says where everything
is (test_the_end_says_where_things_are); a run that is at its end already, or whose servers refuse it, is not touched
(test_a_run_at_its_end_stays_as_it_is, test_a_refused_run_stays_as_it_is); a result has the evaluation of the weights
that the run ended with or none, and a run without one is not at its end
(test_a_last_evaluation_that_was_cut_short_is_made_again); what goes wrong with files and screens at the end is told and
costs nothing else (test_trouble_at_the_end_is_told, test_nobody_listening_costs_nothing).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from asyncrl.client.addresses import parse
from asyncrl.client.connecting import addresses
from asyncrl.client.credentials import Access
from asyncrl.client.loop_factory import new_event_loop
from asyncrl.config import RunConfig, algorithm_of
from asyncrl.errors import ConfigError
from asyncrl.learner.allocation import keep_freed_memory
from asyncrl.run.checkpoints import CheckpointStore
from asyncrl.run.dashboard import Dashboard
from asyncrl.run.keeping import Keeper
from asyncrl.run.learning import Learning, Saved
from asyncrl.run.manifests import Identity
from asyncrl.run.plots import plot_runs
from asyncrl.run.recorders import BackgroundRecorder, EpisodeWindow, hyperparameters
from asyncrl.run.recording import ResumeAt, begin_recording
from asyncrl.run.result import Result, commit_of, read_result, write_result
from asyncrl.run.row_files import Episode
from asyncrl.run.session import Session, open_session
from asyncrl.run.signals import StopSignals
from asyncrl.run.training import Training
from asyncrl.run.view import View

SHOW_EVERY_S: Final = 0.2
DRAIN_S: Final = 5.0

Say = Callable[[str], None]


class Ran(NamedTuple):
    """What came of it."""

    result: Result
    folder: Path
    finished: bool  # and evaluated, rather than stopped


def train(
    config: RunConfig,
    servers: str | Sequence[str] | None = None,
    access: Access | None = None,
    *,
    say: Say = lambda text: None,
) -> Result:
    """Train to the end of the budget and evaluate; on `servers`, or on an env server of its own. Blocks.

    The type of the configuration says the algorithm. Everything is under `config.run_dir`, in the directory
    `result.run`. `say` hears what happens, line by line. A run of that name, or at the path `config.resume`, goes on.
    In the main thread the first Ctrl-C ends training with a checkpoint; the result is then that of the run so far.
    """
    return run_to_the_end(algorithm_of(config), config, servers, access, say=say).result


def run_to_the_end(
    algorithm: str,
    config: RunConfig,
    servers: str | Sequence[str] | None = None,
    access: Access | None = None,
    *,
    dashboard: Dashboard | None = None,
    say: Say = lambda text: None,
    recreate_at: Sequence[int] = (),
) -> Ran:
    """Train, evaluate, write the result. Blocks. In the main thread, SIGINT and SIGTERM end it early.

    Raises what ended the run otherwise: ConfigError, ConnectionFailed, the learner's or the fleet's error. Its
    checkpoints stay.
    """
    for address in () if servers is None else addresses(servers):
        parse(address)  # a mistake in it should leave no directory
    keep_freed_memory()  # before there are threads
    say = _patient(say)
    with StopSignals(say, lambda: None if dashboard is None else dashboard.leave()) as signals:
        session = open_session(algorithm, config)
        try:
            done_before = _at_its_end(session, config, say)
            if done_before is not None:
                return done_before
            run = _Run(session, algorithm, config, dashboard, say)
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                return runner.run(run.carry_out(servers, access, recreate_at, signals))
        finally:
            session.close()


def _patient(say: Say) -> Say:
    """A pipe that nobody reads any more, or a terminal that is gone, is no reason to end a run."""

    def tell(text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            say(text)

    return tell


def _at_its_end(session: Session, config: RunConfig, say: Say) -> Ran | None:
    """A run that has used its budget and has its result."""
    folder = session.folder
    written = read_result(folder.result)
    if session.progress.round < config.num_rounds or written is None:
        return None
    names = [field.name for field in dataclasses.fields(Result)]
    result = Result(**{name: written[name] for name in names if name in written})
    say(f"{folder.path} has used its budget of {config.total_timesteps:,} steps: pass a larger --total-timesteps")
    return Ran(result, folder.path, True)


class _Run:
    """One session."""

    def __init__(
        self, session: Session, algorithm: str, config: RunConfig, dashboard: Dashboard | None, say: Say
    ) -> None:
        self._session = session
        self._algorithm = algorithm
        self._config = config
        self._dashboard = dashboard
        self._say = say

    async def carry_out(
        self,
        servers: str | Sequence[str] | None,
        access: Access | None,
        recreate_at: Sequence[int],
        signals: StopSignals,
    ) -> Ran:
        recorder = BackgroundRecorder()
        training = self._training(recorder, recreate_at)

        async def begin() -> None:
            for episode in await asyncio.to_thread(self._begin, recorder):
                training.window.add(episode.ret, episode.length)

        try:
            with self._showing(training), signals.heard_by(training.stop):
                await training.run(servers, access, lambda made: self._keeper(training, recorder, made), begin)
        finally:
            await asyncio.to_thread(recorder.close)
        return await asyncio.to_thread(self._finish, training)

    def _begin(self, recorder: BackgroundRecorder) -> Sequence[Episode]:
        """The run's files are its own from here on; its episodes so far."""
        session, config = self._session, self._config
        checkpoint = session.checkpoint
        session.begin()
        if checkpoint is None:
            recorder.text(0, "hyperparameters", hyperparameters(session.folder.read_config()))
        return begin_recording(
            recorder,
            session.folder,
            config.env_id,
            self._say,
            track=config.track,
            style=config.tb_style,
            resume=ResumeAt(session.progress.steps, session.progress.collected_step(config.max_ahead)),
        )

    def _training(self, recorder: BackgroundRecorder, recreate_at: Sequence[int]) -> Training:
        session = self._session
        checkpoint = session.checkpoint
        training = Training(
            self._algorithm,
            self._config,
            recorder,
            EpisodeWindow(),
            session.progress,
            saved=None if checkpoint is None else Saved.of(checkpoint.parts),
            recreate_at=recreate_at,
        )
        if checkpoint is not None:
            for damage in checkpoint.damaged:
                training.log.tell("checkpoint_damaged", f"passed over {damage}")
            self._say(f"resumes {session.folder.path} at step {checkpoint.step:,}")
        elif not session.is_new:
            self._say(f"{session.folder.path} has no checkpoint: it begins anew")
        return training

    def _keeper(self, training: Training, recorder: BackgroundRecorder, learning: Learning) -> Keeper:
        """The environments' spec is known: whose checkpoints these are, and on what machine they are made."""
        self._say(f"{learning.num_parameters:,} parameters; torch: {learning.threads.why}")
        checkpoint = self._session.checkpoint
        store = CheckpointStore(
            self._session.folder.checkpoints,
            Identity(self._algorithm, self._config.env_id, learning.spec.hash().hex()),
            keep=self._config.keep_checkpoints,
            damaged=() if checkpoint is None else checkpoint.damaged,
        )
        keeper = Keeper(store, lambda text: training.log.tell("checkpoint", text), lambda: recorder.drain(DRAIN_S))
        if checkpoint is not None:
            store.identity.check(checkpoint.manifest.identity, checkpoint.path)
            keeper.resume(checkpoint.path, checkpoint.step)
        return keeper

    # ------------------------------------------------------------------ at the end

    def _finish(self, training: Training) -> Ran:
        """The result of a run that came to its end or was stopped; of the former also the file and the picture."""
        folder = self._session.folder
        result = Result(
            algorithm=self._algorithm,
            env_id=self._config.env_id,
            seed=self._config.seed,
            env_steps=training.progress.steps,
            wall_s=round(training.elapsed_s, 2),
            sps=round(training.progress.steps / max(training.elapsed_s, 1e-9), 1),
            commit=commit_of(Path(__file__).parent),
            run=folder.name,
            **self._found(training),
        )
        finished = training.finished and training.evaluated
        if finished:
            self._write(result)
            plotted = dataclasses.replace(result, plot=self._plot())
            if plotted != result:
                self._write(result := plotted)
        return Ran(result, folder.path, finished)

    def _found(self, training: Training) -> dict[str, Any]:
        """What the newest checkpoint and an evaluation of the same weights give to the result."""
        keeper, last = training.keeper, training.last_eval
        found: dict[str, Any] = {}
        if keeper is not None and keeper.newest is not None:
            found["checkpoint"] = str(keeper.newest.relative_to(self._session.folder.path))
        if last is not None and last[0] == training.progress.steps:
            of = last[1]
            found |= {"eval_return_mean": of.mean, "eval_return_std": of.std, "eval_episodes": len(of.returns)}
        return found

    def _write(self, result: Result) -> None:
        path = self._session.folder.result
        try:
            write_result(path, result)
        except OSError as error:
            self._say(f"{path} cannot be written: {error.strerror or error}")

    def _plot(self) -> str | None:
        """Its name in the run's directory; None where there is no picture, such as without matplotlib."""
        folder = self._session.folder
        try:
            plot_runs([folder], folder.plot)
        except ConfigError as error:
            self._say(str(error))
        except Exception as error:  # a picture is not worth a run
            self._say(f"{folder.plot} is not drawn: {error!r}")
        else:
            return folder.plot.name
        return None

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
