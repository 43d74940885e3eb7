"""`predict`: observations in, as JSON has them, one answer after another out, whichever kind of policy is asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

from rl_training.envs.stacking import RecentFrames
from rl_training.errors import UserError
from rl_training.types import Array

Wrap: TypeAlias = Callable[[Any, Any, bool], Any]
"""(what the environment gave, the action that led there, whether an episode starts) → what the network reads."""


class Answering(Protocol):
    frame_stack: int  # images that the network reads at once
    reads_previous: bool  # the action and reward that led to an observation

    def one_of_stack(self, obs: Any) -> Array | None:
        """The image that `obs` is, where the network reads several and `obs` is a single one."""
        ...

    def answer(
        self, obs: Any, state: Any = None, episode_start: Any = None, action_mask: Any = None, *, previous: Any = None
    ) -> tuple[dict[str, Any], Any]:
        """The greedy action for one observation with what it was chosen by, and the state carried on."""
        ...


def answers(
    policy: Answering,
    observations: Iterable[Any],
    make_wrap: Callable[[], Wrap],
    *,
    is_raw: Callable[[Any], bool] = lambda obs: isinstance(obs, Mapping),
) -> Iterator[dict[str, Any]]:
    """An answer for each observation, when it is asked for; `make_wrap` is called at the first that is still to be wrapped (`is_raw`)."""
    wrap: Wrap | None = None
    recent = RecentFrames(policy.frame_stack)
    answer: dict[str, Any] = {}
    state = None
    for number, given in enumerate(observations, 1):
        with _naming(number):
            obs, episode_start, mask, reward = _observation(given)
        raw = is_raw(obs)
        if raw and wrap is None:
            wrap = make_wrap()
        with _naming(number):
            if raw and wrap is not None:
                obs = wrap(obs, answer.get("action"), episode_start)
            if (frame := policy.one_of_stack(obs)) is not None:
                obs = recent(frame, episode_start)
            led = None if reward is None or "action" not in answer else ([answer["action"]], [reward])
            if policy.reads_previous and led is None and answer and not episode_start:
                raise UserError('has no reward, and this policy reads the reward that came with an observation: {"obs": …, "reward": 1.0}')
            if led is not None and not policy.reads_previous:
                raise UserError("has a reward, and this policy does not read it")
            answer, state = policy.answer(obs, state, [episode_start], mask, previous=led)
        yield answer


@contextmanager
def _naming(number: int) -> Iterator[None]:
    """What is wrong with an observation is said with its number."""
    try:
        yield
    except UserError as error:
        raise UserError(f"observation {number} {error}") from None


def _observation(given: Any) -> tuple[Any, bool, Any, float | None]:
    """The observation, whether an episode starts with it, its action mask and the reward that came with it, where it has them."""
    if not isinstance(given, Mapping):
        return given, False, None, None
    unknown = next((key for key in given if key not in ("obs", "episode_start", "action_mask", "reward")), None)
    if unknown is not None or "obs" not in given:
        found = "no obs" if unknown is None else repr(unknown)
        raise UserError(f"must hold obs, may hold episode_start, action_mask and reward, got {found} (a Dict observation goes under obs)")
    reward = given.get("reward")
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward)):
        raise UserError(f"has a reward that is no finite number: {reward!r:.60}")
    episode_start = given.get("episode_start", False)
    if not isinstance(episode_start, bool):
        raise UserError(f"has an episode_start that is not true or false: {episode_start!r:.60}")
    return given["obs"], episode_start, given.get("action_mask"), None if reward is None else float(reward)
