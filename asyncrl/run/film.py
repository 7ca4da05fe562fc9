"""One episode as mp4, from the images that an env server renders.

Invariants: every frame of the episode is in the film, the size of the images (test_a_film_has_every_frame), also
after a soft end (test_a_film_goes_on_past_a_lost_life); where nothing can be rendered there is no file
(test_what_cannot_be_rendered_leaves_no_file).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from asyncrl.client.fleet import Fleet
from asyncrl.errors import ConfigError
from asyncrl.policy import Policy
from asyncrl.wire.flags import FIRST, SOFT, TERMINATED, TRUNCATED
from asyncrl.wire.tensors import Array

FPS: Final = 30
MAX_FRAMES: Final = 20_000


async def film(fleet: Fleet, policy: Policy, seed: int, path: Path) -> int:
    """Play one episode of a fleet of one slot, opened with render, into `path`; how many frames it has.

    Forwards and encoding run on the loop: nobody else is waiting. Raises ConfigError without PyAV, ServerRefused where
    the environment cannot render. Cancelled, it leaves the film so far.
    """
    (lane,) = fleet.lanes
    assert lane.spec is not None
    lane.reset(seeds=[seed])
    with Film(path, round(lane.spec.render_fps) or FPS) as reel:
        carry: Any = ()
        for number in range(MAX_FRAMES):
            arrival = await fleet.recv()
            if arrival.rows is None:
                raise ConfigError(f"the lane was lost while it was filmed: {arrival.lost}")
            rows = arrival.rows
            flags = int(rows.flags[0])
            if number and flags & (TERMINATED | TRUNCATED) and not flags & SOFT:
                break
            reel.add((await lane.render([0]))[0])
            acted = policy.act(rows.obs, rows.mask, (rows.flags & FIRST) != 0, carry, np.array([number], np.uint64))
            carry = acted.carry
            lane.step(acted.sent_action)
        return reel.num_frames


class Film:
    """An mp4 file that is being written; it is made with its first image."""

    def __init__(self, path: Path, fps: int) -> None:
        try:
            import av
        except ImportError:
            raise ConfigError("films need PyAV: pip install 'asyncrl[video]'") from None
        self.num_frames = 0
        self._path = path
        self._fps = fps
        self._av = av
        self._file: Any = None
        self._stream: Any = None

    def add(self, image: Array) -> None:
        """u1 [height, width, 3 or 1]; the first decides the size."""
        height, width = image.shape[0] // 2 * 2, image.shape[1] // 2 * 2  # as 4:2:0 wants
        if self._file is None:
            self._open(height, width)
        pixels = np.ascontiguousarray(np.broadcast_to(image[:height, :width], (height, width, 3)))
        self._write(self._av.VideoFrame.from_ndarray(pixels, format="rgb24"))
        self.num_frames += 1

    def _open(self, height: int, width: int) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._av.open(str(self._path), "w")
        except OSError as error:
            raise ConfigError(f"no film at {self._path}: {error.strerror or error}") from None
        self._stream = self._file.add_stream("libx264", rate=self._fps)
        self._stream.pix_fmt = "yuv420p"
        self._stream.height, self._stream.width = height, width

    def _write(self, frame: Any) -> None:
        for packet in self._stream.encode(frame):
            self._file.mux(packet)

    def __enter__(self) -> Film:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._file is not None:
            self._write(None)
            self._file.close()
