"""Blocks of rows as files: written once, shared by checkpoints, and never taken for what they are not."""

from __future__ import annotations

import copy
import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.buffers.replay import Replay, ReplayConfig, ReplayState
from asyncrl.errors import NoCheckpoint
from asyncrl.run.checkpoint_parts import Arrays, Blocks, Part
from asyncrl.run.checkpoints import CheckpointStore, load_checkpoint, load_newest
from asyncrl.run.files import PIECE_BYTES, Files
from asyncrl.run.manifests import Identity
from tests.unit.buffers.stories import a_story, spec_for
from tests.unit.run.failing_files import FailingFiles

IDENTITY = Identity("dqn", "CartPole-v1", "ab" * 32)


class Memory:
    """Blocks that change one by one; counts the reading."""

    def __init__(self, count: int, size: int = 100) -> None:
        self.bytes = [os.urandom(size) for _ in range(count)]
        self.versions = [1] * count
        self.life = os.urandom(4).hex()
        self.read: list[int] = []

    def change(self, block: int) -> None:
        self.bytes[block] = os.urandom(len(self.bytes[block]))
        self.versions[block] += 1

    def blocks(self) -> Blocks:
        """As they are now."""
        kept = list(self.bytes)

        def read(block: int) -> bytes:
            self.read.append(block)
            return kept[block]

        return Blocks(tuple(f"{self.life}.{block}.{version}" for block, version in enumerate(self.versions)), read)


