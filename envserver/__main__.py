"""`python -m envserver`."""

from envserver.cli import main

raise SystemExit(main())
