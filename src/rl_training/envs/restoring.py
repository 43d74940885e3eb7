"""Saves where environments are in their episodes, and brings them back there.

An episode is its number and its actions (episodes.py): both are saved, and played again. Whether that arrived where it should is seen by
what is compared here: the observation, the return so far, the length and the end. Where it did not, a fresh episode begins.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium as gym
import numpy as np

from rl_training.envs.episodes import MAX_RECORDED, EpisodeRecord, Replay

if TYPE_CHECKING:
    from rl_training.types import Array, State

TOO_LONG = f"is in an episode of more than {MAX_RECORDED:,} steps, whose actions are not kept: on resume a fresh episode begins there"


class Workers(Protocol):
    """How Gymnasium's vector environments (and ours) reach a method or attribute of each environment, in another process too."""

    def call(self, name: str) -> tuple[Any, ...]: ...

    def set_attr(self, name: str, values: Sequence[Any]) -> None: ...


class EpisodeKeeper:
    """The episodes under way of environments that are each wrapped in `ReplayableEpisodes`."""

    def __init__(self, workers: Workers, action_space: gym.Space[Any]) -> None:
        self._workers = workers
        self._no_actions = np.zeros((0, *(action_space.shape or ())), action_space.dtype)
        self.note = ""
        """What resume cannot promise, as of the last `state_dict`."""

    def state_dict(self) -> State:
        episodes, records = zip(*self._workers.call("episode_record"), strict=True)
        kept = [actions for actions in records if actions is not None]
        self._note_lost([i for i, actions in enumerate(records) if actions is None])
        return {
            "episodes": np.array(episodes, np.int64),
            "action_counts": np.array([-1 if actions is None else len(actions) for actions in records], np.int64),
            "actions": np.concatenate(kept or [self._no_actions]),
        }

    def _note_lost(self, indices: list[int]) -> None:
        """Says it the first time."""
        said = bool(self.note)
        self.note = f"environment {_listed(indices)} {TOO_LONG}" if indices else ""
        if indices and not said:
            warnings.warn(self.note, RuntimeWarning, stacklevel=2)

    def restore(self, saved: dict[str, Array], reset: Callable[..., Array]) -> tuple[Array, Array]:
        """Plays the records again. saved: our state and the adapter's `obs`, `returns` and `waiting`; reset: resets the environments.

        Returns the observations [E, ...], and [E] bool: who arrived where it was saved; the others have begun a fresh episode.
        """
        kept = saved["action_counts"] >= 0
        pieces = np.split(saved["actions"], np.cumsum(np.maximum(saved["action_counts"], 0))[:-1])
        records = [
            EpisodeRecord(episode=int(episode), actions=actions, ended=bool(ended))
            for episode, actions, ended in zip(saved["episodes"], pieces, saved["waiting"], strict=True)
        ]
        self._workers.set_attr("resume_from", records)
        obs = reset()
        replays: tuple[Replay, ...] = self._workers.call("replay")
        restored = np.array(
            [
                np.array_equal(obs[i], saved["obs"][i])
                and replay["length"] == record["actions"].shape[0]
                and replay["ended"] == record["ended"]
                # an ended episode's return was reported and cleared when it ended
                and (record["ended"] or replay["episode_return"] == saved["returns"][i])
                for i, (replay, record) in enumerate(zip(replays, records, strict=True))
            ],
            np.bool_,
        )
        restored &= kept
        if not kept.all():
            warnings.warn(f"environment {_listed(np.flatnonzero(~kept))} {TOO_LONG}", RuntimeWarning, stacklevel=3)
        if not (restored | ~kept).all():
            warnings.warn(
                f"environment {_listed(np.flatnonzero(kept & ~restored))}: playing the saved episode again did not arrive at the saved "
                "observation (it is not deterministic); a fresh episode begins there",
                RuntimeWarning,
                stacklevel=3,
            )
        if not restored.all():
            obs[~restored] = reset(options={"reset_mask": ~restored})[~restored]
        return obs, restored


def _listed(indices: Any) -> str:
    return ", ".join(str(i) for i in indices)
