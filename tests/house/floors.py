"""Makes an environment with the lowest versions that pyproject.toml allows.

`python -m tests.house.floors .venv-floors`. The floors are those of the base dependencies and of the extras in EXTRAS;
test tools come at the versions of constraints.txt.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("atari", "tls")
TEST_TOOLS = ("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "pytest-cov", "hypothesis")
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)\s*>=\s*(?P<floor>[\w.]+)[^;]*(?P<marker>;.*)?")


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def floors(requirements: Iterable[str]) -> dict[str, str]:
    """Each requirement with its floor pinned, by normal name. A requirement without a floor is an error."""
    pinned: dict[str, str] = {}
    for requirement in requirements:
        found = REQUIREMENT.fullmatch(requirement)
        if found is None:
            raise ValueError(f"{requirement!r} has no floor")
        pinned[normal(found["name"])] = f"{found['name']}=={found['floor']}{found['marker'] or ''}"
    return pinned


def floor_requirements(project: dict[str, Any]) -> dict[str, str]:
    extras = project["optional-dependencies"]
    return floors([*project["dependencies"], *(each for name in EXTRAS for each in extras[name])])


def remaining(constraints: str, pinned: Iterable[str]) -> str:
    """The constraints that say nothing about what is pinned."""
    names = set(pinned)
    kept = (line for line in constraints.splitlines() if "==" in line and normal(line.partition("==")[0]) not in names)
    return "\n".join(kept)


def main(venv: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = floor_requirements(project)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "constraints.txt")
        file.write_text(remaining((ROOT / "constraints.txt").read_text(), pinned))
        subprocess.run([*pip, "-c", str(file), *pinned.values(), *TEST_TOOLS], check=True)
    subprocess.run([*pip, "--no-deps", "-e", str(ROOT)], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
