"""The mutation operators on small sources: what changes, and what is left alone."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.mutants.operators import mutants_of


def afters(source: str) -> set[str]:
    """The changed lines of every mutant."""
    return {mutant.after for mutant in mutants_of(source)}


def test_each_operator_makes_its_mutant() -> None:
    """One source per operator, and the one line that it must become."""
    table = {
        "x = a < b": "x = a <= b",
        "x = a is None": "x = a is not None",
        "x = a + b": "x = a - b",
        "x = a and b": "x = a or b",
        "x = not a": "x = not not a",
        "x = True": "x = False",
        "x = 3": "x = 4",
        "x += y": "x -= y",
        "f(x)": "None",
        "def f():\n    return x": "return None",
        "if a:\n    b = c": "if False:",
    }
    for source, expected in table.items():
        assert expected in afters(source), source


def test_what_is_inside_a_change_is_changed_too() -> None:
    """A condition is taken out as a whole, and then each of its parts has its turn."""
    assert afters("if a < b and not c:\n    f(x + y)") == {
        "if False:",
        "if a < b or not c:",
        "if a <= b and (not c):",
        "if a < b and (not not c):",
        "None",
        "f(x - y)",
    }
    assert afters("def f():\n    return x > 3") == {"return None", "return x >= 3", "return x > 4"}


def test_texts_logs_and_spans_are_left_alone() -> None:
    """Nothing hangs on these lines, so a mutant of them would say nothing about the tests."""
    for source in (
        "log.info('x', 1)",
        "logging.getLogger('x').info('x', 1)",
        "raise ValueError(1 + 2)",
        "PATIENCE_S = 3",
        "import os",
        '"""doc"""',
    ):
        assert afters(source) == set(), source


def test_types_are_left_alone() -> None:
    """Annotations and aliases are the type checker's; the code around them is not."""
    for source in (
        "x: int | None",
        "def f(x: int | None, *y: Literal[3]) -> int | str: ...",
        "Names = str | list[str]",
        "Table: TypeAlias = dict[str, int] | None",
        "if TYPE_CHECKING:\n    x = 3",
    ):
        assert afters(source) == set(), source
    assert afters("@dataclass(slots=True)\nclass A: ...") == set()
    assert afters("x: int | None = a | b") == {"x: int | None = a & b"}
    assert afters("def f(x: int | None = 3): ...") == {"def f(x: int | None=4):"}


def test_a_long_line_is_shown_where_it_changed() -> None:
    """A call of many lines is one line once unparsed, and its end says nothing of the change."""
    (after,) = afters(f"f({'a, ' * 60}3, {'b, ' * 60})") - {"None"}
    assert "a, 4, b" in after
    assert len(after) < 150


def test_every_mutant_differs_and_parses() -> None:
    """On a real module: each mutant is another program, and one that Python accepts."""
    from asyncrl.wire import server_lane

    source = Path(server_lane.__file__).read_text()
    made = mutants_of(source)
    clean = ast.unparse(ast.parse(source))
    assert len(made) > 40
    assert all(mutant.source != clean and ast.parse(mutant.source) for mutant in made)
    assert len({mutant.source for mutant in made}) > 0.95 * len(made)
