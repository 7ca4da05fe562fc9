"""What is kept of a dead lane's output."""

from __future__ import annotations

from envserver.last_words import last_words

STACK = b'  File "/a/very/deep/directory/of/somebody/environment.py", line 7 in step\n' * 100


def test_a_crash_report_keeps_its_beginning() -> None:
    """However deep the stack and long the list of modules, the signal's name is there."""
    said = last_words(
        b"chatter\n" * 1000 + b"Fatal Python error: Segmentation fault\n\n" + STACK + b"Extension modules: x"
    )
    assert said.startswith("Fatal Python error: Segmentation fault")
    assert len(said) <= 1500
    assert said.count("environment.py") >= 15


def test_a_hang_keeps_where_it_hangs() -> None:
    """The dump of a live process has no error, only threads."""
    dump = b"Thread 0x00007f (most recent call first):\n  File in _hang_gil\n" + STACK + b"Extension modules: x"
    assert "_hang_gil" in last_words(b"chatter\n" * 1000 + dump)


def test_an_old_crash_report_does_not_count() -> None:
    """A grandchild's crash, an hour ago, does not hide the lane's own end."""
    said = last_words(b"Fatal Python error: Aborted\n" + STACK * 2 + b"ValueError: no such level\n")
    assert said.endswith("ValueError: no such level")


def test_other_output_keeps_its_end() -> None:
    """A traceback's last line is the one that says what happened; broken UTF-8 is not an error."""
    said = last_words(b"\xff" + STACK + b"ValueError: no such level\n")
    assert said.endswith("ValueError: no such level")
    assert len(said) <= 1500
    assert last_words(b" \n") == ""
