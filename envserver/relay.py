"""A relay carries one lane: frames of a gRPC stream to its lane process and replies back.

It reads envelopes only; bodies pass as they are. The lane outlives a broken stream: replies
wait in `ServerLane`'s cache, which is bounded because the client may only have `max_in_flight`
requests unacked.

Invariants: held replies reach the client before LANE_LOST does (test_held_replies_come_before_lane_lost);
a lane obeys one stream at a time (test_a_new_stream_takes_the_lane_from_the_old_one); whatever ends
the lane, its process is gone afterwards (test_every_end_gives_the_process_back); a process that breaks the protocol is
killed, and the client told what it did (test_a_process_that_breaks_the_protocol_is_named); what a client sends that no
flow control bounds never gathers in front of a process (test_only_what_is_under_way_is_cancelled_and_once).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from asyncrl.errors import MessageMissing, RemoteProtocolError
from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import SMALL_BODY_BYTES, FrameReader, Message, error_body, parse_body, to_frames
from asyncrl.wire.lane_table import REQUESTS, LaneState
from asyncrl.wire.server_lane import ServerLane
from asyncrl.wire.snapshot_bodies import MAX_REQUEST_BYTES
from asyncrl.wire.spec import LaneSpec
from envserver.deadlines import Deadlines
from envserver.lane_socket import BROKEN
from envserver.last_words import last_words
from envserver.outbox import MAX_OUTBOX, Outbox
from envserver.seams import FrameStream, LaneBackend

log = logging.getLogger("envserver.relay")

# A client that is told the lane is over ends its side at once; one that does not is cancelled.
LINGER_S: Final = 2.0
DUMP_S: Final = 0.3


@dataclass(frozen=True)
class RelayLimits:
    """Windows and deadlines of one lane, in seconds. The owner's quotas say the first three."""

    max_in_flight: int
    lease_s: float
    resume_window_s: float
    max_deadline_s: float = 600.0  # whatever a client asks; docs/reliability.md says so
    deadlines_s: dict[int, float] = field(
        default_factory=lambda: {pb.OPEN: 120.0, pb.RESET: 60.0, pb.STEP: 30.0, pb.RENDER: 30.0}
    )


@dataclass(frozen=True)
class LaneIdentity:
    """Whose lane this is."""

    run_id: str
    learner_epoch: int
    member: str
    env: str
    fleet_slots: tuple[int, ...]
    resumable: bool

    @property
    def room(self) -> int:
        """Slots that it takes of the capacity: a simulation lane has none, but an environment."""
        return len(self.fleet_slots) or 1

    @property
    def place(self) -> tuple[str, str, int]:
        """What crashes are counted by."""
        return self.run_id, self.member, self.fleet_slots[0] if self.fleet_slots else -1


