"""A trained network as users ask it: observations in, actions out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_training.errors import UserError
from rl_training.models.q_network import CoreState, epsilon_greedy
from rl_training.types import Array


class Policy:
    """Greedy (or ε-greedy) actions of a Q-network, one observation or a batch; the recurrent state goes in and comes out."""

    def __init__(self, network: Any, spaces: dict[str, Any], *, epsilon: float = 0.0, normalizer: Any = None, seed: int = 0) -> None:
        self.network, self.spaces, self.epsilon, self.normalizer = network.eval(), spaces, epsilon, normalizer
        self._device = next(network.parameters()).device
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._shape = tuple(spaces["obs_shape"])

    def _batch(self, obs: Any) -> tuple[Array, bool]:
        array = np.asarray(obs, dtype=self.spaces["obs_dtype"])
        single = array.shape == self._shape
        if not single and array.shape[1:] != self._shape:
            raise UserError(f"an observation must have shape {self._shape} (or a batch of them), got {array.shape}")
        batch = array[None] if single else array
        return (batch if self.normalizer is None else self.normalizer.normalize(batch)), single

    @torch.inference_mode()
    def q_values(self, obs: Any, state: CoreState | None = None, episode_start: Any = None) -> tuple[Array, CoreState]:
        """Q-values [A] or [B, A], and the state carried on."""
        batch, single = self._batch(obs)
        q_values, state = self._step(batch, state, episode_start, deterministic=True)
        array: Array = q_values.cpu().numpy()
        return (array[0] if single else array), state

    @torch.inference_mode()
    def predict(
        self, obs: Any, state: CoreState | None = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Any, CoreState]:
        """Actions (a number for one observation, [B] for a batch) and the state to pass in next time: () for a feed-forward network."""
        batch, single = self._batch(obs)
        q_values, state = self._step(batch, state, episode_start, deterministic)
        actions = epsilon_greedy(q_values, 0.0 if deterministic else self.epsilon, self._generator).cpu().numpy()
        return (int(actions[0]) if single else actions), state

    def _step(self, batch: Array, state: CoreState | None, episode_start: Any, deterministic: bool) -> tuple[torch.Tensor, CoreState]:
        if state is None:
            state = self.network.initial_state(len(batch))
        starts = np.zeros(len(batch), bool)
        if episode_start is not None:
            starts |= np.asarray(episode_start, bool)
        obs, first = torch.from_numpy(batch).to(self._device), torch.from_numpy(starts).to(self._device)
        if deterministic:
            q_values, new_state = self.network.step(obs, state, first)
        else:
            q_values, new_state = self.network.step(obs, state, first, self.network.draw(self._generator, (len(batch),), "acting"))
        return q_values, new_state
