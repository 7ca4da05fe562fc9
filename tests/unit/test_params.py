"""The parameter mailbox under threads that write and read as fast as they can."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from asyncrl.errors import LocalProtocolError
from asyncrl.params import ParamMailbox
from asyncrl.wire.tensors import Array

LONG_S = 30.0


def a_box(size: int = 4) -> ParamMailbox[Array]:
    return ParamMailbox((np.full(size, -1), np.full(size, -1)))


def test_no_torn_reads() -> None:
    """Payloads are arrays of one value, their version: what three readers copy is whole, and never goes back."""
    box, last, torn = a_box(200_000), 300, []
    seen: list[list[int]] = [[], [], []]

    def write() -> None:
        for version in range(last + 1):
            with box.writing(version) as payload:
                payload[: len(payload) // 2] = version
                payload[len(payload) // 2 :] = version

    def read(versions: list[int]) -> None:
        version = -1
        while version < last:
            with box.reading(newer_than=version) as parcel:
                if parcel is None:
                    continue
                copied = parcel.payload.copy()
            if not (copied == parcel.version).all():
                torn.append(parcel.version)
            version = parcel.version
            versions.append(version)

    threads = [threading.Thread(target=write), *(threading.Thread(target=read, args=(each,)) for each in seen)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive()
    assert torn == []
    for versions in seen:
        assert versions == sorted(set(versions))
        assert versions[-1] == last


def test_the_newest_is_read_and_versions_grow() -> None:
    """Three writes and one read: the third. Nothing newer is None; an older version is refused."""
    box = a_box()
    assert box.version == -1
    with box.reading() as parcel:
        assert parcel is None
    for version in (0, 1, 5):
        with box.writing(version) as payload:
            payload[:] = version
    assert box.version == 5
    with box.reading(newer_than=1) as parcel:
        assert parcel is not None
        assert parcel.version == 5
        assert parcel.payload.tolist() == [5] * 4
    with box.reading(newer_than=5) as parcel:
        assert parcel is None
    for version in (4, 5):
        with pytest.raises(LocalProtocolError, match="after version 5"), box.writing(version):
            pass


def test_a_failed_write_publishes_nothing() -> None:
    """An exception in the middle of a write: the version before is still whole, and the next write works."""
    box = a_box()
    with box.writing(0) as payload:
        payload[:] = 7
    with pytest.raises(ZeroDivisionError), box.writing(1) as payload:
        _write_half(payload)
    with box.reading() as parcel:
        assert parcel is not None
        assert (parcel.version, parcel.payload.tolist()) == (0, [7] * 4)
    with box.writing(1) as payload:
        payload[:] = 8
    assert box.version == 1


def _write_half(payload: Array) -> None:
    payload[:2] = 99
    raise ZeroDivisionError


def test_a_reader_never_waits() -> None:
    """In the middle of a write the version before is there to read, by this very thread."""
    box = a_box()
    with box.writing(0) as payload:
        payload[:] = 0
    with box.writing(1) as payload:
        payload[:] = 1
        with box.reading() as parcel:
            assert parcel is not None
            assert parcel.payload.tolist() == [0] * 4
            assert parcel.payload is not payload


def test_a_writer_waits_for_the_set_that_is_read() -> None:
    """A reader holds version 0: version 1 is written beside it, version 2 has to wait until the reader is through."""
    box, waited = a_box(), threading.Event()
    with box.writing(0) as payload:
        payload[:] = 0

    def write() -> None:
        for version in (1, 2):
            with box.writing(version) as payload:
                payload[:] = version
        waited.set()

    thread = threading.Thread(target=write)
    with box.reading() as parcel:
        assert parcel is not None
        thread.start()
        assert not waited.wait(0.05)
        assert box.version == 1
        assert parcel.payload.tolist() == [0] * 4
    assert waited.wait(LONG_S)
    thread.join()
    assert box.version == 2


def test_one_writer_at_a_time() -> None:
    """A second writer is a mistake, and is told so instead of waiting for ever."""
    box = a_box()
    with box.writing(0), pytest.raises(LocalProtocolError, match="one writer"), box.writing(1):
        pass
