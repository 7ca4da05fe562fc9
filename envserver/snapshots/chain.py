"""The state of a chain of wrappers: one part for each wrapper, one for the simulator inside.

Wrappers whose state is known to be less than all their attributes have a codec of their own, which is cheaper; every
other one is captured attribute by attribute.

Invariants: frames are shared between a state and its children and never written into
(test_frames_are_shared_and_never_written); another seed, another future; none, the same
(test_generators_go_on_or_begin_anew).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, OrderEnforcing, TimeLimit

from asyncrl.wire._generated import env_pb2 as pb
from envserver.atari import LifeLossSoftEnds, StickyActions
from envserver.snapshots import plain
from envserver.snapshots.codec import AnyEnv, BadState, CannotCapture, layers_of
from envserver.snapshots.fields import Fields, Misfit, size_of_fields
from envserver.snapshots.generators import begin_generator, generators_of, reseed
from envserver.snapshots.pacing import Pace
from envserver.snapshots.plain import RANDOMNESS_BYTES, NotPlain, apply_randomness, randomness_of

# Of the wrappers that hand on what they wrap, observation and all.
_TRANSPARENT: Final = (TimeLimit, OrderEnforcing, LifeLossSoftEnds)


class Part(Protocol):
    """One layer's share of a state."""

    def capture(self, layer: Any) -> tuple[Any, int]:
        """A plain value that is never written into, and about how many bytes it takes."""
        ...

    def restore(self, layer: Any, state: Any) -> None: ...

    def generators(self, layer: Any, state: Any) -> Iterable[Any]:
        """The random generators of a layer that has this state, in the same order for every layer of its kind."""
        ...

    def dump(self, state: Any) -> Any: ...

    def load(self, value: Any) -> Any: ...


class FieldsPart:
    """All attributes of a layer."""

    def __init__(self) -> None:
        self._fields = Fields()

    @cached_property
    def _digest(self) -> bytes:
        """Of what states take for granted and do not carry."""
        return hashlib.sha256(plain.dump(self._fields.told())).digest()

    def capture(self, layer: Any) -> tuple[Any, int]:
        state = self._fields.capture(layer)
        return state, size_of_fields(state)

    def restore(self, layer: Any, state: Any) -> None:
        self._fields.restore(layer, state)

    def generators(self, layer: Any, state: Any) -> Iterable[Any]:
        return generators_of(layer, self._fields.unchanged_tables(state))

    def dump(self, state: Any) -> Any:
        return self._fields.dump(state), self._digest

    def load(self, value: Any) -> Any:
        state, digest = value
        if digest != self._digest:
            raise Misfit("tables, classes or functions of that environment are not those of this one")
        return self._fields.load(state)


class AttributesPart:
    """The attributes that change while an episode runs, where it is known which they are."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def capture(self, layer: Any) -> tuple[Any, int]:
        return tuple(getattr(layer, name) for name in self._names), 64

    def restore(self, layer: Any, state: Any) -> None:
        for name, value in zip(self._names, state, strict=True):
            setattr(layer, name, value)

    def generators(self, layer: Any, state: Any) -> Iterable[Any]:
        return ()

    def dump(self, state: Any) -> Any:
        return state

    def load(self, value: Any) -> Any:
        if type(value) is not tuple or len(value) != len(self._names):
            raise Misfit("not the attributes of this wrapper")
        return value


class FramesPart:
    """A frame stack. Frames are kept read-only and shared by every state that has them: a child adds one frame."""

    def capture(self, layer: Any) -> tuple[Any, int]:
        queue = layer.obs_queue
        for place, frame in enumerate(queue):
            if not isinstance(frame, np.ndarray):
                raise CannotCapture("a stack of something other than arrays")
            if frame.flags.writeable:
                frame = frame.copy()
                frame.flags.writeable = False
                queue[place] = frame
        padding = np.array(layer.padding_value)
        return (tuple(queue), padding), sum(frame.nbytes for frame in queue) + padding.nbytes

    def restore(self, layer: Any, state: Any) -> None:
        frames, padding = state
        layer.obs_queue.clear()
        layer.obs_queue.extend(frames)
        layer.padding_value = padding.copy()

    def generators(self, layer: Any, state: Any) -> Iterable[Any]:
        return ()

    def dump(self, state: Any) -> Any:
        return state

    def load(self, value: Any) -> Any:
        frames, padding = value
        for frame in frames:
            if not isinstance(frame, np.ndarray):
                raise Misfit("not the frames of a stack")
            frame.flags.writeable = False
        return tuple(frames), np.asarray(padding)


class ScreensPart:
    """Atari's preprocessing. Of its two screens only the first, which has their maximum, is ever seen again."""

    def capture(self, layer: Any) -> tuple[Any, int]:
        screens = [screen.copy() for screen in layer.obs_buffer[: 1 if layer.frame_skip > 1 else 2]]
        return (screens, layer.lives, layer.game_over), sum(screen.nbytes for screen in screens) + 64

    def restore(self, layer: Any, state: Any) -> None:
        screens, layer.lives, layer.game_over = state
        for screen, saved in zip(layer.obs_buffer, screens, strict=False):
            screen[...] = saved
        if layer.frame_skip > 1:
            layer.obs_buffer[1][...] = 0

    def generators(self, layer: Any, state: Any) -> Iterable[Any]:
        return ()

    def dump(self, state: Any) -> Any:
        return state

    def load(self, value: Any) -> Any:
        screens, lives, game_over = value
        return [np.asarray(screen) for screen in screens], lives, game_over


