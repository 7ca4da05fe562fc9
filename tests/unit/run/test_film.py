"""Films of environments that render without a window: Atari, and one that draws its own frames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from asyncrl.client.connecting import connect
from asyncrl.errors import ConfigError, ServerRefused
from asyncrl.policy import Acted
from asyncrl.run.film import Film, film
from asyncrl.wire.tensors import Array

pytestmark = [pytest.mark.rpc, pytest.mark.timeout(60)]


class Repeat:
    """The same action, then another one from the `last`th forward on."""

    def __init__(self, action: int, last: int, then: int) -> None:
        self.forwards = 0
        self._action, self._last, self._then = action, last, then

    def act(
        self, obs: Sequence[Array], mask: Array | None, first: Array, carry: Sequence[Array], keys: Array | None
    ) -> Acted:
        self.forwards += 1
        action = self._action if self.forwards < self._last else self._then
        zeros = np.zeros(len(first), np.float32)
        return Acted([np.full(len(first), action)], zeros, zeros, 0)


def frames_of(path: Path) -> list[Array]:
    """u1 [height, width, 3] each."""
    with av.open(str(path)) as file:
        return [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]


async def filmed(path: Path, policy: Repeat, env: str, **settings: Any) -> int:
    async with connect(env=env, num_envs=1, render=True, auto_reset=False, **settings) as fleet:
        return await film(fleet, policy, 3, path)


async def test_a_film_has_every_frame(tmp_path: Path) -> None:
    """An environment whose frames are as bright as its step number: ten steps and their end are ten frames."""
    path = tmp_path / "deeper" / "x.mp4"
    policy = Repeat(0, 10, 1)
    count = await filmed(path, policy, "painted=tests.unit.run.odd_envs:Painted")
    found = frames_of(path)
    assert count == len(found) == policy.forwards == 10
    assert found[0].shape == (16, 32, 3)
    brightness = [int(frame.mean().round()) for frame in found]
    assert all(abs(seen - 20 * step) <= 4 for step, seen in enumerate(brightness))


async def test_a_film_goes_on_past_a_lost_life(tmp_path: Path) -> None:
    """Breakout that only serves loses its five lives one after the other: soft ends make the film no shorter."""
    serve = Repeat(1, 10**6, 1)
    counts = [
        await filmed(tmp_path / "x.mp4", serve, "ALE/Breakout-v5", kwargs={"soft_ends": soft}) for soft in (False, True)
    ]
    assert counts[0] == counts[1] > 100


async def test_pong_is_filmed(tmp_path: Path) -> None:
    """Frames of the game itself, in colour and full size, not those that the policy sees; the ball moves."""
    path = tmp_path / "pong.mp4"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asyncrl.run.film.MAX_FRAMES", 60)
        await filmed(path, Repeat(1, 10**6, 1), "ALE/Pong-v5")
    found = frames_of(path)
    assert len(found) == 60
    assert found[0].shape == (210, 160, 3)
    background = found[0][100, 5].astype(int)
    assert np.abs(background - [144, 72, 17]).max() < 25  # Pong's brown
    assert np.abs(found[-1].astype(int) - found[0]).max() > 60


async def test_what_cannot_be_rendered_leaves_no_file(tmp_path: Path) -> None:
    """The server's words say what is missing, and no folder stays."""
    with pytest.raises(ServerRefused, match="pygame"):
        await filmed(tmp_path / "video" / "x.mp4", Repeat(0, 9, 0), "CartPole-v1")
    assert not list(tmp_path.iterdir())


def test_odd_sizes_lose_a_line(tmp_path: Path) -> None:
    """4:2:0 has even sizes; one channel is grey."""
    with Film(tmp_path / "x.mp4", 30) as reel:
        for _ in range(3):
            reel.add(np.full((33, 47, 1), 90, np.uint8))
    found = frames_of(tmp_path / "x.mp4")
    assert len(found) == 3
    assert found[0].shape == (32, 46, 3)
    assert abs(int(found[0].mean()) - 90) <= 3


def test_a_film_that_cannot_be_written(tmp_path: Path) -> None:
    """A file where the folder should be."""
    (tmp_path / "video").write_text("")
    with Film(tmp_path / "video" / "x.mp4", 30) as reel, pytest.raises(ConfigError, match="no film at"):
        reel.add(np.zeros((4, 4, 3), np.uint8))
