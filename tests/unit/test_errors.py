"""The tree drawn in the docstring is the tree of the classes, and an error carries what its handler asks for."""

from __future__ import annotations

import re

import pytest

from asyncrl import errors
from asyncrl.errors import RemoteProtocolError, ServerRefused


def drawn() -> dict[str, str]:
    """Each error in the drawing and the one it hangs from; "" for the root."""
    trail: list[tuple[int, str]] = [(-1, "")]
    parents: dict[str, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([│├└─ ]*)([A-Z]\w+)", line)
        if found is None:
            continue
        depth, name = len(found[1]), found[2]
        while trail[-1][0] >= depth:
            trail.pop()
        parents[name] = trail[-1][1]
        trail.append((depth, name))
    return parents


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    """Name by name and parent by parent, with none missing on either side."""
    classes = {name: item for name, item in vars(errors).items() if isinstance(item, type)}
    parents = {name: item.__bases__[0].__name__ for name, item in classes.items()}
    assert drawn() == {**parents, "AsyncRLError": ""}


def test_a_refusal_says_its_code_and_where_the_server_wrote_about_it() -> None:
    """The text starts with the code; the id of the log is there only if the server gave one."""
    assert str(ServerRefused("BUSY", "all lanes are taken")) == "BUSY: all lanes are taken"
    error = ServerRefused("INTERNAL", "it broke", error_id="7f3a", retryable=True, retry_after_s=1.5, cause="hang")
    assert str(error) == "INTERNAL: it broke [server log id 7f3a]"
    assert (error.code, error.text, error.retryable, error.retry_after_s, error.cause) == (
        *("INTERNAL", "it broke", True, 1.5, "hang"),
    )


@pytest.mark.parametrize(("arguments", "code"), [(("bad",), "BAD_FRAME"), (("bad", "BAD_CRC"), "BAD_CRC")])
def test_what_a_peer_did_wrong_has_a_code_of_the_wire(arguments: tuple[str, ...], code: str) -> None:
    """BAD_FRAME unless the place that noticed it knows better."""
    assert RemoteProtocolError(*arguments).code == code