class StickyPart:
    """Sticky actions: the action that may be repeated, and the generator that decides."""

    def capture(self, layer: Any) -> tuple[Any, int]:
        return (int(layer.last), randomness_of(layer.random)), 64 + RANDOMNESS_BYTES

    def restore(self, layer: Any, state: Any) -> None:
        layer.last, generator = state
        layer.random = apply_randomness(generator, layer.random)

    def generators(self, layer: Any, state: Any) -> Iterable[Any]:
        return (layer.random,)

    def dump(self, state: Any) -> Any:
        return state

    def load(self, value: Any) -> Any:
        last, generator = value
        return int(last), generator


def part_for(layer: AnyEnv) -> Part:
    """The codec of a wrapper."""
    kind = type(layer)
    if kind is TimeLimit:
        return AttributesPart("_elapsed_steps")
    if kind is OrderEnforcing:
        return AttributesPart("_has_reset")
    if kind is LifeLossSoftEnds:
        return AttributesPart("_lives")
    if kind is StickyActions:
        return StickyPart()
    if kind is FrameStackObservation:
        return FramesPart()
    return ScreensPart() if kind is AtariPreprocessing else FieldsPart()


class ChainCodec:
    """Any wrappers, and a simulator whose part is given."""

    def __init__(self, name: str, support: pb.SnapshotSupport.ValueType, template: AnyEnv, simulator: Part) -> None:
        layers = layers_of(template)
        self.name = name
        self.support = support
        self.exportable = True
        self._kinds = [type(layer) for layer in layers]
        self._parts: list[Part] = [*map(part_for, layers[:-1]), simulator]
        self.remembers_obs = self.observe(template) is not None
        self.capture(template)  # it becomes the model of the others, and shows whether this can be done at all

    @property
    def knows_its_wrappers(self) -> bool:
        """Whether every wrapper is one whose state is known, and none is captured attribute by attribute."""
        return not any(isinstance(part, FieldsPart) for part in self._parts[:-1])

    def capture(self, env: AnyEnv) -> tuple[Any, int]:
        layers = self._layers(env)
        begin_generator(layers[-1])
        states, size = [], 64
        try:
            for layer, part in zip(layers, self._parts, strict=True):
                state, nbytes = part.capture(layer)
                states.append(state)
                size += nbytes
        except NotPlain as error:
            raise CannotCapture(f"{type(layer).__name__} holds {error}") from None
        return states, size

    def restore(self, env: AnyEnv, state: Any, seed: int | None, pace: Pace | None = None) -> AnyEnv:
        layers = self._layers(env)
        try:
            for layer, part, saved in zip(layers, self._parts, state, strict=True):
                part.restore(layer, saved)
        except (Misfit, ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadState(f"{type(layer).__name__}: {error}") from None
        if seed is not None:
            parts = zip(layers, self._parts, state, strict=True)
            reseed((found for layer, part, saved in parts for found in part.generators(layer, saved)), seed)
        return env

    def observe(self, env: AnyEnv) -> Any:
        """The observation, where the wrappers remember it; None where they do not."""
        for layer in layers_of(env):
            if type(layer) is FrameStackObservation:
                return np.stack(tuple(layer.obs_queue))
            if not isinstance(layer, _TRANSPARENT):
                return None
        return None

    def dump(self, state: Any) -> Any:
        return [part.dump(saved) for part, saved in zip(self._parts, state, strict=True)]

    def load(self, value: Any) -> Any:
        try:
            return [part.load(each) for part, each in zip(self._parts, value, strict=True)]
        except (Misfit, ValueError, TypeError) as error:
            raise BadState(f"not a state of this environment: {error}") from None

    def _layers(self, env: AnyEnv) -> Sequence[Any]:
        layers = layers_of(env)
        if [type(layer) for layer in layers] != self._kinds:
            raise CannotCapture("it is wrapped in another way than the first environment of this lane")
        return layers


def reseed_all(env: AnyEnv, seed: int) -> None:
    """Begin every random generator among the attributes of an environment and its wrappers anew."""
    reseed((generator for layer in layers_of(env) for generator in generators_of(layer)), seed)
