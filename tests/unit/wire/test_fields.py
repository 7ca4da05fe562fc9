"""Fields that are joined by hand against protobuf's own writer."""

from __future__ import annotations

import pytest

from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.fields import bytes_field_head


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 16383, 16384, 300_000, 2_097_151, 2_097_152])
def test_joined_fields_are_what_protobuf_writes(size: int) -> None:
    """For every length of the length, in a field of a low and of a high number."""
    data = bytes(size)
    assert bytes_field_head(1, size) + data == pb.StepResult(obs=[data]).SerializeToString()
    assert (
        bytes_field_head(13, size) + data
        == pb.StepResult(infos=[pb.InfoColumn()]).SerializeToString()[:1]
        + (pb.StepResult(obs=[data]).SerializeToString()[1:])
    )
