"""Requests about snapshots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrl.errors import RemoteProtocolError, ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.flags import CUT, FIRST, NO_TRANSITION
from envserver.snapshots.rules import SnapshotRules
from tests.unit.envserver.snapshots.toys import KEY, DeskLane, look, option

WRAPPED = {
    "CartPole": "CartPole-v1",
    "Pendulum": "Pendulum-v1",
    "FrozenLake": "FrozenLake-v1",
    "Taxi": "Taxi-v4",
    "Blackjack": "Blackjack-v1",
    "Breakout": 'breakout=ALE/Breakout-v5{"soft_ends": true}',
    "Pong without sticky actions": 'pong=ALE/Pong-v5{"repeat_action_probability": 0.0}',
}


def record(lane: DeskLane, actions: list[Any]) -> list[Any]:
    """Everything that a client gets of row 0, over ends of episodes."""
    found = []
    for action in actions:
        rows = lane.step(action, action)
        columns = [column for column in rows.infos + rows.final_infos if 0 in column.rows]
        infos = [(column.key, column.data[column.rows == 0].tolist()) for column in columns]
        finals = [leaf[0].tobytes() for leaf in rows.final_obs] if 0 in rows.final_rows else []
        stats = rows.stats
        ended = (
            []
            if stats is None
            else [(r, n) for b, r, n in zip(stats.rows, stats.returns, stats.lengths, strict=True) if not b]
        )
        found.append(([leaf[0].tobytes() for leaf in rows.obs], rows.rewards[0], rows.flags[0], infos, finals, ended))
    return found


@pytest.mark.parametrize("name", WRAPPED)
def test_a_restored_slot_goes_on_as_it_did(name: str) -> None:
    """200 steps after a restore equal those after the snapshot byte for byte: observations, rewards, ends, infos and
    game statistics, across the ends of episodes; also in another slot, and from a state that travelled."""
    lane = DeskLane(WRAPPED[name])
    actions = lane.random_actions(217, 1)
    for action in actions[:17]:
        lane.step(action, action)
    lane.snapshot([1])
    wanted = record(lane, actions[17:])
    lane.restore(0, 1, t=int(lane.desk._tracker.t[0]))
    lane.snapshot([2])
    assert record(lane, actions[17:]) == wanted
    (state,) = lane.export(2).states
    other = DeskLane(WRAPPED[name], seed=99)
    assert other.import_([5], [state]).status[0].code == pb.ENTRY_OK
    shown = other.restore(0, 5)
    assert shown.flags.tolist() == [FIRST | NO_TRANSITION, NO_TRANSITION]
    assert record(other, actions[17:]) == wanted


def test_restore_shows_what_the_snapshot_saw() -> None:
    """The observation of then, also where the emulator's own screen is stale; statistics go on."""
    lane = DeskLane("pong=ALE/Pong-v5")
    for _ in range(9):
        lane.step(2, 3)
    seen = [leaf[1].copy() for leaf in lane.rows.obs]
    lane.snapshot([1], rows=[1])
    for _ in range(5):
        lane.step(3, 2)
    rows = lane.restore(1, 1, t=14)
    assert rows.obs[0][1].tobytes() == seen[0].tobytes()
    assert rows.flags.tolist() == [NO_TRANSITION, FIRST | NO_TRANSITION]


def test_a_child_goes_on_with_the_game_of_its_parent() -> None:
    """Return and length of a game whose middle was looked ahead are those of the whole."""
    lane = DeskLane(option("turns"))
    lane.step(0, 0)
    lane.snapshot([1])
    lane.simulate(look(1, lane, 0, 0, keep_as=2))
    lane.restore(0, 2, t=1)
    for _ in range(2):
        lane.step(1, 1)
    stats = lane.step(1, 1).stats
    assert stats is not None
    moves = [0, 0, 0, 1, 1, 1]
    wanted = sum(1.0 if move != t % 4 else 2.0 ** (9 + t) for t, move in enumerate(moves))
    assert (stats.rows.tolist(), stats.lengths.tolist(), stats.returns.tolist()) == ([0], [6], [wanted])


def test_restore_compares_before_it_sets() -> None:
    """Another step or incarnation than the client believes: STALE, and the slot goes on; then what is not there."""
    lane, twin = DeskLane(option("walk")), DeskLane(option("walk"))
    lane.snapshot([1])
    for each in (lane, twin):
        each.step(1, 1)
    for incarnation, t in ((0, 0), (0, 2), (1, 1)):
        with pytest.raises(ServerRefused) as refused:
            lane.restore(0, 1, incarnation, t)
        assert refused.value.code == "STALE"
    with pytest.raises(ServerRefused) as refused:
        lane.restore(0, 9, t=1)
    assert refused.value.code == "SNAPSHOT_GONE"
    with pytest.raises(ServerRefused) as refused:
        lane.restore(2, 1, t=1)
    assert refused.value.code == "BAD_REQUEST"
    assert lane.step(1, 1).obs[0].tobytes() == twin.step(1, 1).obs[0].tobytes()


