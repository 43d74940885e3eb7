"""The acting side: a network steps environments, and what happened goes to the replay.

Recurrent state is always threaded through; a feed-forward network carries ().
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from rl_training.data.n_step import NStepAccumulator
from rl_training.envs.vector import VectorEnvs
from rl_training.models.q_network import CoreState
from rl_training.types import Array, EnvStep, State

NO_STARTS = torch.zeros(0, dtype=torch.bool)  # a feed-forward network has nothing to reset


class Feed(Protocol):
    """Where steps go: an accumulator and a buffer of transitions, or a buffer that assembles sequences."""

    def push(self, obs: Array, actions: Array, step: EnvStep, is_first: Array, state: CoreState) -> None: ...

    def drop(self, env_indices: Array) -> None:
        """Forget what is open for environments that could not be restored."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> Any: ...


class TransitionFeed:
    """n-step transitions into a transition buffer."""

    def __init__(self, accumulator: NStepAccumulator, replay: Any) -> None:
        self.accumulator, self._add_batch = accumulator, replay.add_batch

    def push(self, obs: Array, actions: Array, step: EnvStep, is_first: Array, state: CoreState) -> None:
        items = self.accumulator.push(
            obs=obs,
            actions=actions,
            rewards=step.rewards,
            next_obs=step.final_obs,
            terminated=step.terminated,
            truncated=step.truncated,
            valid=step.valid,
        )
        if len(items["rewards"]):
            self._add_batch(**items)

    def drop(self, env_indices: Array) -> None:
        self.accumulator.drop(env_indices)

    def state_dict(self) -> State:
        return self.accumulator.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.accumulator.load_state_dict(state)


class SequenceFeed:
    """Steps into a buffer that assembles chunks itself; the open chunks are part of the buffer's own state."""

    def __init__(self, replay: Any) -> None:
        self._replay, self._add_step = replay, replay.add_step

    def push(self, obs: Array, actions: Array, step: EnvStep, is_first: Array, state: CoreState) -> None:
        self._add_step(
            obs=obs,
            actions=actions,
            rewards=step.rewards,
            next_obs=step.final_obs,
            terminated=step.terminated,
            truncated=step.truncated,
            episode_starts=is_first,
            initial_state=state,
            valid=step.valid,
        )

    def drop(self, env_indices: Array) -> None:
        self._replay.clear_active_chunks(env_indices)

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        pass


class Actor:
    """Steps the environments with ε-greedy actions and feeds the replay. Exploration is drawn for each environment on its own.

    epsilon: environment steps → ε, or an array with one ε per environment. Before `learning_starts` actions are uniformly random.
    """

    def __init__(
        self,
        envs: VectorEnvs,
        network: Any,
        feed: Feed,
        *,
        epsilon: Callable[[int], float] | Array,
        learning_starts: int,
        num_actions: int,
        device: torch.device,
        seed: int,
    ) -> None:
        self.envs, self.network, self.feed = envs, network, feed
        self._epsilon, self.learning_starts, self._device = epsilon, learning_starts, device
        self._on_cpu = device.type == "cpu"
        self.learns_from = learning_starts  # the environment step from which there is enough to learn from
        self._rng = np.random.default_rng(seed)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._num_actions = num_actions
        self._obs = envs.reset()
        self._is_first = np.ones(envs.num_envs, bool)
        self._state: CoreState = network.initial_state(envs.num_envs)
        self._needs_forward = bool(self._state)

    def epsilon(self, env_steps: int) -> float | Array:
        """The exploration rate now: one for all environments, or one each."""
        if env_steps < self.learning_starts:
            return 1.0
        return self._epsilon(env_steps) if callable(self._epsilon) else self._epsilon

    def refill_from(self, env_steps: int) -> None:
        """The replay is empty at this point of the run: collect as much as at the beginning before learning again."""
        self.learns_from = env_steps + self.learning_starts

    def _act(self, epsilon: float | Array) -> Array:
        # The same draws every step, whatever comes of them: the stream does not depend on the network.
        explore = self._rng.random(self.envs.num_envs) < epsilon
        actions = self._rng.integers(self._num_actions, size=self.envs.num_envs)
        if not self._needs_forward and explore.all():
            return actions
        with torch.inference_mode():
            obs = torch.from_numpy(self._obs)
            if not self._on_cpu:
                obs = obs.to(self._device)
            draws = self.network.draw(self._generator, explore.shape, "acting")
            starts = torch.tensor(self._is_first, device=self._device) if self._needs_forward else NO_STARTS
            q_values, self._state = self.network.step(obs, self._state, starts, draws)
            greedy = q_values.numpy().argmax(-1) if self._on_cpu else q_values.argmax(-1).cpu().numpy()
        return np.where(explore, actions, greedy)

    def step(self, env_steps: int) -> EnvStep:
        """One vector step at the clock's `env_steps`."""
        state = self._state
        if state and self._is_first.any():  # what the network held before it saw obs: zeros at an episode's start
            state = self.network.reset_state(state, torch.tensor(self._is_first))
        actions = self._act(self.epsilon(env_steps))
        step = self.envs.step(actions)
        self.feed.push(self._obs, actions, step, self._is_first, state)
        self._obs, self._is_first = step.obs, step.is_first
        return step

    def state_dict(self) -> State:
        return {
            "envs": self.envs.state_dict(),
            "feed": self.feed.state_dict(),
            "core": [tensor.cpu() for tensor in self._state],
            "is_first": self._is_first,
            "rng": self._rng.bit_generator.state,
            "generator": self._generator.get_state(),
            "learns_from": self.learns_from,
        }

    def load_state_dict(self, state: State) -> None:
        self.feed.load_state_dict(state["feed"])
        self._state = tuple(tensor.to(self._device) for tensor in state["core"])
        self._is_first = np.asarray(state["is_first"]).astype(bool)
        self._rng.bit_generator.state = state["rng"]
        self._generator.set_state(state["generator"])
        self.learns_from = int(state["learns_from"])
        restored = self.envs.load_state_dict(state["envs"])
        self._obs = restored.obs
        lost = ~restored.restored
        if lost.any():
            self.feed.drop(np.flatnonzero(lost))
            self._is_first = self._is_first | lost
