"""What an actor elsewhere is asked for, and what it sends: blocks of finished items and the facts of the steps behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_training.data.frames import FRAMES, STACKS
from rl_training.data.sequences import joined
from rl_training.types import EnvStep, Episode, Items, State

BLOCK_STEPS = 64
"""Environment steps of a block, at most: enough that sending it costs little beside them, few enough to be learned from while new."""
BLOCK_SECONDS = 0.25
"""A block of slow environments is sent after so long, whatever it holds by then."""


BROUGHT = (FRAMES, STACKS)
"""What items bring beside themselves, or what comes without any."""


class Order(NamedTuple):
    """The next block: from the learner's clock, of at most so many vector steps and seconds, with the weights of this version."""

    env_steps: int
    vector_steps: int
    seconds: float
    version: int


class Facts(NamedTuple):
    """What a run is told of a block, beside its items."""

    step: EnvStep
    version: int  # of the weights that acted
    num_items: int
    num_open: int  # steps that are in no item yet


class Outbox:
    """Takes the items of a `ReplayFeed` in the replay's place, until they are sent."""

    def __init__(self) -> None:
        self._items: list[Items] = []

    def add_items(self, items: Items) -> None:
        self._items.append(items)

    def take(self) -> Items:
        """All of them, oldest first, and all the frames they brought; {}: none."""
        taken, self._items = self._items, []
        items = [{name: value for name, value in some.items() if name not in BROUGHT} for some in taken if "rewards" in some]
        frames = [{name: some[name] for name in BROUGHT} for some in taken if FRAMES in some]
        return {**joined(items), **joined(frames)}


def joined_steps(steps: Sequence[EnvStep]) -> EnvStep:
    """The steps of a block as one: rewards and flags of all of them, [steps · E], oldest first; observations of the last one alone."""
    last = steps[-1]
    if len(steps) == 1:
        return last
    rewards, terminated, truncated, is_first, valid = (
        np.concatenate([getattr(step, name) for step in steps]) for name in ("rewards", "terminated", "truncated", "is_first", "valid")
    )
    episodes = tuple(episode for step in steps for episode in step.episodes)
    return EnvStep(last.obs, last.final_obs, rewards, terminated, truncated, is_first, valid, episodes)


def facts_state(facts: Facts) -> State:
    """A block's facts as a checkpoint holds them."""
    step = facts.step._asdict() | {"episodes": [list(episode) for episode in facts.step.episodes], "raw": None}
    return {**facts._asdict(), "step": step}


def facts_of(state: State) -> Facts:
    step: dict[str, Any] = {
        name: value if value is None else np.asarray(value) for name, value in state["step"].items() if name != "episodes"
    }
    episodes = tuple(Episode(int(index), float(result), int(length)) for index, result, length in state["step"]["episodes"])
    numbers = {name: int(state[name]) for name in ("version", "num_items", "num_open")}
    return Facts(EnvStep(**step, episodes=episodes), **numbers)
