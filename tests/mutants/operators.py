"""What a mutant may be: small changes of one expression or statement that a program like ours can get wrong.

Left out on purpose, because no behaviour hangs on them: texts of errors and log lines, types, `slots=`
of a dataclass, docstrings, imports, `__repr__`, and named spans of time, whose exact value is a choice.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_SPAN = re.compile(r"(_S|_MS|_s|_ms|_HZ|PATIENCE|GRACE)$")
_CONTEXT = 60  # characters shown on each side of a change
_TYPE_NAME = re.compile(r"[A-Z][A-Za-z]*[a-z]$")
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Mutant:
    """One change: `line` of the module's source (1-based) becomes another statement."""

    line: int
    before: str
    after: str
    source: str


def mutants_of(source: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    tree = ast.parse(source)
    sites = [site for node in _mutable(tree) for site in _changes(node)]
    found = []
    for line, change in sites:
        undo = change()
        after = ast.unparse(tree)
        undo()
        ast.parse(after)
        found.append(Mutant(line, _line_of(source, line), "", after))
    clean = ast.unparse(tree).splitlines()
    return [_with_after(mutant, clean) for mutant in found if mutant.source.splitlines() != clean]


def _with_after(mutant: Mutant, clean: list[str]) -> Mutant:
    changed = [pair for pair in zip(clean, mutant.source.splitlines(), strict=False) if pair[0] != pair[1]]
    after = _shown(*(side.strip() for side in changed[0])) if changed else "(removed)"
    return Mutant(mutant.line, mutant.before, after, mutant.source)


def _shown(old: str, new: str) -> str:
    """The new line, or of a long one (a whole call is one line here) the place where it changed."""
    place = next((at for at, (was, now) in enumerate(zip(old, new, strict=False)) if was != now), len(old))
    return new if len(new) <= 2 * _CONTEXT else f"… {new[max(0, place - _CONTEXT) : place + _CONTEXT]} …"


def _line_of(source: str, line: int) -> str:
    return source.splitlines()[line - 1].strip()


def _mutable(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes on which behaviour hangs, outermost first."""
    for child in _children(tree):
        if isinstance(child, ast.Raise | ast.Import | ast.ImportFrom | ast.Assert) or _is_logging(child):
            continue
        if _is_for_types(child) or (isinstance(child, ast.keyword) and child.arg == "slots"):
            continue
        if isinstance(child, ast.FunctionDef) and child.name in ("__repr__", "__str__"):
            continue
        if isinstance(child, ast.AnnAssign | ast.Assign) and _names_a_span(child):
            continue
        yield child
        yield from _mutable(child)


def _children(tree: ast.AST) -> Iterator[ast.AST]:
    """What `ast.iter_child_nodes` gives, without the annotations of arguments, results and variables."""
    for field, value in ast.iter_fields(tree):
        if field not in ("annotation", "returns"):
            yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, ast.AST))


def _is_for_types(node: ast.AST) -> bool:
    """`Name = A | B`, `Name: TypeAlias = …` and `if TYPE_CHECKING:`, which are the type checker's alone."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.annotation, ast.Name) and node.annotation.id == "TypeAlias"
    named = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id
    return bool(named) and _TYPE_NAME.match(str(named)) is not None


def _is_logging(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else node
    if not isinstance(call, ast.Call):
        return False
    function = call.func
    if isinstance(function, ast.Attribute):
        return ast.unparse(function.value).split("(")[0] in (
            "log",
            "logger",
            "logging",
            "logging.getLogger",
            "warnings",
        )
    return isinstance(function, ast.Name) and function.id == "print"


def _names_a_span(node: ast.AnnAssign | ast.Assign) -> bool:
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
    name = target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""
    return _SPAN.search(name) is not None and isinstance(node.value, ast.Constant | ast.BinOp)


Change = Callable[[], Callable[[], None]]


def _changes(node: ast.AST) -> Iterator[tuple[int, Change]]:
    line = getattr(node, "lineno", 0)
    if isinstance(node, ast.Compare):
        yield line, lambda: _replace(node, "ops", [_swap(node.ops[0]), *node.ops[1:]])
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _SWAPS and not _is_text(node):
        yield line, lambda: _replace(node, "op", _swap(node.op))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield line, lambda: _replace(node, "op", ast.UAdd()) if _is_number(node.operand) else _drop_not(node)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield line, lambda: _replace(node, "value", not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        number = node.value
        yield line, lambda: _replace(node, "value", number + 1)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        yield line, lambda: _replace(node, "value", ast.Constant(None))
    elif isinstance(node, ast.AugAssign) and type(node.op) in _SWAPS:
        yield line, lambda: _replace(node, "op", _swap(node.op))
    elif isinstance(node, ast.Return) and node.value is not None and not _is_falsy(node.value):
        yield line, lambda: _replace(node, "value", ast.Constant(None))
    elif isinstance(node, ast.If) and not node.orelse:
        yield line, lambda: _replace(node, "test", ast.Constant(False))


def _swap(operator: ast.AST) -> ast.AST:
    return _SWAPS[type(operator)]()


def _replace(node: ast.AST, name: str, value: object) -> Callable[[], None]:
    # The very object, no copy: changes of what is inside it are made in place, and come after this one.
    old = getattr(node, name)
    setattr(node, name, value)
    return lambda: setattr(node, name, old)


def _drop_not(node: ast.UnaryOp) -> Callable[[], None]:
    """`not x` becomes `not not x`, which is `x` where a truth value is wanted."""
    return _replace(node, "operand", ast.UnaryOp(ast.Not(), node.operand))


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _is_falsy(node: ast.AST) -> bool:
    """None is no other answer than False is."""
    return isinstance(node, ast.Constant) and (node.value is None or node.value is False)


def _is_text(node: ast.BinOp | ast.BoolOp) -> bool:
    return isinstance(node, ast.BinOp) and any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in (node.left, node.right)
    )
