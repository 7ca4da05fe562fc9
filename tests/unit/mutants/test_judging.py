"""The judge on a small tree of its own: which failures of tests count as kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import Judge, choose, stages
from tests.mutants.operators import Mutant, mutants_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each runs pytest several times

MODULE = Path("envserver/limit.py")
SOURCE = "def over(x):\n    return x > 3\n"
IMPORTS = "from pathlib import Path\nfrom envserver.limit import over\n"
SHARP = "def test_sharp():\n    assert not over(3)\n"
BLUNT = "def test_blunt():\n    assert over(5) and not over(1)\n"
BROKEN = "def test_broken():\n    assert False\n"
HANGING = "import os\nif over(3):\n    os._exit(1)\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """With a module and a folder for its tests."""
    for folder in ("envserver", "tests/unit/envserver"):
        (tmp_path / "tree" / folder).mkdir(parents=True)
    (tmp_path / "tree/envserver/__init__.py").touch()
    (tmp_path / "tree" / MODULE).write_text(SOURCE)
    return tmp_path / "tree"


def killer(tree: Path, tests: str) -> str | None:
    """Of the mutant `x >= 3`."""
    (tree / "tests/unit/envserver/test_limit.py").write_text(IMPORTS + tests)
    (mutant,) = [each for each in mutants_of(SOURCE) if each.after == "return x >= 3"]
    return Judge(tree).verdict(MODULE, mutant).killed_by


def test_a_kill_names_its_test(tree: Path) -> None:
    """The first test that fails on the mutant, and passes without it."""
    assert killer(tree, BLUNT + SHARP) == "tests/unit/envserver/test_limit.py::test_sharp"


def test_a_test_that_fails_anyway_kills_nothing(tree: Path) -> None:
    """It is left out, and the one behind it has its say."""
    assert killer(tree, BROKEN + SHARP) == "tests/unit/envserver/test_limit.py::test_sharp"


def test_a_test_that_fails_once_kills_nothing(tree: Path, tmp_path: Path) -> None:
    """As on a busy machine: it has to fail again when it runs alone."""
    seen = tmp_path / "seen"
    flaky = f"def test_flaky():\n    first = not Path({str(seen)!r}).exists()\n    Path({str(seen)!r}).touch()\n"
    assert killer(tree, BLUNT + flaky + "    assert not first\n") is None
    assert seen.exists()


def test_the_end_of_pytest_itself_is_a_kill(tree: Path) -> None:
    """A mutant may end the process before any test has a name."""
    assert killer(tree, HANGING + BLUNT) == "tests/unit/envserver/test_limit.py (exit 1)"


def test_the_draw_is_the_seeds(tree: Path) -> None:
    """The same seed draws the same mutants; a room with too few gives what it has."""

    def drawn(count: int, seed: int) -> list[tuple[Path, Mutant]]:
        return choose(tree, ["envserver"], count, seed)

    every = len(mutants_of(SOURCE))
    assert drawn(2, 7) == drawn(2, 7)
    assert len(drawn(100, 7)) == every
    assert {path for path, _ in drawn(100, 7)} == {MODULE}


def test_near_tests_are_those_of_the_module_and_of_the_room(tree: Path) -> None:
    """In this order, and only as far as they are there; far ones come behind."""
    (tree / "tests/rpc").mkdir()
    near = [["tests/unit/envserver"]]
    assert stages(tree, MODULE, far=False) == near
    assert stages(tree, MODULE) == [*near, ["tests/rpc"]]
    (tree / "tests/unit/envserver/test_limit.py").touch()
    assert stages(tree, MODULE, far=False) == [["tests/unit/envserver/test_limit.py"], *near]
