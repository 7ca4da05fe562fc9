"""How one alias is built: the environment of a slot, and the spec that both hosts must show for it.

Invariants: the spec of an alias depends neither on the host (test_both_hosts_show_one_spec) nor on the wish for images
(test_what_a_function_makes_is_rendered); other kwargs or versions give another spec hash
(test_what_fixes_the_dynamics_is_in_the_build).
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Mapping
from importlib import metadata
from typing import Any, Final

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from asyncrl.wire.spec import LaneSpec
from envserver import gym_spec
from envserver.atari import AtariSettings, rom_md5
from envserver.registry import EnvAlias
from envserver.snapshots.replay import Recorder

AnyEnv = gymnasium.Env[Any, Any]

RGB: Final = "rgb_array"


class Recipe:
    """An alias with its final kwargs."""

    def __init__(
        self,
        alias: EnvAlias,
        kwargs: Mapping[str, Any],
        render: bool = False,
        *,
        record: bool = False,
        capturable: bool = False,
    ) -> None:
        self.alias = alias
        self.record = record  # environments remember their actions, from which snapshots are replayed
        self.capturable = capturable  # states of the environments will be held
        self.kwargs = alias.merged(kwargs)
        self.render = render
        # Of the first environment that the alias's function made: the function itself declares nothing.
        self._made_metadata: Mapping[str, Any] | None = None
        self._made_render_mode: str | None = None
        target = alias.env_id or alias.entry_point or ""
        if ":" in target:
            # `gymnasium.make` imports the module of "module:Id" itself; `gymnasium.spec` knows no such form.
            importlib.import_module(target.partition(":")[0])
        if alias.atari:
            importlib.import_module("ale_py")
        self.registered: EnvSpec | None = None
        if alias.env_id is not None:
            self.registered = gymnasium.spec(alias.env_id.rpartition(":")[2])
        self.atari: AtariSettings | None = None
        if alias.preprocess and alias.env_id is not None:
            self.atari = AtariSettings.of(alias.env_id, self.kwargs)

    @property
    def soft_ends(self) -> bool:
        return self.atari is not None and self.atari.soft_ends

    def make(self) -> AnyEnv:
        """One environment for a slot."""
        return Recorder(self._make()) if self.record else self._make()

    def _make(self) -> AnyEnv:
        render_mode = self.render_mode if self.render else None
        if self.atari is not None:
            return self.atari.make(render_mode, capturable=self.capturable)
        kwargs = dict(self.kwargs)
        if render_mode:
            kwargs["render_mode"] = render_mode
        if self.alias.env_id is not None:
            made: AnyEnv = gymnasium.make(self.alias.env_id, disable_env_checker=True, **kwargs)
            return made
        return self._call_entry_point(kwargs)

    def _call_entry_point(self, kwargs: dict[str, Any]) -> AnyEnv:
        limit = kwargs.pop("max_episode_steps", None)
        env = load_env_creator(self.alias.entry_point or "")(**kwargs)
        if not isinstance(env, gymnasium.Env):
            raise TypeError(f"{self.alias.entry_point} returned a {type(env).__name__}, no gymnasium.Env")
        if self._made_metadata is None:
            self._made_metadata, self._made_render_mode = env.metadata or {}, env.render_mode
        return env if limit is None else gymnasium.wrappers.TimeLimit(env, limit)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the environment's class declares, or the first environment that the alias's function made; empty before,
        and where the function is one that Gymnasium knows."""
        declared = getattr(self._creator(), "metadata", None)
        return declared if isinstance(declared, dict) else self._made_metadata or {}

    def _creator(self) -> Any:
        entry_point: Any = self.alias.entry_point if self.registered is None else self.registered.entry_point
        return entry_point if entry_point is None or callable(entry_point) else load_env_creator(entry_point)

    @property
    def render_mode(self) -> str:
        """Empty where nothing can be rendered into an array."""
        return "" if self.why_not_rendered() else RGB

    def why_not_rendered(self) -> str:
        """What keeps its environments from being rendered into arrays, and what to do about it; empty where nothing is.
        Of a function the last word comes when it has made one."""
        name, creator = self.alias.entry_point, self._creator()
        declares = RGB in (self.metadata.get("render_modes") or ())
        if name is None or isinstance(getattr(creator, "metadata", None), dict):
            return "" if declares else f"{self.alias.summary} declares no {RGB!r} in metadata['render_modes']"
        if not _takes_render_mode(creator):
            return f"let {name} take render_mode and hand it on to the environment, or serve the environment's class"
        if self._made_metadata is None:
            return ""
        if not declares:
            return f"what {name} returns has no {RGB!r} in metadata['render_modes']"
        if self.render and self._made_render_mode != RGB:
            return (
                f"{name} was given render_mode={RGB!r} and returned an environment whose render_mode is "
                f"{self._made_render_mode!r}: let it hand it on"
            )
        return ""

    @property
    def max_episode_steps(self) -> int:
        """0 = unknown."""
        if self.atari is not None:
            return self.atari.max_episode_steps
        limit = self.kwargs.get("max_episode_steps")
        if limit is None and self.registered is not None:
            limit = self.registered.max_episode_steps
        return max(0, limit or 0)

    def spec(self, observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> LaneSpec:
        """The lane's spec, from the spaces of one slot."""
        return LaneSpec(
            env=self.alias.alias,
            observation=gym_spec.space_spec(observation),
            action=gym_spec.space_spec(action),
            mask_size=gym_spec.mask_size(action),
            stack_leaf=0 if self.atari is not None and self.atari.stack > 1 else None,
            max_episode_steps=self.max_episode_steps,
            render_mode=self.render_mode,
            render_fps=float(self.metadata.get("render_fps") or 0.0),
            build=self.build(),
        )

    def build(self) -> str:
        """Everything that fixes the dynamics, in one line."""
        target = self.alias.env_id or self.alias.entry_point or ""
        parts = [f"gymnasium {gymnasium.__version__}"]
        if self.alias.atari and self.registered is not None:
            parts += [f"ale-py {_version('ale_py')}", f"rom {rom_md5(self.registered.kwargs['game'])}"]
        if ":" in target:
            package = target.partition(":")[0].partition(".")[0]
            parts.append(f"{package} {_version(package)}".rstrip())
        parts.append(target)
        if self.alias.preprocess:
            parts.append("preprocessed")
        if self.kwargs:
            parts.append(json.dumps(self.kwargs, sort_keys=True, separators=(",", ":"), default=str))
        return " | ".join(parts)


def _takes_render_mode(creator: Any) -> bool:
    try:
        parameters = inspect.signature(creator).parameters
    except (TypeError, ValueError):  # what is not written in Python may have no signature
        return False
    return "render_mode" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _version(package: str) -> str:
    """Of the distribution or, failing that, of the module; empty where there is neither."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return str(getattr(importlib.import_module(package), "__version__", ""))
