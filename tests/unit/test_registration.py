"""Registration with Gymnasium, in interpreters of their own: what counts is the order of imports."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "imports",
    [
        "import asyncrl, gymnasium",
        "import gymnasium, asyncrl",
        "import asyncrl, asyncrl.registration as r; r.register_when_imported(); import gymnasium",
    ],
)
def test_either_order_of_imports_registers(imports: str) -> None:
    """The environment is known whichever package comes first, and nothing of ours stays in the import system."""
    code = (
        f"{imports}; import sys; print('asyncrl/Remote-v0' in gymnasium.registry, "
        "[type(f).__name__ for f in sys.meta_path if type(f).__module__.startswith('asyncrl')])"
    )
    ended = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split("\n")[-2] == "True []"


def test_gymnasium_is_not_imported_for_it() -> None:
    """Importing asyncrl alone leaves Gymnasium where it is."""
    code = "import asyncrl, sys; print([n for n in ('gymnasium', 'numpy', 'grpc') if n in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
