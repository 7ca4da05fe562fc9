"""From a preset, a file and single values to a configuration: the later wins, and every mistake is named.

Invariants: a value on the command line beats the file, which beats the preset, which beats the default
(test_later_sources_win); an unknown key names the nearest one (test_unknown_keys_name_the_nearest), and a value of the
wrong type its setting (test_a_value_of_the_wrong_type_names_its_setting); what was resolved reads back as the same
configuration (test_a_saved_configuration_reads_back).
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from asyncrl.config import ALGORITHMS, RunConfig
from asyncrl.errors import ConfigError

_WANTED: Final[Mapping[type, str]] = {
    float: "a number is wanted",
    int: "a whole number is wanted",
    bool: "true or false",
    str: "a text is wanted; quotes make it one",
}


def config_type(algorithm: str) -> type[RunConfig]:
    """Whose fields are the settings of an algorithm. ConfigError if there is none of that name."""
    if algorithm not in ALGORITHMS:
        raise ConfigError(
            f"there is no algorithm {algorithm!r}{nearest(algorithm, list(ALGORITHMS))}: {', '.join(ALGORITHMS)}"
        )
    return ALGORITHMS[algorithm]


def preset_names(algorithm: str) -> list[str]:
    """Names that `--preset` takes."""
    files = resources.files("asyncrl.run.presets").iterdir()
    return sorted(
        file.name.removeprefix(f"{algorithm}_").removesuffix(".yaml")
        for file in files
        if file.name.startswith(f"{algorithm}_") and file.name.endswith(".yaml")
    )


def preset(algorithm: str, name: str) -> dict[str, Any]:
    """The values of a preset."""
    names = preset_names(algorithm)
    if name not in names:
        raise ConfigError(f"there is no preset {name!r} for {algorithm}{nearest(name, names)}: {', '.join(names)}")
    text = resources.files("asyncrl.run.presets").joinpath(f"{algorithm}_{name}.yaml").read_text()
    return _values(text, f"preset {name}")


def from_file(path: Path) -> dict[str, Any]:
    """The values of a YAML file (JSON is YAML)."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from None
    return _values(text, f"--config {path}")


def resolve(
    algorithm: str,
    *,
    preset_name: str = "",
    config: Path | None = None,
    before: Mapping[str, Any] | None = None,
    **given: Any,
) -> RunConfig:
    """Defaults, or what a run had `before`; then the preset, then the file, then what was given."""
    values = dict(before or {})
    if preset_name:
        values |= preset(algorithm, preset_name)
    if config is not None:
        values |= from_file(config)
    return build(algorithm, values | given, "configuration")


def build(algorithm: str, values: Mapping[str, Any], what: str) -> RunConfig:
    """A configuration of plain values, each of the type that its field has."""
    config = config_type(algorithm)
    hints = get_type_hints(config)
    names = [field.name for field in dataclasses.fields(config)]
    typed: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in names:
            raise ConfigError(f"{what}: there is no setting {key!r}{nearest(name, names)}")
        typed[name] = _typed(name, value, hints[name])
    return config(**typed)


def nearest(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else ""


def _values(text: str, what: str) -> dict[str, Any]:
    import yaml

    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{what} is no YAML: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{what}: settings are wanted, `name: value` a line")
    return {str(key).replace("-", "_"): value for key, value in values.items()}


def _typed(name: str, value: Any, hint: Any) -> Any:
    """YAML has its own ideas of types: 1e-3 is a text there, 1 is no float, and `no` is no text."""
    kinds = get_args(hint)
    if get_origin(hint) is Literal:
        if value not in kinds:
            raise _mistake(name, value, f"one of {', '.join(kinds)}")
        return value
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple) or not all(_is_whole(each) for each in value):
            raise _mistake(name, value, "a list of whole numbers is wanted, such as [64, 64]")
        return tuple(value)
    if kinds:  # the type, or None
        return None if value is None else _typed(name, value, kinds[0])
    if name == "env_kwargs" and isinstance(value, Mapping):
        return _as_json(name, value)
    return _plain(name, value, hint)


def _plain(name: str, value: Any, kind: type) -> Any:
    if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError):
            return float(value)
    elif _is_whole(value) if kind is int else isinstance(value, kind):
        return value
    raise _mistake(name, value, _WANTED[kind])


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _as_json(name: str, value: Mapping[str, Any]) -> str:
    try:
        return json.dumps(value)
    except TypeError as error:
        raise _mistake(name, value, str(error)) from None


def _mistake(name: str, value: Any, wanted: str) -> ConfigError:
    return ConfigError(f"{name} is {value!r}: {wanted}")
