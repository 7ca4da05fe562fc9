"""Checkpoints under every failure of the disk: what was there still loads, and nothing is left lying about."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.errors import CheckpointMismatch, CheckpointNotSaved, NoCheckpoint
from asyncrl.run.checkpoint_parts import Arrays, Blocks, Part, Tensors
from asyncrl.run.checkpoints import Checkpoint, CheckpointStore, load_checkpoint, load_newest
from asyncrl.run.files import Files
from asyncrl.run.manifests import Identity
from tests.unit.run.failing_files import FailingFiles

IDENTITY = Identity("ppo", "CartPole-v1", "ab" * 32)


def parts_of(step: int, size: int = 10) -> dict[str, Part]:
    """A state that says which step it is of."""
    return {
        "model": Tensors({"w": np.full((size, 10), step, "f4"), "b": np.array(step)}, frozenset()),
        "replay": Arrays({"obs": np.full(size, step % 256, "u1")}),
        "rows": Blocks(("of all", f"of {step}", ""), lambda block: bytes([step % 256 if block else 9]) * 50),
        "counters": {"step": step},
    }


def check(found: Checkpoint, step: int) -> None:
    """All parts are those of that very step."""
    model, replay, rows = found.parts["model"], found.parts["replay"], found.parts["rows"]
    assert isinstance(model, Tensors)
    assert isinstance(replay, Arrays)
    assert isinstance(rows, Blocks)
    assert rows.keys == ("of all", f"of {step}", "")
    assert [rows.read(0), rows.read(1)] == [bytes([9]) * 50, bytes([step % 256]) * 50]
    assert found.step == step
    assert found.parts["counters"] == {"step": step}
    assert (model.arrays["w"] == step).all()
    assert (replay.arrays["obs"] == step % 256).all()


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def calls_of_a_save(directory: Path) -> int:
    files = FailingFiles()
    store = CheckpointStore(directory, IDENTITY, keep=2, files=files)
    for step in (1, 2, 3):
        before = files.calls
        store.save(step, parts_of(step))
    return files.calls - before


TENSOR_PARTS = st.builds(lambda n, v: Tensors({"x": np.full(n, v, "f4")}), st.integers(0, 9), st.integers(0, 99))
ARRAY_PARTS = st.builds(lambda n, v: Arrays({"x": np.full(n, v, "i8")}), st.integers(0, 9), st.integers(0, 99))
JSON_PARTS = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=3)
PARTS = st.dictionaries(
    st.from_regex(r"[a-z0-9_]{1,8}", fullmatch=True).filter(lambda name: name != "manifest"),
    TENSOR_PARTS | ARRAY_PARTS | JSON_PARTS,
    max_size=4,
)


@settings(max_examples=30)
@given(PARTS, st.integers(0, 1 << 60), st.dictionaries(st.text(max_size=5), st.floats() | st.integers(), max_size=3))
def test_what_is_saved_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, parts: dict[str, Part], step: int, info: dict[str, Any]
) -> None:
    """Any parts under any names, with step, identity and info."""
    store = CheckpointStore(tmp_path_factory.mktemp("c"), IDENTITY)
    path = store.save(step, parts, info)
    found = store.load()
    assert (found.path, found.step, found.manifest.identity) == (path, step, IDENTITY)
    assert json.dumps(found.manifest.info) == json.dumps(dict(sorted(info.items())))
    assert found.parts.keys() == parts.keys()
    for name, part in parts.items():
        other = found.parts[name]
        assert type(other) is type(part)
        if isinstance(part, Tensors | Arrays) and isinstance(other, Tensors | Arrays):
            np.testing.assert_array_equal(part.arrays["x"], other.arrays["x"])
        else:
            assert part == other


def test_the_newest_and_the_best_stay(tmp_path: Path) -> None:
    """Three by default, the marked one beside them for as long as it is marked; LATEST names the newest."""
    store = CheckpointStore(tmp_path, IDENTITY)
    best = store.save(1, parts_of(1))
    store.mark_best(best, 9.5)
    for step in (2, 3, 4, 5):
        store.save(step, parts_of(step))
    assert names(tmp_path) == {"step_1", "step_3", "step_4", "step_5", "LATEST", "BEST"}
    assert (tmp_path / "LATEST").read_text() == "step_5\n"
    assert store.best() == (best, 9.5)
    check(load_checkpoint(best, IDENTITY), 1)
    store.mark_best(tmp_path / "step_5", 10.0)
    store.save(6, parts_of(6))
    assert names(tmp_path) == {"step_4", "step_5", "step_6", "LATEST", "BEST"}


def test_one_out_of_turn_is_not_the_newest(tmp_path: Path) -> None:
    """Saved late, with the serial of its turn: it is there until the next save, and LATEST and loading pass it by."""
    store = CheckpointStore(tmp_path, IDENTITY, keep=2)
    for step in (20, 30, 40):
        store.save(step, parts_of(step), serial=step)
    late = store.save(10, parts_of(10), serial=10)
    assert names(tmp_path) == {"step_10", "step_30", "step_40", "LATEST"}
    assert (tmp_path / "LATEST").read_text() == "step_40\n"
    check(store.load(), 40)
    check(load_checkpoint(late), 10)
    store.save(50, parts_of(50), serial=50)
    assert names(tmp_path) == {"step_40", "step_50", "LATEST"}


def test_a_step_may_come_twice(tmp_path: Path) -> None:
    """The later one loads, the earlier one is not touched; the same after a return to an earlier step."""
    store = CheckpointStore(tmp_path, IDENTITY, keep=9)
    first = store.save(5, {"counters": {"x": 1}})
    assert store.save(5, {"counters": {"x": 2}}) != first
    assert store.load().parts["counters"] == {"x": 2}
    store.save(3, parts_of(3))
    check(store.load(), 3)
    assert load_checkpoint(first).parts["counters"] == {"x": 1}


@pytest.mark.parametrize("for_good", [False, True])
def test_E2_the_newest_whole_one_loads_whichever_call_fails(tmp_path: Path, for_good: bool) -> None:
    """Every call of a save fails in turn, alone or with all after it: the newest that was saved loads."""
    total = calls_of_a_save(tmp_path / "counting")
    assert total > 15
    saved_anyway = 0
    for fail_at in range(1, total + 1):
        directory = tmp_path / f"{fail_at}"
        CheckpointStore(directory, IDENTITY, keep=2).save(1, parts_of(1))
        CheckpointStore(directory, IDENTITY, keep=2).save(2, parts_of(2))
        store = CheckpointStore(directory, IDENTITY, keep=2, files=FailingFiles(fail_at, for_good=for_good))
        try:
            store.save(3, parts_of(3))
            expected = 3
            saved_anyway += 1
        except CheckpointNotSaved:
            expected = 2
        check(load_newest(directory, IDENTITY), expected)
        if not for_good:
            assert len([name for name in names(directory) if name.startswith(".tmp")]) <= 1
        CheckpointStore(directory, IDENTITY, keep=2).save(4, parts_of(4))
        check(load_newest(directory, IDENTITY), 4)
        assert not [name for name in names(directory) if name.startswith(".tmp")]
    assert 0 < saved_anyway < total


class TracingFiles(Files):
    """Says what was called on what."""

    def __init__(self) -> None:
        self.trace: list[str] = []
        self._paths: dict[int, str] = {}

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self._paths[descriptor] = path.name
        return descriptor

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        self.trace.append(f"write {self._paths[descriptor]}")
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self.trace.append(f"sync {self._paths[descriptor]}")
        super().sync(descriptor)

    def sync_directory(self, path: Path) -> None:
        self.trace.append(f"sync {path.name}")
        super().sync_directory(path)

    def rename(self, path: Path, target: Path) -> None:
        self.trace.append(f"rename {path.name} {target.name}")
        super().rename(path, target)

    def replace(self, path: Path, target: Path) -> None:
        self.trace.append(f"rename {path.name} {target.name}")
        super().replace(path, target)


def test_E2_everything_is_on_the_disk_before_it_gets_its_name(tmp_path: Path) -> None:
    """Each file is synced after its last write, then their directory, then it is renamed, then the parent is."""
    files = TracingFiles()
    CheckpointStore(tmp_path / "c", IDENTITY, files=files).save(1, parts_of(1))
    trace = files.trace
    name = trace.index("rename .tmp-step_1 step_1")
    for file in ("model.safetensors", "replay.npz", "counters.json", "manifest.json"):
        last_write = max(index for index, call in enumerate(trace) if call == f"write {file}")
        assert last_write < trace.index(f"sync {file}") < trace.index("sync .tmp-step_1")
    assert trace.index("sync .tmp-step_1") < name
    assert trace[name + 1 :] == [
        "sync c",
        "write .tmp-LATEST",
        "sync .tmp-LATEST",
        "rename .tmp-LATEST LATEST",
        "sync c",
    ]


class Killed(BaseException):
    """The end of the process, as far as this one can play it."""


class StoppingFiles(FailingFiles):
    """From the `fail_at`th call on nothing is called any more, as after SIGKILL."""

    def __getattribute__(self, name: str) -> Any:
        try:
            return super().__getattribute__(name)
        except OSError:
            raise Killed from None


def test_E2_stopped_between_any_two_calls(tmp_path: Path) -> None:
    """What is there after each call loads, the old or the new; the next save removes what was left."""
    total = calls_of_a_save(tmp_path / "counting")
    found_steps = []
    for fail_at in range(1, total + 1):
        directory = tmp_path / f"{fail_at}"
        for step in (1, 2):
            CheckpointStore(directory, IDENTITY, keep=2).save(step, parts_of(step))
        store = CheckpointStore(directory, IDENTITY, keep=2, files=StoppingFiles(fail_at, for_good=True))
        with pytest.raises(Killed):
            store.save(3, parts_of(3))
        found = load_newest(directory, IDENTITY)
        assert found.damaged == ()
        check(found, found.step)
        found_steps.append(found.step)
        CheckpointStore(directory, IDENTITY, keep=2).save(4, parts_of(4))
        assert names(directory) == {"step_4", f"step_{found.step}", "LATEST"}
    assert found_steps == sorted(found_steps)
    assert set(found_steps) == {2, 3}


def test_E4_one_report_for_a_disk_that_stays_bad(tmp_path: Path) -> None:
    """The first failed save is reported, those after it are not, another cause is; so is the end of the trouble."""
    files = FailingFiles()
    store = CheckpointStore(tmp_path, IDENTITY, files=files)
    reports: list[str] = []
    assert store.save_or_report(1, parts_of(1), report=reports.append) is not None
    for step, number in ((2, errno.ENOSPC), (3, errno.ENOSPC), (4, errno.EROFS)):
        files.calls, files.fail_at, files.number, files.for_good = 0, 1, number, True
        assert store.save_or_report(step, parts_of(step), report=reports.append) is None
        check(store.load(), 1)
    files.fail_at = 0
    assert store.save_or_report(5, parts_of(5), report=reports.append) is not None
    assert store.save_or_report(6, parts_of(6), report=reports.append) is not None
    assert [report.split(";")[0] for report in reports] == [
        "no checkpoint at step 2: No space left on device",
        "no checkpoint at step 4: Read-only file system",
        "checkpoints are saved again, from step 5",
    ]


def test_a_directory_that_vanished_is_made_again(tmp_path: Path) -> None:
    """Somebody removed it between two saves."""
    store = CheckpointStore(tmp_path / "runs" / "x", IDENTITY)
    (path := store.save(1, parts_of(1)).parent).rename(tmp_path / "elsewhere")
    store.save(2, parts_of(2))
    check(load_newest(path, IDENTITY), 2)


def flip(path: Path, position: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def test_a_flipped_bit_anywhere_leads_to_the_one_before(tmp_path: Path) -> None:
    """Bytes of each file of the newest: the one before loads, and the newest is named with a reason."""
    store = CheckpointStore(tmp_path, IDENTITY)
    store.save(1, parts_of(1, size=2))
    newest = store.save(2, parts_of(2, size=2))
    flips = 0
    # Block 0 is the earlier one's file, too.
    for file in sorted(path for path in newest.rglob("*") if path.is_file() and path.name != "0"):
        for position in range(0, file.stat().st_size, 7):
            flip(file, position, position % 8)
            found = load_newest(tmp_path, IDENTITY)
            check(found, 1)
            assert [damage.path for damage in found.damaged] == [newest]
            assert found.damaged[0].why
            flip(file, position, position % 8)
            flips += 1
    assert flips > 150
    check(load_newest(tmp_path, IDENTITY), 2)


@pytest.mark.parametrize("file", ["manifest.json", "model.safetensors", "replay.npz", "counters.json"])
@pytest.mark.parametrize("harm", ["cut", "removed", "grown", "a directory"])
def test_a_file_that_is_not_as_it_was_leads_to_the_one_before(tmp_path: Path, file: str, harm: str) -> None:
    """Cut short, gone, longer, or something else."""
    store = CheckpointStore(tmp_path, IDENTITY)
    store.save(1, parts_of(1))
    path = store.save(2, parts_of(2)) / file
    data = path.read_bytes()
    path.unlink()
    if harm == "a directory":
        path.mkdir()
    elif harm != "removed":
        path.write_bytes(data[:-1] if harm == "cut" else data + b" ")
    found = store.load()
    check(found, 1)
    assert len(found.damaged) == 1


def test_damaged_ones_do_not_push_whole_ones_out(tmp_path: Path) -> None:
    """After a walk back the one that was found counts among the newest, those that were passed over do not."""
    store = CheckpointStore(tmp_path, IDENTITY, keep=2)
    for step in (1, 2):
        store.save(step, parts_of(step))
    flip(tmp_path / "step_2" / "model.safetensors", 100, 0)
    check(store.load(), 1)
    store.save(3, parts_of(3))
    assert names(tmp_path) == {"step_1", "step_3", "LATEST"}


def test_nothing_whole_says_what_is_wrong_with_each(tmp_path: Path) -> None:
    """No checkpoint at all, or only damaged ones."""
    store = CheckpointStore(tmp_path, IDENTITY)
    with pytest.raises(NoCheckpoint, match="there is no checkpoint"):
        store.load()
    with pytest.raises(NoCheckpoint, match="step_7 cannot be loaded"):
        load_checkpoint(tmp_path / "step_7")
    flip(store.save(1, parts_of(1)) / "model.safetensors", 60, 0)
    (store.save(2, parts_of(2)) / "manifest.json").write_text("{}")
    with pytest.raises(NoCheckpoint, match=r"step_2: the manifest is damaged; step_1: model.safetensors is not what"):
        store.load()


def test_another_environment_is_refused(tmp_path: Path) -> None:
    """Another spec or algorithm is an error that names both; another name of the same environment is none."""
    CheckpointStore(tmp_path, IDENTITY).save(1, parts_of(1))
    with pytest.raises(CheckpointMismatch, match="is of ppo, not of dqn"):
        CheckpointStore(tmp_path, Identity("dqn", "CartPole-v1", "ab" * 32)).load()
    with pytest.raises(CheckpointMismatch, match="CartPole-v1 with other spaces than Acrobot-v1"):
        CheckpointStore(tmp_path, Identity("ppo", "Acrobot-v1", "cd" * 32)).load()
    check(CheckpointStore(tmp_path, Identity("ppo", "CartPole-v0", "ab" * 32)).load(), 1)


def test_a_later_format_is_refused_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older one behind it must not be taken for the newest."""
    store = CheckpointStore(tmp_path, IDENTITY)
    store.save(1, parts_of(1))
    monkeypatch.setattr("asyncrl.run.manifests.FORMAT", 2)
    store.save(2, parts_of(2))
    monkeypatch.undo()
    with pytest.raises(CheckpointMismatch, match="another version"):
        store.load()


