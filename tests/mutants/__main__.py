"""`python -m tests.mutants [--rooms asyncrl/wire …] [--count 40] [--seed 1] [--near]`: which mutants do the tests kill?

Each mutant lives in a copy of the tree of its own. Tests run nearest first, the module's own, then
the room's, then those that cross rooms, and stop at the first failure; a test counts only if it
fails again when it runs alone, and passes without the mutant. Exit status 1 under `--want`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.operators import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
COPIED = ("asyncrl", "envserver", "tests", "protos", "benchmarks", "examples", "docs", "pyproject.toml", "README.md")
DEFAULT_ROOMS = ("asyncrl/wire", "asyncrl/client", "envserver")
# Tests that cross rooms, in the order in which they are tried.
FAR = ("tests/sim", "tests/rpc", "tests/security", "tests/chaos")
MARKERS = "not slow and not nightly and not net_root"
# For a group of tests; a single test that hangs is ended by pytest-timeout long before.
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant."""

    path: Path
    mutant: Mutant
    killed_by: str | None

    def line(self) -> str:
        verdict = f"killed by {self.killed_by}" if self.killed_by else "SURVIVED"
        return f"{self.path}:{self.mutant.line}: {self.mutant.before}  →  {self.mutant.after}   [{verdict}]"


def choose(tree: Path, rooms: list[str], count: int, seed: int) -> list[tuple[Path, Mutant]]:
    """`count` mutants, drawn evenly over the rooms and then over their lines."""
    rng = random.Random(seed)
    chosen: list[tuple[Path, Mutant]] = []
    for number, room in enumerate(rooms):
        share = count // len(rooms) + (number < count % len(rooms))
        paths = sorted(p for p in (tree / room).rglob("*.py") if "_generated" not in p.parts)
        pool = [(path.relative_to(tree), mutant) for path in paths for mutant in mutants_of(path.read_text())]
        chosen += rng.sample(pool, min(share, len(pool)))
    return chosen


def stages(tree: Path, path: Path, far: bool = True) -> list[list[str]]:
    """Groups of tests for a module, nearest first; `far`: those that cross rooms as well."""
    parts = path.parts[1:] if path.parts[0] == "asyncrl" else path.parts
    near = Path("tests/unit", *parts[:-1])
    own = near / f"test_{path.stem}.py"
    return [[str(name)] for name in (own, near, *(FAR if far else ())) if (tree / name).exists()]


class Judge:
    """Runs the tests on copies of the tree as it was when the judge came: edits made meanwhile change nothing."""

    def __init__(self, tree: Path, *, far: bool = True) -> None:
        self._tree = tree
        self._far = far
        self._clean: set[tuple[str, ...]] = set()  # of what killed a mutant: what passes without one

    def verdict(self, path: Path, mutant: Mutant) -> Verdict:
        """Run the tests on a copy with the mutant in it."""
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            copied = Path(folder)
            copy_tree(self._tree, copied)
            (copied / path).write_text(mutant.source)
            for stage in stages(self._tree, path, self._far):
                killer = self._killer(copied, stage)
                if killer is not None:
                    return Verdict(path, mutant, killer)
        return Verdict(path, mutant, None)

    def _killer(self, copied: Path, stage: list[str]) -> str | None:
        """The first test to fail on the mutant twice, and to pass on the clean tree. Others are named and left out."""
        left_out: list[str] = []
        while True:
            run = run_tests(copied, stage, left_out)
            if run.passed:
                return None
            suspects = [run.failed] if run.failed else stage
            if not self._passes_clean(suspects):
                doubt = "it fails without a mutant too"
            elif run_tests(copied, suspects, []).passed:
                doubt = "it passes when it runs again"
            else:
                return run.failed or f"{stage[0]} ({run.how})"
            print(f"    not counted, {doubt}: {suspects[0]}", flush=True)
            if not run.failed or run.failed in left_out:
                return None
            left_out.append(run.failed)

    def _passes_clean(self, tests: list[str]) -> bool:
        """What failed is asked again the next time: whatever disturbed it may be over."""
        if tuple(tests) not in self._clean and run_tests(self._tree, tests, []).passed:
            self._clean.add(tuple(tests))
        return tuple(tests) in self._clean


@dataclass(frozen=True)
class Run:
    """How a run of some tests went; `failed` is the first that did not pass, where pytest could say so."""

    passed: bool
    how: str
    failed: str | None


def run_tests(tree: Path, tests: list[str], left_out: list[str]) -> Run:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", MARKERS]
    command += ["--timeout", "60", *tests, *(f"--deselect={name}" for name in left_out)]
    # The copy comes first on the path: an installed checkout of the project must not be what is tested.
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return Run(False, "out of time", None)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - .*)?$", run.stdout, re.MULTILINE)
    # 5: the stage has no test that runs here.
    return Run(run.returncode in (0, 5), f"exit {run.returncode}", failed and failed[1])


def copy_tree(source: Path, target: Path) -> None:
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        elif (source / name).exists():
            shutil.copy(source / name, target / name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", nargs="+", default=list(DEFAULT_ROOMS))
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--want", type=float, default=0.9)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--near", action="store_true", help="the module's and the room's tests alone: what they kill at least"
    )
    parser.add_argument("--only", nargs="+", type=int, help="these of the draw, by their numbers")
    arguments = parser.parse_args()
    killed = 0
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool,
    ):
        tree = Path(folder)
        copy_tree(ROOT, tree)
        chosen = choose(tree, arguments.rooms, arguments.count, arguments.seed)
        judge = Judge(tree, far=not arguments.near)
        wanted = [number for number in arguments.only or range(1, len(chosen) + 1) if 0 < number <= len(chosen)]
        verdicts = pool.map(lambda number: judge.verdict(*chosen[number - 1]), wanted)
        for number, verdict in zip(wanted, verdicts, strict=True):
            killed += verdict.killed_by is not None
            print(f"{number:3d}/{len(chosen)}  {verdict.line()}", flush=True)
    print(f"\n{killed} of {len(wanted)} mutants killed ({killed / max(len(wanted), 1):.0%}), seed {arguments.seed}")
    return 0 if killed >= arguments.want * len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