class Linkless(Files):
    """A file system without hard links."""

    def link(self, path: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


class Sizing(Files):
    """Keeps the sizes of all writes."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        self.sizes.append(len(data))
        return super().write(descriptor, data)


def check(directory: Path, memory: Memory) -> None:
    """The newest whole checkpoint holds what the memory held when it was saved last."""
    found = load_newest(directory, IDENTITY).parts["rows"]
    assert isinstance(found, Blocks)
    wanted = memory.blocks()
    assert found.keys == wanted.keys
    assert [found.read(block) for block in range(len(found.keys))] == memory.bytes


@settings(max_examples=25)
@given(st.lists(st.sets(st.integers(0, 5)), max_size=6), st.booleans())
def test_blocks_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, changes: list[set[int]], linkless: bool
) -> None:
    """After any changes between any number of saves, with links or without; pruning an old one takes nothing away."""
    directory = tmp_path_factory.mktemp("c")
    store = CheckpointStore(directory, IDENTITY, keep=2, files=Linkless() if linkless else Files())
    memory = Memory(6)
    for step, changed in enumerate([set(), *changes]):
        for block in changed:
            memory.change(block)
        store.save(step, {"rows": memory.blocks()})
        check(directory, memory)


def test_only_blocks_that_changed_are_written(tmp_path: Path) -> None:
    """The others are the same file under one more name, and nobody reads their memory."""
    store = CheckpointStore(tmp_path, IDENTITY)
    memory = Memory(4)
    first = store.save(1, {"rows": memory.blocks()})
    memory.read.clear()
    memory.change(2)
    second = store.save(2, {"rows": memory.blocks()})
    assert memory.read == [2]
    shared = [(first / "rows.blocks" / str(i)).samefile(second / "rows.blocks" / str(i)) for i in range(4)]
    assert shared == [True, True, False, True]


def test_blocks_are_written_where_links_fail(tmp_path: Path) -> None:
    """From memory, so that every checkpoint stands alone."""
    store = CheckpointStore(tmp_path, IDENTITY, files=Linkless())
    memory = Memory(3)
    paths = [store.save(step, {"rows": memory.blocks()}) for step in (1, 2)]
    assert memory.read == [0, 1, 2, 0, 1, 2]
    assert not (paths[0] / "rows.blocks" / "0").samefile(paths[1] / "rows.blocks" / "0")


def test_a_block_that_never_was_has_no_file(tmp_path: Path) -> None:
    """A replay that is half full costs half."""
    path = CheckpointStore(tmp_path, IDENTITY).save(1, {"rows": Blocks(("", "a", ""), lambda block: b"x")})
    assert sorted(found.name for found in (path / "rows.blocks").iterdir()) == ["1", "index.json"]
    found = load_newest(tmp_path, IDENTITY).parts["rows"]
    assert isinstance(found, Blocks)
    assert found.keys == ("", "a", "")


def test_a_flipped_bit_in_a_block_is_seen(tmp_path: Path) -> None:
    """The checkpoint before loads, where it has a file of its own; what both share is lost to both, and said so."""
    store = CheckpointStore(tmp_path, IDENTITY)
    memory = Memory(2)
    store.save(1, {"rows": memory.blocks()})
    before = copy.deepcopy(memory)
    memory.change(1)
    newest = store.save(2, {"rows": memory.blocks()})
    for block in (1, 0):
        file = newest / "rows.blocks" / str(block)
        data = bytearray(file.read_bytes())
        data[7] ^= 4
        file.write_bytes(data)
        if block == 1:
            check(tmp_path, before)
    with pytest.raises(NoCheckpoint, match=r"step_2: 0 is not what was written; step_1: 0 is not what"):
        load_newest(tmp_path, IDENTITY)


@pytest.mark.parametrize("harm", ["a file that is missing", "an index that is missing", "a short file"])
def test_what_is_missing_is_seen(tmp_path: Path, harm: str) -> None:
    """The checkpoint before loads."""
    store = CheckpointStore(tmp_path, IDENTITY)
    memory = Memory(2)
    store.save(1, {"rows": memory.blocks()})
    path = store.save(2, {"rows": Memory(2).blocks()}) / "rows.blocks"
    file = path / ("index.json" if harm.startswith("an index") else "1")
    data = file.read_bytes()
    file.unlink()
    if harm == "a short file":
        file.write_bytes(data[:-1])
    check(tmp_path, memory)


def test_damaged_checkpoints_give_nothing_to_later_ones(tmp_path: Path) -> None:
    """After a walk back over one with a bad block, that block is written from memory."""
    memory = Memory(2)
    CheckpointStore(tmp_path, IDENTITY).save(1, {"rows": Memory(1).blocks()})
    newest = CheckpointStore(tmp_path, IDENTITY).save(2, {"rows": memory.blocks()})
    (newest / "rows.blocks" / "1").write_bytes(bytes(100))
    store = CheckpointStore(tmp_path, IDENTITY)
    assert store.load().step == 1
    store.save(3, {"rows": memory.blocks()})
    check(tmp_path, memory)


def test_no_write_of_a_block_is_large(tmp_path: Path) -> None:
    """At most 4 MiB at a time, however large a block is."""
    files = Sizing()
    CheckpointStore(tmp_path, IDENTITY, files=files).save(1, {"rows": Memory(1, 3 * PIECE_BYTES + 5).blocks()})
    assert PIECE_BYTES == 4 << 20
    assert max(files.sizes) == PIECE_BYTES
    assert sum(files.sizes) > 3 * PIECE_BYTES


def test_a_link_that_fails_costs_nothing(tmp_path: Path) -> None:
    """Whichever call of a save fails: it is whole or was not made. Where a link fails, it is whole."""
    links, fail_at, through = 0, 0, False
    while not through:
        fail_at += 1
        memory = Memory(3)
        directory = tmp_path / str(fail_at)
        CheckpointStore(directory, IDENTITY).save(1, {"rows": memory.blocks()})
        before = copy.deepcopy(memory)
        memory.change(1)
        memory.read.clear()
        files = FailingFiles(fail_at)
        saved = CheckpointStore(directory, IDENTITY, files=files).save_or_report(
            2, {"rows": memory.blocks()}, report=lambda _: None
        )
        check(directory, memory if saved else before)
        assert not load_newest(directory, IDENTITY).damaged
        links += 0 in memory.read or 2 in memory.read  # what had not changed was written
        through = files.calls < fail_at
    assert links == 2
    assert saved


def test_who_only_acts_does_not_look_at_blocks(tmp_path: Path) -> None:
    """Gigabytes are not read for an evaluation, and a replay that is damaged does not hinder it."""
    store = CheckpointStore(tmp_path, IDENTITY)
    path = store.save(1, {"rows": Memory(2).blocks(), "counters": {"x": 1}})
    (path / "rows.blocks" / "1").unlink()
    assert load_newest(tmp_path, IDENTITY, to_act=True).parts == {"counters": {"x": 1}}
    assert load_checkpoint(path, to_act=True).parts == {"counters": {"x": 1}}
    with pytest.raises(NoCheckpoint):
        load_checkpoint(path)


def test_a_replay_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Saved while it goes on, loaded in another life, saved again there: each time what it was, bit for bit."""
    spec, config = spec_for(True), ReplayConfig(200_000, 2, 3, prioritised=True)
    unrolls = list(a_story(7, 3000, [0, 1], 0.02).unrolls(list(range(0, 3000, 100))))
    replay, twin = Replay(spec, config), Replay(spec, config)
    for start in range(0, len(unrolls), 10):
        for unroll in unrolls[start : start + 10]:
            replay.insert(unroll)
            twin.insert(unroll)
        state = replay.state()
        replay.insert(unrolls[(start + 10) % len(unrolls)])  # before anything of the state was read
        parts: dict[str, Part] = {"replay": Blocks(state.keys, state.read), "rest": Arrays(state.arrays)}
        CheckpointStore(tmp_path, IDENTITY).save(start, parts)
        found = CheckpointStore(tmp_path, IDENTITY).load().parts
        blocks, rest = found["replay"], found["rest"]
        assert isinstance(blocks, Blocks)
        assert isinstance(rest, Arrays)
        replay = Replay(spec, config)
        replay.load(ReplayState(rest.arrays, blocks.keys, blocks.read))
        drawn = [each.sample(64, np.random.default_rng(start), 0.4) for each in (replay, twin)]
        for name in ("rows", "generations", "weights", "reward", "discount"):
            np.testing.assert_array_equal(getattr(drawn[0], name), getattr(drawn[1], name))
        for left, right in zip((*drawn[0].obs, *drawn[0].next_obs), (*drawn[1].obs, *drawn[1].next_obs), strict=True):
            np.testing.assert_array_equal(left, right)
