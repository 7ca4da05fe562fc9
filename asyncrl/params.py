"""`ParamMailbox`: the newest parameters, from the learner to whoever acts; two sets of memory, no queue.

The mailbox knows nothing of what it carries. The learner copies into the set that is not the newest, which makes it
the newest; the reader copies out of the newest one. Where copies are asynchronous, the payload holds the event that
ends them.

Guard: `_changed`'s lock holds for every attribute. It is never held while a payload is copied: `_readers` and
`_writing` keep the other side off a set meanwhile.

Invariants: what is read is one version whole (test_no_torn_reads); versions only grow, and the newest is read
(test_the_newest_is_read_and_versions_grow); a write that fails publishes nothing
(test_a_failed_write_publishes_nothing); a reader never waits for a writer (test_a_reader_never_waits).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

from asyncrl.errors import LocalProtocolError

P = TypeVar("P")


class Parcel(NamedTuple, Generic[P]):
    """One version of the payload."""

    version: int
    payload: P


class ParamMailbox(Generic[P]):
    """`sets`: two payloads of the same form, which the mailbox lends out and never replaces."""

    def __init__(self, sets: tuple[P, P]) -> None:
        self._sets = sets
        self._changed = threading.Condition()
        self._newest = 0
        self._version = -1
        self._readers = [0, 0]
        self._writing = False

    @property
    def version(self) -> int:
        """The newest published; -1 before the first."""
        with self._changed:
            return self._version

    @contextmanager
    def writing(self, version: int) -> Iterator[P]:
        """The set to fill with `version`, which is published when the block ends without an exception.

        Waits for a reader that still copies the version before the newest.
        """
        with self._changed:
            if self._writing:
                raise LocalProtocolError("a mailbox has one writer at a time")
            if version <= self._version:
                raise LocalProtocolError(f"version {version} after version {self._version}")
            self._writing = True
            index = 1 - self._newest
            while self._readers[index]:
                self._changed.wait()
        try:
            yield self._sets[index]
            with self._changed:
                self._newest, self._version = index, version
        finally:
            with self._changed:
                self._writing = False

    @contextmanager
    def reading(self, newer_than: int = -1) -> Iterator[Parcel[P] | None]:
        """The newest version, which nobody writes into during the block; None if there is none after `newer_than`."""
        with self._changed:
            index, version = self._newest, self._version
            is_newer = version > newer_than
            self._readers[index] += is_newer
        try:
            yield Parcel(version, self._sets[index]) if is_newer else None
        finally:
            with self._changed:
                self._readers[index] -= is_newer
                self._changed.notify_all()
