"""`make proto-check` notices what differs from what would be generated."""

from __future__ import annotations

from pathlib import Path

from protos import generate

WANTED = {"env_pb2.py": "a = 1\n", "env_pb2.pyi": "a: int\n"}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)


def test_equal_files_are_no_difference(tmp_path: Path) -> None:
    """Equal files are no difference."""
    write(tmp_path, WANTED)
    assert generate.differences(tmp_path, WANTED) == []


def test_a_changed_a_missing_and_a_stray_file_are_differences(tmp_path: Path) -> None:
    """A changed a missing and a stray file are differences."""
    write(tmp_path, {"env_pb2.py": "a = 2\n", "other_pb2.py": ""})
    text = "\n".join(generate.differences(tmp_path, WANTED))
    assert "-a = 2\n+a = 1" in text
    assert "+a: int" in text
    assert "other_pb2.py: nothing generates this file" in text


def test_a_folder_that_does_not_exist_differs(tmp_path: Path) -> None:
    """A folder that does not exist differs."""
    assert generate.differences(tmp_path / "none", WANTED) != []
