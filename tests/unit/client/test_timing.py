"""The heartbeat: who is alive, who is stalled, and whose fault it is."""

from __future__ import annotations

from asyncrl.client.timing import Heartbeat, LaneTimers, Verdict


def beat() -> Heartbeat:
    return Heartbeat(0.0, ping_every_s=2.0, pong_within_s=10.0)


def test_silence_of_ours_asks_for_a_ping() -> None:
    """Two seconds without a frame of ours: a ping; and again, answered or not, or the server takes us for dead."""
    heart = beat()
    assert heart.verdict(1.9) is Verdict.FINE
    assert heart.verdict(2.0) is Verdict.PING
    assert heart.verdict(3.9) is Verdict.FINE
    assert heart.verdict(4.0) is Verdict.PING
    assert heart.verdict(5.9) is Verdict.FINE


def test_whoever_is_silent_is_stalled() -> None:
    """No frame at all for the limit after the first ping, however many follow."""
    heart = beat()
    assert heart.verdict(2.0) is Verdict.PING
    assert heart.verdict(12.0) is Verdict.PING
    assert heart.verdict(12.1) is Verdict.STALLED


def test_whoever_is_heard_is_alive() -> None:
    """A PONG that waits behind megabytes of rows harms nobody: the rows are signs of life."""
    heart = beat()
    assert heart.verdict(2.0) is Verdict.PING
    for second in range(3, 60):
        heart.heard_at = float(second)
        heart.sent_at = float(second)
        assert heart.verdict(second + 0.5) is Verdict.FINE


def test_an_answer_within_the_clocks_resolution_counts() -> None:
    """Loops give milliseconds: a PONG may carry the time of its PING."""
    heart = beat()
    assert heart.verdict(2.0) is Verdict.PING
    heart.heard_at, heart.sent_at = 2.0, 2.0
    assert heart.verdict(11.9) is Verdict.PING  # a new one; the old one was answered
    assert heart.verdict(12.5) is Verdict.FINE


def test_our_own_lag_is_forgiven() -> None:
    """A loop that stood still for 15 s finds the peer no deader than before."""
    heart = beat()
    assert heart.verdict(2.0) is Verdict.PING
    heart.forgive(15.0)
    assert heart.verdict(17.25) is Verdict.PING
    assert heart.verdict(27.1) is Verdict.STALLED


def test_forgiving_does_not_unhear_an_answer() -> None:
    """An answer that came before the lag was seen still counts."""
    heart = beat()
    assert heart.verdict(2.0) is Verdict.PING
    heart.heard_at, heart.sent_at = 3.0, 18.0
    heart.forgive(15.0)
    assert heart.verdict(18.5) is Verdict.FINE
    assert heart.verdict(20.0) is Verdict.PING


def test_other_machines_get_more_patience() -> None:
    """A ping queues behind data, and only off this machine are links slow."""
    timers = LaneTimers()
    assert timers.pong_limit_s("127.0.0.1:1") == timers.pong_limit_s("unix:/x") == 10.0
    assert timers.pong_limit_s("worker:1") == 25.0
    assert LaneTimers(pong_within_s=1.0).pong_limit_s("worker:1") == 1.0
