"""`python -m envserver.embedded OPTIONS`: a server that a program starts as its child. OPTIONS is one JSON object, with
fields of `Options`.

Not the `envserver` command: to read a command line takes as long as to import NumPy, and no person waits for its help
here (test_an_embedded_server_reads_no_command_line). Exit status: as of the command.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from asyncrl.errors import ConfigError
from envserver.options import Options
from envserver.running import run


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the server and gives its exit status."""
    (text,) = sys.argv[1:] if argv is None else argv
    try:
        return run(options_from(text))
    except ConfigError as error:
        print(f"envserver: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def options_from(text: str) -> Options:
    """Of the JSON, in which tuples are lists."""
    told: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(text).items()
    }
    there = [name for name in Options.__dataclass_fields__ if name != "embedded"]
    unknown = sorted(told.keys() - set(there))
    if unknown:
        raise ConfigError(f"no options of an env server: {', '.join(unknown)}; there are {', '.join(there)}")
    return Options(**told, embedded=True)


if __name__ == "__main__":
    raise SystemExit(main())
