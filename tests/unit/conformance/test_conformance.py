"""The checks against a correct server and against one with every fault that they are there for."""

from __future__ import annotations

import pytest

from asyncrl.conformance import CHECKS, Bench, Check, Failed, Skipped, check, run_check, run_checks
from asyncrl.conformance.registry import Result
from tests.unit.conformance.tiny_server import ENV, TinyServer

# fault of the server -> checks that have to find it
FAULTS: dict[str, list[str]] = {
    "hides its alias": ["describe_tells_what_there_is"],
    "another hash each time": ["describe_tells_what_there_is", "open_is_answered_by_opened"],
    "one token for all": ["open_is_answered_by_opened"],
    "waits for the reset": ["open_and_reset_take_one_round_trip"],
    "takes any alias": ["unknown_env_is_refused"],
    "keeps its aliases secret": ["unknown_env_is_refused"],
    "takes any kwargs": ["bad_kwargs_are_refused"],
    "takes any version": ["a_newer_client_is_refused", "an_older_client_is_refused"],
    "calls skew internal": ["a_newer_client_is_refused", "an_older_client_is_refused"],
    "claims the future": ["a_newer_minor_version_is_welcome"],
    "keeps slots": ["bye_gives_the_slots_back"],
    "falls over a second bye": ["closing_twice_does_no_harm"],
    "ends for what it lacks": ["what_is_not_offered_is_unsupported"],
    "resets without flags": ["reset_begins_episodes"],
    "rewards resets": ["reset_begins_episodes"],
    "repeats ends": ["rows_are_legal"],
    "echoes another crc": ["rows_are_legal"],
    "ignores seeds": ["equal_seeds_give_equal_rows", "a_reset_in_mid_episode_begins_anew"],
    "shows the first obs as final": ["final_and_first_observations_are_true"],
    "shows the final obs as first": ["final_and_first_observations_are_true"],
    "truncates as terminated": ["the_step_limit_truncates"],
    "never truncates": ["the_step_limit_truncates"],
    "ignores the mask": ["a_masked_reset_touches_its_rows_alone"],
    "ignores resets": ["a_reset_in_mid_episode_begins_anew", "a_masked_reset_touches_its_rows_alone"],
    "resets unasked": ["without_autoreset_an_ended_row_waits"],
    "pads actions": ["actions_of_a_wrong_size_are_refused"],
    "ignores action_crc": ["a_wrong_action_crc_is_refused"],
    "takes any choice": ["actions_out_of_range_are_refused"],
    "takes NaN": ["actions_that_are_no_numbers_are_refused"],
    "executes what it refuses": ["actions_out_of_range_are_refused", "actions_that_are_no_numbers_are_refused"],
    "answers out of order": ["pipelined_steps_come_back_in_order"],
    "never ends for flow": ["more_in_flight_than_allowed_is_refused"],
    "forgets to forget": ["replies_are_acknowledged_by_later_requests"],
    "another nonce": ["ping_is_answered_by_pong"],
    "dies of noise": ["malformed_frames_end_their_stream_alone"],
    "ignores noise": ["malformed_frames_end_their_stream_alone", "frames_out_of_place_end_their_stream"],
    "has no bounds": ["a_body_without_end_is_refused"],
    "ignores the crc": ["a_damaged_frame_never_passes"],
    "forgets replies": ["a_resumed_lane_loses_and_repeats_nothing"],
    "executes twice": ["a_resumed_lane_loses_and_repeats_nothing"],
    "asks for no token": ["resuming_needs_the_token"],
    "always a window": ["a_lane_that_is_not_resumable_ends_with_its_stream"],
    "forgets the generator": ["a_restored_slot_goes_on_exactly"],
    "restores the stale": ["a_restored_slot_goes_on_exactly"],
    "claims a larger image": ["images_have_the_size_they_claim"],
}


def _story(results: list[Result]) -> str:
    return "\n".join(f"{result.check.name}: {result.status} {result.reason}" for result in results)


async def test_a_correct_server_passes() -> None:
    """No check fails or has to be skipped, each says what it saw, and the server is empty afterwards."""
    async with TinyServer() as server:
        results = await run_checks(server, ENV)
        assert {result.status for result in results} == {"passed"}, _story(results)
        assert all(result.notes for result in results), [result.check.name for result in results if not result.notes]
        assert server.lanes == {}
    assert results[0].check.name == "describe_tells_what_there_is"
    assert len(results) == len(CHECKS)


@pytest.mark.parametrize(("fault", "name"), [(fault, name) for fault, names in FAULTS.items() for name in names])
async def test_each_fault_is_caught(fault: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check that is there for a fault fails, with words, and does not hang."""
    monkeypatch.setattr("asyncrl.conformance.probe.ANSWER_S", 0.3)
    monkeypatch.setattr("asyncrl.conformance.bench.SETTLE_S", 0.3)
    async with TinyServer(fault) as server:
        result = await run_check(CHECKS[name], server, ENV)
    assert result.status == "failed", _story([result])
    assert result.reason


def test_every_check_has_a_fault_that_it_catches() -> None:
    """No check is there that was never seen to fail."""
    assert {name for names in FAULTS.values() for name in names} == set(CHECKS)


async def test_every_check_states_its_demand() -> None:
    """One sentence that says what the server must do, and where the protocol says so."""
    for each in CHECKS.values():
        assert each.demand.endswith("."), each.name
        assert len(each.demand) > 40
        assert each.section


async def test_results_of_all_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed and Skipped carry their reasons, anything that is no typed error goes through, and checks can be added."""
    added: dict[str, Check] = {}
    monkeypatch.setattr("asyncrl.conformance.registry.CHECKS", added)

    @check("nowhere")
    async def mine(bench: Bench) -> None:
        """It must be mine."""
        bench.note("looked")
        raise Failed("it is not")

    @check("nowhere")
    async def theirs(bench: Bench) -> None:
        """It must be theirs."""
        raise Skipped("it is nobody's")

    async with TinyServer() as server:
        failed = await run_check(added["mine"], server, ENV)
        skipped = await run_check(added["theirs"], server, ENV)
        assert (failed.status, failed.reason, failed.notes) == ("failed", "it is not", ["looked"])
        assert (skipped.status, skipped.reason) == ("skipped", "it is nobody's")
        assert failed.to_json()["demand"] == "It must be mine."
    with pytest.raises(ValueError, match="a name of its own"):
        check("nowhere")(mine)
