"""A policy as one module of named tensors: what is exported.

    obs [, h, c, episode_start [, previous_action, previous_reward]] [, action_mask]
        →   action, values [, logits | mean, log_std] [, next_h, next_c]

`obs` is what the environment gives, so far as its wrappers are part of the module (raw_observations.py; a dict of its parts where they are
several), and otherwise what comes after them. The way of an image to channels first and normalisation are part of the module too.
`action` is the greedy or likeliest one among those that `action_mask` allows, as the environment takes it. `values` are Q-values [B, A], or
the state's value [B] beside the parameters of a policy: what the network gives, whatever is allowed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rl_training.envs.masks import choice_sizes
from rl_training.errors import UserError
from rl_training.exchange.raw_observations import RawObservations, Reader, one_part
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.heads import NO_DRAWS
from rl_training.models.network import reads_previous
from rl_training.runtime.policy import Policy
from rl_training.types import NO_ACTION, Previous

STATE_INPUTS = ("h", "c")
"""What the parts of a recurrent state are called; the state after the step is `next_h`, `next_c`."""


class ActingModule(nn.Module):
    """The greedy policy; with the state `h` (and `c`) comes `episode_start`, true where the state is forgotten first."""

    shift: Tensor | None
    scale: Tensor | None

    def __init__(self, policy: Policy, raw: RawObservations | None = None) -> None:
        super().__init__()
        self.parts = one_part(policy.obs_shape, policy.obs_dtype) if raw is None else raw.parts
        self.reader = None if raw is None else Reader(raw, policy.obs_dtype)
        network = policy.network
        if not isinstance(network, nn.Module):
            raise UserError(f"a {type(network).__name__} is no torch module, and so cannot be exported")
        self.network: Any = network
        self.action: dict[str, Any] = policy.spaces["action"]
        self.first_action = policy.first_action
        self.state_names = STATE_INPUTS[: len(network.initial_state(1))]
        if len(network.initial_state(1)) > len(STATE_INPUTS):
            raise UserError(f"only a state of up to {len(STATE_INPUTS)} parts ({', '.join(STATE_INPUTS)}) can be exported")
        self.reads_previous = reads_previous(network)
        self.image, self.masked = policy.image, bool(policy.spaces.get("action_masks"))
        self.read_shape = tuple(policy.spaces["obs_shape"])
        normalizer = policy.normalizer
        self.clip = None if normalizer is None else float(normalizer.clip)
        # float64, as the package normalises
        self.register_buffer("shift", None if normalizer is None else torch.as_tensor(normalizer.shift))
        self.register_buffer("scale", None if normalizer is None else torch.as_tensor(normalizer.scale))

    def forward(
        self,
        obs: Tensor | dict[str, Tensor],
        h: Tensor | None = None,
        c: Tensor | None = None,
        episode_start: Tensor | None = None,
        previous_action: Tensor | None = None,
        previous_reward: Tensor | None = None,
        action_mask: Tensor | None = None,
    ) -> dict[str, Tensor]:
        state = tuple(part for part in (h, c) if part is not None)
        read: Any = obs if self.reader is None else self.reader(obs)
        starts = torch.zeros(read.shape[0], dtype=torch.bool) if episode_start is None else episode_start
        led: tuple[Previous, ...] = ()
        if previous_action is not None and previous_reward is not None:
            actions = torch.where(starts, NO_ACTION, previous_action - self.first_action)
            led = (Previous(actions, torch.where(starts, 0.0, previous_reward)),)
        named, after = self._act(self._normalized(self._channels_first(read)), state, starts, action_mask, led)
        return named | {f"next_{name}": part for name, part in zip(self.state_names, after, strict=True)}

    def _act(
        self, obs: Tensor, state: tuple[Tensor, ...], starts: Tensor, mask: Tensor | None, led: tuple[Previous, ...]
    ) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
        network = self.network
        if isinstance(network, ActorCritic):
            outputs, value, after = network.step_with_value(obs, state, starts, *led)
            distribution = network.distribution
            parts = torch.split(outputs, list(distribution.parameters.values()), -1)
            actions = distribution.greedy(_allowed(outputs, mask))
            return {"action": self._from_first(actions), "values": value, **dict(zip(distribution.parameters, parts, strict=True))}, after
        q_values, after = network.step(obs, state, starts, NO_DRAWS, *led)
        return {"action": self._from_first(_allowed(q_values, mask).argmax(-1)), "values": q_values}, after

    def _from_first(self, actions: Tensor) -> Tensor:
        return actions + self.first_action if self.first_action else actions

    def _channels_first(self, obs: Tensor) -> Tensor:
        """What `ImageForm.read` does, of one image or several that are stacked."""
        if self.image is None:
            return obs
        lead = obs.ndim - len(self.image.axes)
        moved = obs.permute(*range(lead), *(lead + axis for axis in self.image.axes)).to(torch.uint8)
        return moved.reshape(-1, *self.read_shape)

    def _normalized(self, obs: Tensor) -> Tensor:
        if self.shift is None or self.scale is None or self.clip is None:
            return obs
        return ((obs.double() - self.shift) / self.scale).clamp(-self.clip, self.clip).float()

    @property
    def described(self) -> list[dict[str, Any]]:
        """What goes into `obs`, as metadata can hold it."""
        return [part.model_dump(mode="json", exclude_none=True) for part in self.parts]

    def example(self) -> dict[str, Any]:
        """Inputs by name for two observations at an episode's start: a batch of one would be taken for a constant."""
        size = 2
        parts = {part.name: torch.zeros(size, *part.shape, dtype=getattr(torch, part.dtype)) for part in self.parts}
        state = self.network.initial_state(size)
        carried = {**dict(zip(self.state_names, state, strict=True)), "episode_start": torch.ones(size, dtype=torch.bool)}
        inputs = {"obs": parts["obs"] if len(parts) == 1 else parts, **(carried if state else {})}
        if self.reads_previous:
            inputs |= {"previous_action": torch.zeros(size, dtype=torch.int64), "previous_reward": torch.zeros(size)}
        if self.masked:
            inputs["action_mask"] = torch.ones(size, sum(choice_sizes(self.action)), dtype=torch.bool)
        return inputs


def _allowed(outputs: Tensor, mask: Tensor | None) -> Tensor:
    return outputs if mask is None else torch.where(mask, outputs, -torch.inf)
