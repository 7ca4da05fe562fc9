"""Lane processes that are ready before anybody asks: warm berths, and probes for the spec of an alias.

Invariants: a berth is empty, prepared or lent, and a lent one comes back when its lane closes
(test_a_lent_berth_is_prepared_again), also while others are prepared
(test_a_berth_that_comes_back_during_a_fill_is_not_forgotten); one that can never be built ends nothing
(test_a_berth_that_never_builds_is_tried_for_ever) and keeps no other one waiting
(test_a_berth_that_never_builds_keeps_no_other_waiting).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from asyncrl.errors import DeadlineExceeded, LaneLost, ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import parse_body
from asyncrl.wire.requests import to_json
from envserver.lane_socket import BROKEN, PREPARE, PREPARED
from envserver.seams import LaneBackend

log = logging.getLogger("envserver.preparing")

PREPARE_S: Final = 120.0
LONGEST_WAIT_S: Final = 60.0

Start = Callable[[], Awaitable[LaneBackend]]


async def prepare(start: Start, request: pb.Open, timeout_s: float = PREPARE_S) -> tuple[LaneBackend, pb.Opened]:
    """A lane process with its environments built, and what it says of them. Cancellation leaves no process."""
    backend = await start()
    answer: asyncio.Future[pb.Opened] = asyncio.get_running_loop().create_future()

    def on_message(kind: int, _seq: int, body: bytes) -> None:
        if answer.done() or kind == pb.EVENT:
            return
        if kind == PREPARED:
            answer.set_result(parse_body(pb.Opened, body))
        elif kind == BROKEN:
            answer.set_exception(LaneLost("LANE_LOST", body.decode(), cause="protocol"))
        else:
            error = parse_body(pb.Error, body)
            answer.set_exception(ServerRefused(pb.ErrorCode.Name(error.code), error.text, error_id=error.id))

    def on_exit(exited: asyncio.Future[str]) -> None:
        if not answer.done():
            answer.set_exception(LaneLost("LANE_LOST", "the process died while building", cause=exited.result()))

    backend.on_message = on_message
    backend.exited.add_done_callback(on_exit)
    backend.send(PREPARE, 0, request.SerializeToString())

    def on_timeout() -> None:
        if not answer.done():
            answer.set_exception(DeadlineExceeded(f"{request.env} was not built within {timeout_s:.0f} s"))

    timer = asyncio.get_running_loop().call_later(timeout_s, on_timeout)
    try:
        return backend, await answer
    except BaseException:
        backend.close()
        raise
    finally:
        timer.cancel()
        backend.exited.remove_done_callback(on_exit)


async def probe(start: Start, env: str, kwargs_json: bytes) -> pb.Opened:
    """Spec and capabilities of an alias, from a lane process that is given back at once."""
    backend, opened = await prepare(start, _request(env, kwargs_json, 1))
    backend.close()
    return opened


def _request(env: str, kwargs_json: bytes, slots: int) -> pb.Open:
    return pb.Open(
        env=env,
        kwargs_json=kwargs_json,
        fleet_slots=range(slots),
        incarnations=[0] * slots,
        autoreset=pb.SAME_STEP,
    )


@dataclass
class Berth:
    """A place for one prepared lane."""

    env: str
    slots: int
    backend: LaneBackend | None = None
    lent: bool = False
    failures: int = 0  # in a row
    retry_at: float = 0.0  # of the loop's clock, after a failure


class WarmPool:
    """Keeps one prepared lane process per berth that is not lent."""

    def __init__(self, start: Start, berths: list[Berth]) -> None:
        self._start = start
        self._berths = berths
        self._changed = asyncio.Event()

    def take(self, env: str, kwargs: dict[str, object], slots: int) -> tuple[LaneBackend, Berth] | None:
        """A prepared process of that alias and size with default kwargs, if there is one."""
        for berth in self._berths:
            backend = berth.backend
            if kwargs or (berth.env, berth.slots) != (env, slots) or backend is None or backend.exited.done():
                continue
            berth.backend, berth.lent = None, True
            return backend, berth
        return None

    def give_back(self, berth: Berth) -> None:
        """The lane of a lent berth has closed: build another one."""
        berth.lent = False
        self._changed.set()

    async def fill(self) -> None:
        """Prepare every empty berth whose time has come, once, one after the other. Failures are logged and tried again
        later; those that have failed come last, since building them may take as long as is allowed."""
        now = asyncio.get_running_loop().time
        for berth in sorted(self._berths, key=lambda berth: berth.failures):
            if berth.backend is not None and berth.backend.exited.done():
                berth.backend = None
            if berth.lent or berth.backend is not None or now() < berth.retry_at:
                continue
            try:
                berth.backend, _ = await prepare(self._start, _request(berth.env, to_json({}, "kwargs"), berth.slots))
                berth.failures = 0
            except (ServerRefused, DeadlineExceeded) as error:
                berth.failures += 1
                # A float has no power of 2 past the 1023rd, which is reached in a day.
                berth.retry_at = now() + min(2.0 ** min(berth.failures, 32), LONGEST_WAIT_S)
                log.warning("cannot prepare %d × %s: %s", berth.slots, berth.env, error)

    async def run(self) -> None:
        """Fill, and fill again whenever a berth comes back. Cancellation leaves prepared lanes to `close`."""
        while True:
            # Before the fill: a berth that comes back during it may be one that the fill has passed already.
            self._changed.clear()
            await self.fill()
            retry_at = min((berth.retry_at for berth in self._berths if berth.failures), default=None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(retry_at):
                    await self._changed.wait()

    def close(self) -> None:
        for berth in self._berths:
            if berth.backend is not None:
                berth.backend.close()
                berth.backend = None


def berths(aliases: list[str], num_envs: int, lanes: int) -> list[Berth]:
    """The capacity split over `lanes` berths as evenly as possible, the aliases in turn."""
    share, larger = divmod(num_envs, lanes)
    return [Berth(aliases[i % len(aliases)], share + (i < larger)) for i in range(lanes)]