class Relay:
    """One lane between its process and whichever stream carries it now."""

    def __init__(
        self,
        backend: LaneBackend,
        identity: LaneIdentity,
        limits: RelayLimits,
        boot_id: str,
        on_closed: Callable[[Relay, str], None],
    ) -> None:
        self.lane_id = secrets.token_hex(8)
        self.identity = identity
        self.body_limit = SMALL_BODY_BYTES
        self.lost: str | None = None  # cause, once the process is gone without being told to
        self._token = secrets.token_bytes(16)
        self._limits = limits
        self._boot_id = boot_id
        self._backend = backend
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._lane = ServerLane(limits.max_in_flight, resumable=False)
        self._outbox: Outbox | None = None
        self._carrier: asyncio.Task[None] | None = None
        self._reader: FrameReader | None = None
        self._silent_since = self._loop.time()
        self._detached_at: float | None = None
        self._deadlines = Deadlines()
        self._cancelled: set[int] = set()  # of the requests that are under way
        self._verdict: str | None = None  # why we are killing the process
        self._detail = ""  # of the verdict, for people
        self._closed = False
        backend.call(f"lane {self.lane_id} ({identity.env})")
        backend.on_message = self._from_lane
        backend.exited.add_done_callback(self._process_gone)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def pid(self) -> int:
        return self._backend.pid

    @property
    def attached(self) -> bool:
        return self._outbox is not None

    # ------------------------------------------------------------------ streams

    async def carry(self, stream: FrameStream, reader: FrameReader, first: Message) -> None:
        """Carry the lane over `stream` until either side ends it. `first` is OPEN or RESUME, not yet accounted for.

        Cancellation counts as a broken stream: the lane stays for the resume window if it is resumable.
        """
        outbox = Outbox()
        self._take(outbox, reader)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(outbox.drain_to(stream.write))
                await self._read(stream, reader, first)
                outbox.close()
        finally:
            self._release(outbox)

    async def _read(self, stream: FrameStream, reader: FrameReader, first: Message) -> None:
        message: Message | None = first
        while True:
            if message is not None:
                try:
                    self._from_client(message, reader)
                except MessageMissing as error:
                    await stream.abort(error.code, str(error))
                    return
                except RemoteProtocolError as error:
                    self._say_and_close(error.code, str(error))
                    return
            data = await stream.read()
            if data is None:
                return
            self._silent_since = self._loop.time()
            try:
                message = reader.feed(data)
            except RemoteProtocolError as error:
                # Damaged in transit or nonsense: the stream is over, a resumable lane is not.
                await stream.abort(error.code, str(error))
                return

    def _take(self, outbox: Outbox, reader: FrameReader) -> None:
        """Make `outbox` the lane's way out; a stream that carried it before is over."""
        if self._carrier is not None:
            self._carrier.cancel()
            self._break()
        self._outbox, self._reader = outbox, reader
        self._carrier = asyncio.current_task()
        self._silent_since = self._loop.time()
        self._detached_at = None
        reader.limit = self.body_limit

    def _release(self, outbox: Outbox) -> None:
        """The stream of `outbox` is over; only its own end matters, not that of a stream that was replaced."""
        if self._outbox is outbox:
            self._break()

    def _break(self) -> None:
        self._outbox, self._carrier, self._reader = None, None, None
        if self._lane.state is not LaneState.CLOSED:
            self._lane.stream_broke()
        if self._lane.state is LaneState.CLOSED:
            self._close("released")
        else:
            self._detached_at = self._loop.time()

    # ------------------------------------------------------------------ client to lane

    def resume_refused(self, resume: pb.Resume) -> tuple[str, str] | None:
        """Why this RESUME cannot have the lane (code, text); None if it can."""
        if not hmac.compare_digest(resume.token, self._token):
            return "LANE_UNKNOWN", "the token does not fit this lane"
        if resume.learner_epoch < self.identity.learner_epoch:
            return "FENCED", f"learner_epoch {self.identity.learner_epoch} of this run holds the lane"
        return None

    def _from_client(self, message: Message, reader: FrameReader) -> None:
        if message.kind == pb.RESUME:
            resume = parse_body(pb.Resume, message.body)
            self._put(self._lane.resume(resume.ack, bool(reader.crc)))
            if self.lost is not None:
                self._say_lost()
            return
        self._lane.with_crc = bool(reader.crc)
        incoming = self._lane.receive(message)
        if incoming is None:
            return
        if incoming.kind in REQUESTS:
            self._forward(incoming)
        elif incoming.kind == pb.PING:
            nonce = parse_body(pb.Ping, incoming.body).nonce
            pong = pb.Pong(nonce=nonce, executed=self._lane.answered).SerializeToString()
            self._put(self._lane.control(pb.PONG, pong))
        elif incoming.kind == pb.CANCEL:
            self._cancel(parse_body(pb.Cancel, incoming.body).seq)
        else:
            self._close("released")

    def _cancel(self, seq: int) -> None:
        """Of a request that is under way; again, or of any other, it would only wait for a lane that computes."""
        if self._lane.answered < seq <= self._lane.received and seq not in self._cancelled:
            self._cancelled.add(seq)
            self._backend.send(pb.CANCEL, 0, pb.Cancel(seq=seq).SerializeToString())

    def _forward(self, request: Message) -> None:
        wanted = request.deadline_ms / 1000 or self._limits.deadlines_s.get(request.kind, 30.0)
        granted_s = min(wanted, self._limits.max_deadline_s)
        self._deadlines.asked(granted_s, self._loop.time())
        # What is enforced here and not what was asked: by it a wave knows when to stop.
        self._backend.send(request.kind, request.seq, request.body, int(granted_s * 1000))

    # ------------------------------------------------------------------ lane to client

    def _from_lane(self, kind: int, seq: int, body: bytes) -> None:
        if self._closed:
            return
        if kind == pb.EVENT:
            self._deadlines.progressed(self._loop.time())
            self.event(body)
            return
        if kind == BROKEN:
            self._convict(body.decode())
            return
        if self.idle or seq != self._lane.answered + 1:
            self._convict(f"reply {seq} of kind {kind} where {self._lane.answered + 1} is due")
            return
        self._deadlines.answered(self._loop.time())
        self._cancelled.discard(seq)
        if kind == pb.OPENED:
            body = self._opened(body)
        self._put(self._lane.reply(kind, body))
        if self._lane.state is LaneState.CLOSED:  # OPEN was answered with ERROR
            self._close("not opened")

    def _opened(self, partial: bytes) -> bytes:
        """What the lane process said of itself, and what the relay knows. Serialised messages merge by joining."""
        opened = parse_body(pb.Opened, partial)
        spec = LaneSpec.from_proto(opened.spec)
        slots = len(self.identity.fleet_slots)
        self.body_limit = max(SMALL_BODY_BYTES, 2 * slots * spec.action.nbytes)
        if opened.snapshot_support != pb.SNAPSHOT_NONE:
            self.body_limit = max(self.body_limit, MAX_REQUEST_BYTES)
        if self._reader is not None:
            self._reader.limit = self.body_limit
        resumable = self.identity.resumable
        self._lane.resumable = resumable
        own = pb.Opened(
            protocol=handshake.version(),
            boot_id=self._boot_id,
            lane_id=self.lane_id,
            token=self._token,
            max_in_flight=self._limits.max_in_flight,
            resume_window_ms=int(self._limits.resume_window_s * 1000) if resumable else 0,
            lease_ms=int(self._limits.lease_s * 1000),
            features=[pb.RESUME_LANES] if resumable else [],
        )
        return partial + own.SerializeToString()

    def event(self, body: bytes) -> None:
        """Tell the client something, if a stream carries the lane now."""
        if self._outbox is not None and self._lane.state in (LaneState.OPENING, LaneState.LIVE):
            self._put(self._lane.control(pb.EVENT, body))

    def _put(self, frames: list[bytes]) -> None:
        if self._outbox is not None and frames and not self._outbox.put(frames):
            log.warning("lane %s: %d frames wait for a client that does not read", self.lane_id, MAX_OUTBOX)
            self._end_stream_now()

    # ------------------------------------------------------------------ ends

    def forgive(self, late_s: float) -> None:
        """Time that the server itself stood still: nobody could be heard in it."""
        self._deadlines.forgive(late_s)
        self._silent_since += late_s
        if self._detached_at is not None:
            self._detached_at += late_s

    def tick(self, now: float) -> None:
        """Deadlines, lease and resume window; called a few times a second."""
        if self._closed:
            return
        if self._detached_at is not None and now - self._detached_at > self._limits.resume_window_s:
            self._close("resume window over")
        elif self._outbox is not None and now - self._silent_since > self._limits.lease_s:
            log.warning("lane %s: the client was silent for %.0f s", self.lane_id, self._limits.lease_s)
            self._end_stream_now()
        if self._deadlines.overdue(now):
            self.condemn("hang")

    def condemn(self, verdict: str) -> None:
        """Kill the lane's process after a dump of its stacks; `verdict` becomes the cause of the loss."""
        if self._verdict is not None or self._closed:
            return
        self._verdict = verdict
        log.warning("lane %s (%s): %s; dumping its stacks", self.lane_id, self.identity.env, verdict)
        self._backend.dump_stacks()
        # The dump needs a moment to be written before the process is killed.
        self._loop.call_later(DUMP_S, self._backend.kill)

    def _convict(self, text: str) -> None:
        """Kill a process that does not keep to the protocol: nothing that it says can be believed any more."""
        log.error("lane %s (%s): its process broke the protocol: %s", self.lane_id, self.identity.env, text)
        if self._verdict is None:
            self._verdict, self._detail = "protocol", f": {text}"
        self._backend.kill()

    def fence(self, epoch: int) -> None:
        """A higher learner_epoch of the same run took over."""
        self._say_and_close("FENCED", f"learner_epoch {epoch} of this run has taken over")

    def bye(self, reason: str) -> None:
        """End the lane cleanly from the server's side."""
        if self._outbox is not None and self._lane.state is not LaneState.CLOSED:
            self._put(self._lane.control(pb.BYE, pb.Bye(reason=reason).SerializeToString()))
        self._linger()
        self._close(reason)

    @property
    def idle(self) -> bool:
        """Nothing is being executed."""
        return self._deadlines.idle

    def _say_and_close(self, code: str, text: str) -> None:
        if self._outbox is not None and self._lane.state is LaneState.DETACHED:  # a RESUME that made no sense
            self._put(to_frames(Message(pb.ERROR, 0, error_body(code, text)), self._lane.with_crc))
        elif self._outbox is not None and self._lane.state is not LaneState.CLOSED:
            self._put(self._lane.control(pb.ERROR, error_body(code, text)))
        self._linger()
        self._close(code)

    def _process_gone(self, exited: asyncio.Future[str]) -> None:
        if self._closed:
            return
        self.lost = self._verdict or exited.result()
        said = _last_output(self._backend)
        log.warning("lane %s (%s): lost, %s%s", self.lane_id, self.identity.env, self.lost, said)
        self._deadlines.clear()
        if self._outbox is not None:
            self._say_lost()
        elif self._lane.state is LaneState.CLOSED:
            self._close(self.lost)
        # A detached lane keeps its replies for the resume window, and then says why there are no more.
        self._on_closed(self, self.lost)

    def _say_lost(self) -> None:
        text = f"the lane's process is gone: {self.lost}{self._detail}{_last_output(self._backend)}"
        if self._lane.state is not LaneState.CLOSED:
            body = error_body("LANE_LOST", text, retryable=True, cause=self.lost or "")
            self._put(self._lane.control(pb.ERROR, body))
        self._linger()
        self._close(self.lost or "lost")

    def _linger(self) -> None:
        """The client answers a final frame by ending its side; the handler is cancelled if it does not."""
        if self._outbox is not None:
            self._outbox.close()
        if self._carrier is not None:
            self._loop.call_later(LINGER_S, self._carrier.cancel)

    def _end_stream_now(self) -> None:
        if self._carrier is not None:
            self._carrier.cancel()
        self._break()

    def _close(self, reason: str) -> None:
        if self._closed:
            return
        self._closed = True
        self._backend.close()
        if self.lost is None:
            self._on_closed(self, reason)


def _last_output(backend: LaneBackend) -> str:
    """Also for the server's own log, which may have left out what led to the end among what the lane printed."""
    said = last_words(backend.log_tail())
    return f"\nits last output:\n{said}" if said else ""
