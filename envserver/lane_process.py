"""A lane's process: one blocking loop that decodes requests, drives the host and encodes what it returns.

Requests are executed in the order of their arrival, one at a time, and each gets one reply.

Invariants: an action that does not pass the checks reaches no environment (test_a_bad_action_executes_nothing);
text of an unexpected exception goes to the server's log, the wire gets an opaque id
(test_an_internal_error_sends_only_an_id); a request that was cancelled before it began is not executed
(test_a_cancelled_request_is_not_executed); a reply that the relay would not take is an error that says so
(test_a_reply_that_is_too_big_is_a_typed_error); the process ends when its socket closes
(test_the_lane_exits_when_its_socket_closes).
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import secrets
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import numpy as np

from asyncrl.errors import RemoteProtocolError, ServerRefused
from asyncrl.wire import step_rows
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.changes import ChangeEncoder
from asyncrl.wire.envelope import error_body, kind_name, parse_body
from asyncrl.wire.frame_stack import Encoder
from asyncrl.wire.infos import read_rows
from asyncrl.wire.requests import check_actions, decode_reset, decode_step
from asyncrl.wire.step_rows import StepRows
from envserver import lane_log
from envserver.host import Host, LaneWish, Progress
from envserver.joining import JoiningLane
from envserver.lane_socket import CONFIGURE, MAX_BODY_BYTES, PREPARE, PREPARED, BlockingLaneSocket, LaneMessage
from envserver.opening import BuildProgress, desk_for, fits, opened_by, wish_of
from envserver.refusals import refusal_body
from envserver.registry import EnvAlias, Registry

if TYPE_CHECKING:
    from envserver.snapshots.desk import SnapshotDesk

log = logging.getLogger("envserver.lane")

DEFAULT_DEADLINE_MS: Final = 30_000
# Of its deadline a wave uses so much; what it has by then is its answer. The server kills a lane that is late.
STOP_AT: Final = 0.8
LOOK_EVERY_S: Final = 0.005  # at the socket, for a CANCEL

Build = Callable[[EnvAlias, LaneWish, Progress], Host]
Reply = tuple[int, bytes]


def build_by_alias(alias: EnvAlias, wish: LaneWish, progress: Progress) -> Host:
    """The host of an alias."""
    # Here and not above: what goes wrong while simulators are imported is an error of the build.
    from envserver.building import build_host

    return build_host(alias, wish, progress)


class _Built(NamedTuple):
    host: Host
    wish: LaneWish


class LaneProcess:
    """The loop and its state. `registry` is None in a process that was not forked: CONFIGURE brings it."""

    def __init__(self, sock: socket.socket, registry: Registry | None, build: Build = build_by_alias) -> None:
        self._socket = BlockingLaneSocket(sock)
        self._registry = registry
        self._build = build
        self._waiting: deque[LaneMessage] = deque()
        self._cancelled: set[int] = set()  # of those waiting
        self._built: _Built | None = None
        self._joining: JoiningLane | None = None  # while it may
        self._opened = False
        self._reset = False  # a RESET was executed
        self._seeds: Sequence[int] = ()  # of the first reset, where it brings none of its own
        self._stack: Encoder | None = None
        self._changes: ChangeEncoder | None = None
        self._desk: SnapshotDesk | None = None
        self._executing = LaneMessage(0, 0, b"")
        self._began = 0.0
        self._looked = 0.0
        self._handlers: dict[int, Callable[[bytes], Reply]] = {
            PREPARE: self._prepare,
            pb.OPEN: self._open,
            pb.RESET: self._reset_rows,
            pb.STEP: self._step_rows,
            pb.RENDER: self._render,
            pb.SNAPSHOT: lambda body: (pb.SNAPSHOT_RESULT, self._snapshots().snapshot(body)),
            pb.RESTORE: self._restore_row,
            pb.SIMULATE: lambda body: (pb.SIMULATE_RESULT, self._snapshots().simulate(body, self._interruption)),
            pb.RELEASE: lambda body: (pb.RELEASED, self._snapshots().release(body)),
            pb.EXPORT: lambda body: (pb.EXPORTED, self._snapshots().export(body)),
            pb.IMPORT: lambda body: (pb.SNAPSHOT_RESULT, self._snapshots().import_(body)),
        }

    def serve(self) -> None:
        """Until the relay closes the socket."""
        try:
            while True:
                # A CANCEL counts if it could be read before its request begins.
                self._take(self._socket.receive_nowait() if self._waiting else self._socket.receive())
                if not self._waiting:
                    continue
                message = self._waiting.popleft()
                kind, body = self._answer(message)
                self._socket.send(kind, message.seq, body)
                if kind == pb.OPENED:
                    # What was built stays: collections during steps need not look at it.
                    gc.collect()
                    gc.freeze()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass

    def close(self) -> None:
        """Close the environments; what they raise is of no interest any more."""
        for each in (self._desk, None if self._built is None else self._built.host):
            with contextlib.suppress(Exception):
                if each is not None:
                    each.close()

    # ------------------------------------------------------------------ requests

    def _take(self, messages: list[LaneMessage]) -> None:
        for message in messages:
            if message.kind == pb.CANCEL:
                seq = parse_body(pb.Cancel, message.body).seq
                if seq == self._executing.seq or any(seq == waiting.seq for waiting in self._waiting):
                    self._cancelled.add(seq)
            elif message.kind == CONFIGURE:
                self._configure(message.body)
            else:
                self._waiting.append(message)

    def _configure(self, body: bytes) -> None:
        told = json.loads(body)
        sys.path[:] = told["path"]
        self._registry = Registry.from_json(told["registry"])

    def _answer(self, message: LaneMessage) -> Reply:
        self._executing, self._began = message, time.monotonic()
        try:
            return self._handle(message)
        finally:
            self._executing = LaneMessage(0, 0, b"")
            self._cancelled.discard(message.seq)

    def _handle(self, message: LaneMessage) -> Reply:
        try:
            if message.seq in self._cancelled:
                raise ServerRefused("CANCELLED", "cancelled before it began")
            handler = self._handlers.get(message.kind)
            if handler is None:
                raise ServerRefused("UNSUPPORTED", f"this lane does not do {kind_name(message.kind)}")
            reply = handler(message.body)
            if len(reply[1]) <= MAX_BODY_BYTES:
                return reply
            self._forget_rows()
            text = f"the reply to {kind_name(message.kind)} has {len(reply[1])} bytes; {MAX_BODY_BYTES} are possible"
            return pb.ERROR, error_body("FRAME_TOO_BIG", f"{text}: ask for less at once, or for smaller lanes")
        except (ServerRefused, RemoteProtocolError) as error:
            return pb.ERROR, refusal_body(error)
        except Exception:
            self._forget_rows()
            text = f"{kind_name(message.kind)} failed inside the lane; the server's log has the story"
            return pb.ERROR, error_body("INTERNAL", text, error_id=_log_exception())

    def _forget_rows(self) -> None:
        """What the client was not sent is nothing that it could put the next rows together from."""
        for encoder in (self._stack, self._changes):
            if encoder is not None:
                encoder.forget()

    # ------------------------------------------------------------------ building

    def _prepare(self, body: bytes) -> Reply:
        if self._opened:
            raise ServerRefused("BAD_REQUEST", "the lane is open")
        return PREPARED, opened_by(*self._host_for(parse_body(pb.Open, body)), ()).SerializeToString()

    def _open(self, body: bytes) -> Reply:
        if self._opened:
            raise ServerRefused("BAD_REQUEST", "the lane is open already")
        request = parse_body(pb.Open, body)
        host, wish = self._host_for(request)
        assert self._registry is not None
        self._desk = desk_for(self._registry, self._registry.get(request.env), host, wish)
        opened = opened_by(host, wish, request.features, self._desk)
        self._opened = True
        self._seeds = tuple(request.seeds)
        if pb.FRAME_STACK in opened.features:
            self._stack = host.stack_encoder()
        if pb.CHANGES in opened.features:
            self._changes = ChangeEncoder()
        return pb.OPENED, opened.SerializeToString()

    def _host_for(self, request: pb.Open) -> _Built:
        """The prepared host where it fits, else a new one."""
        if self._registry is None:
            raise ServerRefused("BAD_REQUEST", "the lane was not configured")
        alias = self._registry.get(request.env)
        wish = wish_of(request)
        alias.check_kwargs(wish.kwargs)
        if self._built is not None:
            host, built_for = self._built
            if fits(host, built_for, wish):
                host.adopt(wish)
                self._built = _Built(host, wish)
                return self._built
            self.close()
            self._built = None
        self._built = _Built(self._build_host(alias, wish), wish)
        return self._built

    def _build_host(self, alias: EnvAlias, wish: LaneWish) -> Host:
        if alias.cores and self._joining is None:  # once: the cores that it finds are the server's
            self._joining = JoiningLane(alias.cores)
        try:
            return self._build(alias, wish, BuildProgress(self._socket))
        except ServerRefused as error:
            if error.code == "BUILD_FAILED":  # which whoever runs this server may be able to mend
                log.warning("%s", error, exc_info=error.__cause__)
            raise
        except (BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            text = f"{wish.env}: {type(error).__name__}: {error}"
            raise ServerRefused("BUILD_FAILED", text, error_id=_log_exception()) from error

    # ------------------------------------------------------------------ stepping

    def _reset_rows(self, body: bytes) -> Reply:
        host, slots = self._open_host()
        request = decode_reset(body, slots)
        if not self._reset and self._seeds and request.seeds is None:
            request = request._replace(seeds=list(self._seeds))
        rows = host.reset(request)
        self._reset = True
        return self._rows(rows, host)

    def _step_rows(self, body: bytes) -> Reply:
        host, slots = self._open_host()
        if not self._reset:
            raise ServerRefused("BAD_REQUEST", "STEP before the first RESET")
        action, crc = decode_step(body, host.spec.action.leaves, slots)
        wrong = check_actions(action, host.spec.action)
        if wrong is not None:
            raise ServerRefused("BAD_ACTION", wrong)
        began = time.perf_counter()
        rows = host.step(action)
        if self._joining is not None and self._joining.stepped(time.perf_counter() - began):
            self._joining = None
        rows.action_crc = crc
        return self._rows(rows, host)

    def _rows(self, rows: StepRows, host: Host) -> Reply:
        if self._desk is not None:
            self._desk.saw(rows)
        return pb.STEP_RESULT, step_rows.encode(rows, host.spec, self._stack, self._changes)

    def _render(self, body: bytes) -> Reply:
        host, slots = self._open_host()
        if self._built is None or not self._built.wish.render:
            raise ServerRefused("UNSUPPORTED", "this lane was opened without `render`")
        asked = parse_body(pb.Render, body).rows
        rows = read_rows(asked, slots, "rows").tolist() if asked else list(range(slots))
        images = zip(rows, host.render(rows), strict=True)
        return pb.RENDERED, pb.Rendered(images=[_image(row, pixels) for row, pixels in images]).SerializeToString()

    # ------------------------------------------------------------------ snapshots

    def _snapshots(self) -> SnapshotDesk:
        self._open_host()
        if self._desk is None:
            raise ServerRefused(
                "UNSUPPORTED", "this lane has no snapshots: it was opened without, or Opened.snapshot_support says NONE"
            )
        return self._desk

    def _restore_row(self, body: bytes) -> Reply:
        desk, (host, _) = self._snapshots(), self._open_host()
        return self._rows(desk.restore(body), host)

    def _interruption(self) -> str:
        """Why the request that is being executed should stop: its deadline is near, or it was cancelled. Or empty."""
        now = time.monotonic()
        deadline_s = (self._executing.deadline_ms or DEFAULT_DEADLINE_MS) / 1000
        if now - self._began > STOP_AT * deadline_s:
            return "DEADLINE"
        if now - self._looked > LOOK_EVERY_S:
            self._looked = now
            self._take(self._socket.receive_nowait())
        return "CANCELLED" if self._executing.seq in self._cancelled else ""

    def _open_host(self) -> tuple[Host, int]:
        if not self._opened or self._built is None:
            raise ServerRefused("BAD_REQUEST", "no OPEN has succeeded on this lane")
        return self._built.host, self._built.wish.num_slots


def _image(row: int, pixels: np.ndarray[Any, Any]) -> pb.Image:
    height, width, *channels = pixels.shape
    return pb.Image(
        row=row, height=height, width=width, channels=channels[0] if channels else 1, pixels=pixels.tobytes()
    )


def _log_exception() -> str:
    """The traceback of the exception that is being handled goes to the server's log, under the id it returns."""
    error_id = secrets.token_hex(4)
    log.error("error %s; the client was told this id", error_id, exc_info=True)
    return error_id


# ---------------------------------------------------------------------------------------------------------- processes


def run_lane(
    sock: socket.socket, registry: Registry | None, before_exit: Callable[[], object] = lambda: None
) -> NoReturn:
    """Serve the lane, then end the process, without the exit handlers of whoever it was forked from."""
    status = 1
    try:
        lane_log.log_to(sys.stderr.fileno())
        gc.enable()
        gc.set_threshold(10_000, 20, 50)
        lane = LaneProcess(sock, registry)
        lane.serve()
        status = 0
        lane.close()
        before_exit()
    except BaseException:
        # SystemExit of an environment too: it ends the lane, not the function that runs it.
        log.critical("this ends the lane", exc_info=True)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(status)
