"""The version of this package, which both ends tell each other for people to read. The protocol has its own."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
