"""Staging on the CPU, in place and through its buffers, which is the way that CUDA goes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asyncrl.learner.staging import Staging

CPU = torch.device("cpu")


@pytest.mark.parametrize("share", [True, False], ids=["in place", "through buffers"])
def test_values_go_through_the_buffers_unchanged(share: bool) -> None:
    """Arrays of every kind, read-only ones too, come back equal, with more rows and with fewer."""
    staging = Staging(CPU, share=share)
    for rows in (3, 10, 2, 40):
        frames = np.frombuffer(np.random.default_rng(rows).bytes(rows * 6), np.uint8).reshape(rows, 2, 3)
        flags = np.arange(rows) % 2 == 0
        up = staging.upload("obs", [frames, flags])
        other = staging.upload("carry", [np.full((rows, 2), 7.0)])
        down = staging.download([*up, *other])
        assert np.array_equal(down[0], frames)
        assert np.array_equal(down[1], flags)
        assert down[2].dtype == np.float64
        assert (down[2] == 7.0).all()
        assert not frames.flags.writeable


def test_what_comes_down_is_not_written_again() -> None:
    """The next call leaves the arrays of this one as they are."""
    staging = Staging(CPU, share=False)
    first = staging.download(staging.upload("obs", [np.array([1, 2])]))
    second = staging.download(staging.upload("obs", [np.array([3, 4])]))
    assert first[0].tolist() == [1, 2]
    assert second[0].tolist() == [3, 4]


def test_buffers_are_kept() -> None:
    """As many rows again, or fewer, take no new memory."""
    staging = Staging(CPU, share=False)
    places = {staging.upload("obs", [np.zeros((rows, 3))])[0].data_ptr() for rows in (8, 8, 3, 10)}
    assert len(places) == 1


def test_arrays_of_the_cpu_are_used_in_place() -> None:
    """No copy where none is needed."""
    array = np.zeros(4)
    (tensor,) = Staging(CPU).upload("obs", [array])
    array[0] = 5.0
    assert tensor[0].item() == 5.0