def test_a_restore_that_fails_half_way_costs_the_slot() -> None:
    """Its episode is cut and it is created anew, with the reason, like after a fault of a step; the other stands
    still, and the snapshots of the broken environment are gone."""
    lane = DeskLane(option("shy"))
    lane.snapshot([1, 2])
    for _ in range(30):
        rows = lane.step(1, 1)
    seen = rows.obs[0][1].tobytes()
    rows = lane.restore(0, 1, t=30)
    assert rows.flags.tolist() == [CUT | FIRST | NO_TRANSITION, NO_TRANSITION]
    assert [(each.row, each.incarnation, each.code) for each in rows.rebuilt] == [(0, 1, "ENV_FAULT")]
    assert "half way" in rows.rebuilt[0].text
    assert rows.obs[0][0][1] == 0.0
    assert rows.obs[0][1].tobytes() == seen
    assert [key in lane.desk.store for key in (1, 2)] == [False, True]
    assert lane.step(1, 1).obs[0][:, 1].tolist() == [1.0, 31.0]
    lane.restore(0, 2, incarnation=1, t=1)


def test_snapshots_of_a_broken_environment_are_gone() -> None:
    """With all that followed from them; those of the other slot and imported ones stay."""
    lane = DeskLane(option("breaking"), fragile=True)
    for _ in range(4):
        lane.step(1, 1)
    lane.snapshot([1, 2])
    lane.simulate(look(1, lane, 0, keep_as=3), look(2, lane, 0, keep_as=4))
    (state,) = lane.export(1).states
    lane.import_([5], [state])
    rows = lane.step(2, 1)
    assert [each.row for each in rows.rebuilt] == [0]
    assert [key in lane.desk.store for key in range(1, 6)] == [False, True, False, True, True]
    lane.restore(0, 2, incarnation=1)
    lane.snapshot([6])
    assert lane.desk.store.get(6).origin == (0, 1)  # type: ignore[union-attr]


def test_only_running_slots_have_snapshots() -> None:
    """A slot that has ended, one that was never reset and one that is not there, each with its reason."""
    lane = DeskLane(option("coin"), num_slots=2)
    lane.host.autoreset = pb.NEXT_STEP
    lane.step(0, 0)
    reply = lane.snapshot([1, 2], rows=[0, 7])
    assert [status.code for status in reply.status] == [pb.ENTRY_UNSUPPORTED, pb.ENTRY_BAD_STATE]
    assert all(status.detail for status in reply.status)
    assert (list(reply.bytes), reply.store_bytes) == ([0, 0], 0)
    lane.step(0, 0)
    assert [status.code for status in lane.snapshot([1]).status] == [pb.ENTRY_OK]


def test_a_repeated_snapshot_is_the_first_one() -> None:
    """An id that is taken keeps its state, though the slot has moved."""
    lane = DeskLane(option("walk"))
    first = lane.snapshot([1])
    before = lane.simulate(look(1, lane)).obs[0].tobytes()
    lane.step(1, 1)
    again = lane.snapshot([1])
    assert (list(again.bytes), again.store_bytes) == (list(first.bytes), first.store_bytes)
    assert lane.simulate(look(1, lane)).obs[0].tobytes() == before


def test_release_gives_everything_back() -> None:
    """By id, where unknown ones do not count, and all at once."""
    lane = DeskLane(option("walk"))
    lane.snapshot([1, 2])
    lane.simulate(look(1, lane, 0, keep_as=3))
    assert lane.release(1, 77).released == 1
    reply = lane.release(everything=True)
    assert (reply.released, reply.store_bytes) == (2, 0)
    assert lane.simulate(look(2, lane, 0)).status[0].code == "SNAPSHOT_GONE"


def test_the_quota_is_typed() -> None:
    """SNAPSHOT and IMPORT over the quota: ENTRY_QUOTA for those that found no room."""
    lane = DeskLane(option("walk"), rules=SnapshotRules(max_count=1, key=KEY))
    reply = lane.snapshot([1, 2])
    assert [status.code for status in reply.status] == [pb.ENTRY_OK, pb.ENTRY_QUOTA]
    (state,) = lane.export(1).states
    assert lane.import_([3], [state]).status[0].code == pb.ENTRY_QUOTA


def test_an_imported_state_shows_what_was_exported() -> None:
    """Observation, mask, player and statistics travel; a state may be an entry's parent without being held."""
    lane, other = DeskLane(option("turns")), DeskLane(option("turns"), seed=50)
    lane.step(1, 1)
    lane.snapshot([1])
    (state,) = lane.export(1).states
    other.import_([4], [state])
    held, carried, own = (
        other.simulate(look(4, other)),
        other.simulate(look(state, other)),
        lane.simulate(look(1, lane)),
    )
    for found in (held, carried):
        assert found.obs[0].tobytes() == own.obs[0].tobytes()
        assert found.mask is not None
        assert own.mask is not None
        assert np.array_equal(found.mask, own.mask)
        assert found.to_play is not None
        assert found.to_play.tolist() == [1]
    assert len(other.desk.store) == 1


