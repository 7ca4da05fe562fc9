"""gRPC credentials of a server: local ones for its own machine, and TLS whose files are read again when they change.

Invariants: a renewed certificate serves the next connection without a restart
(test_a_renewed_certificate_serves_the_next_connection), and files that are broken or only half replaced leave the
last good pair in force (test_a_broken_renewal_keeps_the_last_good_pair); the fetcher, which gRPC calls on a thread of
its own for every handshake, garbage included, never raises and logs once per change (test_the_fetcher_never_raises).
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import grpc

from asyncrl.errors import ConfigError
from envserver.config import ServerConfig

logger = logging.getLogger(__name__)

Signature = tuple[tuple[int, int, int], ...]


def local_credentials(path: str) -> grpc.ServerCredentials:
    """For a Unix socket (`path` is not empty) or loopback TCP. gRPC refuses peers of other machines."""
    kind = grpc.LocalConnectionType.UDS if path else grpc.LocalConnectionType.LOCAL_TCP
    return grpc.local_server_credentials(kind)


def server_credentials(config: ServerConfig) -> grpc.ServerCredentials:
    """TLS with the files of a config; with a client CA, peers without a certificate of it are refused."""
    if config.tls_cert is None or config.tls_key is None:
        raise ConfigError("TLS needs --tls-cert and --tls-key; `envserver cert new --out DIR --host NAME` makes both")
    files = TlsFiles(config.tls_cert, config.tls_key, config.tls_client_ca)
    # The stubs do not know that None keeps what there is.
    fetch = cast(Callable[[], grpc.ServerCertificateConfiguration], files.fetch)
    return grpc.dynamic_ssl_server_credentials(
        files.load(), fetch, require_client_authentication=config.tls_client_ca is not None
    )


class TlsFiles:
    """Certificate, key and client CA on disk. `fetch` runs on gRPC's handshake threads, `_lock` guards `_seen`."""

    def __init__(self, cert: str, key: str, client_ca: str | None = None) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._lock = threading.Lock()
        self._seen: Signature | None = None

    def load(self) -> grpc.ServerCertificateConfiguration:
        """The files now. ConfigError if they cannot serve: missing, unreadable, or not a pair."""
        self._seen = self._signature()
        try:
            self._check()
            return self._read()
        except OSError as error:
            raise ConfigError(f"cannot read {error.filename or 'the TLS files'}: {error.strerror}") from None

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """For one handshake: the files if they have changed and are good, else None, which keeps what gRPC has."""
        with self._lock:
            before = self._seen
            try:
                if self._signature() == before:
                    return None
                fresh = self.load()
                if self._signature() != self._seen:  # replaced while they were read: the next handshake looks again
                    self._seen = before
                    return None
            except Exception as error:
                logger.error("the changed TLS files are not used, the old ones stay: %s", error)
                return None
            logger.info("TLS files read again")
            return fresh

    def _check(self) -> None:
        if os.name != "nt" and Path(self._key).stat().st_mode & 0o007:
            raise ConfigError(f"everyone on this machine can read the private key {self._key}: chmod 600 {self._key}")
        try:
            # Certificate and key together: a key of another certificate is found here, not by every client.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._cert, self._key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"{self._cert} and {self._key} are no certificate with its key: {error}") from None
        if self._client_ca is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(self._client_ca)
            except ssl.SSLError as error:
                raise ConfigError(f"{self._client_ca} holds no CA certificate: {error}") from None

    def _read(self) -> grpc.ServerCertificateConfiguration:
        roots = None if self._client_ca is None else Path(self._client_ca).read_bytes()
        pair = (Path(self._key).read_bytes(), Path(self._cert).read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], roots)

    def _signature(self) -> Signature:
        """Changes when a file does. The inode is in it because a rename can keep time and size."""
        marks = []
        for name in filter(None, (self._cert, self._key, self._client_ca)):
            try:
                status = Path(name).stat()
            except OSError:
                marks.append((0, 0, 0))
            else:
                marks.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(marks)


def _no_password() -> str:
    """Called for an encrypted key, where OpenSSL would ask on the terminal and stop the server."""
    raise ValueError("the key is encrypted; write it without a passphrase")
