"""The parts of a state that simulators give themselves: ALE, and methods of an environment's own.

An environment says what its state is by a pair of methods, `get_state()` and `set_state(state)` or `clone_state()` and
`restore_state(state)`, whose state is a plain value; one that can tell only its key variables, by `get_key_state()` and
`set_key_state(state)`. The environment's `np_random` belongs to the state in any case.

Invariants: sticky actions are the same after a restore, unless a seed says otherwise
(test_sticky_actions_follow_the_state_or_the_seed); what an environment handed out is not changed by what it does later
(test_own_states_are_copies).
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import numpy as np

from asyncrl.wire._generated import env_pb2 as pb
from envserver.snapshots.chain import ChainCodec, Part
from envserver.snapshots.codec import AnyEnv, CannotCapture
from envserver.snapshots.plain import Randomness, apply_randomness, copied, randomness_of, revived, size_of

OWN_STATES: Final = (("get_state", "set_state"), ("clone_state", "restore_state"))
KEY_STATE: Final = ("get_key_state", "set_key_state")


def methods_of(env: AnyEnv, pairs: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
    """The first pair of methods that the simulator has: one without arguments, one that takes the state."""
    for get, put in pairs:
        if _takes(getattr(env.unwrapped, get, None), 0) and _takes(getattr(env.unwrapped, put, None), 1):
            return get, put
    return None


def _takes(method: Any, count: int) -> bool:
    """Whether it can be called with so many arguments: MuJoCo's `set_state(qpos, qvel)` is no such method."""
    if not callable(method):
        return False
    try:
        inspect.signature(method).bind(*[None] * count)
    except (TypeError, ValueError):
        return False
    return True


class OwnPart:
    """A simulator with methods for its state."""

    def __init__(self, get: str, put: str) -> None:
        self._get, self._put = get, put

    def capture(self, layer: Any) -> tuple[Any, int]:
        state = copied(getattr(layer, self._get)())
        return (state, _generator_of(layer)), size_of(state) + 400

    def restore(self, layer: Any, state: Any, seed: int | None) -> None:
        own, generator = state
        getattr(layer, self._put)(revived(own, None))
        _restore_generator(layer, generator)

    def dump(self, state: Any) -> Any:
        return state

    def load(self, value: Any) -> Any:
        own, generator = value
        return own, generator


class AlePart:
    """An ALE game. The generator of its sticky actions is inside the emulator, and in its state if that is wanted."""

    def __init__(self, env: Any) -> None:
        from ale_py import ALEState

        self._make_state = ALEState
        self._sticky = env.ale.getFloat("repeat_action_probability") > 0.0
        if self._sticky:
            _check_layout(env.ale)

    def capture(self, layer: Any) -> tuple[Any, int]:
        data = layer.ale.cloneState(include_rng=self._sticky).serialize()
        return (data, _generator_of(layer)), len(data) + 400

    def restore(self, layer: Any, state: Any, seed: int | None) -> None:
        data, generator = state
        if seed is not None and self._sticky:
            data = with_generator(data, generator_text(seed))
        layer.ale.restoreState(self._make_state(data))
        _restore_generator(layer, generator)

    def dump(self, state: Any) -> Any:
        return state

    def load(self, value: Any) -> Any:
        data, generator = value
        if type(data) is not bytes:
            raise TypeError("not the state of a game")
        return data, generator


def _generator_of(layer: Any) -> Randomness | None:
    return randomness_of(layer.__dict__.get("_np_random"))


def _restore_generator(layer: Any, saved: Randomness | None) -> None:
    if saved is not None:
        layer._np_random = apply_randomness(saved, layer.__dict__.get("_np_random"))


def simulator_codec(template: AnyEnv) -> ChainCodec:
    """The codec of a simulator that gives its own state. CannotCapture where it gives none."""
    simulator = template.unwrapped
    part: Part
    if hasattr(simulator, "ale"):
        part, name = AlePart(simulator), "ale"
    else:
        methods = methods_of(template, OWN_STATES)
        if methods is None:
            raise CannotCapture("it has no get_state and set_state, nor clone_state and restore_state")
        part, name = OwnPart(*methods), "own state"
    return ChainCodec(name, pb.SNAPSHOT_EXACT, template, part)


def key_state_codec(template: AnyEnv) -> ChainCodec:
    """The codec of a simulator that tells its key variables. CannotCapture where it tells none."""
    methods = methods_of(template, (KEY_STATE,))
    if methods is None:
        raise CannotCapture("it has no get_key_state and set_key_state")
    return ChainCodec("key state", pb.SNAPSHOT_PROBED, template, OwnPart(*methods))


# ---------------------------------------------------------------------------------------------------------------- ALE

# A serialised state with the generator: 24 bytes, u32 length of what follows but for the last 8 bytes; in it the game,
# a boolean that says that a generator follows, u32 length of its text, and the text: 624 words and a place.
_LENGTH_AT: Final = 24
_TAIL: Final = 8
_YES: Final = bytes.fromhex("b2fab1fa")
_NO: Final = bytes.fromhex("d2bad1ba")
_WORDS: Final = 624
# Words as text of one width, so that a state is put together by picking: any of them is as good as a fresh one.
_WORD_TEXTS: Final = np.frombuffer(
    b"".join(b"%10d " % word for word in np.random.default_rng(0).integers(0, 1 << 32, 4096)), np.uint8
).reshape(4096, 11)


def generator_text(seed: int) -> bytes:
    """The state of a Mersenne twister as ALE writes it; another one for every seed."""
    return _WORD_TEXTS[np.random.default_rng(seed).integers(0, len(_WORD_TEXTS), _WORDS)].tobytes() + b"%d" % _WORDS


def with_generator(data: bytes, text: bytes) -> bytes:
    """A serialised state with another generator."""
    end = len(data) - _TAIL
    game = data[_LENGTH_AT + 4 : _game_end(data)]
    inner = b"".join((game, _YES, len(text).to_bytes(4, "little"), text))
    return b"".join((data[:_LENGTH_AT], len(inner).to_bytes(4, "little"), inner, data[end:]))


def _game_end(data: bytes) -> int:
    """Where the boolean is: right behind the game. The generator's text is the last thing before the tail."""
    text_at = data.rindex(_YES) + 8
    if text_at + int.from_bytes(data[text_at - 4 : text_at], "little") != len(data) - _TAIL:
        raise CannotCapture("this ale-py lays out its states in another way")
    return text_at - 8


def _check_layout(ale: Any) -> None:
    """CannotCapture unless states are laid out as described above, which another ale-py may do otherwise."""
    plain, whole = (ale.cloneState(include_rng=wanted).serialize() for wanted in (False, True))
    end = len(plain) - _TAIL
    try:
        at = _game_end(whole)
        text = whole[at + 8 : len(whole) - _TAIL]
        same = (
            plain[end - 4 : end] == _NO
            and plain[_LENGTH_AT + 4 : end - 4] == whole[_LENGTH_AT + 4 : at]
            and with_generator(whole, text) == whole
            and len(text.split()) == _WORDS + 1
        )
    except (ValueError, IndexError):
        same = False
    if not same:
        raise CannotCapture("this ale-py lays out its states in another way")
