"""Directories of runs: new, gone on with, refused, and left alone."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.config import RunConfig
from asyncrl.errors import ConfigError, NoCheckpoint, RunBusy
from asyncrl.run.checkpoints import CheckpointStore
from asyncrl.run.learning import Saved
from asyncrl.run.manifests import Identity
from asyncrl.run.progress import Progress
from asyncrl.run.run_dir import RunDir
from asyncrl.run.session import Session, open_session, saved_config
from tests.unit.run.tiny_training import tiny_config

SAVED = Saved({"model/weight": np.arange(3.0)}, {"parameters": []})


def wish(tmp_path: Path, **changed: Any) -> RunConfig:
    return tiny_config(tmp_path, **({"run_name": "x"} | changed))


def keep(session: Session, number: int) -> Path:
    """A checkpoint of round `number`."""
    progress = dataclasses.replace(session.progress, round=number, steps=10 * number)
    store = CheckpointStore(session.folder.checkpoints, Identity("ppo", "CartPole-v1", "00"))
    return store.save(progress.steps, {**SAVED.parts(), **progress.parts()}, serial=progress.serial)


def begun(tmp_path: Path, *rounds: int) -> RunDir:
    """A run that ended after these checkpoints."""
    session = open_session("ppo", wish(tmp_path))
    for number in rounds:
        keep(session, number)
        session.progress.round = number
    session.progress.round = session.progress.round or 1
    session.close()
    return session.folder


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_new_run_has_a_directory(tmp_path: Path) -> None:
    """With its settings; it is removed again if there never was a round."""
    session = open_session("ppo", wish(tmp_path))
    assert (session.is_new, session.checkpoint) == (True, None)
    assert saved_config(session.folder) == ("ppo", wish(tmp_path))
    session.close()
    assert not session.folder.path.exists()


def test_auto_goes_on_where_there_is_one(tmp_path: Path) -> None:
    """At the newest checkpoint; the same by its path, and with more steps."""
    folder = begun(tmp_path, 1, 2)
    for config in (
        wish(tmp_path),
        wish(tmp_path, run_name="", resume=str(folder.path)),
        wish(tmp_path, total_timesteps=10**6),
    ):
        session = open_session("ppo", config)
        assert session.checkpoint is not None
        assert (session.checkpoint.step, session.progress.round, session.is_new) == (20, 2, False)
        session.begin()
        session.close()
    assert saved_config(folder)[1].total_timesteps == 10**6
    assert saved_config(folder)[1].resume == "auto"


def test_a_run_that_does_not_begin_stays_as_it_is(tmp_path: Path) -> None:
    """Opened with other settings and closed again, as where servers refuse it: but for the count of its lives."""
    folder = begun(tmp_path, 1)
    folder.result.write_text("{}")
    before = tree(folder.path) | {"lives.json": b"", "lock": b""}
    open_session("ppo", wish(tmp_path, env_kwargs='{"render_mode": null}')).close()
    assert tree(folder.path) | {"lives.json": b"", "lock": b""} == before


def test_a_run_that_goes_on_has_no_result(tmp_path: Path) -> None:
    """The one that it had is of the budget before."""
    folder = begun(tmp_path, 1)
    folder.result.write_text("{}")
    session = open_session("ppo", wish(tmp_path, total_timesteps=10**6))
    session.begin()
    session.close()
    assert not folder.result.exists()


def test_a_run_without_a_checkpoint_begins_anew(tmp_path: Path) -> None:
    """In its directory, which stays also if nothing comes of it again."""
    folder = begun(tmp_path)
    (folder.path / "notes").write_text("mine")
    session = open_session("ppo", wish(tmp_path))
    assert (session.checkpoint, session.is_new) == (None, False)
    session.close()
    assert (folder.path / "notes").exists()


@pytest.mark.parametrize("changed", [{"env_id": "Acrobot-v1"}, {"hidden_sizes": [16]}, {"num_steps": 16}, {"seed": 2}])
def test_a_changed_model_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    """Other network, environment, round or seed: said by name, and nothing is touched."""
    folder = begun(tmp_path, 1)
    before = tree(folder.path)
    with pytest.raises(ConfigError, match=f"was begun with {next(iter(changed))} "):
        open_session("ppo", wish(tmp_path, **changed))
    assert tree(folder.path) == before
    folder.lock().close()


def test_a_mode_with_other_batches_is_refused(tmp_path: Path) -> None:
    """With batch_steps, async has as many rounds as it has such batches; any other change of mode is allowed."""
    begun(tmp_path, 1)
    for mode in ("lag 2", "async", "sync"):
        open_session("ppo", wish(tmp_path, mode=mode)).close()
    sized = {"run_name": "y", "batch_steps": 64}
    session = open_session("ppo", wish(tmp_path, **sized))
    session.progress.round = 1
    session.close()
    with pytest.raises(ConfigError, match="mode 'sync', whose updates are of 32 steps, and not of 64 as in 'async'"):
        open_session("ppo", wish(tmp_path, **sized, mode="async"))
    open_session("ppo", wish(tmp_path, **sized, mode="lag 1")).close()


def test_another_algorithm_is_refused(tmp_path: Path) -> None:
    """By its name."""
    begun(tmp_path, 1)
    with pytest.raises(ConfigError, match="is a run of ppo, not of a2c"):
        open_session("a2c", wish(tmp_path))


def test_a_path_without_a_run_is_refused(tmp_path: Path) -> None:
    """Whether it exists or not; and one whose settings are illegible."""
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(ConfigError, match="there is no run in it"):
            open_session("ppo", wish(tmp_path, resume=str(path)))
    folder = begun(tmp_path, 1)
    folder.config.write_text("{")
    with pytest.raises(ConfigError, match="cannot be read as the settings of a run"):
        open_session("ppo", wish(tmp_path))


def test_a_taken_name_is_refused(tmp_path: Path) -> None:
    """With `--resume no`."""
    folder = begun(tmp_path, 1)
    before = tree(folder.path)
    with pytest.raises(ConfigError, match="exists: resume it"):
        open_session("ppo", wish(tmp_path, resume="no"))
    assert tree(folder.path) == before


def test_damaged_checkpoints_are_not_written_over(tmp_path: Path) -> None:
    """One of two: the other is taken, and it is told. Both: an error that says what is wrong with each."""
    folder = begun(tmp_path, 1, 2)
    (folder.checkpoints / "step_20" / "learner_rest.json").write_text("{}")
    session = open_session("ppo", wish(tmp_path))
    assert session.checkpoint is not None
    assert session.checkpoint.step == 10
    assert [damage.path.name for damage in session.checkpoint.damaged] == ["step_20"]
    session.close()
    (folder.checkpoints / "step_10" / "manifest.json").write_text("{}")
    before = tree(folder.path)
    with pytest.raises(NoCheckpoint, match=r"step_10: the manifest is damaged.*step_20: "):
        open_session("ppo", wish(tmp_path))
    assert tree(folder.path) == before


def test_a_busy_run_is_left_alone(tmp_path: Path) -> None:
    """The second one changes nothing, neither when it comes nor when it goes."""
    first = open_session("ppo", wish(tmp_path))
    before = tree(first.folder.path)
    with pytest.raises(RunBusy):
        open_session("ppo", wish(tmp_path, total_timesteps=10**6))
    assert tree(first.folder.path) == before
    first.close()


def test_every_life_has_a_higher_epoch(tmp_path: Path) -> None:
    """Of one run id, whether the life before it left a checkpoint, a damaged one, or none."""
    lives = []
    for number in range(4):
        session = open_session("ppo", wish(tmp_path))
        session.progress.learner_epoch += 1  # as the fleet that it opens has it
        lives.append((session.progress.run_id, session.progress.learner_epoch))
        if number == 1:
            keep(session, 5)
        session.progress.round = 1
        session.close()
    assert [epoch for _, epoch in lives] == [1, 2, 3, 4]
    assert len({run_id for run_id, _ in lives}) == 1


def test_a_directory_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk at the start is one line, and no directory."""

    def full(self: RunDir, config: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDir, "write_config", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        open_session("ppo", wish(tmp_path))
    assert not list(tmp_path.iterdir())


def test_what_is_illegible_of_lives_is_forgotten(tmp_path: Path) -> None:
    """It only costs a wait for the lanes of the life before."""
    folder = begun(tmp_path, 3)
    for text in ("{", "[]", json.dumps({"run_id": 1, "learner_epoch": "x"})):
        (folder.path / "lives.json").write_text(text)
        session = open_session("ppo", wish(tmp_path))
        assert isinstance(session.progress, Progress)
        assert session.progress.round == 3
        session.close()
