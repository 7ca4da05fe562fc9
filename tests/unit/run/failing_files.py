"""A disk on which a chosen call fails."""

from __future__ import annotations

import errno
import os
from typing import Any

from asyncrl.run.files import Files


class FailingFiles(Files):
    """Fails at the `fail_at`th call, and at all later ones while `for_good`."""

    def __init__(self, fail_at: int = 0, number: int = errno.ENOSPC, *, for_good: bool = False) -> None:
        self.calls = 0
        self.fail_at = fail_at
        self.number = number
        self.for_good = for_good

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name.startswith("_") or not callable(method) or name == "close":
            return method
        self.calls += 1
        if self.fail_at and (self.calls == self.fail_at or (self.for_good and self.calls > self.fail_at)):
            raise OSError(self.number, os.strerror(self.number))
        return method
