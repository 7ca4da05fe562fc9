"""`RemoteVectorEnv`: environments on other machines, or in processes of their own, as one `gymnasium.vector.VectorEnv`.

    envs = asyncrl.RemoteVectorEnv("CartPole-v1", num_envs=64, servers="worker1:50051,worker2:50051")

Invariants: with equal seeds and actions its arrays and infos equal those of `gymnasium.make_vec(..., "sync")`, in
every autoreset mode (test_parity_with_sync); a call ends within its deadline, whatever the servers do
(test_step_never_hangs).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NoReturn

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from asyncrl.client.credentials import Access
from asyncrl.client.fleet import Fleet
from asyncrl.client.timing import LaneTimers
from asyncrl.errors import ConfigError, LocalProtocolError
from asyncrl.gym_spaces import ValueLayout
from asyncrl.vector.exchange import Answer
from asyncrl.vector.images import images_of
from asyncrl.vector.rows import Assembler, LaneBook, LanePart, Step
from asyncrl.vector.session import Session
from asyncrl.vector.wishes import ResetWish, Seed, whole_lanes
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.tensors import Array

__all__ = ["RemoteVectorEnv"]

_AUTORESET: Final = {
    AutoresetMode.SAME_STEP: "same_step",
    AutoresetMode.NEXT_STEP: "next_step",
    AutoresetMode.DISABLED: "disabled",
}


class RemoteVectorEnv(VectorEnv[Any, Any, Any]):
    """`num_envs` environments of the alias `env_id`.

    `servers` is an address, a list or "a:1,b:2"; None starts a server of our own as a child process. Beyond Gymnasium:

    * Losing an environment ends no call. Its row is truncated with reward 0, `infos["asyncrl/lost"]` marks it, and so
      is the row in which its replacement arrives: drop both, as they are no transitions.
    * `infos["episode"]` has the statistics of games that ended, in the layout of
      `gymnasium.wrappers.vector.RecordEpisodeStatistics`. That wrapper refuses environments which have the key already:
      with `episode_statistics=False` it works on top, and infos are those of `make_vec(..., "sync")` to the letter.
    * `infos["action_mask"]` (int8) where the environment has one; several discrete actions have theirs joined.
    * Where an episode is terminated and truncated at once, terminated wins. Float actions are cast to the dtype of the
      action space. Infos that are no numbers stay on the server, and of infos whose rows differ in shape, or are a
      dict in one and a number in another, the form of one row stands: where the others are, the mask is False.
    * `async_reset`, `send`, `recv` step the lanes that are ready, as EnvPool and ALE do; `step_async`, `step_wait` all.

    A lane whose step takes longer than `step_timeout_s` is lost; servers grant 600 s at most.

    `seed` decides the environments that replace lost ones; `reset(seed=...)` is Gymnasium's. One thread may use it.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int = 1,
        servers: str | Sequence[str] | None = None,
        host: Literal["auto", "native", "slots"] = "auto",
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        env_kwargs: Mapping[str, Any] | None = None,
        *,
        render_mode: str | None = None,
        episode_statistics: bool = True,
        batch_size: int | None = None,
        seed: int | None = None,
        lanes: int | None = None,
        run_id: str | None = None,
        resumable: bool = False,
        step_timeout_s: float = 30.0,
        token_file: str | None = None,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(f"render_mode {render_mode!r}: remote environments render 'rgb_array' or nothing (None)")
        mode = AutoresetMode(autoreset_mode)
        settings = {
            "env": env_id,
            "num_envs": num_envs,
            "kwargs": dict(env_kwargs or {}),
            "seed": seed,
            "run_id": run_id,
            "autoreset": _AUTORESET[mode],
            "host": host,
            "per_slot_seeds": True,
            "masked_reset": mode is AutoresetMode.DISABLED,
            "render": render_mode is not None,
            "resumable": resumable,
            "lanes": lanes,
            "auto_reset": False,
        }
        access = Access(token_file=token_file, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key)
        self._session = Session(servers, access, LaneTimers(step_s=step_timeout_s), settings)
        self._exchange = self._session.exchange
        self._step_timeout_s = step_timeout_s
        self.num_envs, self.render_mode, self._mode = num_envs, render_mode, mode
        spec = self.fleet.spec
        assert spec is not None
        self._describe(env_id, spec, dict(env_kwargs or {}))
        self._begin(spec, episode_statistics, batch_size)

    def _describe(self, env_id: str, spec: LaneSpec, env_kwargs: dict[str, Any]) -> None:
        """What a VectorEnv says of itself."""
        self._observations, self._actions = ValueLayout(spec.observation), ValueLayout(spec.action)
        self.single_observation_space = self._observations.space
        self.single_action_space = self._actions.space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {"autoreset_mode": self._mode, "render_modes": [spec.render_mode] if spec.render_mode else []}
        if spec.render_fps:
            self.metadata["render_fps"] = int(spec.render_fps)
        with contextlib.suppress(gymnasium.error.Error):  # an alias need not be a Gymnasium id
            limit = spec.max_episode_steps or None
            self.spec = EnvSpec(env_id, max_episode_steps=limit, kwargs=env_kwargs)

    def _begin(self, spec: LaneSpec, episode_statistics: bool, batch_size: int | None) -> None:
        """What is remembered between calls."""
        self._assembler = Assembler(self._observations, spec.mask_size, episode_statistics)
        lanes = self.fleet.lanes
        self._bounds = [(int(lane.fleet_slots[0]), int(lane.fleet_slots[-1]) + 1) for lane in lanes]
        self._books = [LaneBook(np.arange(*at), self._observations.zeros(at[1] - at[0])) for at in self._bounds]
        self._lane_of = np.repeat(np.arange(len(lanes)), [lane.num_slots for lane in lanes])
        self._batch_size = batch_size or max(lane.num_slots for lane in lanes)
        if not 1 <= self._batch_size <= self.num_envs:
            raise ConfigError(f"batch_size is {batch_size}: choose 1 to {self.num_envs} (num_envs)")
        self._started = False
        self._asked: dict[int, bool] = {}  # lanes that owe rows to `recv`; True: first ones
        self._kept: list[Answer] = []  # answers that came with a refusal

    @property
    def fleet(self) -> Fleet:
        """Lanes, counters and events, for those who want to look. It belongs to the thread of the I/O loop."""
        return self._session.fleet

    # ------------------------------------------------------------------ Gymnasium

    def reset(self, *, seed: Seed = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """First observations of all environments, or of those in `options["reset_mask"]`; the others keep theirs."""
        self._check_open()
        self._check_settled("reset")
        wish = ResetWish.of(seed, options, self.num_envs)
        lane_parts = {number: wish.part(*at) for number, at in enumerate(self._bounds)}
        asked = {number: part for number, part in lane_parts.items() if part is not None}
        answers = {answer.lane: answer for answer in self._exchange.reset(asked)}
        _raise_refusals(list(answers.values()))
        self._started = True
        parts = []
        for number, book in enumerate(self._books):
            wanted = asked.get(number)
            if wanted is None:
                parts.append(book.untouched())
            else:
                answer = answers[number]
                parts.append(book.reset(answer.rows, wanted.mask, replaced=answer.replaced))
        return self._assembler.observations(parts), self._assembler.infos(parts, self.num_envs, wish.mask)

    def step(self, actions: Any) -> Step:
        """One step of every environment; arrays are the caller's own. Raises ServerRefused (BAD_ACTION) for an action
        outside of the space: the environments of that lane were not stepped then, those of the others were."""
        self._check_open()
        self._check_settled("step")
        self._check_started()
        leaves = self._actions.leaves_of(actions, self.num_envs)
        return self._stepped(self._exchange.step(self._by_lane(leaves)))

    def _by_lane(self, leaves: list[Array]) -> list[list[Array]]:
        return [[leaf[begin:end] for leaf in leaves] for begin, end in self._bounds]

    def _stepped(self, answers: list[Answer]) -> Step:
        parts = [self._books[answer.lane].step(answer.rows, self._mode) for answer in answers if not answer.refused]
        _raise_refusals(answers)
        return self._assembler.step(parts, self.num_envs)

    def render(self) -> tuple[Any, ...] | None:
        """One u1 image `[height, width, channels]` per environment; None for one that is lost, be it by rendering.

        Raises ServerRefused where an environment raises instead of rendering, or was never reset.
        """
        self._check_open()
        self._check_settled("render")
        if self.render_mode is None:
            gymnasium.logger.warn(
                "RemoteVectorEnv.render() without a render mode gives nothing: pass render_mode='rgb_array' to the "
                "constructor, because the servers decide then how they build the environments."
            )
            return None
        rows = [book.present(self._mode).tolist() for book in self._books]
        return tuple(self._exchange.run(images_of(self.fleet.lanes, rows, self._step_timeout_s)))

    def close_extras(self, **kwargs: Any) -> None:
        """Give the lanes back; a server of our own ends."""
        self._session.close()

    def __del__(self) -> None:
        if "_session" in self.__dict__:  # not where the constructor raised
            self.close()

    def call(self, name: str, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused; the error says what to do instead."""
        raise LocalProtocolError(
            f"call({name!r}): the environments run on other machines, and an env server executes nothing but steps. "
            "Set what has to be set by env_kwargs= or reset(options=...), and let the environment report what you need "
            "in its observations, or as numbers in its infos. For anything else serve a wrapper of it: "
            "envserver --env mine=my_package.envs:make_env"
        )

    def get_attr(self, name: str) -> NoReturn:
        """Refused, as `call` is."""
        self.call(name)

    def set_attr(self, name: str, values: Any) -> NoReturn:
        """Refused, as `call` is."""
        self.call(name, values)

    # ------------------------------------------------------------------ as AsyncVectorEnv has them

    def step_async(self, actions: Any) -> None:
        """Step every environment and do not wait. A step before it whose `step_wait` did not come to its end, as after
        Ctrl-C, is waited for and dropped."""
        self._check_open()
        self._check_settled("step_async")
        self._check_started()
        # Copies: the caller may go on writing into its array before the loop has sent it.
        leaves = [leaf.copy() for leaf in self._actions.leaves_of(actions, self.num_envs)]
        self._exchange.post_step(self._by_lane(leaves))

    def step_wait(self) -> Step:
        """What `step` gives and raises, of the last `step_async`."""
        self._check_open()
        return self._stepped(self._exchange.step_answers())

    @property
    def begun(self) -> Array:
        """b1 `[num_envs]`: whose last step shows the first observation of an episode, and infos of its reset."""
        return np.concatenate([book.begun for book in self._books])

    # ------------------------------------------------------------------ EnvPool and ALE

    def async_reset(self, *, seed: Seed = None, options: dict[str, Any] | None = None) -> None:
        """Ask for the first observations of all environments; they come by `recv`."""
        self._check_open()
        self._check_settled("async_reset")
        wish = ResetWish.of(seed, options, self.num_envs)
        if wish.mask is not None:
            raise ConfigError("async_reset resets every environment: use reset(options={'reset_mask': ...})")
        asked = {number: part for number, at in enumerate(self._bounds) if (part := wish.part(*at)) is not None}
        self._exchange.post_resets(asked)
        self._asked = dict.fromkeys(asked, True)
        self._started = True

    def send(self, actions: Any, env_id: Array) -> None:
        """Step the environments `env_id` `[N]`, which are those of whole lanes, as `recv` gave them. Does not wait."""
        self._check_open()
        self._check_started()
        ids = np.asarray(env_id)
        lanes = whole_lanes(ids, self._lane_of)
        waiting = [number for number in lanes if number in self._asked]
        if waiting:
            raise LocalProtocolError(f"lane {waiting[0]} still owes rows: recv() them first")
        order = np.argsort(ids)
        # Copies: the caller may go on writing into its array before the loop has sent it.
        leaves = [leaf[order] for leaf in self._actions.leaves_of(actions, len(ids))]
        begin, posted = 0, {}
        for number in lanes:
            end = begin + len(self._books[number].slots)
            posted[number] = [leaf[begin:end] for leaf in leaves]
            begin = end
        self._exchange.post_steps(posted)
        self._asked |= dict.fromkeys(lanes, False)

    def recv(self) -> Step:
        """Rows of the lanes that answered, `batch_size` slots or more, or fewer where no more can come.

        `infos["env_id"]` `[N]` says whose they are; the masks of the other infos are `[N]` too.
        """
        self._check_open()
        if not self._asked:
            raise LocalProtocolError("recv() would wait for ever: call async_reset() or send() first")
        answers = self._kept or self._exchange.take(self._batch_size)
        # Behind a refusal, which is raised now, the rows of other lanes wait for the next call.
        self._kept = [answer for answer in answers if answer.refused is None]
        for answer in answers:
            if answer.refused is not None:
                del self._asked[answer.lane]
        _raise_refusals(answers)
        parts = [self._part(answer, self._asked.pop(answer.lane)) for answer in self._kept]
        self._kept = []
        env_id = np.concatenate([part.slots for part in parts])
        begin = 0
        for part in parts:
            part.slots = np.arange(begin, begin + len(part.slots))
            begin += len(part.slots)
        step = self._assembler.step(parts, len(env_id))
        step[4]["env_id"] = env_id
        return step

    def _part(self, answer: Answer, is_first: bool) -> LanePart:
        book = self._books[answer.lane]
        return book.reset(answer.rows, None) if is_first else book.step(answer.rows, self._mode)

    # ------------------------------------------------------------------ checks

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"Trying to operate on `{type(self).__name__}`, after a call to `close()`.")

    def _check_settled(self, name: str) -> None:
        if self._asked:
            raise LocalProtocolError(f"{name}() while {len(self._asked)} lanes owe rows: recv() them first")

    def _check_started(self) -> None:
        if not self._started:
            raise ResetNeeded("Cannot step a RemoteVectorEnv before the first call of reset() or async_reset()")
        if self._mode is AutoresetMode.DISABLED and any(book.ended.any() for book in self._books):
            ended = np.concatenate([book.ended for book in self._books])
            raise ResetNeeded(
                f"autoreset is disabled and environments {np.flatnonzero(ended).tolist()} have ended: "
                "reset them with reset(options={'reset_mask': ...})"
            )


def _raise_refusals(answers: Sequence[Answer]) -> None:
    for answer in answers:
        if answer.refused is not None:
            raise answer.refused
