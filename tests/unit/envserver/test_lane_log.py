"""What of a lane's output passes into the server's log, and that nothing of it is halved, too long or too much."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator

import pytest

from envserver.lane_log import BURST, LINE_BYTES, LONGEST_REST_S, RECORD_BYTES, LaneHandler, LaneLog, without_marks

FLOOD = b"step\n" * 10_000


class Clock:
    """Time that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Lane:
    """A lane's end of the pipe and the server's, and what the log of the server got."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self.clock = Clock()
        self.lines = LaneLog(self.clock)
        self.lines.label = "lane 7"
        self._read, self._write = os.pipe()
        self.logger = logging.Logger("envserver.snapshots")
        self.logger.addHandler(LaneHandler(self._write))

    def written(self) -> bytes:
        """What the logger wrote since."""
        return os.read(self._read, 1 << 16)

    def heard(self) -> list[tuple[str, str]]:
        """Levels and texts since the last look."""
        records = [(record.levelname, record.getMessage()) for record in self._caplog.records]
        self._caplog.clear()
        assert all(text.startswith("lane 7: ") for _, text in records)
        return [(level, text.removeprefix("lane 7: ")) for level, text in records]

    def fail(self, text: str, level: int) -> bytes:
        """The bytes of a record with a traceback."""
        try:
            raise ValueError(text)
        except ValueError:
            self.logger.log(level, "%s failed", text, exc_info=True)
        return self.written()

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


@pytest.fixture
def lane(caplog: pytest.LogCaptureFixture) -> Iterator[Lane]:
    caplog.set_level(logging.INFO, "envserver.lane")
    made = Lane(caplog)
    yield made
    made.close()


def test_prints_and_records_keep_their_level(lane: Lane) -> None:
    """What an environment prints is INFO; a record of ours has the level that it was logged with, on every line."""
    lane.lines.feed(b"hello\n\n  indented\n" + lane.fail("the simulator", logging.WARNING) + b"there")
    heard = lane.heard()
    assert heard[:2] == [("INFO", "hello"), ("INFO", "  indented")]
    assert heard[2] == ("WARNING", "envserver.snapshots: the simulator failed")
    assert heard[3] == ("WARNING", "Traceback (most recent call last):")
    assert heard[-1] == ("WARNING", "ValueError: the simulator")
    lane.lines.close()
    assert lane.heard() == [("INFO", "there")]


def test_an_environment_that_prints_all_the_time(lane: Lane) -> None:
    """An allowance, then nothing; how much that was is said once, when there is more or the lane ends."""
    for _ in range(50):
        lane.lines.feed(FLOOD)
    assert lane.heard() == [("INFO", "step")] * BURST
    lane.clock.now += 1.0
    lane.lines.feed(FLOOD)
    assert lane.heard() == [("INFO", f"{500_000 - BURST} lines left out"), *[("INFO", "step")] * BURST]
    lane.lines.close()
    assert lane.heard() == [("INFO", f"{10_000 - BURST} lines left out")]


def test_rests_double_for_those_who_never_stop(lane: Lane) -> None:
    """An hour of ten lines a second is a few allowances; an hour of a line a second passes whole."""
    for _ in range(36_000):
        lane.clock.now += 0.1
        lane.lines.feed(b"step\n")
    assert len([text for _, text in lane.heard() if text == "step"]) <= BURST * (10 + 3600 / LONGEST_REST_S)
    lane.clock.now += LONGEST_REST_S
    lane.lines.feed(b"step\n")
    lane.heard()
    for _ in range(3600):
        lane.clock.now += 1.0
        lane.lines.feed(b"step\n")
    assert lane.heard() == [("INFO", "step")] * 3600


def test_an_id_is_found_however_much_is_printed(lane: Lane) -> None:
    """In the middle of a flood, after hours of others, and thousands of records later."""
    for _ in range(1000):
        lane.lines.feed(lane.fail("slot 0", logging.WARNING))
    lane.heard()
    lane.lines.feed(FLOOD + lane.fail("error 4851f0e9", logging.ERROR) + FLOOD)
    errors = [text for level, text in lane.heard() if level == "ERROR"]
    assert errors[0] == "envserver.snapshots: error 4851f0e9 failed"
    assert errors[-1] == "ValueError: error 4851f0e9"


def test_a_flood_hides_no_record(lane: Lane) -> None:
    """What the lane itself has to say has an allowance of its own."""
    lane.lines.feed(FLOOD + lane.fail("slot 0", logging.WARNING))
    assert lane.heard()[-1] == ("WARNING", "ValueError: slot 0")


def test_records_are_never_halved(lane: Lane) -> None:
    """When their allowance is used up they are left out whole, also where prints come between their lines."""
    record = lane.fail("slot 0", logging.WARNING)
    size = record.count(b"\n")
    lane.lines.feed(record.replace(b"\n", b"\nprinted\n") * (BURST + 3))
    heard = lane.heard()
    assert sum(level == "WARNING" for level, _ in heard) == BURST * size
    assert [text for level, text in heard if level == "WARNING"][-1] == "ValueError: slot 0"


def test_any_split_gives_the_same_lines(lane: Lane) -> None:
    """However the bytes come."""
    data = b"one\n" + lane.fail("two", logging.WARNING) + b"\xc3\xa9 three\n" + lane.fail("four", logging.ERROR)
    lane.lines.feed(data)
    whole = lane.heard()
    rng = random.Random(7)
    for _ in range(50):
        cuts = sorted(rng.sample(range(len(data)), 5))
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            lane.lines.feed(data[begin:end])
        assert lane.heard() == whole


def test_lines_are_cut_and_records_too(lane: Lane) -> None:
    """A line that never ends is not kept either; of a long record beginning and end are."""
    for _ in range(1000):
        lane.lines.feed(b"x" * 5000)
        assert len(lane.lines._rest) <= LINE_BYTES
    lane.lines.feed(b"\n")
    assert lane.heard() == [("INFO", "x" * LINE_BYTES)]
    lane.logger.error("begin %s end", "y\n" * RECORD_BYTES)
    data = lane.written()
    assert len(data) < 2 * RECORD_BYTES
    lane.lines.feed(data)
    heard = lane.heard()
    assert heard[0] == ("ERROR", "envserver.snapshots: begin y")
    assert heard[-1] == ("ERROR", " end")


def test_what_is_printed_moves_no_cursor(lane: Lane) -> None:
    """Neither escape sequences nor a carriage return reach the terminal of whoever looks at the log."""
    lane.lines.feed(b"\x1b[2Jgone\r08:00:00 E envserver: forged\n\xff\n")
    assert lane.heard() == [("INFO", "?[2Jgone?08:00:00 E envserver: forged"), ("INFO", "\\xff")]


def test_people_see_no_marks(lane: Lane) -> None:
    """The tail that a client gets has the text alone."""
    shown = without_marks(lane.fail("slot 0", logging.WARNING)).decode()
    assert shown.startswith("W envserver.snapshots: slot 0 failed\nTraceback")
    assert shown.isprintable() or set(filter(lambda each: not each.isprintable(), shown)) == {"\n"}
