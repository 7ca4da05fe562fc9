"""What lanes write to their standard error, and how much of it the server's log takes.

A lane's own records are told apart from what its environments print by the first byte of each line; which level a
record has is the letter behind it. The whole of both is in the ring that `LogPipe` keeps; the log of the server gets
both line by line, from each no more than an `Allowance`. Records with an error id get through always: a client was
told that they are there.

Invariants: an environment that prints all the time costs the log no more than an allowance, and the loop no more than
the reading (test_an_environment_that_prints_all_the_time); it hides no record of the lane's
(test_an_id_is_found_however_much_is_printed); a record is there whole or not at all (test_records_are_never_halved).
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from typing import Final

# First bytes of lines: of a record, of one with an error id, of what continues either.
RECORD, WITH_ID, MORE = b"\x1e", b"\x1d", b"\x1f"
MARKS: Final = RECORD + WITH_ID + MORE
# A traceback begins with what led there and ends with what it was: of a longer record the middle is left out.
RECORD_BYTES: Final = 8192
LINE_BYTES: Final = 1024
# Of every allowance: so many lines (records) at once, and as many again after a rest, which doubles while they are
# used up faster than LINES_PER_S. A lane that never stops costs 200 lines in five minutes.
BURST: Final = 200
LINES_PER_S: Final = 2.0
FIRST_REST_S: Final = 1.0
LONGEST_REST_S: Final = 300.0

_MARKED_LINE: Final = re.compile(rb"^[" + MARKS + rb"]", re.MULTILINE)
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LEVELS: Final = {name[0].encode(): level for name, level in logging.getLevelNamesMapping().items() if level}

log = logging.getLogger("envserver.lane")


# ----------------------------------------------------------------------------------------------------- the lane's end


class LaneHandler(logging.Handler):
    """Records as marked lines on a descriptor, by one write each: what others print comes between two lines at most."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self.setFormatter(logging.Formatter("%(levelname).1s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record).encode(errors="backslashreplace")
            if len(text) > RECORD_BYTES:
                text = text[: RECORD_BYTES // 2] + b"\n...\n" + text[-RECORD_BYTES // 2 :]
            first = WITH_ID if record.levelno >= logging.ERROR else RECORD
            os.write(self._descriptor, first + text.replace(b"\n", b"\n" + MORE) + b"\n")
        except Exception:
            self.handleError(record)


def log_to(descriptor: int) -> None:
    """Send what this process logs as a lane there. The root logger is left to its environments."""
    logger = logging.getLogger("envserver")
    logger.handlers = [LaneHandler(descriptor)]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def without_marks(output: bytes) -> bytes:
    """As people want to see it."""
    return output.translate(None, MARKS)


# --------------------------------------------------------------------------------------------------- the server's end


class Allowance:
    """Says how much may pass; see BURST. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left = BURST
        self._began = self._opens_at = clock()
        self._rest_s = FIRST_REST_S

    @property
    def is_used_up(self) -> bool:
        return not self._left and self._clock() < self._opens_at

    def take(self) -> bool:
        """Whether one more may pass."""
        if self.is_used_up:
            return False
        now = self._clock()
        if not self._left:
            self._left, self._began = BURST, now
        self._left -= 1
        if not self._left:
            self._rest(now)
        return True

    def _rest(self, now: float) -> None:
        if now - self._began >= BURST / LINES_PER_S:
            self._opens_at, self._rest_s = now, FIRST_REST_S
        else:
            self._opens_at, self._rest_s = now + self._rest_s, min(2 * self._rest_s, LONGEST_REST_S)


class LaneLog:
    """Passes the output of one lane to the log of the server. `label` says whose it is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.label = ""
        self._prints = Allowance(clock)
        self._records = Allowance(clock)
        self._passes, self._level = False, logging.INFO  # of the record whose lines come now
        self._rest = b""  # a line that has not ended, or its beginning
        self._num_left_out = 0

    def feed(self, data: bytes) -> None:
        """More of the output. What may not pass is counted, not looked at."""
        data = self._rest + data
        at, end = 0, data.rfind(b"\n") + 1
        while at < end:
            if self._prints.is_used_up:
                at, start = _next_record(data, at, end), at
                self._num_left_out += data.count(b"\n", start, at)
            if at < end:
                stop = data.index(b"\n", at)
                self._take(data[at:stop])
                at = stop + 1
        self._rest = data[end:][:LINE_BYTES]

    def close(self) -> None:
        """There is no more."""
        if self._rest:
            self._take(self._rest)
            self._rest = b""
        self._say_left_out()

    def _take(self, line: bytes) -> None:
        mark = line[:1]
        if mark in (RECORD, WITH_ID):
            self._level = _LEVELS.get(line[1:2], logging.INFO)
            self._passes = mark == WITH_ID or self._records.take()
        if mark and mark in MARKS:
            if self._passes:
                self._write(self._level, line[1:] if mark == MORE else line[3:])
            else:
                self._num_left_out += 1
        elif self._prints.take():
            self._say_left_out()
            if line.strip():
                self._write(logging.INFO, line)
        else:
            self._num_left_out += 1

    def _say_left_out(self) -> None:
        count, self._num_left_out = self._num_left_out, 0
        if count:
            log.info("%s: %d lines left out", self.label, count)

    def _write(self, level: int, line: bytes) -> None:
        text = line[:LINE_BYTES].decode(errors="backslashreplace").rstrip()
        # Nothing in it may move the cursor of whoever looks at the log, or begin a line that looks like the server's.
        log.log(level, "%s: %s", self.label, _CONTROLS.sub("?", text))


def _next_record(data: bytes, at: int, end: int) -> int:
    """Where the next marked line begins, from the beginning of a line on; `end` where there is none."""
    if not any(mark in data for mark in (RECORD, WITH_ID, MORE)):  # far quicker than the expression
        return end
    found = _MARKED_LINE.search(data, at, end)
    return end if found is None else found.start()
