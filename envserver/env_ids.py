"""Whether what `--env` names can be made: asked of Gymnasium in a process of its own.

The server process never imports gymnasium, a simulator or a user's module: it has to stay small and its loop free. So
`python -m envserver.env_ids` looks them up while the server imports gRPC, and writes one complaint per bad alias.

Invariant: only a complaint keeps a server from starting, whatever a module prints or does while it is imported
(test_a_module_that_greets_or_crashes_does_no_harm).
"""

from __future__ import annotations

import difflib
import importlib
import json
import os
import subprocess
import sys
from typing import Any, Final, NoReturn

from asyncrl.errors import ConfigError
from envserver.child_process import child_environment
from envserver.registry import EnvAlias, Registry

# A module that takes longer to import is not waited for: the lane that needs it says what is wrong with it.
CHECK_S: Final = 20.0


class EnvIdCheck:
    """Starts on creation; `finish` raises ConfigError with everything that was found."""

    def __init__(self, registry: Registry) -> None:
        command = [sys.executable, "-m", "envserver.env_ids"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(()),  # that of the lanes
        )
        self._question = json.dumps(registry.to_json()).encode()

    def finish(self) -> None:
        """Waits for the answer, at most CHECK_S. No answer is no complaint."""
        try:
            answer, _ = self._process.communicate(self._question, CHECK_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return
        try:
            complaints = json.loads(answer)
        except ValueError:  # a module ended the process
            return
        if complaints:
            raise ConfigError("\n".join(complaints))


def complaint(alias: EnvAlias) -> str | None:
    """What is wrong with an alias, and what was probably meant; None if it can be looked up."""
    name = alias.entry_point or alias.env_id or ""
    module, colon, rest = name.partition(":")
    if alias.atari:
        module, colon, rest = "ale_py", ":", name
    if colon:
        try:
            imported = importlib.import_module(module)
        except ImportError as error:
            fix = "pip install 'asyncrl[atari]'" if alias.atari else "run envserver where Python finds it"
            return f"--env {alias.alias}: cannot import {module} ({error}): {fix}"
        if alias.entry_point:
            return _entry_point_complaint(alias.alias, imported, rest)
    return _env_id_complaint(alias.alias, rest or name)


def _entry_point_complaint(alias: str, module: Any, attribute: str) -> str | None:
    if callable(getattr(module, attribute, None)):
        return None
    public = [name for name in dir(module) if not name.startswith("_") and callable(getattr(module, name))]
    return f"--env {alias}: {module.__name__} has no function {attribute!r}{_nearest(attribute, public)}"


def _env_id_complaint(alias: str, env_id: str) -> str | None:
    import gymnasium

    try:
        gymnasium.spec(env_id)
    except gymnasium.error.Error:
        known = list(gymnasium.registry)
        return f"--env {alias}: Gymnasium has no environment {env_id!r}{_nearest(env_id, known)}"
    return None


def _nearest(wanted: str, known: list[str]) -> str:
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(wanted.lower(), by_lower, n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(by_lower[name] for name in near)}?" if near else ""


def main() -> NoReturn:
    """The registry as JSON on standard input, a JSON list of complaints on standard output."""
    registry = Registry.from_json(json.load(sys.stdin))
    # What modules print while they are imported, from Python, from C and from programs that they start, goes elsewhere.
    answer = os.dup(1)
    os.dup2(2, 1)
    found = [complaint(alias) for alias in registry]
    with os.fdopen(answer, "w") as out:
        json.dump([text for text in found if text is not None], out)
    os._exit(0)  # what they have to do at the end is of no interest, and may take long


if __name__ == "__main__":
    main()
