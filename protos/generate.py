"""Generates asyncrl/wire/_generated from env.proto; with --check compares instead and changes nothing.

The generator is older than the protobuf that most environments have, on purpose: generated code runs on the protobuf
it was generated for and on newer ones up to the next major version, never on an older one. So it sets the floor in
pyproject.toml, and it needs an environment of its own, `.venv-proto`, made on first use.
"""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = "asyncrl/v1/env.proto"
PACKAGE = "asyncrl.wire._generated"
VENV = ROOT / ".venv-proto"
# grpcio-tools 1.81 emits code for protobuf 6.33.5; 1.82 already asks for protobuf 7.
PINS = (
    "grpcio-tools==1.81.1",
    "grpcio==1.81.1",
    "protobuf==6.33.6",
    "mypy-protobuf==5.1.0",
    "types-protobuf==6.32.1.20260221",
    "setuptools==84.2.1",
    "typing-extensions==4.16.0",
)
INIT = '"""Made by `make proto` from protos/asyncrl/v1/env.proto; never edited by hand."""\n'


def scripts_dir(venv: Path) -> Path:
    return venv / ("Scripts" if os.name == "nt" else "bin")


def ensure_generator() -> None:
    """Makes .venv-proto unless it already holds exactly PINS."""
    stamp = VENV / ".pins"
    wanted = "\n".join(PINS)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print("making .venv-proto (the protobuf generator, about 60 MB)...", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    python = scripts_dir(VENV) / "python"
    pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, *PINS], check=True)
    stamp.write_text(wanted)


def generate() -> dict[str, str]:
    """The files of the generated package, by name."""
    scripts = scripts_dir(VENV)
    with tempfile.TemporaryDirectory() as out:
        command = [str(scripts / "python"), "-m", "grpc_tools.protoc", f"-I{ROOT / 'protos'}"]
        command += [f"--python_out={out}", f"--mypy_out=quiet:{out}", PROTO]
        subprocess.run(command, check=True, env={**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"})
        made = Path(out, PROTO).parent
        code = (made / "env_pb2.py").read_text()
        stubs = (made / "env_pb2.pyi").read_text()
    # The descriptor keeps its public name asyncrl/v1/env.proto; the classes say where they can be imported from.
    old, new = "'asyncrl.v1.env_pb2'", f"'{PACKAGE}.env_pb2'"
    if code.count(old) != 1:
        raise SystemExit(f"protoc no longer writes {old} once: look at what it made")
    return {"__init__.py": INIT, "env_pb2.py": code.replace(old, new), "env_pb2.pyi": stubs}


def differences(folder: Path, wanted: dict[str, str]) -> list[str]:
    """Unified diffs from what is in the folder to what belongs there; empty if they agree."""
    lines: list[str] = []
    for name, text in wanted.items():
        path = folder / name
        found = path.read_text() if path.exists() else ""
        lines += difflib.unified_diff(found.splitlines(), text.splitlines(), str(path), "regenerated", lineterm="")
    present = {path.name for path in folder.iterdir() if path.is_file()} if folder.exists() else set()
    return lines + [f"{folder / name}: nothing generates this file" for name in sorted(present - set(wanted))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if the committed files differ")
    check: bool = parser.parse_args().check
    ensure_generator()
    folder = ROOT.joinpath(*PACKAGE.split("."))
    wanted = generate()
    if check:
        found = differences(folder, wanted)
        if found:
            print("\n".join(line[:160] for line in found[:40]), "\nrun `make proto` and commit the result", sep="")
        return 1 if found else 0
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in wanted.items():
        (folder / name).write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
