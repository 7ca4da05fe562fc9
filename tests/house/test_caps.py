"""Each rule of the checker: sources that break it and sources that do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import caps
from tests.house.caps import Module, Report


def body(num_lines: int, indent: str = "    ") -> str:
    return f"{indent}x = 1\n" * num_lines


def one_function(num_lines: int) -> str:
    """A def line, `num_lines - 1` lines of code, and much that is no code."""
    prose = '    """One.\n\n    Two.\n    """\n    # three\n\n'
    return f"def f() -> None:\n{prose}{body(num_lines - 1)}"


def sizes(*sources: str, path: str = "asyncrl/a.py", exempt: tuple[str, ...] = ()) -> Report:
    report = Report()
    caps.check_sizes([Module(path, source) for source in sources], dict.fromkeys(exempt, "why"), report)
    return report


def names(source: str, path: str = "asyncrl/a.py") -> list[str]:
    report = Report()
    caps.check_names([Module(path, source)], {}, report)
    return report.failures


def proto(source: str) -> list[str]:
    report = Report()
    caps.check_names([], {"protos/a.proto": source}, report)
    return report.failures


def mirrors(path: str, *tests: str, num_lines: int = 61, elsewhere: dict[str, str] | None = None) -> list[str]:
    report = Report()
    caps.check_mirrors([Module(path, "x = 1\n" * num_lines)], frozenset(tests), elsewhere or {}, report)
    return report.failures


# --------------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(("num_lines", "failures", "notes"), [(300, 0, 0), (301, 0, 1), (500, 0, 1), (501, 1, 0)])
def test_a_module_is_noted_above_300_lines_and_fails_above_500(num_lines: int, failures: int, notes: int) -> None:
    """A module is noted above 300 lines and fails above 500."""
    report = sizes("x = 1\n" * num_lines)
    assert (len(report.failures), len(report.notes)) == (failures, notes)


def test_a_function_fails_above_50_code_lines_and_prose_is_free() -> None:
    """A function fails above 50 code lines and prose is free."""
    small = "def g() -> None:\n    pass\n" * 20
    assert sizes(small + one_function(50)).failures == []
    [failure] = sizes(small + one_function(51)).failures
    assert failure == "asyncrl/a.py:41: f has 51 code lines (cap 50)"


def test_the_inside_of_a_string_that_is_no_docstring_is_code() -> None:
    """The inside of a string that is no docstring is code."""
    text = "# no comment\n\n" * 30
    [failure] = sizes(f'def f() -> str:\n    return """{text}"""\n' + "def g(): pass\n" * 20).failures
    assert "f has 62 code lines" in failure


def test_methods_and_nested_functions_are_measured_by_their_qualified_names() -> None:
    """Methods and nested functions are measured by their qualified names."""
    inner = body(60, indent=" " * 12)
    source = f"class A:\n    async def f(self):\n        def g():\n{inner}" + "def h(): pass\n" * 30
    assert [failure.split()[1] for failure in sizes(source).failures] == ["A.f", "A.f.g"]


def test_the_90th_percentile_is_over_the_whole_tree() -> None:
    """The 90th percentile is over the whole tree."""
    long, short = one_function(26), one_function(3)
    assert sizes(*[short] * 9, long).failures == []
    [failure] = sizes(*[short] * 8, long, long).failures
    assert failure == "the 90th percentile of function sizes is 26 code lines (cap 25)"


@pytest.mark.parametrize(
    ("signature", "number"),
    [
        ("def f(a, b, c, d, e, g, h): pass", 7),
        ("def f(a, b, c, d, e, g, h, i): pass", 8),
        ("def f(self, b, c, d, e, g, h, i): pass", 8),
        ("def f(a, b, /, c, d, *args, e, g, **kwargs): pass", 8),
        ("class A:\n    def f(self, a, b, c, d, e, g, h): pass", 7),
        ("class A:\n    def f(self, a, b, c, d, e, g, h, i): pass", 8),
        ("class A:\n    @classmethod\n    async def f(cls, a, b, c, d, e, g, h): pass", 7),
        ("class A:\n    @staticmethod\n    def f(a, b, c, d, e, g, h, i): pass", 8),
        ("class A:\n    a: int\n    b: int\n    c: int\n    d: int\n    e: int\n    f: int\n    g: int\n    h: int", 0),
    ],
)
def test_a_function_has_at_most_seven_parameters_besides_self(signature: str, number: int) -> None:
    """A function has at most seven parameters besides self."""
    found = sizes(signature).failures
    assert [failure.split(" has ")[1] for failure in found] == ([f"{number} parameters (cap 7)"] if number > 7 else [])


def test_an_exempted_signature_passes_and_an_exemption_without_need_fails() -> None:
    """An exempted signature passes and an exemption without need fails."""
    long, short = "class A:\n    def f(self, *, a, b, c, d, e, g, h, i): pass", "class A:\n    def f(self): pass"
    assert sizes(long, exempt=("asyncrl.a:A.f",)).failures == []
    assert sizes(long, exempt=("asyncrl.b:A.f",)).failures == ["asyncrl/a.py:2: A.f has 8 parameters (cap 7)"]
    assert "does not need it" in sizes(short, exempt=("asyncrl.a:A.f",)).failures[0]


# --------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    "path", ["asyncrl/utils.py", "asyncrl/_helpers.py", "envserver/common/x.py", "asyncrl/misc.py"]
)
def test_module_names_that_say_nothing_fail(path: str) -> None:
    """Module names that say nothing fail."""
    assert len(names("", path)) == 1


@pytest.mark.parametrize("path", ["asyncrl/utilities.py", "asyncrl/spec.py", "asyncrl/wire/__init__.py"])
def test_other_module_names_pass(path: str) -> None:
    """Other module names pass."""
    assert names("", path) == []


@pytest.mark.parametrize(
    "source",
    [
        "done = True",
        "_done: bool",
        "print(done)",
        "self.done = 1",
        "if row.done: pass",
        "def f(done): pass",
        "def f(*, done=False): pass",
        "lambda done: 1",
        "f(done=1)",
        "for done in x: pass",
        "done, pending = await_them()",
        "rows['done']",
        "info = {'done': 1}",
        "import x as done",
        "class A:\n    done: bool",
        "class A:\n    @property\n    def done(self): pass",
        "task.done().done",
        "match x:\n    case [done]: pass",
    ],
)
def test_nothing_of_ours_is_called_done(source: str) -> None:
    """Nothing of ours is called done."""
    assert len(names(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "task.done()",
        "task.add_done_callback(f)",
        "dones = terminated | truncated",
        "print('done')",
        "# done = 1",
        "class Waiter:\n    def done(self): pass",
        "finished, pending = x",
    ],
)
def test_futures_and_the_dones_of_other_libraries_pass(source: str) -> None:
    """Futures and the dones of other libraries pass."""
    assert names(source) == []


@pytest.mark.parametrize(
    "source", ["bool done = 3;", "message A { repeated bytes done = 1 [packed = true]; }", "DONE = 1;"]
)
def test_no_proto_field_is_called_done(source: str) -> None:
    """No proto field is called done."""
    assert proto(f"// first\n{source}")[0].startswith("protos/a.proto:2: ")


@pytest.mark.parametrize(
    "source", ["bool terminated = 3;", "// bool done = 3;", "/* bool\ndone = 3; */", "bool dones = 1;"]
)
def test_other_proto_fields_and_comments_pass(source: str) -> None:
    """Other proto fields and comments pass."""
    assert proto(source) == []


# -------------------------------------------------------------------------------------------------------- test modules


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("asyncrl/errors.py", "tests/unit/test_errors.py"),
        ("asyncrl/wire/spec.py", "tests/unit/wire/test_spec.py"),
        ("asyncrl/wire/_state.py", "tests/unit/wire/test_state.py"),
        ("asyncrl/cli/__init__.py", "tests/unit/cli/test_cli.py"),
        ("asyncrl/cli/__init__.py", "tests/unit/test_cli.py"),
        ("envserver/relay.py", "tests/unit/envserver/test_relay.py"),
        ("envserver/__main__.py", "tests/unit/envserver/test_main.py"),
        ("asyncrl/__init__.py", "tests/unit/test_init.py"),
    ],
)
def test_a_module_needs_its_mirror_image_in_tests_unit(path: str, test: str) -> None:
    """A module needs its mirror image in tests unit."""
    assert mirrors(path, test) == []
    assert len(mirrors(path, "tests/unit/test_other.py")) == 1


def test_a_small_module_needs_no_test_module() -> None:
    """A small module needs no test module."""
    assert mirrors("asyncrl/a.py", num_lines=60) == []


def test_a_module_covered_elsewhere_names_a_test_module_that_exists() -> None:
    """A module covered elsewhere names a test module that exists."""
    elsewhere = {"asyncrl.a": "tests/rpc/test_a.py"}
    assert mirrors("asyncrl/a.py", "tests/rpc/test_a.py", elsewhere=elsewhere) == []
    assert "does not exist" in mirrors("asyncrl/a.py", elsewhere=elsewhere)[0]
    assert "asyncrl.a, which does not exist" in mirrors("asyncrl/b.py", num_lines=1, elsewhere=elsewhere)[0]


# ------------------------------------------------------------------------------------------------------------ the tree


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small project that breaks nothing: the modules covered elsewhere, and the tests that cover them."""
    for module, test in caps.COVERED_ELSEWHERE.items():
        write(tmp_path, f"{module.replace('.', '/')}.py", "")
        write(tmp_path, test, "")
    return tmp_path


