"""Options that say how to reach a server; every subcommand that dials has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from asyncrl.client.credentials import Access


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Credentials."""

    token_file: Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(optional)")] = None
    """A file with a line `learner TOKEN`, as `envserver token new` makes it."""

    tls_ca: Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(optional)")] = None
    """PEM certificate of the CA that signed the server's."""

    tls_cert: Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(optional)")] = None
    """PEM certificate of this client, for servers that ask for one."""

    tls_key: Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(optional)")] = None
    """PEM private key of that certificate."""

    @property
    def access(self) -> Access:
        return Access(self.token_file, self.tls_ca, self.tls_cert, self.tls_key)
