"""Every error that asyncrl raises on purpose; the name says who is at fault.

    AsyncRLError
    ├── ProtocolError
    │   ├── LocalProtocolError      this program used the protocol wrongly
    │   └── RemoteProtocolError     the peer did
    │       └── MessageMissing      something was lost on the way: the stream is over, the lane is not
    ├── ConnectionFailed            no usable stream: the text names the stage that failed
    │   └── ConnectionLost          there was one, and it broke
    ├── DeadlineExceeded            the peer is there but did not answer in time
    ├── ServerRefused               the env server answered with a typed error (`code`)
    │   ├── EnvFault                the user's environment raised
    │   └── LaneLost                a lane's process died, hung, or its server did (`cause`)
    ├── UnsupportedSpace            a Gymnasium space that has no wire form
    ├── SpecMismatch                lanes of one run do not serve the same environment
    ├── RunBusy                     another process trains in this run directory
    ├── CheckpointError             the state of a run cannot be kept, or not be taken up again
    │   ├── CheckpointNotSaved      the disk refused; what was there before still is
    │   ├── CheckpointMismatch      it is of another environment, algorithm or format
    │   └── NoCheckpoint            there is none that is whole; the text says what is wrong with each
    └── ConfigError                 an argument, option or file; the text names the fix

Catch `AsyncRLError` for all of them.
"""

from __future__ import annotations


class AsyncRLError(Exception):
    """Base of every error in this package."""


class ProtocolError(AsyncRLError):
    """The lane protocol was broken; the stream it happened on is unusable."""


class LocalProtocolError(ProtocolError):
    """This side asked for something that the protocol does not allow now; nothing was changed."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something illegal. `code` is the wire's ErrorCode name for it."""

    def __init__(self, text: str, code: str = "BAD_FRAME") -> None:
        super().__init__(text)
        self.code = code


class MessageMissing(RemoteProtocolError):
    """A seq was left out. Damage below us swallowed a message, and a resumed stream brings it again."""


class ConnectionFailed(AsyncRLError):
    """No stream to a server; `stage` is the last thing tried (dns, tcp, tls, token, version, ...)."""

    def __init__(self, text: str, stage: str = "") -> None:
        super().__init__(text)
        self.stage = stage


class ConnectionLost(ConnectionFailed):
    """A stream ended without Bye."""


class DeadlineExceeded(AsyncRLError):
    """A request was not answered within its deadline."""


class ServerRefused(AsyncRLError):
    """The server answered a request with an error.

    `code` is the name of a wire ErrorCode, `error_id` finds the story in the server's log.
    """

    def __init__(
        self,
        code: str,
        text: str,
        *,
        error_id: str = "",
        retryable: bool = False,
        retry_after_s: float = 0.0,
        cause: str = "",
    ) -> None:
        super().__init__(f"{code}: {text}" + (f" [server log id {error_id}]" if error_id else ""))
        self.code = code
        self.text = text
        self.error_id = error_id
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.cause = cause


class EnvFault(ServerRefused):
    """The environment's own code raised a Python exception."""


class LaneLost(ServerRefused):
    """The lane is gone with everything in it; `cause` is crash(...), hang, server_lost, drained, ..."""


class UnsupportedSpace(AsyncRLError):
    """A space (Graph, Sequence, OneOf, object dtypes) that cannot be laid out in fixed arrays."""


class SpecMismatch(AsyncRLError):
    """Two servers answer to one alias with different specs; rows of one MDP never join another's."""


class RunBusy(AsyncRLError):
    """A living process holds the lock of a run directory."""


class CheckpointError(AsyncRLError):
    """Something about a checkpoint."""


class CheckpointNotSaved(CheckpointError):
    """Disk full, read-only or gone; checkpoints that were there before are untouched."""


class CheckpointMismatch(CheckpointError):
    """A whole checkpoint, but its parameters mean nothing here."""


class NoCheckpoint(CheckpointError):
    """Nothing to resume from."""


class ConfigError(AsyncRLError):
    """A setting is missing or impossible; the text says what to pass instead."""