def test_what_may_not_leave_stays() -> None:
    """Without a key nothing leaves or enters; states of the last resort never do; unknown ids are gone."""
    keyless = DeskLane(option("walk"), rules=SnapshotRules())
    keyless.snapshot([1])
    assert not keyless.desk.exports
    for call in (lambda: keyless.export(1), lambda: keyless.import_([2], [b"x"])):
        with pytest.raises(ServerRefused, match="snapshot-key-file"):
            call()
    assert keyless.simulate(look(b"x" * 100, keyless, 0)).status[0].code == "BAD_STATE"
    copies = DeskLane(option("copy_only"))
    copies.snapshot([1])
    assert not copies.desk.exports
    assert [status.code for status in copies.export(1, 9).status] == [pb.ENTRY_UNSUPPORTED, pb.ENTRY_SNAPSHOT_GONE]


def test_foreign_states_are_refused() -> None:
    """Of another alias, of other kwargs, of another key, of another codec, and with a byte changed."""
    lane = DeskLane(option("walk"))
    lane.snapshot([1])
    (state,) = lane.export(1).states
    flipped = state[:60] + bytes([state[60] ^ 1]) + state[61:]
    others = [
        DeskLane(option("stroll", "walk")),
        DeskLane(option("walk", kwargs='{"max_episode_steps": 9}')),
        DeskLane(option("walk"), rules=SnapshotRules(key=b"l" * 32)),
        DeskLane(option("walk"), rules=SnapshotRules(mode="replay", key=KEY)),
    ]
    for other, sent in [(each, state) for each in others] + [(lane, flipped), (lane, b"")]:
        assert other.import_([2], [sent]).status[0].code == pb.ENTRY_BAD_STATE
        assert other.simulate(look(sent, other, 1)).status[0].code == "BAD_STATE"
        assert 2 not in other.desk.store


def test_states_of_a_model_are_refused_without_it() -> None:
    """By a server on which the environment itself looks ahead, and by one with another model; and the other way round.
    Spaces, alias and codec are the same."""
    options = option("walker"), option("light", "walker"), option("other", "walker")
    environment, light, twin, other = (
        DeskLane(*options, rules=SnapshotRules(mode, key=KEY))
        for mode in ("auto", "model:light", "model:light", "model:other")
    )
    states = {}
    for lane in (environment, light):
        lane.snapshot([1])
        (states[lane],) = lane.export(1).states
    assert twin.import_([2], [states[light]]).status[0].code == pb.ENTRY_OK
    for lane, sent in ((environment, light), (other, light), (light, environment)):
        assert lane.import_([2], [states[sent]]).status[0].code == pb.ENTRY_BAD_STATE
        assert lane.simulate(look(states[sent], lane, 1)).status[0].code == "BAD_STATE"


def test_a_signed_observation_of_another_shape_is_refused() -> None:
    """Whoever holds the key may be mistaken: what clients would be sent has to fit the spec."""
    lane = DeskLane(option("turns"))
    lane.snapshot([1])
    desk = lane.desk
    held = desk.store.get(1)
    assert held is not None
    assert desk._signer is not None
    dumped, at = desk._codec.dump(held.state), held.position
    for obs, mask in (([np.zeros(3)], at.mask), (at.obs, np.ones(3, np.bool_)), ([], None), ("x", None)):
        sealed = desk._signer.seal((dumped, (obs, mask, 0, 0.0, 0)))
        assert lane.import_([2], [sealed]).status[0].code == pb.ENTRY_BAD_STATE
    assert lane.import_([3], [desk._signer.seal((1, 2, 3))]).status[0].code == pb.ENTRY_BAD_STATE


def test_lists_that_do_not_fit_together_are_refused() -> None:
    """Rows without ids, states without ids, and an id twice."""
    lane = DeskLane(option("walk"))
    for body in (pb.Snapshot(rows=[0], ids=[1, 2]), pb.Snapshot(rows=[0, 1], ids=[1, 1])):
        with pytest.raises(RemoteProtocolError):
            lane.desk.snapshot(body.SerializeToString())
    with pytest.raises(RemoteProtocolError):
        lane.import_([1, 2], [b""])


def test_a_lane_of_the_replay_mode() -> None:
    """Slots record from their first reset; restored, another one goes on alike; children replay."""
    lane = DeskLane(option("uncopyable"), rules=SnapshotRules(mode="replay", key=KEY))
    for _ in range(5):
        lane.step(2, 0)
    lane.snapshot([1])
    wave = lane.simulate(look(1, lane, 0, keep_as=2), look(2, lane, 1), look(1, lane, 0, 1))
    assert wave.obs[0][1].tobytes() == wave.obs[0][2].tobytes()
    lane.restore(1, 1, t=5)
    rows = lane.step(0, 0)
    assert rows.obs[0][0].tobytes() == rows.obs[0][1].tobytes() == wave.obs[0][0].tobytes()
