"""`python -m tests.mutants [--rooms asyncrl/wire …] [--count 40] [--seed 1]`: which mutants do the tests kill?

Each mutant lives in a copy of the tree of its own. Tests run nearest first, the module's own, then
the room's, then those that cross rooms, and stop at the first failure. Exit status 1 under `--want`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.operators import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
COPIED = ("asyncrl", "envserver", "tests", "protos", "benchmarks", "examples", "pyproject.toml", "README.md")
DEFAULT_ROOMS = ("asyncrl/wire", "asyncrl/client", "envserver")
# Tests that cross rooms, in the order in which they are tried.
FAR = ("tests/sim", "tests/rpc", "tests/security", "tests/chaos")
TIMEOUT_S = 240.0


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant."""

    path: Path
    mutant: Mutant
    killed_by: str | None

    def line(self) -> str:
        verdict = f"killed by {self.killed_by}" if self.killed_by else "SURVIVED"
        return f"{self.path}:{self.mutant.line}: {self.mutant.before}  →  {self.mutant.after}   [{verdict}]"


def choose(rooms: list[str], count: int, seed: int) -> list[tuple[Path, Mutant]]:
    """`count` mutants, drawn evenly over the rooms and then over their lines."""
    rng = random.Random(seed)
    chosen: list[tuple[Path, Mutant]] = []
    for number, room in enumerate(rooms):
        share = count // len(rooms) + (number < count % len(rooms))
        paths = sorted(p for p in (ROOT / room).rglob("*.py") if "_generated" not in p.parts)
        pool = [(path, mutant) for path in paths for mutant in mutants_of(path.read_text())]
        chosen += rng.sample(pool, min(share, len(pool)))
    return chosen


def stages(path: Path) -> list[list[str]]:
    """Groups of tests for a module, nearest first."""
    inside = path.relative_to(ROOT)
    parts = inside.parts[1:] if inside.parts[0] == "asyncrl" else inside.parts
    own = ROOT / "tests/unit" / Path(*parts[:-1]) / f"test_{inside.stem}.py"
    near = ROOT / "tests/unit" / Path(*parts[:-1])
    found = [[str(own.relative_to(ROOT))]] if own.exists() else []
    if near.is_dir():
        found.append([str(near.relative_to(ROOT))])
    return found + [[name] for name in FAR if (ROOT / name).is_dir()]


def judge(path: Path, mutant: Mutant) -> Verdict:
    """Run the tests on a copy with the mutant in it."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
            elif source.exists():
                shutil.copy(source, copy / name)
        (copy / path.relative_to(ROOT)).write_text(mutant.source)
        for stage in stages(path):
            if not _passes(copy, stage):
                return Verdict(path.relative_to(ROOT), mutant, stage[0])
    return Verdict(path.relative_to(ROOT), mutant, None)


def _passes(copy: Path, tests: list[str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not net_root"]
    command += ["--timeout", "60", *tests]
    # The copy comes first on the path: an installed checkout of the project must not be what is tested.
    env = {**os.environ, "PYTHONPATH": str(copy), "ASYNCRL_MUTANT": "1"}
    try:
        run = subprocess.run(command, cwd=copy, env=env, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return run.returncode in (0, 5)  # 5: the stage has no test that runs here


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", nargs="+", default=list(DEFAULT_ROOMS))
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--want", type=float, default=0.9)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    chosen = choose(arguments.rooms, arguments.count, arguments.seed)
    killed = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for number, verdict in enumerate(pool.map(lambda each: judge(*each), chosen), 1):
            killed += verdict.killed_by is not None
            print(f"{number:3d}/{len(chosen)}  {verdict.line()}", flush=True)
    print(f"\n{killed} of {len(chosen)} mutants killed ({killed / max(len(chosen), 1):.0%}), seed {arguments.seed}")
    return 0 if killed >= arguments.want * len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
