"""Describe, OPEN, and the end of a lane."""

from __future__ import annotations

from asyncrl.conformance.bench import NUM_SLOTS, SEEDS, Bench, needs, settled
from asyncrl.conformance.registry import check, expect
from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.requests import ResetRequest, encode_reset
from asyncrl.wire.spec import LaneSpec


@check("describe")
async def describe_tells_what_there_is(bench: Bench) -> None:
    """Describe names protocol, boot_id, capacity and every alias, and gives spec and spec_hash of the one it is asked
    for."""
    every = await bench.describe()
    aliases = [offer.alias for offer in every.envs]
    bench.note(
        f"{every.server or 'a server without a name'}: {every.used} of {every.capacity} slots, aliases {aliases}"
    )
    expect(bench.env in aliases, f"{bench.env!r} is not among the aliases {aliases}")
    expect(every.protocol.major == handshake.MAJOR, f"protocol.major is {every.protocol.major}")
    expect(every.boot_id != "", "boot_id is empty: it has to be random per server process")
    expect(every.capacity > 0, "capacity is 0")
    one = await bench.describe(bench.env)
    expect(len(one.envs) == 1, f"{len(one.envs)} offers for one alias")
    expect(one.boot_id == every.boot_id, "two calls gave two boot_ids")
    spec = LaneSpec.from_proto(one.envs[0].spec)
    bench.note(f"{len(spec.observation.leaves)} observation and {len(spec.action.leaves)} action leaves")
    async with bench.lane() as probe:
        expect(probe.opened.spec == one.envs[0].spec, "Opened has another spec than Describe")
        expect(probe.opened.spec_hash == one.envs[0].spec_hash, "Opened has another spec_hash than Describe")


@check("open, 3. ORDER")
async def open_is_answered_by_opened(bench: Bench) -> None:
    """OPEN is answered by OPENED with lane_id, token, spec, a 32-byte spec_hash, the autoreset and bounds."""
    async with bench.lane() as probe, bench.lane() as other:
        opened = probe.opened
        bench.note(f"host {pb.Host.Name(opened.host)}: {opened.host_reason}; {opened.max_in_flight} in flight")
        expect(handshake.skew(opened.protocol, "server") is None, "OPENED has another major version than OPEN")
        expect(opened.lane_id != "" and opened.lane_id != other.opened.lane_id, "lane_id has to be the lane's own")
        expect(len(opened.token) == 16, f"the token has {len(opened.token)} bytes, not 16")
        expect(opened.token != other.opened.token, "two lanes have one token")
        expect(2 <= opened.max_in_flight <= 64, f"max_in_flight is {opened.max_in_flight}")
        expect(len(opened.spec_hash) == 32, f"spec_hash has {len(opened.spec_hash)} bytes, not 32")
        expect(opened.spec_hash == other.opened.spec_hash, "two lanes of one alias have two spec_hashes")
        expect(opened.boot_id == (await bench.describe()).boot_id, "boot_id is not that of Describe")
        expect(opened.autoreset == pb.SAME_STEP, "SAME_STEP was asked for, and not given")
        expect(opened.host in (pb.NATIVE, pb.SLOTS), "the host is not told")


@check("3. ORDER")
async def open_and_reset_take_one_round_trip(bench: Bench) -> None:
    """A RESET that was sent right behind OPEN, before OPENED, is executed: first observations after one round trip."""
    async with bench.stream() as probe:
        await probe.send(pb.OPEN, bench.open_request().SerializeToString())
        await probe.send(pb.RESET, encode_reset(ResetRequest(None, list(SEEDS), None)))
        probe.take_opened(await probe.answer(pb.OPENED, 1), NUM_SLOTS)
        rows = probe.take_rows(await probe.answer(pb.STEP_RESULT, 2))
        bench.note(f"both answered; {len(rows.flags)} first observations")
        await probe.send(pb.BYE)


async def _refused(bench: Bench, request: pb.Open, *codes: str) -> pb.Error:
    async with bench.stream() as probe:
        seq = await probe.send(pb.OPEN, request.SerializeToString())
        error = await probe.refusal(seq, *codes)
        bench.note(f"ERROR {pb.ErrorCode.Name(error.code)}: {error.text}")
    return error