@pytest.mark.parametrize("name", ["../x", "X", "a/b", "", "manifest", "a.b"])
def test_names_of_parts_are_plain(tmp_path: Path, name: str) -> None:
    """Nothing is written beside the checkpoint, and nothing stays of the attempt."""
    store = CheckpointStore(tmp_path, IDENTITY)
    with pytest.raises(ValueError, match="no name of a part"):
        store.save(1, {name: {}})
    assert names(tmp_path) == set()


def test_a_part_that_has_no_form_leaves_nothing(tmp_path: Path) -> None:
    """A mistake of the caller is raised as it is."""
    with pytest.raises(TypeError):
        CheckpointStore(tmp_path, IDENTITY).save(1, {"model": Tensors({"x": np.array([None])})})
    assert names(tmp_path) == set()


# ----------------------------------------------------------------------------------------------------- real disks


@contextmanager
def tmpfs(path: Path, size: str) -> Iterator[Callable[[str], None]]:
    """A file system of its own; calling what it gives changes its options."""
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")

    def remount(option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", path], check=True)

    try:
        yield remount
    finally:
        subprocess.run(["umount", path], check=True)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize("mebibytes", range(1, 9))
def test_E3_a_full_disk_costs_the_new_checkpoint_alone(tmp_path: Path, mebibytes: int) -> None:
    """Checkpoints that grow, on a disk of 1 to 8 MiB: the last one saved loads, no litter, one report."""
    with tmpfs(tmp_path / "disk", f"{mebibytes}m"):
        store = CheckpointStore(tmp_path / "disk" / "checkpoints", IDENTITY, keep=3)
        reports: list[str] = []
        last = 0
        for step in range(1, 40):
            if store.save_or_report(step, parts_of(step, size=2000 * step), report=reports.append) is not None:
                last = step
            check(store.load(), last)
            assert not [name for name in names(store.directory) if name.startswith(".tmp")]
        assert 3 <= last < 39
        assert len(reports) == 1
        assert "No space left" in reports[0]
        # The next one that fits is saved.
        assert store.save_or_report(99, {"counters": {"step": 99}}, report=reports.append) is not None
        assert len(reports) == 2


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting needs root")
def test_E4_a_read_only_disk_costs_the_new_checkpoint_alone(tmp_path: Path) -> None:
    """Remounted under a running store; the old one loads, and the store goes on when it may write again."""
    with tmpfs(tmp_path / "disk", "4m") as remount:
        store = CheckpointStore(tmp_path / "disk", IDENTITY)
        reports: list[str] = []
        store.save(1, parts_of(1))
        remount("ro")
        for step in (2, 3):
            assert store.save_or_report(step, parts_of(step), report=reports.append) is None
            check(store.load(), 1)
        remount("rw")
        assert store.save_or_report(4, parts_of(4), report=reports.append) is not None
        assert len(reports) == 2
        check(store.load(), 4)


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_E4_a_directory_without_permission_costs_the_new_checkpoint_alone(tmp_path: Path) -> None:
    """As anybody but root would meet it."""
    store = CheckpointStore(tmp_path, IDENTITY)
    store.save(1, parts_of(1))
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(CheckpointNotSaved, match="Permission denied"):
            store.save(2, parts_of(2))
        check(store.load(), 1)
    finally:
        tmp_path.chmod(stat.S_IRWXU)
