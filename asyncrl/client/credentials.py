"""How the client proves who it is and whom it believes: local credentials, TLS, tokens.

Invariants: a token leaves this machine over TLS only (test_a_token_needs_tls_off_this_machine); a token file is read
again when it changes (test_a_rotated_token_is_used).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from asyncrl.client.addresses import Address
from asyncrl.errors import ConfigError

ROLE: Final = "learner"


@dataclass(frozen=True)
class Access:
    """Paths of PEM files and of a token file (`role token` lines); None: not used."""

    token_file: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert and tls_key belong together: pass both or neither")
        if self.tls_cert is not None and self.tls_ca is None:
            raise ConfigError("tls_cert without tls_ca: pass the CA that signed the server's certificate too")

    def uses_tls(self, address: Address) -> bool:
        """Always off this machine; on it where a CA was named; never on a Unix socket."""
        return not address.is_unix and (self.tls_ca is not None or not address.is_loopback)


def channel_credentials(address: Address, access: Access) -> grpc.ChannelCredentials:
    """Raises ConfigError for files that cannot be read."""
    if access.uses_tls(address):
        credentials = grpc.ssl_channel_credentials(
            root_certificates=_read(access.tls_ca, "tls_ca"),
            private_key=_read(access.tls_key, "tls_key"),
            certificate_chain=_read(access.tls_cert, "tls_cert"),
        )
    else:
        kind = grpc.LocalConnectionType.UDS if address.is_unix else grpc.LocalConnectionType.LOCAL_TCP
        credentials = grpc.local_channel_credentials(kind)
    if access.token_file is None:
        return credentials
    token = grpc.metadata_call_credentials(TokenPlugin(TokenFile(access.token_file)), name="asyncrl-token")
    return grpc.composite_channel_credentials(credentials, token)


class TokenFile:
    """The first `learner` token of a file. gRPC asks for it on threads of its own; a race only reads the file twice."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._seen = self._signature()
        self._token = self._read()

    def token(self) -> str:
        """The token as it is now; that of before while the file cannot be used."""
        try:
            signature = self._signature()
            if signature != self._seen:
                self._token, self._seen = self._read(), signature
        except ConfigError:
            pass  # half a rotation: the server says so if the old token is no longer good
        return self._token

    def _signature(self) -> tuple[int, int, int]:
        try:
            status = self._path.stat()
        except OSError as error:
            raise ConfigError(f"cannot read the token file {self._path}: {error.strerror}") from None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> str:
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the token file {self._path}: {error}") from None
        for line in text.splitlines():
            words = line.partition("#")[0].split()
            if len(words) == 2 and words[0] == ROLE:
                return words[1]
        raise ConfigError(f"{self._path} has no line `{ROLE} TOKEN`: copy the token file of the server")


class TokenPlugin(grpc.AuthMetadataPlugin):
    """Puts the token on every RPC."""

    def __init__(self, tokens: TokenFile) -> None:
        self._tokens = tokens

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        callback((("authorization", f"Bearer {self._tokens.token()}"),), None)


def _read(path: str | None, what: str) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {what} {path}: {error.strerror}") from None
