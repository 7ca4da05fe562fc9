"""From the bodies of replies to checked rows: pairing, frame stacks, flags, numbering; no I/O.

Invariants: rows that answer another action than the one sent are refused (test_rows_of_another_action_are_refused);
rows of a replacement lane close the episodes that ran before (test_first_rows_cut_what_was_running); a refused body
leaves the numbering as it was (test_a_refused_body_changes_no_number).
"""

from __future__ import annotations

from typing import Final

from asyncrl.errors import LocalProtocolError, RemoteProtocolError
from asyncrl.wire import step_rows
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.changes import ChangeDecoder
from asyncrl.wire.envelope import SMALL_BODY_BYTES
from asyncrl.wire.flags import CUT, RowState, RowTracker
from asyncrl.wire.frame_stack import StackDecoder, agreed_decoder
from asyncrl.wire.infos import MAX_INFO_BYTES
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import StepRows
from asyncrl.wire.tensors import Array

_RUNNING: Final = int(RowState.RUNNING)


class RowReader:
    """Of one lane. `tracker` may have seen the rows of earlier lanes of the same slots."""

    def __init__(self, num_slots: int, tracker: RowTracker) -> None:
        self.body_limit = SMALL_BODY_BYTES
        self._num_slots = num_slots
        self._tracker = tracker
        self._spec: LaneSpec | None = None
        self._stack: StackDecoder | None = None
        self._changes: ChangeDecoder | None = None
        self._fresh = True  # no rows of this lane yet

    @property
    def spec(self) -> LaneSpec:
        if self._spec is None:
            raise LocalProtocolError("the lane has not opened yet")
        return self._spec

    @property
    def is_open(self) -> bool:
        return self._spec is not None

    def open(self, opened: pb.Opened, spec: LaneSpec) -> None:
        """From now on bodies are read by `spec`."""
        self._stack = agreed_decoder(opened, spec, self._num_slots)
        self._changes = ChangeDecoder() if pb.CHANGES in opened.features else None
        # Observation, final observation and, after a reset, whole stacks; masks and infos beside them.
        row_bytes = 3 * spec.observation.nbytes + 2 * spec.mask_size + 2 * MAX_INFO_BYTES + 64
        self.body_limit = SMALL_BODY_BYTES + self._num_slots * row_bytes
        self._spec = spec

    def expect(self, reply_bytes: int) -> None:
        """A request was sent whose reply may be so large."""
        self.body_limit = max(self.body_limit, reply_bytes)

    def read(self, body: bytes, action_crc: int | None) -> tuple[StepRows, Array, Array]:
        """The rows of a STEP_RESULT, and `episode`, `t` `[B]` (i8) of the transitions that they carry."""
        if self._spec is None:
            raise RemoteProtocolError("rows before OPENED")
        rows = step_rows.decode(body, self._spec, self._num_slots, self._stack, self._changes)
        if action_crc is not None and rows.action_crc != action_crc:
            raise RemoteProtocolError("these rows answer another action than the one that was sent")
        tracker = self._tracker
        if self._fresh:
            RowTracker(self._num_slots).advance(rows.flags)  # legal as the first rows of a lane
            rows.flags[tracker.state == _RUNNING] |= CUT
            self._fresh = False
        episode, t = tracker.episode.copy(), tracker.t.copy()
        tracker.advance(rows.flags)
        return rows, episode, t
