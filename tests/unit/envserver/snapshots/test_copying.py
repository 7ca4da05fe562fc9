"""Environments that are copied whole."""

from __future__ import annotations

import pytest

from asyncrl.wire._generated import env_pb2 as pb
from envserver.snapshots.codec import BadState, CannotCapture
from envserver.snapshots.copying import CopyCodec, copied_env
from tests.unit.envserver.snapshots.toys import CopyOnlyEnv, copy_only, ez_pickle, sampling, uncopyable


def test_a_copy_goes_on_alike_and_apart() -> None:
    """The copy has the original's future, twice, whatever the original does meanwhile."""
    env = copy_only()
    env.reset(seed=1)
    codec = CopyCodec(env)
    assert codec.support == pb.SNAPSHOT_PROBED
    state, nbytes = codec.capture(env)
    assert nbytes > 0
    wanted = [env.step(1)[1] for _ in range(5)]
    for _ in range(2):
        copy = codec.restore(env, state, None)
        assert copy is not env
        assert [copy.step(1)[1] for _ in range(5)] == wanted
    one, two = (codec.restore(env, state, seed).step(1)[1] for seed in (1, 2))
    assert one != two
    assert codec.restore(env, state, 1).step(1)[1] == one


def test_ez_pickle_is_refused() -> None:
    """It would come back as fresh as it began; so is what cannot be copied at all."""
    env = ez_pickle()
    env.reset(seed=1)
    with pytest.raises(CannotCapture, match="built anew"):
        CopyCodec(env)
    with pytest.raises(CannotCapture, match="cannot be copied"):
        CopyCodec(uncopyable())


def test_a_space_that_is_sampled_from_is_copied_and_seeded() -> None:
    """Its generator goes on where it was, or begins anew with the seed, however deep it is."""
    env = sampling()
    env.reset(seed=1)
    codec = CopyCodec(env)
    state, _ = codec.capture(env)

    def future(seed: int | None) -> list[int]:
        copy = codec.restore(env, state, seed)
        return [int(copy.step(1)[0]["deep"][0]) for _ in range(6)]

    assert future(None) == future(None)
    assert future(3) == future(3)
    assert len({tuple(future(seed)) for seed in (None, 3, 4)}) == 3


def test_copies_share_their_spaces() -> None:
    """Spaces are the larger part of a small environment, and do not change."""
    env = CopyOnlyEnv()
    env.special = env.action_space  # type: ignore[attr-defined]
    copy = copied_env(env)
    assert copy.special is env.action_space  # type: ignore[attr-defined]


def test_copies_stay_in_their_process() -> None:
    """No bytes, in either direction."""
    env = copy_only()
    env.reset(seed=1)
    codec = CopyCodec(env)
    assert not codec.exportable
    with pytest.raises(CannotCapture):
        codec.dump(codec.capture(env)[0])
    with pytest.raises(BadState):
        codec.load({})
