"""Why a dial failed, found out stage by stage with plain sockets after gRPC has failed: dns, tcp, tls, token, server.

gRPC says UNAVAILABLE for nearly everything. Nothing here runs while things go well.

Invariant: each way to fail names its stage and what to do (test_an_unknown_name, test_nothing_listens,
test_plaintext_to_a_tls_port, test_what_listens_is_silent).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

from asyncrl.client.addresses import Address
from asyncrl.client.credentials import Access
from asyncrl.errors import ConnectionFailed

STAGE_S: Final = 3.0
LISTEN_S: Final = 0.5
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_TLS_ALERT: Final = b"\x15\x03"
_TOKEN_CODES: Final = ("UNAUTHENTICATED", "PERMISSION_DENIED")

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Failed(Exception):
    """A stage failed; the rest is not tried."""

    def __init__(self, stage: str, text: str) -> None:
        super().__init__(text)
        self.stage = stage


async def diagnose(address: Address, access: Access, code: str, text: str) -> ConnectionFailed:
    """The error to raise for a failed RPC with status `code`. Cancellation leaves no socket open."""
    passed: list[str] = []
    try:
        if code in _TOKEN_CODES:
            passed += ["tcp ok", *(["tls ok"] if access.uses_tls(address) else [])]
            raise _Failed("token", _about_token(access))
        await _stages(address, access, passed)
        raise _Failed("server", f"{text}. {_about_server(code)}")
    except _Failed as failed:
        stages = "".join(f"{stage}, " for stage in passed)
        return ConnectionFailed(f"{address.text}: {stages}{failed.stage} FAILED: {failed}", failed.stage)


async def _stages(address: Address, access: Access, passed: list[str]) -> None:
    if not address.is_unix:
        await _look_up(address)
        passed.append("dns ok")
    reader, writer = await _connect(address)
    passed.append("tcp ok" if not address.is_unix else "socket ok")
    try:
        if not access.uses_tls(address):
            await _expect_http2(reader, writer)
    finally:
        writer.close()
    if access.uses_tls(address):
        await _handshake(address, access)
        passed.append("tls ok")


async def _look_up(address: Address) -> None:
    try:
        async with asyncio.timeout(STAGE_S):
            await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or error
        raise _Failed("dns", f"{address.host}: {reason}. Check the name, or pass the IP address") from None


async def _connect(address: Address) -> Streams:
    try:
        async with asyncio.timeout(STAGE_S):
            if address.is_unix:
                return await asyncio.open_unix_connection(address.path)
            return await asyncio.open_connection(address.host, address.port)
    except TimeoutError:
        raise _Failed("tcp", "no answer; a firewall drops the packets, or the machine is off") from None
    except ConnectionRefusedError:
        where = "that socket" if address.is_unix else f"port {address.port}"
        raise _Failed("tcp", f"nothing listens on {where}; start one there: envserver --env ... --listen ...") from None
    except OSError as error:
        raise _Failed("tcp", f"{error.strerror or error}") from None


async def _expect_http2(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What a plaintext server says to an HTTP/2 preface."""
    try:
        writer.write(_PREFACE)
        async with asyncio.timeout(STAGE_S):
            head = await reader.read(9)
    except TimeoutError:
        raise _Failed("http2", "connected, but silent: the server is stalled, or it is no gRPC server") from None
    except OSError as error:
        raise _Failed("http2", f"{error.strerror or error}") from None
    if head.startswith(_TLS_ALERT) or not head:
        raise _Failed("tls", "this port speaks TLS: pass tls_ca=PATH of the CA that signed its certificate")
    if len(head) < 4 or head[3] != 4:  # a SETTINGS frame
        raise _Failed("http2", f"whatever listens there is no gRPC server; it says {head!r}")


async def _handshake(address: Address, access: Access) -> None:
    context = _context(access)
    try:
        async with asyncio.timeout(STAGE_S):
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=context, server_hostname=address.host
            )
    except TimeoutError:
        raise _Failed("tls", "no answer to the handshake") from None
    except (ssl.SSLError, OSError) as error:
        raise _Failed("tls", _about_tls(error, access)) from None
    try:
        # With TLS 1.3 a server that misses our certificate says so only after the handshake.
        async with asyncio.timeout(LISTEN_S):
            refused = not await reader.read(1)
    except TimeoutError:
        refused = False
    except (ssl.SSLError, OSError):
        refused = True
    finally:
        writer.transport.abort()
    if refused:
        raise _Failed("tls", "the server wants a certificate of ours: pass tls_cert and tls_key")


def _context(access: Access) -> ssl.SSLContext:
    what = f"the CA file {access.tls_ca}"
    try:
        context = ssl.create_default_context(cafile=access.tls_ca)
        context.set_alpn_protocols(["h2"])
        if access.tls_cert is not None:
            what = f"the certificate {access.tls_cert} with the key {access.tls_key}"
            # Without a password for it OpenSSL would ask at the terminal, and the loop stand still.
            context.load_cert_chain(access.tls_cert, access.tls_key, password="")
    except (OSError, ValueError) as error:  # SSLError is an OSError
        reason = error.strerror if isinstance(error, FileNotFoundError) else error
        raise _Failed(
            "tls", f"{what} cannot be used: {reason}; both are PEM files, the key without a password"
        ) from None
    return context


def _about_tls(error: Exception, access: Access) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if access.tls_ca is None:
            return f"{error.verify_message}; pass tls_ca=PATH of the CA that signed the server's certificate"
        return f"{error.verify_message}; is {access.tls_ca} the CA of this server, and its certificate for this name?"
    if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return "the server answers without TLS there; for one on this machine leave tls_ca out"
    return f"{error}; the server may listen without TLS, or want a certificate (tls_cert, tls_key)"


def _about_token(access: Access) -> str:
    if access.token_file is None:
        return "the server wants a token: pass token_file=PATH, a copy of the server's token file"
    return f"the server does not know the learner token of {access.token_file}: copy its token file again"


def _about_server(code: str) -> str:
    if code == "UNIMPLEMENTED":
        return "It is a gRPC server, but no asyncrl env server"
    if code == "DEADLINE_EXCEEDED":
        return "It is there, but too busy or stalled"
    return "It is there now: it may have been starting, or be overloaded"
