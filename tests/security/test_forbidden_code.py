"""What runs code from data is in no module of ours, and no name from the wire leads to an import."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.errors import ServerRefused
from envserver.registry import Registry, parse_env_option

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path for room in ("asyncrl", "envserver") for path in (ROOT / room).rglob("*.py"))

BANNED_MODULES = {
    *("pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "jsonpickle"),
    *("pickletools", "copyreg", "multiprocessing"),
}
BANNED_CALLS = {"eval", "exec", "compile", "__import__"}


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []


def findings(text: str) -> Iterator[str]:
    """What of a module's text can run code that came as data."""
    for node in ast.walk(ast.parse(text)):
        for name in imported(node):
            if name.partition(".")[0] in BANNED_MODULES or (name == "yaml" and isinstance(node, ast.ImportFrom)):
                yield f"line {node.lineno}: import {name}"  # type: ignore[attr-defined]
        if not isinstance(node, ast.Call):
            continue
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        if called in BANNED_CALLS:
            yield f"line {node.lineno}: {called}()"
        if ast.unparse(node.func).startswith("yaml.") and ast.unparse(node.func) != "yaml.safe_load":
            yield f"line {node.lineno}: {ast.unparse(node.func)}"
        if ast.unparse(node.func) in ("torch.export.load", "np.load", "numpy.load", "torch.load"):
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            safe = keywords.get("allow_pickle") == "False" or keywords.get("weights_only") == "True"
            if not safe:
                yield f"line {node.lineno}: {ast.unparse(node.func)}"
        for keyword in node.keywords:
            if keyword.arg == "shell" and ast.unparse(keyword.value) != "False":
                yield f"line {node.lineno}: shell={ast.unparse(keyword.value)}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_module_can_run_code_from_data(path: Path) -> None:
    """No pickle or its kin, no eval, no unsafe load, no shell, in any module of both packages."""
    assert list(findings(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import multiprocessing.reduction",
        "def f():\n    import cloudpickle",
        "from yaml import load",
        "yaml.load(text)",
        "yaml.unsafe_load(text)",
        "x = eval('1')",
        "exec(data)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "numpy.load(path, allow_pickle=flag)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "subprocess.run('ls', shell=True)",
    ],
)
def test_each_forbidden_thing_is_found(text: str) -> None:
    """The search itself works."""
    assert list(findings(text))


@pytest.mark.parametrize(
    "text",
    [
        "yaml.safe_load(text)",
        "np.load(path, allow_pickle=False)",
        "torch.load(p, weights_only=True)",
        "model.eval()",
        "re.compile('x')",
    ],
)
def test_what_is_harmless_is_not_found(text: str) -> None:
    """Methods of the same name and the safe forms pass."""
    assert list(findings(text)) == []


HOSTILE = [
    "os:system",
    "os:system('true')",
    "my_pkg.envs:Env",
    "../CartPole-v1",
    "..",
    "/etc/passwd",
    "CartPole-v1 ",
    "CartPole-v1\n",
    "CartPole-v1\0",
    "CartPole-v1{}",
    "\uff23artPole-v1",
    "C\u0430rtPole-v1",  # a Cyrillic a
    "CartPole-v1\u200b",
    "",
    "x" * 81,
    "*",
    "%s",
    "CartPole",
    "cartpole-v1",
    "Taxi-v3",
    json.dumps({"id": "CartPole-v1", "entry_point": "os:system", "kwargs": {}}),
    json.dumps({"additional_wrappers": [{"entry_point": "os:system"}]}),
]


@pytest.mark.parametrize("alias", HOSTILE)
def test_only_registered_aliases_lead_anywhere(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules, paths, look-alikes, EnvSpec JSON and real but unlisted ids: all unknown, and nothing is imported."""
    registry = Registry([parse_env_option("CartPole-v1"), parse_env_option("mine=json:loads")])

    def no_import(name: str, *_: object) -> None:
        pytest.fail(f"a name from the wire led to an import of {name}")

    monkeypatch.setattr("importlib.import_module", no_import)
    with pytest.raises(ServerRefused) as caught:
        registry.get(alias)
    assert caught.value.code == "UNKNOWN_ENV"
    assert len(str(caught.value)) < 400


def test_the_targets_of_aliases_are_no_aliases() -> None:
    """A client cannot ask for what stands behind an alias."""
    registry = Registry([parse_env_option("mine=json:loads"), parse_env_option("pole=CartPole-v1")])
    for target in ("json:loads", "CartPole-v1"):
        with pytest.raises(ServerRefused):
            registry.get(target)
