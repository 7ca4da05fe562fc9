"""`python -m asyncrl` is the `asyncrl` command."""

from __future__ import annotations

import sys

from asyncrl.cli import command

if __name__ == "__main__":
    sys.exit(command())
