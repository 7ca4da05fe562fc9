"""The settings of a server: defaults, and what cannot be."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from asyncrl.errors import ConfigError
from envserver.config import Quotas, ServerConfig, usable_cores
from envserver.registry import Registry, parse_env_option


def config(**changes: Any) -> ServerConfig:
    settings: dict[str, Any] = {"registry": Registry([parse_env_option("CartPole-v1")]), "num_envs": 8}
    return ServerConfig(**settings | changes)


def test_importing_the_config_pulls_in_nothing_heavy() -> None:
    """A process that reads the settings has neither numpy nor gymnasium nor grpc in it."""
    heavy = {"numpy", "gymnasium", "grpc", "google", "tyro", "cryptography"}
    code = f"import sys, envserver.config; print(sorted({heavy} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_envs": 0}, "--num-envs 0"),
        ({"lanes": -1}, "--lanes -1"),
        ({"lanes": 9}, "choose 1 to 8"),
        ({"listen": ()}, "--listen 127.0.0.1:50051"),
        ({"num_envs": 2**31}, "--num-envs 2147483648"),
        ({"drain_s": -0.1}, "drain_s"),
        ({"drain_s": float("inf")}, "drain_s is inf; 0 to 2147483 seconds"),
        ({"drain_s": float("nan")}, "drain_s is nan"),
        ({"drain_s": 5e6}, "drain_s"),
        ({"launcher": "fork"}, "auto, nursery, exec"),
        ({"tls_cert": "a"}, "--tls-cert and --tls-key"),
        ({"tls_key": "a"}, "--tls-cert and --tls-key"),
        ({"tls_client_ca": "a"}, "pass --tls-cert and --tls-key too"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], says: str) -> None:
    """Each impossible setting raises a ConfigError that names the option to change."""
    with pytest.raises(ConfigError) as caught:
        config(**changes)
    assert says in str(caught.value)


@pytest.mark.parametrize("changes", [{"lanes": 8}, {"drain_s": 0.0}, {"tls_cert": "a", "tls_key": "b"}])
def test_limits_themselves_are_possible(changes: dict[str, Any]) -> None:
    """The extreme legal values are accepted."""
    assert config(**changes).num_envs == 8


@pytest.mark.parametrize("name", ["lanes_per_client", "receive_bytes", "lease_s", "auth_logs_per_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_no_quota_can_be_switched_off(name: str, value: Any) -> None:
    """Zero, negative and NaN bounds are refused by name."""
    with pytest.raises(ConfigError, match=name):
        dataclasses.replace(Quotas(), **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "most"),
    [
        *(("lease_s", value, 2_147_483) for value in (float("inf"), 5e6)),
        *((name, 5e6, 2_147_483) for name in ("resume_window_s", "handshake_s", "idle_connection_s")),
        ("auth_logs_per_s", float("inf"), 2_147_483),
        *((name, 2**31, 2**31 - 1) for name in ("receive_bytes", "metadata_bytes", "spare_streams", "concurrent_rpcs")),
    ],
)
def test_quotas_fit_what_carries_them(name: str, value: Any, most: int) -> None:
    """Seconds become milliseconds of 32 bits, and options of gRPC are C's ints: the text names quota and bound."""
    with pytest.raises(ConfigError, match=f"quota {name} is .*; it can be {most} at most"):
        dataclasses.replace(Quotas(), **{name: value})
    dataclasses.replace(Quotas(), **{name: most})


def test_a_large_machine_may_have_large_lanes() -> None:
    """Memory is bounded by its owner alone."""
    assert Quotas(lane_memory_bytes=2**40, snapshot_bytes=2**40).snapshot_bytes == 2**40


@pytest.mark.parametrize(("value", "legal"), [(1, False), (2, True), (16, True), (17, False)])
def test_in_flight_is_what_the_wire_allows(value: int, legal: bool) -> None:
    """At least OPEN and one RESET, at most 16."""
    if legal:
        assert Quotas(max_in_flight=value).max_in_flight == value
    else:
        with pytest.raises(ConfigError, match="2 to 16"):
            Quotas(max_in_flight=value)


def test_advice_is_the_owners_or_three_lanes_a_core() -> None:
    """--lanes wins; without it there are three per core, and never more lanes than environments."""
    assert config(lanes=5).advised_lanes == 5
    assert config(num_envs=1000).advised_lanes == 3 * usable_cores()
    assert config(num_envs=1).advised_lanes == 1


def test_streams_are_bounded_by_the_capacity() -> None:
    """A lane for every environment and the spare ones."""
    assert config(num_envs=8).max_streams == 8 + 16


def test_tls_is_known_by_its_certificate() -> None:
    """A server has TLS if it was given the files."""
    assert not config().has_tls
    assert config(tls_cert="a", tls_key="b").has_tls
