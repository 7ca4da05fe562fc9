"""Checkpoints: directories `step_N` of parts under one manifest, and the walk back to the newest one that is whole.

* Whatever fails while one is saved, and whenever the process is killed, those before it still load, and so does the new
  one as soon as it has its name (test_E2_the_newest_whole_one_loads_whichever_call_fails, test_E2_killed_while_saving).
* A full, read-only or vanished disk is reported once and costs the new checkpoint alone; what was half written is gone
  after the next save at the latest (test_E3_a_full_disk_costs_the_new_checkpoint_alone,
  test_E4_one_report_for_a_disk_that_stays_bad).
* A damaged one is passed over, with a reason (test_a_flipped_bit_anywhere_leads_to_the_one_before).
* One of another environment or algorithm is refused, not passed over (test_another_environment_is_refused).
* The newest `keep`, the best and one that is held stay (test_the_newest_and_the_best_stay, test_a_held_one_stays); one
  that is saved out of turn, with the serial of its turn, is not taken for the newest
  (test_one_out_of_turn_is_not_the_newest).

Order of a save, each step synced before the next: parts and manifest in a directory with a temporary name, its entries,
the rename to `step_N`, the parent's entries, `LATEST`. `LATEST` and `BEST` hold a name for people and other programs;
the walk trusts manifests alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.errors import CheckpointNotSaved, NoCheckpoint
from asyncrl.run.checkpoint_parts import Part
from asyncrl.run.files import FILES, TEMPORARY, Files, replace_file, write_new
from asyncrl.run.manifests import (
    BEST,
    LATEST,
    MANIFEST,
    Damage,
    Identity,
    Manifest,
    best_of,
    newest_first,
    read_manifest,
    readable,
)
from asyncrl.run.part_files import known_blocks, load_part, save_part


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and found whole. `damaged`: others that were not, and were not taken for that."""

    path: Path
    manifest: Manifest
    parts: dict[str, Part]
    damaged: tuple[Damage, ...] = ()

    @property
    def step(self) -> int:
        return self.manifest.step


