"""Presets, files and single values."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from asyncrl.config import ALGORITHMS, PPOConfig, RunConfig
from asyncrl.errors import ConfigError
from asyncrl.run import options


def test_later_sources_win(tmp_path: Path) -> None:
    """Default, preset, file, given: each overrides what stands before it, and nothing else."""
    file = tmp_path / "mine.yaml"
    file.write_text("gamma: 0.5\nnum-envs: 2\n")
    config = options.resolve("ppo", preset_name="zoo-cartpole", config=file, num_envs=16)
    assert isinstance(config, PPOConfig)
    assert (config.num_envs, config.gamma, config.gae_lambda, config.max_grad_norm) == (16, 0.5, 0.8, 0.5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_preset_resolves(algorithm: str) -> None:
    """No preset has a mistake in it."""
    names = options.preset_names(algorithm)
    assert names
    for name in names:
        assert options.resolve(algorithm, preset_name=name).num_rounds > 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_presets_of_atari_say_which_game_is_played(algorithm: str) -> None:
    """What the environments do by default is one protocol of several, and scores differ more by it than by anything."""
    for name in options.preset_names(algorithm):
        config = options.resolve(algorithm, preset_name=name)
        if config.env_id.startswith("ALE/"):
            assert "repeat_action_probability" in config.kwargs, name


def test_unknown_keys_name_the_nearest(tmp_path: Path) -> None:
    """In a file, in a preset's name, and where a value has the wrong type."""
    file = tmp_path / "mine.yaml"
    file.write_text("gama: 0.5\n")
    with pytest.raises(ConfigError, match="no setting 'gama'; did you mean 'gamma'"):
        options.resolve("ppo", config=file)
    with pytest.raises(ConfigError, match=r"no preset 'atary'.*did you mean 'atari'"):
        options.resolve("ppo", preset_name="atary")
    for text, error in (
        ("num_envs: many", "whole number"),
        ("gamma: high", "a number"),
        ("anneal_lr: 3", "true or false"),
        ("device: [", "no YAML"),
        ("- 3", "name: value"),
        ("host: nativ", "one of auto, native, slots"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=error):
            options.resolve("ppo", config=file)
    with pytest.raises(ConfigError, match="No such file"):
        options.resolve("ppo", config=tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("hidden_sizes: 64", r"hidden_sizes is 64: a list of whole numbers is wanted, such as \[64, 64\]"),
        ("hidden_sizes: [64, big]", "hidden_sizes is .*'big'.*: a list of whole numbers"),
        ("run_name: 2024", "run_name is 2024: a text is wanted; quotes make it one"),
        ("mode: 1", "mode is 1: a text is wanted"),
        ("resume: no", "resume is False: a text is wanted"),
        ("env_kwargs: [1]", r"env_kwargs is \[1\]: a text is wanted"),
        ("env_kwargs: {since: 2024-01-01}", "env_kwargs is .*not JSON serializable"),
        ("lanes: many", "lanes is 'many': a whole number is wanted"),
        ("target_kl: []", r"target_kl is \[\]: a number is wanted"),
        ("host: [auto]", r"host is \['auto'\]: one of auto, native, slots"),
    ],
)
def test_a_value_of_the_wrong_type_names_its_setting(tmp_path: Path, text: str, error: str) -> None:
    """Whatever YAML makes of it."""
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=error):
        options.resolve("ppo", config=file)


def test_keyword_arguments_may_be_a_mapping(tmp_path: Path) -> None:
    """In a file they need not be JSON in quotes."""
    file = tmp_path / "mine.yaml"
    file.write_text("env_kwargs:\n  noop_max: 0\n  mode: {deep: [1.5, null]}\n")
    assert options.resolve("ppo", config=file).kwargs == {"noop_max": 0, "mode": {"deep": [1.5, None]}}


def test_a_saved_configuration_reads_back(tmp_path: Path) -> None:
    """Every field survives YAML, tuples and None among them."""
    config = options.resolve("ppo", preset_name="zoo-pendulum", target_kl=0.02, hidden_sizes=[8, 4], lanes=None)
    file = tmp_path / "saved.yaml"
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in vars_of(config).items()}
    file.write_text(yaml.safe_dump(values))
    assert options.resolve("ppo", config=file) == config


def vars_of(config: RunConfig) -> dict[str, object]:
    return dataclasses.asdict(config)
