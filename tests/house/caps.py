"""Sizes, names and test modules that no stock linter checks: `python -m tests.house.caps`.

Exit status 1 and one line per finding if something breaks a cap; notes on what comes near one never fail.
"""

from __future__ import annotations

import ast
import io
import math
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

MODULE_NOTE, MODULE_CAP = 300, 500  # lines of a file
FUNCTION_CAP, FUNCTION_P90 = 50, 25  # code lines: neither blank, comment nor docstring
PARAMETER_CAP = 7  # self and cls apart
UNTESTED_CAP = 60  # lines a module may have without a test module of its own
BANNED_MODULES = frozenset({"util", "utils", "helper", "helpers", "common", "misc"})
BANNED_NAME = "done"  # terminated and truncated travel apart; Future.done() and SB3's dones stay

PACKAGES = ("asyncrl", "envserver")  # every rule
SIZED_ONLY = ("benchmarks",)  # sizes and parameters only

# "module:Qualified.name" -> why its signature is not ours to shorten.
PARAMETER_EXEMPTIONS: dict[str, str] = {
    "asyncrl.vector:RemoteVectorEnv.__init__": "a user's one line: every setting is a keyword with a default",
}

# module -> the test module that covers it, where that is not its mirror image in tests/unit.
COVERED_ELSEWHERE: dict[str, str] = {
    "asyncrl.sb3": "tests/rpc/test_sb3.py",
    "envserver.server": "tests/rpc/test_server.py",
    "envserver.host": "tests/unit/envserver/test_slots_host.py",
}


@dataclass(frozen=True)
class Module:
    """One source file. `path` is relative to the root of the project, with forward slashes."""

    path: str
    text: str

    @property
    def name(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def num_lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_ours(self) -> bool:
        return self.path.startswith(tuple(f"{package}/" for package in PACKAGES))


@dataclass(frozen=True)
class Function:
    """One def. `where` is "module:Qualified.name"."""

    where: str
    line: int
    code_lines: int
    num_parameters: int


@dataclass
class Report:
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


# ---------------------------------------------------------------------------------------------------------- functions


def docstring_lines(tree: ast.AST) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module) or not node.body:
            continue
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            found.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found


def code_lines(text: str, tree: ast.AST) -> set[int]:
    """Numbers of the lines that hold code. The inside of a string that is no docstring counts."""
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in blank:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - docstring_lines(tree)


def num_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef, in_class: bool) -> int:
    positional = [*node.args.posonlyargs, *node.args.args]
    if in_class and positional and positional[0].arg in {"self", "cls", "mcs"}:
        del positional[0]
    variadic = [arg for arg in (node.args.vararg, node.args.kwarg) if arg is not None]
    return len(positional) + len(node.args.kwonlyargs) + len(variadic)


def functions(module: Module) -> Iterator[Function]:
    """Every def of a module, nested ones too; an outer def includes the lines of its inner ones."""
    tree = ast.parse(module.text)
    lines = code_lines(module.text, tree)

    def visit(node: ast.AST, trail: tuple[str, ...], in_class: bool) -> Iterator[Function]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                name = (*trail, child.name)
                span = range(child.lineno, (child.end_lineno or child.lineno) + 1)
                size = sum(line in lines for line in span)
                where = f"{module.name}:{'.'.join(name)}"
                yield Function(where, child.lineno, size, num_parameters(child, in_class))
                yield from visit(child, name, False)
            elif isinstance(child, ast.ClassDef):
                yield from visit(child, (*trail, child.name), True)
            else:
                yield from visit(child, trail, in_class)

    yield from visit(tree, (), False)


def p90(sizes: Sequence[int]) -> int:
    """The nearest-rank 90th percentile; 0 for nothing."""
    return sorted(sizes)[math.ceil(0.9 * len(sizes)) - 1] if sizes else 0


def check_sizes(modules: Iterable[Module], exemptions: Mapping[str, str], report: Report) -> None:
    sizes: list[int] = []
    used: set[str] = set()
    names: set[str] = set()
    for module in modules:
        names.add(module.name)
        if module.num_lines > MODULE_CAP:
            report.failures.append(f"{module.path}: {module.num_lines} lines (cap {MODULE_CAP})")
        elif module.num_lines > MODULE_NOTE:
            report.notes.append(f"{module.path}: {module.num_lines} lines (aim below {MODULE_NOTE})")
        for function in functions(module):
            sizes.append(function.code_lines)
            place = f"{module.path}:{function.line}: {function.where.partition(':')[2]}"
            if function.code_lines > FUNCTION_CAP:
                report.failures.append(f"{place} has {function.code_lines} code lines (cap {FUNCTION_CAP})")
            if function.num_parameters > PARAMETER_CAP:
                if function.where in exemptions:
                    used.add(function.where)
                else:
                    report.failures.append(f"{place} has {function.num_parameters} parameters (cap {PARAMETER_CAP})")
    stale = {where for where in exemptions if where.partition(":")[0] in names} - used
    report.failures += [f"{where} is exempt from the parameter cap but does not need it" for where in sorted(stale)]
    if p90(sizes) > FUNCTION_P90:
        report.failures.append(f"the 90th percentile of function sizes is {p90(sizes)} code lines (cap {FUNCTION_P90})")