@check("open")
async def unknown_env_is_refused(bench: Bench) -> None:
    """OPEN of an alias that is not served is answered by ERROR UNKNOWN_ENV, whose text lists those there are."""
    error = await _refused(bench, bench.open_request(env="no-such-env"), "UNKNOWN_ENV")
    expect(bench.env in error.text, f"the text does not list {bench.env!r}: {error.text!r}")


@check("open")
async def bad_kwargs_are_refused(bench: Bench) -> None:
    """kwargs that are no JSON object are answered by ERROR BAD_KWARGS or BAD_REQUEST, and no lane is built."""
    for text in (b"{", b"[1]"):
        await _refused(bench, bench.open_request(kwargs_json=text), "BAD_KWARGS", "BAD_REQUEST")


@check("Version")
async def a_newer_client_is_refused(bench: Bench) -> None:
    """OPEN of a higher major version is answered by one ERROR VERSION_SKEW that says which side is older."""
    newer = pb.Version(major=handshake.MAJOR + 1)
    error = await _refused(bench, bench.open_request(protocol=newer), "VERSION_SKEW")
    expect("server" in error.text.lower(), f"the server is the older side; the text does not say so: {error.text!r}")


@check("Version")
async def an_older_client_is_refused(bench: Bench) -> None:
    """OPEN of a lower major version is answered by one ERROR VERSION_SKEW that says which side is older."""
    error = await _refused(bench, bench.open_request(protocol=pb.Version(major=handshake.MAJOR - 1)), "VERSION_SKEW")
    expect("client" in error.text.lower(), f"the client is the older side; the text does not say so: {error.text!r}")


@check("Version")
async def a_newer_minor_version_is_welcome(bench: Bench) -> None:
    """OPEN of a higher minor version, with a feature of the future, opens a lane without that feature."""
    request = bench.open_request(protocol=pb.Version(major=handshake.MAJOR, minor=handshake.MINOR + 7))
    # As a newer client would send it: the number is not in this side's enum.
    request.MergeFromString(pb.Open(features=[pb.Feature.ValueType(1000)]).SerializeToString())
    async with bench.stream() as probe:
        opened = await probe.open(request)
        expect(1000 not in opened.features, "the server claims a feature that it cannot know")
        bench.note(f"opened with features {[pb.Feature.Name(feature) for feature in opened.features]}")
        await probe.send(pb.BYE)


async def _used(bench: Bench) -> int:
    return (await bench.describe()).used


@check("3. ORDER (BYE)")
async def bye_gives_the_slots_back(bench: Bench) -> None:
    """A client's BYE releases the lane, and Describe counts its slots as free again."""
    before = await _used(bench)
    async with bench.lane():
        during = await _used(bench)
        expect(during >= before + NUM_SLOTS, f"used was {before} and is {during} with a lane of {NUM_SLOTS}")

    async def free() -> bool:
        return await _used(bench) < during

    expect(await settled(free), f"long after BYE {await _used(bench)} slots are used, as before it")
    bench.note(f"used {before}, then {during} with the lane, and {await _used(bench)} after its BYE")


@check("3. ORDER (BYE)")
async def closing_twice_does_no_harm(bench: Bench) -> None:
    """A second BYE, and a stream that is cut behind a BYE, end nothing but the lane that was over anyway."""
    async with bench.lane() as other:
        await other.reset(seeds=SEEDS)
        async with bench.lane() as probe:
            await probe.send(pb.BYE)
            await probe.send(pb.BYE)
        bench.note("two BYEs, then the end of the stream")
        await other.step(bench.actions(other.lane_spec, 1)[0])
    await bench.wait_until_served()


@check("8. A SMALL SERVER")
async def what_is_not_offered_is_unsupported(bench: Bench) -> None:
    """Requests beyond what OPENED offers are answered by ERROR UNSUPPORTED, and the lane lives on."""
    async with bench.lane() as probe:
        await probe.reset(seeds=SEEDS)
        needs(pb.SNAPSHOTS not in probe.opened.features, "it offers snapshots")
        for kind, body in ((pb.SNAPSHOT, pb.Snapshot(rows=[0], ids=[1])), (pb.SIMULATE, pb.Simulate())):
            await probe.refusal(await probe.send(kind, body.SerializeToString()), "UNSUPPORTED")
        await probe.step(bench.actions(probe.lane_spec, 1)[0])
        bench.note("SNAPSHOT and SIMULATE are refused; the lane still steps")
