"""Event files, read back with TensorBoard's own reader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asyncrl.run.row_files import Episode
from asyncrl.run.tensorboard_events import Style, TensorBoardRecorder

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def unexpected(text: str) -> None:
    raise AssertionError(text)


def read(directory: Path) -> Any:
    accumulator = event_accumulator.EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Name -> (step, value) of each point."""
    accumulator = read(directory)
    names = accumulator.Tags()["scalars"]
    return {name: [(event.step, event.value) for event in accumulator.Scalars(name)] for name in names}


def record(directory: Path, style: Style = "cleanrl", **settings: Any) -> None:
    recorder = TensorBoardRecorder(directory, unexpected, style=style, **settings)
    recorder.episode(10, 3.0, 10, 0.1)
    recorder.episode(12, 5.0, 14, 0.1)
    recorder.scalars(16, {"charts/SPS": 100, "losses/entropy": 0.5, "async/policy_lag_mean": 1.0})
    recorder.scalars(32, {"charts/SPS": 200, "eval/episodic_return": 7.0})
    recorder.close()


def test_tensorboard_finds_every_scalar(tmp_path: Path) -> None:
    """CleanRL's names at environment steps; an evaluation under both names."""
    record(tmp_path)
    assert scalars(tmp_path) == {
        "charts/episodic_return": [(10, 3.0), (12, 5.0)],
        "charts/episodic_length": [(10, 10.0), (12, 14.0)],
        "charts/SPS": [(16, 100.0), (32, 200.0)],
        "losses/entropy": [(16, 0.5)],
        "async/policy_lag_mean": [(16, 1.0)],
        "eval/episodic_return": [(32, 7.0)],
        "eval/mean_reward": [(32, 7.0)],
    }


def test_tensorboard_finds_counts_as_a_histogram(tmp_path: Path) -> None:
    """Its reader gives one bucket a value, with its count inside, and the moments; nothing to count is no entry."""
    recorder = TensorBoardRecorder(tmp_path, unexpected)
    recorder.histogram(16, "async/policy_lag", {3: 4, 0: 10, 1: 2})
    recorder.histogram(32, "async/policy_lag", {})
    recorder.close()
    (event,) = read(tmp_path).Histograms("async/policy_lag")
    found = event.histogram_value
    assert event.step == 16
    assert dict(zip(found.bucket_limit, found.bucket, strict=True)) == {0.5: 10, 1.5: 2, 2.5: 0, 3.5: 4}
    assert (found.min, found.max, found.num, found.sum, found.sum_squares) == (0, 3, 16, 14, 38)


def test_sb3_names_stand_instead(tmp_path: Path) -> None:
    """With means over the last episodes once per change, and what SB3 has no name for under ours."""
    record(tmp_path, "sb3")
    assert scalars(tmp_path) == {
        "time/fps": [(16, 100.0), (32, 200.0)],
        "train/entropy_loss": [(16, -0.5)],
        "rollout/ep_rew_mean": [(16, 4.0)],
        "rollout/ep_len_mean": [(16, 12.0)],
        "async/policy_lag_mean": [(16, 1.0)],
        "eval/episodic_return": [(32, 7.0)],
        "eval/mean_reward": [(32, 7.0)],
    }


def test_both_are_both(tmp_path: Path) -> None:
    """The union of the two."""
    expected: dict[str, list[tuple[int, float]]] = {}
    styles: tuple[Style, ...] = ("cleanrl", "sb3", "both")
    for style in styles:
        directory = tmp_path / style
        directory.mkdir()
        record(directory, style)
        if style != "both":
            expected |= scalars(directory)
    assert scalars(tmp_path / "both") == expected


def test_a_resumed_run_purges_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    """Points past the checkpoint are gone, those of its own step stay, and the curve goes on."""
    record(tmp_path)
    recorder = TensorBoardRecorder(tmp_path, unexpected, resume_step=16)
    recorder.scalars(32, {"charts/SPS": 300})
    recorder.close()
    assert len(list(tmp_path.iterdir())) == 2
    found = scalars(tmp_path)
    assert found["charts/SPS"] == [(16, 100.0), (32, 300.0)]
    assert found["charts/episodic_return"] == [(10, 3.0), (12, 5.0)]
    assert found["eval/mean_reward"] == []


def test_means_go_on_after_a_resume(tmp_path: Path) -> None:
    """The window holds the episodes from before."""
    earlier = [Episode(1.0, 10, 0.0, 5)]
    recorder = TensorBoardRecorder(tmp_path, unexpected, style="sb3", resume_step=10, earlier=earlier)
    recorder.episode(12, 2.0, 20, 0.0)
    recorder.scalars(16, {})
    recorder.close()
    assert scalars(tmp_path) == {"rollout/ep_rew_mean": [(16, 1.5)], "rollout/ep_len_mean": [(16, 15.0)]}


def test_texts_and_events_are_texts(tmp_path: Path) -> None:
    """The text plugin finds them."""
    recorder = TensorBoardRecorder(tmp_path, unexpected)
    recorder.text(0, "hyperparameters", "|param|value|")
    recorder.event(5, "lane_lost", "lane 3")
    recorder.close()
    accumulator = read(tmp_path)
    assert set(accumulator.Tags()["tensors"]) == {"hyperparameters/text_summary", "events/lane_lost/text_summary"}
    (event,) = accumulator.Tensors("hyperparameters/text_summary")
    assert event.tensor_proto.string_val[0] == b"|param|value|"
    assert accumulator.SummaryMetadata("hyperparameters/text_summary").plugin_data.plugin_name == "text"


def test_neither_torch_nor_tensorflow_is_needed(tmp_path: Path) -> None:
    """In a process where importing either fails."""
    code = """
import sys
from pathlib import Path
sys.modules.update({"torch": None, "tensorflow": None})
from asyncrl.run.tensorboard_events import TensorBoardRecorder
recorder = TensorBoardRecorder(Path(sys.argv[1]), print)
recorder.scalars(1, {"a": 1})
recorder.close()
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    finished = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert (finished.returncode, finished.stdout + finished.stderr) == (0, "")
    assert scalars(tmp_path) == {"a": [(1, 1.0)]}
