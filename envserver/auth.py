"""Who may call what: tokens in a file, and the interceptor that asks for one before a byte of a request is read.

Invariants: a method that the table does not name is for nobody (test_unlisted_methods_are_for_nobody); comparing takes
the same time whichever token is shown, because digests are compared and all of them (test_every_digest_is_compared);
a token never reaches a log, only the first 8 hex digits of its SHA-256 (test_tokens_never_reach_the_log); a token file
that cannot be used stops the start (test_an_unusable_token_file_stops_the_start), and later leaves the tokens of before
in force (test_a_broken_rotation_keeps_the_old_tokens).

A token file has one `<role> <token>` per line and `#` comments. Two lines of one role are a rotation: add the new
token, move the clients, remove the old one.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc
import grpc.aio

from asyncrl.errors import ConfigError
from envserver.config import ServerConfig

logger = logging.getLogger(__name__)

MIN_TOKEN_CHARS: Final = 16
_PREFIX: Final = "Bearer "

# Method -> roles. What is not here is for nobody.
ROLES_OF: Final[Mapping[str, frozenset[str]]] = {
    "/asyncrl.v1.EnvService/Describe": frozenset({"learner", "observer"}),
    "/asyncrl.v1.EnvService/Lane": frozenset({"learner"}),
    "/grpc.health.v1.Health/Check": frozenset({"learner", "observer"}),
    "/grpc.health.v1.Health/List": frozenset({"learner", "observer"}),
    "/grpc.health.v1.Health/Watch": frozenset({"learner", "observer"}),
}
ROLES: Final = tuple(sorted(frozenset[str]().union(*ROLES_OF.values())))

# Of whoever made the call that this task serves; without a token file everybody may do everything. Of what a method
# does besides looking, such as having an environment built, only learners have a share (test_a_spec_is_for_learners).
ROLE: Final[ContextVar[str]] = ContextVar("ROLE", default="learner")

if TYPE_CHECKING:  # generic in the stubs only
    _Interceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    _Interceptor = grpc.aio.ServerInterceptor

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Continuation: TypeAlias = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]


def interceptors(config: ServerConfig) -> list[grpc.aio.ServerInterceptor[Any, Any]]:
    """What the gRPC server is made with: with a token file every address asks for a token, local ones too."""
    if config.token_file is None:
        return []
    return [TokenAuth(TokenFile(config.token_file), log_interval_s=1 / config.quotas.auth_logs_per_s)]


def fingerprint(digest: bytes) -> str:
    """How a token is called in logs."""
    return digest[:4].hex()


class TokenFile:
    """Digest -> role of the tokens on disk, read again when the file changes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen = self._signature()
        self._roles = read_tokens(path)

    def roles(self) -> Mapping[bytes, str]:
        """The tokens as they are now; those of before where the file cannot be used."""
        signature = self._signature()
        if signature != self._seen:
            self._seen = signature
            try:
                self._roles = read_tokens(self._path)
            except ConfigError as error:
                logger.error("the tokens stay as they were: %s", error)
            else:
                logger.info("tokens read again: %s", ", ".join(map(fingerprint, self._roles)))
        return self._roles

    def _signature(self) -> tuple[int, ...]:
        try:
            status = Path(self._path).stat()
        except OSError:
            return ()
        return (status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode)


def read_tokens(path: str) -> dict[bytes, str]:
    """SHA-256 digest -> role. A file that is named but cannot be used is never taken for one without tokens."""
    try:
        mode = Path(path).stat().st_mode
        text = Path(path).read_text(encoding="ascii")
    except OSError as error:
        raise ConfigError(f"cannot read the token file {path}: {error.strerror}; {_MAKE.format(path)}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no token file; {_MAKE.format(path)}") from None
    if os.name != "nt" and mode & 0o077:
        raise ConfigError(f"others can read the token file {path}: chmod 600 {path}, and make a new token")
    roles: dict[bytes, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            token, role = _read_line(words, f"{path}, line {number}")
            digest = hashlib.sha256(token.encode()).digest()
            if roles.setdefault(digest, role) != role:
                raise ConfigError(f"{path}, line {number}: the token of another role again; each role needs its own")
    if not roles:
        raise ConfigError(f"the token file {path} has no token in it; {_MAKE.format(path)}")
    return roles


_MAKE: Final = "make one with: envserver token new {}"


def _read_line(words: list[str], where: str) -> tuple[str, str]:
    """Token and role. What is wrong is said without the words of the line: one of them may be the token."""
    if len(words) != 2:
        raise ConfigError(f"{where}: a line is ROLE TOKEN, such as the one that `envserver token new` writes")
    role, token = words
    if role not in ROLES:
        raise ConfigError(f"{where}: the first word is no role; there are {' and '.join(ROLES)}")
    if len(token) < MIN_TOKEN_CHARS:
        raise ConfigError(f"{where}: a token of {len(token)} characters can be guessed; use `envserver token new`")
    return token, role


async def _deny_unknown(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "invalid token")


async def _deny_role(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, "this token's role may not call this method")


# Coroutine functions, because gRPC would run anything else in a thread pool. Streaming ones for unary methods too: a
# unary handler starts only after a whole request has been read, so a peer without a token could make the server take in
# 16 MiB, and one that sends nothing would wait for ever (test_unary_and_silent_calls_are_denied_at_once).
_DENY_UNKNOWN: Final = grpc.stream_stream_rpc_method_handler(_deny_unknown)
_DENY_ROLE: Final = grpc.stream_stream_rpc_method_handler(_deny_role)


class TokenAuth(_Interceptor):
    """Lets a call through if its token has a role that may make it. Says no before any message of it is read."""

    def __init__(
        self, tokens: TokenFile, log_interval_s: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tokens = tokens
        self._log_interval_s = log_interval_s
        self._clock = clock
        self._log_after = float("-inf")
        self._unlogged = 0
        self.denied = 0

    async def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Handler:
        """Cancellation leaves nothing behind: nothing has begun yet."""
        shown = [value for key, value in details.invocation_metadata or () if key == "authorization"]
        token = shown[0] if len(shown) == 1 else ""
        text = token.decode("latin-1") if isinstance(token, bytes) else token
        digest = hashlib.sha256(text.removeprefix(_PREFIX).encode("utf-8", "surrogatepass")).digest()
        role = role_of(digest, self._tokens.roles())
        method = details.method
        if role is not None and role in ROLES_OF.get(method, frozenset()):
            ROLE.set(role)  # gRPC calls the handler in this very task
            return await continuation(details)
        self._log(method, role, fingerprint(digest) if token else "none")
        return _DENY_UNKNOWN if role is None else _DENY_ROLE

    def _log(self, method: str, role: str | None, shown: str) -> None:
        """At most one line per interval, however many calls there are."""
        self.denied += 1
        now = self._clock()
        if now < self._log_after:
            self._unlogged += 1
            return
        also = f" ({self._unlogged} more since the last line)" if self._unlogged else ""
        logger.warning("denied %.100r: role %s, token %s%s", method, role or "none", shown, also)
        self._log_after = now + self._log_interval_s
        self._unlogged = 0


def role_of(digest: bytes, roles: Mapping[bytes, str]) -> str | None:
    """The role of a digest. No early exit: the time says nothing about which token came close."""
    found = None
    for known, role in roles.items():
        if hmac.compare_digest(digest, known):
            found = role
    return found
