"""Our side of the replay benchmark: a replay full of made-up rollouts. Each of its measurements is a process.

`variant`: "" draws; "memory" fills a million and says what that took; "insert" takes unrolls in, beside acting.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from asyncrl.buffers.replay import Replay, ReplayConfig
from asyncrl.records import Array, Unroll
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.spec import LaneSpec
from benchmarks.acting import network_policy
from benchmarks.processes import rss_bytes
from benchmarks.replay_peers.drawing import DrawSettings, batches_per_s, new_priorities

SLOTS = 8
STEPS = 16  # of an unroll
EPISODE = 1000  # steps
POOL = 1500  # frames
SLACK = 1.01  # rows for the beginnings and ends of episodes


def spec_of(settings: DrawSettings) -> LaneSpec:
    observed = Node(kind=pb.BOX, dtype=np.dtype(settings.dtype), shape=settings.shape)
    action = Node(kind=pb.DISCRETE, dtype=np.dtype("<i8"), n=6)
    stack_leaf = 0 if settings.observation == "atari" else None
    return LaneSpec("made up", SpaceSpec((observed,)), SpaceSpec((action,)), stack_leaf=stack_leaf)


def rollouts(settings: DrawSettings) -> Iterator[Unroll]:
    """For ever: of `SLOTS` slots, with episodes of 1000 steps that end by turns and are truncated every other time."""
    seen = _observing(settings)
    falses, zeros = np.zeros((STEPS, SLOTS), np.bool_), np.zeros((STEPS, SLOTS))
    start = np.arange(SLOTS) * (EPISODE // SLOTS)
    now = 0
    while True:
        clock = now + np.arange(STEPS)[:, None] + start
        t, episode = clock % EPISODE, clock // EPISODE
        ended = t == EPISODE - 1
        truncated = ended & (episode % 2 == 0)
        end_rows = np.argwhere(truncated)
        end_t, end_b = end_rows.T
        after = clock[-1] + 1
        yield Unroll(
            lane=0, round=0, fleet_slots=np.arange(SLOTS), obs=[seen(clock, t)], action=[t], mask=None,
            log_prob=zeros.astype("f4"), value=zeros.astype("f4"), first=t == 0, version=np.zeros(STEPS, np.int64),
            reward=zeros, terminated=ended & ~truncated, truncated=truncated, cut=falses, soft=falses, valid=~falses,
            end_rows=end_rows, end_obs=[seen(clock[end_t, end_b] + 1, t[end_t, end_b] + 1)],
            last_obs=[seen(after, after % EPISODE)], last_mask=None, last_first=after % EPISODE == 0, carry=[],
            incarnation=zeros.astype(np.int64), episode=episode, t=t,
        )  # fmt: skip
        now += STEPS


def _observing(settings: DrawSettings) -> Callable[[Array, Array], Array]:
    """[..., *shape] for clocks and steps of episodes [...]: the first frame of an episode fills its stack."""
    rng = np.random.default_rng(0)
    if settings.observation != "atari":
        vectors = rng.random((POOL, 4)).astype("f4")
        return lambda clock, t: vectors[clock % POOL]
    frames = rng.integers(0, 255, (POOL, 84, 84)).astype("u1")
    back = np.arange(-3, 1)
    return lambda clock, t: frames[np.maximum(clock[..., None] + back, (clock - t)[..., None]) % POOL]


def fill(replay: Replay, rows: int, settings: DrawSettings) -> Iterator[Unroll]:
    """Puts so many transitions in; what comes after them."""
    source = rollouts(settings)
    taken = 0
    while taken < rows:
        taken += replay.insert(next(source))
    return source


def draw(settings: DrawSettings) -> dict[str, Any]:
    config = ReplayConfig(settings.transitions, SLOTS, 3, prioritised=settings.prioritised)
    replay = Replay(spec_of(settings), config)
    fill(replay, settings.transitions, settings)
    rng = np.random.default_rng(2)
    priorities = new_priorities(settings)

    def one(i: int) -> None:
        batch = replay.sample(settings.batch, rng, 0.4)
        if settings.prioritised:
            replay.update_priorities(batch.rows, batch.generations, priorities[i % 64])

    return {"batches_per_s": batches_per_s(settings, one)}


def memory(settings: DrawSettings) -> dict[str, Any]:
    """Of the whole process: over the end of the ring, so that every page of it is there; and a few batches."""
    config = ReplayConfig(int(settings.transitions * SLACK), SLOTS, 3, prioritised=True)
    replay = Replay(spec_of(settings), config)
    fill(replay, int(1.05 * config.capacity), settings)
    rng = np.random.default_rng(2)
    for _ in range(10):
        batch = replay.sample(settings.batch, rng, 0.4)
        replay.update_priorities(batch.rows, batch.generations, batch.rows % 7 + 1.0)
    (resident,) = rss_bytes({os.getpid(): "replay"}).values()
    return {"rss_gb": resident / 1e9, "transitions": len(replay)}


def insert(settings: DrawSettings) -> dict[str, Any]:
    """A step's share of an insertion, and a forward of NatureCNN for the same slots, with one thread."""
    replay = Replay(spec_of(settings), ReplayConfig(settings.transitions, SLOTS, 3, prioritised=True))
    source = fill(replay, settings.transitions, settings)
    policy = network_policy("cnn", spec_of(settings))
    taking, acting = [], []
    first, keys = np.zeros(SLOTS, np.bool_), np.zeros(SLOTS, np.uint64)
    end = time.perf_counter() + settings.seconds
    while time.perf_counter() < end:
        unroll = next(source)
        start = time.perf_counter()
        replay.insert(unroll)
        taking.append(time.perf_counter() - start)
        for t in range(STEPS):
            start = time.perf_counter()
            policy.act([unroll.obs[0][t]], None, first, [], keys)
            acting.append(time.perf_counter() - start)
    us_a_step = 1e6 * np.array([np.mean(taking) / (STEPS * SLOTS), np.mean(acting) / SLOTS])
    return {"insert_us": us_a_step[0], "act_us": us_a_step[1], "insert_per_act": us_a_step[0] / us_a_step[1]}


if __name__ == "__main__":
    asked = DrawSettings(**json.loads(sys.argv[1]))
    found = {"": draw, "memory": memory, "insert": insert}[asked.variant](asked)
    print(json.dumps(found), flush=True)
