"""One lane process as the event loop sees it, by both launchers: its end, its replies, its output."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable

import pytest

from asyncrl.wire._generated import env_pb2 as pb
from envserver.lane_handle import CLOSE_S, LOG_BYTES, LogPipe
from envserver.lane_log import BURST
from envserver.launching import Launcher
from tests.unit.envserver.watching import is_alive
from tests.unit.envserver.wild_env import (
    FINE,
    HANG,
    HANG_IN_C,
    KILL_SELF,
    PRINT,
    RAISE,
    LaneDriver,
    until,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

BOTH = pytest.mark.parametrize("name", ["nursery", "exec"])


@BOTH
async def test_the_lane_exits_when_its_socket_closes(name: str, launchers: Callable[[str], Launcher]) -> None:
    """Closed while idle: it ends by itself, nobody kills it."""
    lane = LaneDriver(await launchers(name).start())
    await lane.open("CartPole-v1")
    lane.handle.close()
    assert await lane.cause() == "exit(0)"
    await lane.handle.wait_closed()
    assert not is_alive(lane.handle.pid)


@BOTH
async def test_a_closed_lane_that_hangs_is_killed(
    name: str, launchers: Callable[[str], Launcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never reads the end of its socket, so it is killed after a grace."""
    monkeypatch.setattr("envserver.lane_handle.CLOSE_S", CLOSE_S / 20)
    lane = LaneDriver(await launchers(name).start())
    await lane.open("wild")
    lane.send_step(HANG)
    lane.handle.close()
    lane.handle.close()
    assert await lane.cause() == "crash(SIGKILL)"
    await lane.handle.wait_closed()


@BOTH
async def test_replies_before_the_death_are_delivered_first(name: str, launchers: Callable[[str], Launcher]) -> None:
    """Three steps and a crash, pipelined: when `exited` is set all three replies were delivered."""
    lane = LaneDriver(await launchers(name).start())
    await lane.open("wild")
    kinds: list[int] = []
    lane.handle.on_message = lambda kind, _seq, _body: kinds.append(kind)
    for action in (FINE, FINE, FINE, KILL_SELF):
        lane.send_step(action)
    await lane.cause()
    assert kinds == [pb.STEP_RESULT] * 3


@BOTH
@pytest.mark.parametrize("action", [HANG, HANG_IN_C])
async def test_stacks_of_a_hanging_lane(name: str, action: int, launchers: Callable[[str], Launcher]) -> None:
    """Python that loops, and C code that never gives the GIL back: both are in the log, then it can be killed."""
    lane = LaneDriver(await launchers(name).start())
    await lane.open("wild")
    lane.send_step(action)
    await asyncio.sleep(0.2)  # so that the request is being executed
    lane.handle.dump_stacks()
    wanted = b"in _obey" if action == HANG else b"in hold_the_gil"
    await until(lambda: wanted in lane.handle.log_tail())
    lane.handle.kill()
    assert await lane.cause() == "crash(SIGKILL)"
    lane.handle.dump_stacks()
    lane.handle.kill()


@BOTH
async def test_200_mb_of_output_neither_blocks_nor_stays(name: str, launchers: Callable[[str], Launcher]) -> None:
    """The step that prints them returns, the loop serves another lane meanwhile, and the end of it is kept."""
    launcher = launchers(name)
    noisy, quiet = LaneDriver(await launcher.start()), LaneDriver(await launcher.start())
    await noisy.open("wild")
    await quiet.open("wild")
    noisy.send_step(PRINT)
    for _ in range(50):
        await quiet.step(FINE)
    await noisy.stepped()
    await until(lambda: noisy.handle.log_tail().endswith(b"the last line\n"))
    assert len(noisy.handle.log_tail()) == LOG_BYTES


def of_lanes(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Level and text. asyncio, too, writes warnings while tests run, of whatever took long."""
    return [(each.levelname, each.getMessage()) for each in caplog.records if each.name == "envserver.lane"]


@BOTH
async def test_what_a_lane_logs_is_in_the_servers_log(
    name: str, launchers: Callable[[str], Launcher], caplog: pytest.LogCaptureFixture
) -> None:
    """The fault of a slot with its traceback, though it prints 200 MB before; and whose it is."""
    caplog.set_level(logging.INFO, "envserver.lane")
    lane = LaneDriver(await launchers(name).start())
    await lane.open("wild")
    lane.handle.call("lane 77 (wild)")
    await lane.step(PRINT)
    await lane.step(RAISE)
    await until(lambda: any("ValueError: the bottom of the action space" in text for _, text in of_lanes(caplog)))
    found = of_lanes(caplog)
    assert all(text.startswith(f"lane 77 (wild), pid {lane.handle.pid}: ") for _, text in found)
    story = [text for level, text in found if level == "WARNING"]
    assert "slot 0 (fleet slot 0): step raised ValueError" in story[0]
    assert sum("in _obey" in text for text in story) == 1
    assert len(found) < 50 * BURST


@BOTH
async def test_an_error_id_is_in_the_servers_log(
    name: str, launchers: Callable[[str], Launcher], caplog: pytest.LogCaptureFixture
) -> None:
    """An environment that cannot be built, for a reason that nobody foresaw: the traceback is under the client's id."""
    lane = LaneDriver(await launchers(name).start())
    request = pb.Open(env="odd", fleet_slots=[0], incarnations=[0])
    kind, body = await lane.call(pb.OPEN, request.SerializeToString())
    error = pb.Error.FromString(body)
    assert (kind, error.code) == (pb.ERROR, pb.BUILD_FAILED)
    await until(lambda: any("could not convert string to float: 'fast'" in text for _, text in of_lanes(caplog)))
    found = of_lanes(caplog)
    assert f"error {error.id};" in found[0][1]
    assert {level for level, _ in found} == {"ERROR"}


async def test_the_rest_of_the_output_is_logged_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """A last line that has no end, of a lane that died before the loop had a turn."""
    caplog.set_level(logging.INFO, "envserver.lane")
    readable, writable = os.pipe()
    log = LogPipe(readable)
    os.write(writable, b"dividing\nby zero")
    log.read_rest()
    log.close()
    os.close(writable)
    assert caplog.messages == [": dividing", ": by zero"]


async def test_the_rest_of_the_output_is_read_at_the_end() -> None:
    """What a lane wrote as it died, before the loop had a turn: it is in the tail, the end of the pipe too."""
    readable, writable = os.pipe()
    log = LogPipe(readable)
    os.write(writable, b"about to divide by zero\n")
    assert log.tail == b""
    log.read_rest()
    assert log.tail == b"about to divide by zero\n"
    log.read_rest()
    os.write(writable, b"so it was\n")
    os.close(writable)
    log.read_rest()
    assert log.tail.endswith(b"by zero\nso it was\n")
    log.close()
