"""Specs that are asked for, with lane processes that live in memory."""

from __future__ import annotations

import asyncio

import pytest

from asyncrl.errors import ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import error_body
from envserver.describing import MAX_REMEMBERED, PROBES, Specs
from envserver.lane_socket import PREPARED
from tests.unit.envserver.memory_lane import SPEC, settle
from tests.unit.envserver.test_preparing import PREPARED_BODY, Starter

REFUSED = (pb.ERROR, error_body("BUILD_FAILED", "no ROM"))


async def test_many_who_ask_at_once_cost_one_process() -> None:
    """Forty calls for one spec share a process, whichever way they write its kwargs; so do later ones."""
    start = Starter()
    specs = Specs(start)
    ways = (b'{"a": 1, "b": 2}', b'{"b":2,"a":1}')
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(specs.of("toy", ways[number % 2])) for number in range(40)]
    assert {task.result().spec_hash for task in asked} == {SPEC.hash()}
    await specs.of("toy", ways[0])
    assert len(start.made) == 1
    await specs.of("toy", b"")
    assert len(start.made) == 2


async def test_different_specs_wait_for_their_turn() -> None:
    """Of forty specs two are being found out at any time."""
    start = Starter("hang")
    specs = Specs(start)
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(specs.of(f"toy{number}", b"")) for number in range(40)]
        await settle(50)
        assert len(start.made) == PROBES
        start.made[0].on_message(PREPARED, 0, PREPARED_BODY)
        await settle(50)
        assert [backend.closed for backend in start.made] == [True, False, False]
        for task in asked:
            task.cancel()
    assert all(backend.closed for backend in start.made)


async def test_a_refusal_is_told_to_everybody_and_not_kept() -> None:
    """Who waits for a build that fails hears why; who asks afterwards has it tried again."""
    start = Starter(REFUSED)
    specs = Specs(start)
    outcomes = await asyncio.gather(*(specs.of("toy", b"") for _ in range(5)), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["BUILD_FAILED: no ROM"] * 5
    assert len(start.made) == 1
    start.answer = (PREPARED, PREPARED_BODY)
    assert (await specs.of("toy", b"")).spec_hash == SPEC.hash()


async def test_who_leaves_takes_only_its_own_process_along() -> None:
    """The one that had the process built is cancelled: the next one of those who wait has another built."""
    start = Starter("hang")
    specs = Specs(start)
    async with asyncio.TaskGroup() as group:
        first, second, third = (group.create_task(specs.of("toy", b"")) for _ in range(3))
        await settle()
        second.cancel()
        await settle()
        assert not start.made[0].closed
        start.answer = (PREPARED, PREPARED_BODY)
        first.cancel()
    assert third.result().spec_hash == SPEC.hash()
    assert [backend.closed for backend in start.made] == [True, True]


async def test_what_is_remembered_is_bounded() -> None:
    """A client that invents kwargs makes the server forget the oldest, and nothing more."""
    start = Starter()
    specs = Specs(start)
    for number in range(MAX_REMEMBERED + 1):
        await specs.of("toy", b'{"a": %d}' % number)
    assert len(start.made) == MAX_REMEMBERED + 1
    await specs.of("toy", b'{"a": 1}')
    assert len(start.made) == MAX_REMEMBERED + 1
    await specs.of("toy", b'{"a": 0}')
    assert len(start.made) == MAX_REMEMBERED + 2


async def test_kwargs_that_are_no_json_are_refused() -> None:
    """Before any process is built."""
    start = Starter(REFUSED)
    with pytest.raises(Exception, match="not JSON"):
        await Specs(start).of("toy", b"{")
    assert not start.made
    with pytest.raises(ServerRefused):
        await Specs(start).of("toy", b"{}")
