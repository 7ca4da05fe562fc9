"""`envserver token new` and `envserver cert new`: what a server needs before other machines may reach it.

Invariants: nothing that exists is overwritten (test_nothing_is_overwritten); secrets are in files of mode 0600 from
the first byte on and never on a terminal or in a log (test_secrets_are_for_their_owner_alone).
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from asyncrl.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

TOKEN_BYTES: Final = 32
# A CA in a drawer would outlive its keepers; ours is made anew with its certificates.
VALID_DAYS: Final = 825
_BACKDATE: Final = datetime.timedelta(hours=1)  # clocks of two machines never quite agree


@dataclass(frozen=True)
class Issued:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey


def new_token(path: str, role: str) -> str:
    """Writes a token file; gives the text that says how to use it."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    mark = hashlib.sha256(token.encode()).hexdigest()[:8]
    text = (
        f"# token {mark} (so it is called in logs), for envserver --token-file; keep it at mode 0600\n{role} {token}\n"
    )
    write_secret(Path(path), text.encode())
    return (
        f"wrote {path}: a token of role {role}, called {mark} in logs\n"
        f"  env server:        envserver --token-file {path} ...\n"
        f"  training machine:  a copy of the file (scp -p keeps its mode 0600), and --token-file there"
    )


def new_certificates(out: str, hosts: Sequence[str], client: str | None = None) -> str:
    """Writes a CA and a server certificate for `hosts` into the folder `out`, and one for a client if it has a name."""
    if not hosts:
        raise ConfigError("name what clients dial: envserver cert new --out DIR --host HOST_OR_IP")
    ca = issue("asyncrl env server CA")
    server = issue(hosts[0], hosts, ca)
    files = {"ca.pem": _certificate(ca), "server.key": _key(server), "server.pem": _certificate(server)}
    if client is not None:
        made = issue(client, [client], ca, for_client=True)
        files |= {"client.key": _key(made), "client.pem": _certificate(made)}
    folder = Path(out)
    _write_all(folder, files)
    lines = [
        f"wrote {', '.join(sorted(files))} to {folder}, valid for {VALID_DAYS} days, for {', '.join(hosts)}",
        f"  env server:        envserver --tls-cert {folder / 'server.pem'} --tls-key {folder / 'server.key'} "
        + (f"--tls-client-ca {folder / 'ca.pem'} " if client else "")
        + "--token-file FILE ...",
        f"  training machine:  a copy of {folder / 'ca.pem'}"
        + (", client.pem and client.key" if client else "")
        + "; nothing else of this folder",
        "  The CA's own key was not kept: for other hosts make new certificates.",
    ]
    return "\n".join(lines)


def issue(
    name: str,
    hosts: Sequence[str] = (),
    ca: Issued | None = None,
    *,
    for_client: bool = False,
    valid: tuple[datetime.datetime, datetime.datetime] | None = None,
) -> Issued:
    """A certificate signed by `ca`, or a CA where there is none."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError:
        raise ConfigError("certificates need the package `cryptography`: pip install 'asyncrl[tls]'") from None

    now = datetime.datetime.now(datetime.UTC)
    start, end = valid or (now - _BACKDATE, now + datetime.timedelta(days=VALID_DAYS))
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _common_name(name))])
    signer = ca.key if ca else key
    builder = (
        x509.CertificateBuilder(subject_name=subject, issuer_name=ca.certificate.subject if ca else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=ca is None, path_length=0 if ca is None else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(_key_usage(is_ca=ca is None), critical=True)
    )
    if ca is not None:
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if for_client else ExtendedKeyUsageOID.SERVER_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_san, hosts))), critical=False)
    return Issued(builder.sign(signer, hashes.SHA256()), key)


def write_secret(path: Path, data: bytes) -> None:
    """Creates a file that only its owner can read; refuses where there is one."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {path.parent}: {error.strerror}") from None
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{path} exists; nothing was written. Choose another name, or remove it first") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _write_all(folder: Path, files: dict[str, bytes]) -> None:
    """All or none of them: half a set would look like a whole one."""
    present = [name for name in files if (folder / name).exists()]
    if present:
        raise ConfigError(
            f"{folder} has {', '.join(sorted(present))} already; nothing was written. Choose another folder"
        )
    written: list[Path] = []
    try:
        for name, data in files.items():
            write_secret(folder / name, data)
            written.append(folder / name)
    except ConfigError:
        for path in written:
            path.unlink()
        raise


def _common_name(name: str) -> str:
    """For people only, who may read a part of it: X.509 has room for 64 bytes, and peers compare the SANs."""
    return name.encode()[:64].decode(errors="ignore") or "unnamed"


def _san(host: str) -> x509.GeneralName:
    """An IP address is matched as such, anything else as a DNS name."""
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host if host.isascii() else host.encode("idna").decode())
    except (UnicodeError, ValueError):
        raise ConfigError(f"--host {host!r} is neither an IP address nor a host name") from None


def _key_usage(is_ca: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )


def _certificate(issued: Issued) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return issued.certificate.public_bytes(Encoding.PEM)


def _key(issued: Issued) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return issued.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
