"""The server's log goes to a pipe that somebody reads, or not."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator

import pytest

from envserver.server_log import NeverWaitingHandler

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it waits there")


@pytest.fixture
def pipe() -> Iterator[tuple[int, logging.Logger]]:
    """Its read end, and a logger that writes to the other one."""
    readable, writable = os.pipe()
    logger = logging.Logger("envserver")
    logger.addHandler(NeverWaitingHandler(writable))
    yield readable, logger
    os.close(writable)


def test_a_pipe_that_nobody_reads_holds_up_nothing(pipe: tuple[int, logging.Logger]) -> None:
    """Far more than it holds is logged, in pieces that do not fit either; the reader is told how much it missed."""
    readable, logger = pipe
    for number in range(100):
        logger.info("record %d %s", number, "x" * 10_000)
    held = os.read(readable, 1 << 20)
    assert b"record 0 x" in held
    logger.info("the last one")
    rest = os.read(readable, 1 << 20).decode()
    missed = 100 - (held.count(b"\n"))
    assert rest.startswith(f"\n{missed} records left out")
    assert rest.endswith(" I envserver: the last one\n")
    os.close(readable)


def test_a_reader_that_is_gone_is_no_error(
    pipe: tuple[int, logging.Logger], capsys: pytest.CaptureFixture[str]
) -> None:
    """The parent of an embedded server was killed: there is nobody to tell."""
    readable, logger = pipe
    os.close(readable)
    logger.info("hello")
    assert capsys.readouterr().err == ""
