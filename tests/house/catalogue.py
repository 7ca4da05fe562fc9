"""`docs/tests.md` from the source: every invariant with the test that holds it, every test with its sentence.

`python -m tests.house.catalogue` writes the page; with `--check` it fails where the page is stale, where a
module's docstring names a test that does not exist, or where a test has no docstring.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tests.md"
_NAMED = re.compile(r"\((test_\w+(?:,\s+test_\w+)*)\)")

_HEAD = """# Tests

Made by `python -m tests.house.catalogue` from the docstrings; `make check` fails where it is stale.

Rows of the fault matrix carry their id in the test's name: A environment and lane process, B env server, C network,
D message content, E learner and fencing, G hosts and hostile clients.

| folder | what it runs |
|---|---|
| `tests/unit/` | one room at a time, in the process of the test or with real lane processes; mirrors the source tree |
| `tests/sim/` | the real client and the real server core on a simulated network in virtual time, with seeded faults |
| `tests/rpc/` | real gRPC on loopback and Unix sockets |
| `tests/chaos/` | several real processes, killed, stopped and cut off; `tests/chaos/net/` in network namespaces |
| `tests/security/` | credentials, allow-lists, forbidden calls |
| `tests/compat/` | frames of released protocol versions |
| `tests/house/` | the rules of the house itself |
"""


@dataclass(frozen=True)
class Test:
    """One test function and what it says it shows."""

    path: str
    name: str
    sentence: str


def tests() -> list[Test]:
    """Every test function of the project, by file and line."""
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                sentence = " ".join((ast.get_docstring(node) or "").split())
                found.append(Test(str(path.relative_to(ROOT)), node.name, sentence))
    return found


def invariants() -> Iterator[tuple[str, str, list[str]]]:
    """(module, what holds, tests that hold it) from the docstrings of the packages."""
    for package in ("asyncrl", "envserver"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if "_generated" in path.parts:
                continue
            text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
            last = 0
            for match in _NAMED.finditer(text):
                claim = text[last : match.start()].strip(" ;:,.")
                last = match.end()
                claim = claim.rpartition("Invariants: ")[2].rpartition("Invariant: ")[2]
                claim = claim.rpartition(". ")[2] if len(claim) > 300 else claim
                yield str(path.relative_to(ROOT)), claim, re.split(r",\s+", match[1])


def page() -> str:
    """The whole page."""
    lines = [_HEAD, "## Invariants", "", "| module | what holds | test |", "|---|---|---|"]
    for module, claim, names in invariants():
        lines.append(f"| `{module}` | {claim.replace('|', chr(92) + '|')} | {', '.join(f'`{n}`' for n in names)} |")
    current = ""
    for test in tests():
        if test.path != current:
            current = test.path
            lines += ["", f"## {current}", ""]
        lines.append(f"* `{test.name}`: {test.sentence}")
    return "\n".join(lines) + "\n"


def complaints() -> list[str]:
    """What is wrong: tests that are named but absent, tests without a sentence, a stale page."""
    known = {test.name for test in tests()}
    wrong = [
        f"{module}: names {name}, which does not exist"
        for module, _, names in invariants()
        for name in names
        if name not in known
    ]
    wrong += [f"{test.path}: {test.name} has no docstring" for test in tests() if not test.sentence]
    if not PAGE.exists() or PAGE.read_text() != page():
        wrong.append("docs/tests.md is stale: run python -m tests.house.catalogue")
    return wrong


def main() -> int:
    if "--check" not in sys.argv:
        PAGE.write_text(page())
        return 0
    found = complaints()
    print("\n".join(found) or "the catalogue of tests holds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