def test_generated_code_is_skipped_and_benchmarks_are_only_sized(tree: Path) -> None:
    """Generated code is skipped and benchmarks are only sized."""
    write(tree, "asyncrl/wire/_generated/env_pb2.py", "done = 1\n" * 600)
    write(tree, "benchmarks/peers.py", "done = 1\n" * 70)
    write(tree, "benchmarks/rollout.py", "x = 1\n" * 501)
    write(tree, "tests/unit/test_a.py", "done = 1\n" * 600)
    report, modules = caps.check(tree)
    assert report.failures == ["benchmarks/rollout.py: 501 lines (cap 500)"]
    paths = [module.path for module in modules]
    assert paths[-2:] == ["benchmarks/peers.py", "benchmarks/rollout.py"]
    assert len(paths) == len(caps.COVERED_ELSEWHERE) + 2


def test_the_command_ends_with_status_1_if_a_cap_is_broken(tree: Path) -> None:
    """The command ends with status 1 if a cap is broken."""
    write(tree, "tests/house/caps.py", Path(caps.__file__).read_text())
    write(tree, "asyncrl/utils.py", "")
    command = [sys.executable, str(tree / "tests/house/caps.py")]
    broken = subprocess.run(command, capture_output=True, text=True)
    assert broken.returncode == 1
    assert broken.stdout.startswith("asyncrl/utils.py: ")
    (tree / "asyncrl/utils.py").rename(tree / "asyncrl/spec.py")
    assert subprocess.run(command, capture_output=True).returncode == 0
