"""Certificates of every kind that a server or a client may show, made once per session."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from envserver import credentials
from envserver.credentials import Issued

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Pair:
    """PEM files of a certificate and its key, and their bytes as a client passes them to gRPC."""

    cert: Path
    key: Path

    @property
    def client_chain(self) -> tuple[bytes, bytes]:
        return self.key.read_bytes(), self.cert.read_bytes()


@dataclass(frozen=True)
class Certificates:
    """One CA with what it signed, and another CA with the same names."""

    ca: Path
    other_ca: Path
    server: Pair
    expired_server: Pair
    wrong_host_server: Pair
    other_server: Pair
    client: Pair
    expired_client: Pair
    other_client: Pair


def make(folder: Path) -> Certificates:
    now = datetime.datetime.now(datetime.UTC)
    past = (now - datetime.timedelta(days=2), now - datetime.timedelta(days=1))
    ca, other = credentials.issue("ca"), credentials.issue("ca")

    def pair(name: str, issued: Issued) -> Pair:
        found = Pair(folder / f"{name}.pem", folder / f"{name}.key")
        credentials.write_secret(found.cert, credentials._certificate(issued))
        credentials.write_secret(found.key, credentials._key(issued))
        return found

    return Certificates(
        ca=pair("ca", ca).cert,
        other_ca=pair("other-ca", other).cert,
        server=pair("server", credentials.issue("server", [HOST], ca)),
        expired_server=pair("expired-server", credentials.issue("server", [HOST], ca, valid=past)),
        wrong_host_server=pair("wrong-host", credentials.issue("server", ["10.0.0.1", "elsewhere"], ca)),
        other_server=pair("other-server", credentials.issue("server", [HOST], other)),
        client=pair("client", credentials.issue("client", ["trainer"], ca, for_client=True)),
        expired_client=pair("late", credentials.issue("client", ["trainer"], ca, for_client=True, valid=past)),
        other_client=pair("stranger", credentials.issue("client", ["trainer"], other, for_client=True)),
    )
