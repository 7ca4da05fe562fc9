"""What of a dead lane's output is worth sending: the crash report where there is one, else the end."""

from __future__ import annotations

import re
from typing import Final

from envserver.lane_log import without_marks

# How faulthandler begins: a crash, a hang. Stacks follow, most recent call first, then every extension module: where
# it must be cut, the beginning says more.
_REPORT: Final = re.compile(rb"Fatal Python error: |(Current t|T)hread 0x")
_REPORT_BYTES: Final = 8192
_BYTES: Final = 1500


def last_words(tail: bytes) -> str:
    """At most 1500 bytes of a lane's output, as text. A report that much was printed after is not of this death."""
    end = without_marks(tail[-_REPORT_BYTES:])
    report = _REPORT.search(end)
    kept = end[report.start() :][:_BYTES] if report else end[-_BYTES:]
    return kept.decode(errors="replace").strip()
