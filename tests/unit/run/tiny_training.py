"""A `Training` of CartPole that takes seconds, with a recorder that keeps what it hears."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config import RunConfig
from asyncrl.learner.ppo import PPO
from asyncrl.records import Unroll
from asyncrl.run.checkpoints import CheckpointStore
from asyncrl.run.files import FILES, Files
from asyncrl.run.keeping import Keeper
from asyncrl.run.learning import Learning, Saved
from asyncrl.run.manifests import Identity
from asyncrl.run.options import resolve
from asyncrl.run.progress import Progress
from asyncrl.run.recorders import EpisodeWindow
from asyncrl.run.training import Training

WITHIN_S = 40.0


def tiny_config(tmp_path: Path, algorithm: str = "ppo", **changed: Any) -> RunConfig:
    """Rounds of 4 x 8 steps, 25 of them; nothing beside training."""
    values: dict[str, Any] = {
        "num_envs": 4,
        "lanes": 2,
        "num_steps": 8,
        "total_timesteps": 800,
        "hidden_sizes": [8],
        "checkpoint_every": 0,
        "eval_every": 0,
        "final_eval_episodes": 2,
        "eval_envs": 2,
        "host": "slots",
        "track": False,
        "run_dir": str(tmp_path),
    }
    return resolve(algorithm, **(values | changed))


class Notes:
    """A recorder for tests."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.histograms: list[tuple[int, str, dict[int, int]]] = []
        self.events: list[tuple[str, str]] = []
        self.returns: list[float] = []
        self.episode_steps: list[int] = []

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.rows.append((step, dict(values)))

    def histogram(self, step: int, name: str, counts: Mapping[int, int]) -> None:
        self.histograms.append((step, name, dict(counts)))

    def episode(self, step: int, ret: float, length: int, seconds: float) -> None:
        self.returns.append(ret)
        self.episode_steps.append(step)

    def text(self, step: int, tag: str, text: str) -> None:
        pass

    def event(self, step: int, kind: str, text: str) -> None:
        self.events.append((kind, text))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def of_kind(self, kind: str) -> list[str]:
        return [text for found, text in self.events if found == kind]


class TinyRun:
    """Make it on a loop."""

    def __init__(
        self,
        tmp_path: Path,
        config: RunConfig | None = None,
        *,
        files: Files = FILES,
        progress: Progress | None = None,
        saved: Saved | None = None,
    ) -> None:
        self.config = config or tiny_config(tmp_path)
        self.notes = Notes()
        self.checkpoints = tmp_path / "checkpoints"
        self._files = files
        self.training = Training("ppo", self.config, self.notes, EpisodeWindow(), progress or Progress(), saved=saved)

    def make_keeper(self, learning: Learning) -> Keeper:
        identity = Identity("ppo", self.config.env_id, learning.spec.hash().hex())
        store = CheckpointStore(self.checkpoints, identity, keep=100, files=self._files)
        return Keeper(store, lambda text: self.training.log.tell("checkpoint", text), lambda: None)

    async def run(self, servers: str | Sequence[str] | None = None) -> None:
        async with asyncio.timeout(WITHIN_S):
            await self.training.run(servers, None, self.make_keeper)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not condition():
                await asyncio.sleep(0.001)

    @asynccontextmanager
    async def running(self, servers: str | Sequence[str] | None = None) -> Any:
        """The task of `run`, which ends in here or is waited for."""
        async with asyncio.TaskGroup() as group:
            yield group.create_task(self.run(servers))


def failing_in_the_third(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """The third update spoils the weights, says so, and fails once it may: the two events."""
    update, began, may_fail = PPO.update, threading.Event(), threading.Event()

    def fails_in_the_third(self: PPO, unrolls: Sequence[Unroll], progress: float) -> dict[str, float]:
        if unrolls[0].round < 2:
            return update(self, unrolls, progress)
        self.model.value_out.bias.data.fill_(1e9)
        began.set()
        assert may_fail.wait(30)
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr(PPO, "update", fails_in_the_third)
    return began, may_fail