# -------------------------------------------------------------------------------------------------------------- names


def is_banned(name: str | None) -> bool:
    return name is not None and name.strip("_") == BANNED_NAME


def is_banned_string(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and is_banned(node.value)


def uses_banned_name(node: ast.AST) -> bool:
    """Whether this very node is a variable, attribute, parameter, keyword, key or property called `done`."""
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.keyword(arg=name) | ast.Attribute(attr=name):
            return is_banned(name)
        case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
            return is_banned(name)
        case ast.alias(asname=asname):
            return is_banned(asname)
        case ast.Subscript(slice=index):
            return is_banned_string(index)
        case ast.Dict(keys=keys):
            return any(is_banned_string(key) for key in keys)
        case ast.FunctionDef(name=name, decorator_list=[_, *_]):  # a property; a plain method is called, as Future's
            return is_banned(name)
    return False


def banned_lines(text: str) -> list[int]:
    tree = ast.parse(text)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    allowed = {id(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and id(node) in called}
    found = (node for node in ast.walk(tree) if id(node) not in allowed and uses_banned_name(node))
    return sorted({getattr(node, "lineno", 0) for node in found})


PROTO_FIELD = re.compile(r"\b(\w+)\s*=\s*\d+\s*[;\[]")


def banned_proto_lines(text: str) -> list[int]:
    without_comments = re.sub(r"/\*.*?\*/", lambda found: "\n" * found.group().count("\n"), text, flags=re.DOTALL)
    lines = enumerate((line.partition("//")[0] for line in without_comments.splitlines()), 1)
    return [number for number, line in lines if any(is_banned(name.lower()) for name in PROTO_FIELD.findall(line))]


def check_names(modules: Iterable[Module], protos: Mapping[str, str], report: Report) -> None:
    why = f"`{BANNED_NAME}` names nothing here: say terminated, truncated, cut or finished"
    for module in modules:
        bad = {part.strip("_") for part in module.name.split(".")} & BANNED_MODULES
        if bad:
            report.failures.append(f"{module.path}: a module called {bad.pop()!r} says nothing about what is in it")
        report.failures += [f"{module.path}:{line}: {why}" for line in banned_lines(module.text)]
    for path, text in protos.items():
        report.failures += [f"{path}:{line}: {why}" for line in banned_proto_lines(text)]


# ------------------------------------------------------------------------------------------------------- test modules


def mirror(path: str) -> tuple[str, ...]:
    """The test modules that count as a source file's own; the first is the one to make."""
    parts = path.removesuffix(".py").removeprefix("asyncrl/").split("/")
    *folders, name = parts
    if name == "__init__" and folders:  # a package: beside its modules or one level up
        above, package = folders[:-1], folders[-1]
        spots = [(*folders, f"test_{package}.py"), (*above, f"test_{package}.py")]
    else:
        spots = [(*folders, f"test_{name.strip('_')}.py")]
    return tuple("/".join(("tests/unit", *spot)) for spot in spots)


def check_mirrors(
    modules: Iterable[Module], tests: frozenset[str], elsewhere: Mapping[str, str], report: Report
) -> None:
    by_name = {module.name: module for module in modules}
    for name, test in elsewhere.items():
        if name not in by_name:
            report.failures.append(f"COVERED_ELSEWHERE names {name}, which does not exist")
        elif test not in tests:
            report.failures.append(f"COVERED_ELSEWHERE names {test} for {name}, which does not exist")
    for name, module in by_name.items():
        if module.num_lines <= UNTESTED_CAP or name in elsewhere or tests & set(mirror(module.path)):
            continue
        report.failures.append(f"{module.path}: {module.num_lines} lines and no {mirror(module.path)[0]}")


# ------------------------------------------------------------------------------------------------------------ the tree


def read_modules(root: Path, folders: Iterable[str]) -> list[Module]:
    found = (path for folder in folders for path in sorted((root / folder).rglob("*.py")))
    kept = (path for path in found if "_generated" not in path.parts)
    return [Module(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")) for path in kept]


def check(root: Path) -> tuple[Report, list[Module]]:
    modules = read_modules(root, (*PACKAGES, *SIZED_ONLY))
    ours = [module for module in modules if module.is_ours]
    protos = {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((root / "protos").rglob("*.proto"))
    }
    tests = frozenset(path.relative_to(root).as_posix() for path in (root / "tests").rglob("test_*.py"))
    report = Report()
    check_sizes(modules, PARAMETER_EXEMPTIONS, report)
    check_names(ours, protos, report)
    check_mirrors(ours, tests, COVERED_ELSEWHERE, report)
    return report, modules


def main() -> int:
    report, modules = check(Path(__file__).resolve().parents[2])
    for note in report.notes:
        print(f"note: {note}")
    for failure in report.failures:
        print(failure)
    if modules:
        sizes = [function.code_lines for module in modules for function in functions(module)]
        middle = median(module.num_lines for module in modules)
        print(
            f"{len(modules)} modules, median {middle:.0f} lines; {len(sizes)} functions, p90 {p90(sizes)} code lines, "
            f"largest {max(sizes, default=0)}; {len(report.failures)} findings"
        )
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
