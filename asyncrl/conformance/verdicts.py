"""How a check ends where it does not pass."""

from __future__ import annotations

from asyncrl.errors import AsyncRLError


class Failed(AsyncRLError):
    """The server did something that the protocol does not allow; the text says what, and what was due."""


class Skipped(AsyncRLError):
    """The check does not apply to this server; the text says why."""
