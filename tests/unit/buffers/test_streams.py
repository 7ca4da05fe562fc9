"""Where rows go, against a count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrl.buffers.stacks import Follows
from asyncrl.buffers.streams import Placed, Streams
from asyncrl.buffers.windows import Windows, windows_of
from asyncrl.records import Unroll
from tests.unit.buffers.stories import Happened, Seen, Story, a_story


def placed(streams: Streams, unroll: Unroll, follows: Follows) -> Placed:
    """Place it, and move on."""
    where = streams.place(unroll, streams.goes_on(unroll), follows)
    rows = streams.columns(unroll, where, unroll.reward, None)
    windows: Windows = windows_of(rows, len(streams.tail.valid), 0.9)
    streams.advance(unroll, where, rows, windows)
    return where


def story_of(*ends: str) -> Story:
    """One slot; "void" is a void row."""
    seen = next(iter(a_story(0, 1, [0], 0.0).slots))[0].seen
    assert isinstance(seen, Seen)
    rows, episode, t = [], 0, 0
    for number, end in enumerate(ends):
        if end == "void":
            rows.append(Happened(number, None))
            continue
        rows.append(Happened(number, seen, seen, 1.0, end, (0, episode, t)))
        episode, t = (episode + 1, 0) if end else (episode, t + 1)
    return Story([rows], [0])


def only(story: Story) -> Unroll:
    (unroll,) = story.unrolls([])
    return unroll


def test_positions_by_hand() -> None:
    """Depth 3: a stack that stands apart takes three positions, an end's or a head's observation one, or three."""
    unroll = only(story_of("", "", "truncated", "", "terminated", "void", ""))
    follows = Follows(
        own=np.array([[False], [True], [True], [False], [True], [False], [False]]),
        end=np.array([False]),
        head=np.array([True]),
    )
    streams = Streams(1, 1, 3)
    where = placed(streams, unroll, follows)
    valid = unroll.valid[:, 0]
    #   [f f 0] [1] [2] [f f end] [f f 3] [4] (void) [f f 6] [head]
    assert where.own[valid, 0].tolist() == [2, 3, 4, 10, 11, 14]
    assert where.own_apart[:, 0].tolist() == [True, False, False, True, False, False, True]
    assert where.end.tolist() == [7]
    assert where.end_apart.tolist() == [True]
    assert (where.head.tolist(), where.head_apart.tolist()) == ([15], [False])
    assert (streams.stop.tolist(), streams.top.tolist()) == ([15], [16])


def test_the_next_row_takes_the_heads_place() -> None:
    """Where the episode goes on; else the head stays, as the last observation of an episode that was cut."""
    first, second = story_of("", "", "", "").unrolls([2])
    for goes_on in (True, False):
        streams = Streams(1, 1, 1)
        placed(streams, first, Follows.everywhere(first))
        assert (streams.stop.tolist(), streams.top.tolist()) == ([2], [3])
        second.t[...] = [[2], [3]] if goes_on else [[7], [8]]
        assert streams.goes_on(second).tolist() == [goes_on]
        where = placed(streams, second, Follows.everywhere(second))
        assert where.own[:, 0].tolist() == ([2, 3] if goes_on else [3, 4])


@pytest.mark.parametrize(("name", "change"), [("incarnation", 1), ("episode", 1), ("t", 1), ("t", -1)])
def test_what_has_another_name_does_not_go_on(name: str, change: int) -> None:
    """Another incarnation, episode or step than the next one."""
    first, second = story_of("", "", "", "").unrolls([2])
    streams = Streams(1, 1, 1)
    placed(streams, first, Follows.everywhere(first))
    assert streams.goes_on(second).tolist() == [True]
    getattr(second, name)[...] += change
    assert streams.goes_on(second).tolist() == [False]


@pytest.mark.parametrize("end", ["terminated", "truncated", "soft", "void"])
def test_nothing_goes_on_after_an_end(end: str) -> None:
    """Whatever the names say."""
    first, second = story_of("", end, "", "").unrolls([2])
    streams = Streams(1, 1, 1)
    placed(streams, first, Follows.everywhere(first))
    second.incarnation[...], second.episode[...], second.t[...] = 0, 0, [[2], [3]]
    assert not streams.goes_on(second).any()
    assert streams.is_bare.tolist() == [end in ("terminated", "soft")]


def test_slots_that_are_not_in_an_unroll_stay_as_they_are() -> None:
    """Lanes hand over their own slots alone."""
    streams = Streams(4, 2, 1)
    unroll = only(a_story(3, 6, [3, 1], 0.2))
    placed(streams, unroll, Follows.everywhere(unroll))
    before = {name: array.copy() for name, array in streams.state().items()}
    other = only(a_story(4, 6, [0, 2], 0.2))
    placed(streams, other, Follows.everywhere(other))
    for name, array in streams.state().items():
        np.testing.assert_array_equal(array[..., [1, 3]], before[name][..., [1, 3]])
    assert (streams.stop[[0, 2]] > 0).all()
