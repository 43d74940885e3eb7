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

    def answer(self, obs: Any, state: CoreState | None = None, episode_start: Any = None) -> tuple[dict[str, Any], CoreState]:
        """The greedy action for one observation with the numbers it was chosen by, as JSON can hold them, and the state carried on."""
        q_values, state = self.q_values(read_observation(obs, self._shape, self.spaces["obs_dtype"]), state, episode_start)
        return {"action": int(q_values.argmax()), "q_values": q_values.tolist()}, state

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


def read_observation(value: Any, shape: tuple[int, ...], dtype: str) -> Array:
    """One observation from plain lists and numbers that anybody wrote: shape, finiteness and range are checked, nothing is cut off."""
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise UserError(f"must be a list of numbers of shape {shape}, got {value!r:.60}") from None
    if array.shape != shape:
        raise UserError(f"must have shape {shape}, got {array.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        read = array.astype(dtype)
    if not np.isfinite(array).all() or not np.isfinite(read).all():
        raise UserError(f"must be finite numbers, got {value!r:.60}")
    if not np.issubdtype(read.dtype, np.floating) and not np.array_equal(read, array):
        raise UserError(f"must be whole numbers that {dtype} can hold, got {value!r:.60}")
    return read
