"""What a client reads of an exception."""

from __future__ import annotations

import pytest

from envserver.faults import MAX_TEXT, describe, redact


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no file '/home/me/data/run.cfg' here", "no file '.../run.cfg' here"),
        (r"open C:\Users\me\x.dll failed", "open .../x.dll failed"),
        (r"share \\host\part\y.bin", "share .../y.bin"),
        ("~/.ssh/id_rsa", ".../id_rsa"),
        ("token=0123456789abcdef0123456789abcdef", "token=***"),
        ("a/b is a ratio, 3/4 too", "a/b is a ratio, 3/4 too"),
        ("ALE/Pong-v5", "ALE/Pong-v5"),
        ("expected shape (4, 84, 84), got (84, 84)", "expected shape (4, 84, 84), got (84, 84)"),
    ],
)
def test_paths_and_secrets_are_taken_out(text: str, expected: str) -> None:
    """File names stay, for people; where they lie and what opens doors does not."""
    assert redact(text) == expected


def test_the_text_says_what_when_and_where() -> None:
    """The phase, the type, the message, and the innermost line."""
    text = describe(raised(ValueError("bad thing")), "step")
    assert text.startswith("step raised ValueError: bad thing (test_faults.py:")


def test_texts_are_bounded_and_keep_their_place() -> None:
    """At most 2 KiB of UTF-8, cut in the message and never within a character."""
    for message in ("x y " * 10_000, "ä " * 10_000, "\ud800" * 5000):
        text = describe(raised(ValueError(message)), "reset")
        assert len(text.encode()) <= MAX_TEXT
        assert text.endswith(")")


def test_an_exception_that_cannot_be_shown_is_still_reported() -> None:
    """Its `__str__` may raise as well."""

    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(Silent(), "step") == "step raised Silent: (its text cannot be had)"
