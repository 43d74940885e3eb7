"""Greedy evaluation: its own environments and seeds, no exploration, no noise, and no bias to short episodes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from rl_training.envs.vector import VectorEnvs
from rl_training.models.modes import evaluating
from rl_training.models.network import Network
from rl_training.runtime.behaviour import allowed_outputs
from rl_training.runtime.previous import PreviousSteps
from rl_training.types import Array

MAX_ENVS = 16


class Evaluation(NamedTuple):
    """Returns and lengths of the counted episodes, in the order (environment, episode)."""

    returns: Array
    lengths: Array
    cut: int = 0
    """How many of them `max_steps` ended: they are counted as they stood then."""

    def metrics(self) -> dict[str, float]:
        return {
            "eval_return_mean": float(self.returns.mean()),
            "eval_return_std": float(self.returns.std()),
            "eval_return_min": float(self.returns.min()),
            "eval_return_max": float(self.returns.max()),
            "eval_length_mean": float(self.lengths.mean()),
            "eval_episodes": len(self.returns),
            "eval_cut_episodes": self.cut,
        }


Evaluate: TypeAlias = Callable[[int, Callable[[], bool]], Evaluation]
"""(number of episodes, whether somebody asks for the end) → greedy evaluation of the network as it is."""


def quotas(num_episodes: int, num_envs: int) -> list[int]:
    """How many episodes each environment plays: fixed beforehand, since whoever finishes first would play the shortest ones."""
    return [num_episodes // num_envs + (i < num_episodes % num_envs) for i in range(num_envs)]


class Stopped(Exception):
    """Somebody asked for the evaluation's end before it came."""


@torch.inference_mode()
def evaluate(
    network: Network,
    make_envs: Callable[[int], VectorEnvs],
    *,
    num_episodes: int,
    device: torch.device,
    max_envs: int = MAX_ENVS,
    asked: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """`num_episodes` greedy episodes in environments of their own, made anew so that each evaluation plays the same episodes.

    asked: looked at in every step; true ends the evaluation with `Stopped`.
    """
    num_envs = min(num_episodes, max_envs)
    envs = make_envs(num_envs)
    quota = quotas(num_episodes, num_envs)
    played: list[list[tuple[float, int]]] = [[] for _ in range(num_envs)]
    open_envs = num_envs
    with contextlib.closing(envs), evaluating(network):
        obs, is_first, state = envs.reset(), np.ones(num_envs, bool), network.initial_state(num_envs)
        masks, previous = envs.action_masks, PreviousSteps.of(network, num_envs)
        while open_envs:
            if asked():
                raise Stopped
            led = {} if previous is None else {"previous": previous.tensors(device)}
            outputs, state = network.step(torch.from_numpy(obs).to(device), state, torch.tensor(is_first, device=device), **led)
            actions = network.greedy(allowed_outputs(outputs.cpu().numpy(), masks))
            step = envs.step(actions)
            if previous is not None:
                previous.step(actions, step)
            for env_index, episode_return, length in step.episodes:
                if len(played[env_index]) < quota[env_index]:
                    played[env_index].append((episode_return, length))
                    open_envs -= len(played[env_index]) == quota[env_index]
            obs, is_first, masks = step.obs, step.is_first, step.action_masks
        cut = sum(number < quota[i] for i, numbers in enumerate(envs.cut_episodes()) for number in numbers)
    counted = [episode for episodes in played for episode in episodes]
    return Evaluation(np.array([r for r, _ in counted]), np.array([n for _, n in counted]), cut)
