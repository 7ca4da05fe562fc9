"""What a client may read of an exception in an environment: type, message and place, without paths or secrets."""

from __future__ import annotations

import re
import traceback
from pathlib import PurePath
from typing import Final

MAX_TEXT: Final = 2048
_PATH: Final = re.compile(r"(?:[A-Za-z]:\\|\\\\|(?<![\w.])~?/)[^\s'\",;:()<>]*[/\\]([^\s'\",;:()<>/\\]*)")
# Long runs of hex or base64: keys, tokens, digests.
_SECRET: Final = re.compile(r"\b(?=[A-Za-z0-9+_-]*\d)[A-Za-z0-9+_-]{24,}={0,2}")


def describe(error: BaseException, during: str) -> str:
    """At most 2 KiB: `step raised ValueError: ... (env.py:12)`; the whole traceback belongs in the server's log."""
    try:
        message = str(error)
    except Exception:
        message = "(its text cannot be had)"
    # The place comes last: cut the message, not the place.
    place = _place(error)
    head = f"{during} raised {type(error).__name__}: {redact(message[: 4 * MAX_TEXT])}"
    room = MAX_TEXT - len(place.encode())
    return head.encode(errors="replace")[:room].decode(errors="ignore") + place


def redact(text: str) -> str:
    """Directories of paths and long secrets taken out."""
    return _SECRET.sub("***", _PATH.sub(r".../\1", text))


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    return f" ({PurePath(frames[-1].filename).name[:80]}:{frames[-1].lineno})"