class CheckpointStore:
    """The checkpoints of one run. Everything blocks on the disk: never call it on the loop. Guarded by a lock."""

    def __init__(
        self,
        directory: Path,
        identity: Identity,
        *,
        keep: int = 3,
        files: Files = FILES,
        damaged: Sequence[Damage] = (),
    ) -> None:
        self.directory = directory
        self.identity = identity
        self._keep = max(keep, 1)
        self._files = files
        self._lock = threading.Lock()
        self._trouble = ""  # what was reported and has not ended
        self._known_damaged = {damage.path for damage in damaged}
        self.held: Path | None = None  # one that stays as well, for as long as this names it

    def save(
        self, step: int, parts: Mapping[str, Part], info: Mapping[str, Any] | None = None, *, serial: int | None = None
    ) -> Path:
        """The new checkpoint's directory, or CheckpointNotSaved with everything as it was.

        `serial`: its place among the others, for one that is not saved in turn; None: the newest.
        """
        with self._lock:
            try:
                return self._save(step, parts, dict(info or {}), serial)
            except OSError as error:
                raise CheckpointNotSaved(f"no checkpoint at step {step}: {error.strerror or error}") from error
            finally:
                self._sweep()

    def save_or_report(
        self,
        step: int,
        parts: Mapping[str, Part],
        info: Mapping[str, Any] | None = None,
        *,
        report: Callable[[str], None],
        serial: int | None = None,
    ) -> Path | None:
        """As `save`, but trouble with the disk is a report, one for as long as the same trouble lasts."""
        try:
            path = self.save(step, parts, info, serial=serial)
        except CheckpointNotSaved as error:
            cause = error.__cause__
            trouble = f"{type(cause).__name__} {getattr(cause, 'errno', '')}"
            if trouble != self._trouble:
                report(f"{error}; training goes on, and the next one is tried as planned")
            self._trouble = trouble
            return None
        if self._trouble:
            report(f"checkpoints are saved again, from step {step}")
        self._trouble = ""
        return path

    def mark_best(self, path: Path, score: float) -> None:
        """Makes it the one that is never pruned. CheckpointNotSaved: the mark stays where it was."""
        with self._lock:
            try:
                replace_file(self.directory / BEST, f"{path.name} {score!r}\n".encode(), self._files)
            except OSError as error:
                raise CheckpointNotSaved(f"{path.name} is not marked as best: {error.strerror or error}") from error

    def best(self) -> tuple[Path, float] | None:
        """The marked checkpoint and its score."""
        return best_of(self.directory)

    def load(self) -> Checkpoint:
        """The newest whole one. NoCheckpoint; CheckpointMismatch if the newest is of something else."""
        found = load_newest(self.directory, self.identity)
        self._known_damaged = {damage.path for damage in found.damaged}
        return found

    def _save(self, step: int, parts: Mapping[str, Part], info: dict[str, Any], serial: int | None) -> Path:
        files = self._files
        files.make_directories(self.directory)
        self._sweep()
        earlier = readable(self.directory)
        newest = max((manifest.serial for manifest in earlier.values()), default=0)
        serial = newest + 1 if serial is None else serial
        path = self._free_name(step)
        temporary = self.directory / f"{TEMPORARY}{path.name}"
        files.make_directory(temporary)
        whole = [found for found in earlier.items() if found[0] not in self._known_damaged]
        entries = {
            name: save_part(files, temporary, name, part, known_blocks(whole, name))
            for name, part in sorted(parts.items())
        }
        manifest = Manifest(step, serial, self.identity, info, entries)
        write_new(files, temporary / MANIFEST, manifest.to_bytes())
        files.sync_directory(temporary)
        files.rename(temporary, path)
        # It is a checkpoint from here on: trouble with what follows must not call it unsaved.
        with suppress(OSError):
            files.sync_directory(self.directory)
            if serial >= newest:
                replace_file(self.directory / LATEST, f"{path.name}\n".encode(), files)
        self._prune(path)
        return path

    def _free_name(self, step: int) -> Path:
        path = self.directory / f"step_{step}"
        again = 2
        while path.exists():
            path = self.directory / f"step_{step}.{again}"
            again += 1
        return path

    def _sweep(self) -> None:
        """Removes what this save or an earlier one left half written."""
        with suppress(OSError):
            for path in self.directory.glob(f"{TEMPORARY}*"):
                with suppress(OSError):
                    (self._files.remove_tree if path.is_dir() else self._files.remove_file)(path)

    def _prune(self, saved: Path) -> None:
        best = best_of(self.directory)
        found = list(readable(self.directory))
        whole = [path for path in found if path not in self._known_damaged]
        stay = {*whole[: self._keep], *(best or ())[:1], saved, self.held}
        for path in found:
            if path in stay:
                continue
            # Renamed first: what is half deleted must not look like a damaged checkpoint. The sweep removes it.
            with suppress(OSError):
                self._files.rename(path, self.directory / f"{TEMPORARY}{path.name}")


def load_newest(directory: Path, identity: Identity | None = None, *, to_act: bool = False) -> Checkpoint:
    """The newest whole checkpoint under `directory`; with `identity`, CheckpointMismatch if it is of something else.

    `to_act`: without blocks, which are for learning alone; nobody looks whether those are whole.
    """
    candidates, damaged = newest_first(directory)
    for path in candidates:
        try:
            checkpoint = _load(path, identity, to_act)
        except (OSError, ValueError) as error:
            damaged.append(Damage(path, str(error)))
        else:
            return Checkpoint(checkpoint.path, checkpoint.manifest, checkpoint.parts, tuple(damaged))
    if not damaged:
        raise NoCheckpoint(f"there is no checkpoint in {directory}")
    raise NoCheckpoint(f"no checkpoint in {directory} is whole: " + "; ".join(map(str, damaged)))


def load_checkpoint(path: Path, identity: Identity | None = None, *, to_act: bool = False) -> Checkpoint:
    """This very one; `to_act` as above. NoCheckpoint: it is not there or not whole."""
    try:
        return _load(path, identity, to_act)
    except (OSError, ValueError) as error:
        raise NoCheckpoint(f"{path} cannot be loaded: {error}") from None


def _load(path: Path, identity: Identity | None, to_act: bool) -> Checkpoint:
    manifest = read_manifest(path)
    if identity is not None:
        identity.check(manifest.identity, path)
    try:
        entries = {name: entry for name, entry in manifest.parts.items() if not (to_act and entry["kind"] == "blocks")}
        return Checkpoint(path, manifest, {name: load_part(path, name, **entry) for name, entry in entries.items()})
    except (KeyError, TypeError):
        raise ValueError("the manifest describes a part wrongly") from None
