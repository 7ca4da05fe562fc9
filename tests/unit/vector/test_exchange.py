"""asyncrl.vector.exchange between this thread and a fleet on the I/O loop, whose server is a small one in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import numpy as np
import pytest

from asyncrl.client import io_loop
from asyncrl.client.fleet import Fleet
from asyncrl.client.fleet_config import FleetConfig
from asyncrl.client.timing import LaneTimers
from asyncrl.errors import ConnectionFailed, LocalProtocolError
from asyncrl.vector.exchange import Answer, Exchange, LaneReset
from asyncrl.wire.flags import CUT, FIRST, NO_TRANSITION
from asyncrl.wire.tensors import Array
from tests.unit.conformance.tiny_server import ENV, TinyServer, TinyStream

ALL = LaneReset(None, [1, 2], None)


class Rig:
    """An exchange with two lanes of two slots, and the server at their other end."""

    def __init__(self, exchange: Exchange, server: TinyServer) -> None:
        self.exchange, self.server = exchange, server

    def action(self, choice: int = 0) -> list[Array]:
        return [np.full(2, choice), np.zeros((2, 1), np.float32)]

    def reset(self) -> list[Answer]:
        return self.exchange.reset({0: ALL, 1: ALL})

    def step(self) -> list[Answer]:
        return self.exchange.step([self.action(), self.action()])

    def step_on(self) -> None:
        """Steps until one of them raises; twenty if none does."""
        for _ in range(20):
            self.step()

    def cut(self, lane: int, keep_down: bool = False) -> None:
        """Break the lane's stream; it is not resumable, so the lane is lost."""
        self.server.is_dead = keep_down
        self.exchange.run(self._cut(lane))

    async def _cut(self, lane: int) -> None:
        stream = self.server.streams[lane]
        assert isinstance(stream, TinyStream)
        await stream.drop()


@contextmanager
def rigged(step_s: float = 2.0, give_up_s: float = 60.0) -> Iterator[Rig]:
    opened: Future[Rig] = Future()

    async def life() -> None:
        timers = LaneTimers(step_s=step_s, reset_s=step_s)
        config = FleetConfig(env=ENV, num_envs=4, lanes=2, auto_reset=False, seed=3, timers=timers, give_up_s=give_up_s)
        async with TinyServer() as server, Fleet([server], config) as fleet:
            exchange = Exchange(asyncio.get_running_loop(), fleet, step_s, step_s)
            opened.set_result(Rig(exchange, server))
            await exchange.serve()

    running = asyncio.run_coroutine_threadsafe(life(), io_loop.shared_loop())
    rig = opened.result(10)
    try:
        yield rig
    finally:
        rig.exchange.stop()
        running.result(10)


def _lanes(answers: list[Answer]) -> list[tuple[int, bool]]:
    return [(answer.lane, answer.rows is not None) for answer in answers]


def _steps(answers: list[Answer]) -> list[float]:
    """How many steps each lane's first slot has made in its episode."""
    return [float(answer.rows.obs[0][0, -1, 1]) for answer in answers if answer.rows is not None]


def test_a_step_is_one_answer_per_lane() -> None:
    """In the order of the lanes, each with rows of its own."""
    with rigged() as rig:
        assert _lanes(rig.reset()) == [(0, True), (1, True)]
        for t in range(1, 4):
            answers = rig.step()
            assert _lanes(answers) == [(0, True), (1, True)]
            assert _steps(answers) == [t, t]


def test_an_action_never_reaches_a_replacement() -> None:
    """A loss is told before the first rows of the replacement, and those before it is stepped."""
    with rigged() as rig:
        rig.reset()
        rig.step()
        rig.cut(0)
        while not rig.exchange._news.get(0) or len(rig.exchange._news[0]) < 2:
            rig.exchange.run(asyncio.sleep(0.01))
        assert _lanes(rig.step()) == [(0, False), (1, True)]
        first = rig.step()[0].rows
        assert first is not None
        assert first.flags.tolist() == [CUT | FIRST | NO_TRANSITION] * 2
        assert first.obs[0][:, -1, 1].tolist() == [0, 0]
        second = rig.step()[0].rows
        assert second is not None
        assert second.obs[0][:, -1, 1].tolist() == [1, 1]


def test_what_nobody_asks_for_does_not_pile_up() -> None:
    """However often a lane is lost while the caller thinks, a loss and one set of first rows wait."""
    with rigged() as rig:
        rig.reset()
        for _ in range(3):
            rig.cut(0)
            while len(rig.exchange._news.get(0, [])) < 2:
                rig.exchange.run(asyncio.sleep(0.01))
        assert _lanes(rig.exchange._news[0]) == [(0, False), (0, True)]


