"""The job object of Windows: what of it can be checked elsewhere."""

from __future__ import annotations

import ctypes
import sys

import pytest

from envserver import job_object


@pytest.mark.skipif(ctypes.sizeof(ctypes.c_void_p) != 8, reason="sizes of a 64-bit system")
def test_structures_have_the_sizes_of_windows() -> None:
    """JOBOBJECT_BASIC_LIMIT_INFORMATION is 64 bytes, the extended one 144, and the flags are at offset 16."""
    assert ctypes.sizeof(job_object._BasicLimits) == 64
    assert ctypes.sizeof(job_object._ExtendedLimits) == 144
    assert job_object._BasicLimits.limit_flags.offset == 16


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has job objects")
def test_elsewhere_there_is_none() -> None:
    """Nothing pretends to work."""
    with pytest.raises(AttributeError):
        job_object.Job()
