"""Saves where environments are in their episodes, and brings them back there.

An episode is its number and its actions (episodes.py): both are saved, and played again, unless the environment has saved a state of its
own. Whether that arrived where it should is seen by what is compared here: the observation, and of what was played the return so far, the
length and the end. Where it did not, a fresh episode begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np

from rl_training.envs.episodes import MAX_RECORDED, EpisodeRecord, Replay, SavedEpisode
from rl_training.errors import warn

if TYPE_CHECKING:
    from rl_training.types import Array, State

TOO_LONG = f"is in an episode of more than {MAX_RECORDED:,} steps, whose actions are not kept: on resume a fresh episode begins there"


class Workers(Protocol):
    """How Gymnasium's vector environments (and ours) reach a method or attribute of each environment, in another process too."""

    def call(self, name: str) -> tuple[Any, ...]: ...

    def set_attr(self, name: str, values: Sequence[Any]) -> None: ...


class Restored(NamedTuple):
    """Where environments are, after a state was loaded."""

    obs: Array  # [E, ...] the current observations
    restored: Array  # [E] bool: False where the environment could not be brought back and begins a fresh episode


class EpisodeKeeper:
    """The episodes under way of environments that are each wrapped in `ReplayableEpisodes`."""

    def __init__(self, workers: Workers, action_space: gym.Space[Any], first_index: int = 0) -> None:
        """first_index: the number of the first environment, as messages name it."""
        self._workers, self._first_index = workers, first_index
        self._no_actions = np.zeros((0, *(action_space.shape or ())), action_space.dtype)
        self.note = ""
        """What resume cannot promise, as of the last `state_dict`."""

    def state_dict(self) -> State:
        saved: tuple[SavedEpisode, ...] = self._workers.call("saved_episode")
        self._note_lost([i for i, episode in enumerate(saved) if episode.actions is None and episode.state is None])
        counts = [-1 if episode.actions is None else len(episode.actions) for episode in saved]
        state: State = {
            "episodes": np.array([episode.number for episode in saved], np.int64),
            "action_counts": np.array(counts, np.int64),
            "actions": np.concatenate([self._no_actions, *(episode.actions for episode in saved if episode.actions is not None)]),
        }
        if any(episode.state is not None for episode in saved):
            state["states"] = [episode.state for episode in saved]
        return state

    def _note_lost(self, indices: list[int]) -> None:
        """Says it the first time."""
        said = bool(self.note)
        self.note = f"environment {self._listed(indices)} {TOO_LONG}" if indices else ""
        if indices and not said:
            warn(self.note, RuntimeWarning)

    def restore(self, saved: dict[str, Array], states: Sequence[State | None], reset: Callable[..., Array]) -> tuple[Array, Array]:
        """Plays the records again, or restores the states.

        saved: our state and the adapter's `obs`, `returns`, `lengths` and `waiting`; states: those of the environments, where they save
        some; reset: resets the environments.

        Returns the observations [E, ...], and [E] bool: who arrived where it was saved; the others have begun a fresh episode.
        """
        pieces = np.split(saved["actions"], np.cumsum(np.maximum(saved["action_counts"], 0))[:-1])
        states = states or [None] * len(pieces)
        known = saved["action_counts"] >= 0
        kept = known | np.array([state is not None for state in states])
        records = [
            EpisodeRecord(
                episode=int(saved["episodes"][i]),
                actions=pieces[i] if known[i] else None,
                state=states[i],
                length=int(saved["lengths"][i]),
                ended=bool(saved["waiting"][i]),
            )
            for i in range(len(pieces))
        ]
        self._workers.set_attr("resume_from", records)
        obs = reset()
        replays: tuple[Replay, ...] = self._workers.call("replay")
        restored = kept & [
            np.array_equal(obs[i], saved["obs"][i]) and _arrived(replay, record, saved["returns"][i])
            for i, (replay, record) in enumerate(zip(replays, records, strict=True))
        ]
        if not kept.all():
            warn(f"environment {self._listed(np.flatnonzero(~kept))} {TOO_LONG}", RuntimeWarning)
        if not (restored | ~kept).all():
            warn(
                f"environment {self._listed(np.flatnonzero(kept & ~restored))}: playing the saved episode again did not arrive at the "
                "saved observation (it is not deterministic); a fresh episode begins there",
                RuntimeWarning,
            )
        if not restored.all():
            obs[~restored] = reset(options={"reset_mask": ~restored})[~restored]
        return obs, restored

    def _listed(self, indices: Any) -> str:
        return ", ".join(str(self._first_index + i) for i in indices)


def _arrived(replay: Replay, record: EpisodeRecord, episode_return: float) -> bool:
    if replay["episode_return"] is None:
        return True
    # an ended episode's return was reported and cleared when it ended
    same_return = record["ended"] or replay["episode_return"] == episode_return
    actions = record["actions"]
    return same_return and replay["ended"] == record["ended"] and actions is not None and replay["length"] == len(actions)