def test_a_wait_is_bounded() -> None:
    """With every lane lost and no server, a step gives up after its deadline, and so does a reset."""
    with rigged(step_s=0.3) as rig:
        rig.reset()
        rig.cut(0, keep_down=True)
        rig.cut(1, keep_down=True)
        for _ in range(3):
            assert _lanes(rig.step()) == [(0, False), (1, False)]
        assert _lanes(rig.reset()) == [(0, False), (1, False)]
        rig.server.is_dead = False
        while not all(answer.rows for answer in rig.step()):
            pass


def test_a_reset_of_a_lost_lane_reaches_its_replacement() -> None:
    """The caller's seeds decide the first observation, not those of the fleet."""
    with rigged() as rig:
        wanted = rig.reset()[0].rows
        rig.cut(0)
        again = rig.reset()[0].rows
        assert wanted is not None
        assert again is not None
        np.testing.assert_array_equal(again.obs[0], wanted.obs[0])


def test_take_gives_the_lanes_that_are_ready() -> None:
    """One lane's slots are enough where they are asked for; a lost lane answers when it is back."""
    with rigged() as rig:
        rig.exchange.post_resets({0: ALL, 1: ALL})
        seen = [rig.exchange.take(2), rig.exchange.take(2)]
        assert sorted(_lanes(seen[0]) + _lanes(seen[1])) == [(0, True), (1, True)]
        rig.exchange.post_steps({0: rig.action(), 1: rig.action()})
        assert _lanes(rig.exchange.take(4)) == [(0, True), (1, True)]
        rig.cut(0)
        rig.exchange.post_steps({0: rig.action()})
        assert _lanes(rig.exchange.take(4)) == [(0, False)]
        rig.exchange.post_steps({0: rig.action(), 1: rig.action()})
        # The other lane does not wait for it.
        first = rig.exchange.take(4)
        assert (1, True) in _lanes(first)
        if len(first) == 1:
            assert _lanes(rig.exchange.take(2)) == [(0, True)]


def test_an_interrupted_call_does_not_answer_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C in a wait, a step gets its own rows; what `take` would have given comes with the next `take`."""

    def interrupted(exchange: Exchange, within_s: float) -> list[Answer]:
        raise KeyboardInterrupt

    with rigged() as rig:
        rig.reset()
        with monkeypatch.context() as patch:
            patch.setattr(Exchange, "_receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                rig.step()
        assert _steps(rig.step()) == [2, 2]
        rig.exchange.post_steps({0: rig.action(), 1: rig.action()})
        with monkeypatch.context() as patch:
            patch.setattr(Exchange, "_receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                rig.exchange.take(4)
        assert _steps(rig.exchange.take(4)) == [3, 3]


def test_a_posted_step_is_a_step() -> None:
    """Its answers are those of every lane, a lost one included; without one there is nothing to wait for."""
    with rigged() as rig:
        rig.reset()
        with pytest.raises(LocalProtocolError, match="no step"):
            rig.exchange.step_answers()
        rig.cut(0, keep_down=True)
        for t in range(1, 4):
            rig.exchange.post_step([rig.action(), rig.action()])
            answers = rig.exchange.step_answers()
            assert _lanes(answers) == [(0, False), (1, True)]
            assert _steps(answers) == [t]


def test_a_posted_step_that_nobody_waits_for_does_not_answer_another_call() -> None:
    """Neither a reset nor another step nor `take` gets its rows."""
    with rigged() as rig:
        rig.reset()
        rig.exchange.post_step([rig.action(), rig.action()])
        assert _steps(rig.reset()) == [0, 0]
        for _ in range(2):
            rig.exchange.post_step([rig.action(), rig.action()])
        assert _steps(rig.exchange.step_answers()) == [2, 2]
        rig.exchange.post_step([rig.action(), rig.action()])
        rig.exchange.post_steps({0: rig.action(), 1: rig.action()})
        assert _steps(rig.exchange.take(4)) == [4, 4]
        rig.exchange.post_step([rig.action(), rig.action()])
        rig.exchange.post_resets({0: ALL, 1: ALL})
        assert _steps(rig.exchange.take(4)) == [0, 0]


def test_refusals_belong_to_their_lane() -> None:
    """The other lane's rows come with it, and both go on."""
    with rigged() as rig:
        rig.reset()
        bad, good = rig.exchange.step([rig.action(9), rig.action()])
        assert bad.refused is not None
        assert bad.refused.code == "BAD_ACTION"
        assert bad.rows is None
        assert good.rows is not None
        assert _lanes(rig.step()) == [(0, True), (1, True)]


def test_the_end_of_the_fleet_is_told_to_whoever_asks() -> None:
    """A fleet that gave up, or was closed: its error, every time."""
    with rigged(step_s=0.5, give_up_s=0.2) as rig:
        rig.reset()
        rig.cut(0, keep_down=True)
        rig.cut(1, keep_down=True)
        with pytest.raises(ConnectionFailed):
            rig.step_on()
        with pytest.raises(ConnectionFailed):
            rig.reset()
    with rigged() as rig:
        rig.reset()
        rig.exchange.stop()
        with pytest.raises(LocalProtocolError, match="closed"):
            rig.step_on()
