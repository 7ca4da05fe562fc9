"""Event files for TensorBoard, without torch and without TensorFlow.

* TensorBoard's own reader finds every scalar under its name and step (test_tensorboard_finds_every_scalar).
* The steps of a resumed run are those of one that was never interrupted: what a killed run wrote past its checkpoint is
  declared void (test_a_resumed_run_purges_what_came_after_its_checkpoint).

Names are CleanRL's; SB3's stand beside or instead of them on request, with its means over 100 episodes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal

from asyncrl.errors import ConfigError
from asyncrl.run.append_file import AppendFile
from asyncrl.run.recorders import EpisodeWindow, wall_s
from asyncrl.run.row_files import Episode

Style = Literal["cleanrl", "sb3", "both"]

# ours -> SB3's, and by what it is multiplied
ALIASES: Final[dict[str, tuple[str, float]]] = {
    "charts/SPS": ("time/fps", 1),
    "charts/learning_rate": ("train/learning_rate", 1),
    "charts/epsilon": ("rollout/exploration_rate", 1),
    "losses/value_loss": ("train/value_loss", 2),  # which has no half
    "losses/policy_loss": ("train/policy_gradient_loss", 1),
    "losses/entropy": ("train/entropy_loss", -1),
    "losses/approx_kl": ("train/approx_kl", 1),
    "losses/clipfrac": ("train/clip_fraction", 1),
    "losses/explained_variance": ("train/explained_variance", 1),
    "losses/loss": ("train/loss", 1),
    "losses/td_loss": ("train/loss", 1),
    "losses/actor_loss": ("train/actor_loss", 1),
    "losses/qf_loss": ("train/critic_loss", 1),
    "losses/alpha": ("train/ent_coef", 1),
    "losses/alpha_loss": ("train/ent_coef_loss", 1),
}
# In every style: whoever looks for the one name or the other finds an evaluation.
EVAL_ALIASES: Final = {"eval/episodic_return": "eval/mean_reward", "eval/episodic_length": "eval/mean_ep_length"}


class TensorBoardRecorder:
    """One event file in `directory`. `earlier`: episodes of the run before it was resumed, for the means."""

    def __init__(
        self,
        directory: Path,
        report: Callable[[str], None],
        *,
        style: Style = "cleanrl",
        resume_step: int | None = None,
        earlier: Sequence[Episode] = (),
    ) -> None:
        try:
            event_pb2, summary_pb2, tensor_pb2, shape_pb2, types_pb2 = (
                import_module(f"tensorboard.compat.proto.{name}_pb2")
                for name in ("event", "summary", "tensor", "tensor_shape", "types")
            )
            record_writer = import_module("tensorboard.summary.writer.record_writer")
        except ImportError:
            raise ConfigError("TensorBoard is not installed: pip install 'asyncrl[learner]', or --no-track") from None
        self._event_pb2, self._summary_pb2, self._tensor_pb2 = event_pb2, summary_pb2, tensor_pb2
        self._shape = shape_pb2.TensorShapeProto(dim=[shape_pb2.TensorShapeProto.Dim(size=1)])
        self._string = types_pb2.DT_STRING
        self._style = style
        self._window = EpisodeWindow()
        for episode in earlier:
            self._window.add(episode.ret, episode.length)
        self._window_logged = self._window.count
        self._file = AppendFile(_free_path(directory), report)
        self._writer = record_writer.RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        if resume_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(step=resume_step + 1, session_log=start)
            for (
                episode
            ) in earlier:  # those of steps that were collected, and not yet trained on, are void with the rest
                if episode.step > resume_step:
                    self._episode(episode.step, episode.ret, episode.length)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        named = [pair for name, value in values.items() for pair in self._named(name, float(value))]
        self._scalars(step, [*named, *self._means()])

    def histogram(self, step: int, name: str, counts: Mapping[int, int]) -> None:
        if not counts:
            return
        values = range(min(counts), max(counts) + 1)
        histo = self._summary_pb2.HistogramProto(
            min=values[0],
            max=values[-1],
            num=sum(counts.values()),
            sum=sum(value * count for value, count in counts.items()),
            sum_squares=sum(value * value * count for value, count in counts.items()),
            # A bucket reaches up to its limit from that of the one before: so there is one for each value between.
            bucket_limit=[value + 0.5 for value in values],
            bucket=[counts.get(value, 0) for value in values],
        )
        self._write(
            step=step, summary=self._summary_pb2.Summary(value=[self._summary_pb2.Summary.Value(tag=name, histo=histo)])
        )

    def episode(self, step: int, ret: float, length: int, seconds: float) -> None:
        self._window.add(ret, length)
        self._episode(step, ret, length)

    def _episode(self, step: int, ret: float, length: int) -> None:
        if self._style != "sb3":
            self._scalars(step, [("charts/episodic_return", ret), ("charts/episodic_length", length)])

    def text(self, step: int, tag: str, text: str) -> None:
        metadata = self._summary_pb2.SummaryMetadata(
            plugin_data=self._summary_pb2.SummaryMetadata.PluginData(plugin_name="text")
        )
        tensor = self._tensor_pb2.TensorProto(dtype=self._string, string_val=[text.encode()], tensor_shape=self._shape)
        value = self._summary_pb2.Summary.Value(tag=f"{tag}/text_summary", metadata=metadata, tensor=tensor)
        self._write(step=step, summary=self._summary_pb2.Summary(value=[value]))

    def event(self, step: int, kind: str, text: str) -> None:
        self.text(step, f"events/{kind}", text)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _named(self, name: str, value: float) -> Iterator[tuple[str, float]]:
        alias, factor = ALIASES.get(name, ("", 1))
        if self._style != "sb3" or not alias:
            yield name, value
        if self._style != "cleanrl" and alias:
            yield alias, value * factor
        if name in EVAL_ALIASES:
            yield EVAL_ALIASES[name], value

    def _means(self) -> Iterator[tuple[str, float]]:
        """SB3's means, where an episode ended since they were last written."""
        mean_return, mean_length = self._window.mean_return, self._window.mean_length
        if self._style == "cleanrl" or self._window.count == self._window_logged:
            return
        self._window_logged = self._window.count
        if mean_return is not None and mean_length is not None:
            yield "rollout/ep_rew_mean", mean_return
            yield "rollout/ep_len_mean", mean_length

    def _scalars(self, step: int, values: Iterable[tuple[str, float]]) -> None:
        entry = self._summary_pb2.Summary.Value
        entries = [entry(tag=name, simple_value=value) for name, value in values]
        if entries:
            self._write(step=step, summary=self._summary_pb2.Summary(value=entries))

    def _write(self, **fields: Any) -> None:
        self._writer.write(self._event_pb2.Event(wall_time=wall_s(), **fields).SerializeToString())


def _free_path(directory: Path) -> Path:
    """TensorBoard reads the files of a directory in the order of their names, which begin with the time."""
    seconds = int(wall_s())
    host = socket.gethostname() or "host"
    newest = max((_seconds_of(path) for path in directory.glob("events.out.tfevents.*")), default=0)
    return directory / f"events.out.tfevents.{max(seconds, newest + 1):010d}.{host}.{os.getpid()}.asyncrl"


def _seconds_of(path: Path) -> int:
    part = path.name.split(".")[3]
    return int(part) if part.isdigit() else 0
