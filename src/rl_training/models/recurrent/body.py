"""What every recurrent network is made of before its heads: encoder, then core."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rl_training.models.network import CoreState, Facts, facts_of
from rl_training.models.precision import MixedPrecision
from rl_training.models.recurrent.cores import Core
from rl_training.types import Previous


class RecurrentBody(MixedPrecision):
    """obs → encoder → core.

    With `previous_actions` the core reads what led to an observation beside its features (R2D2, Kapturowski et al., ICLR 2019, §2.3): the
    action, one-hot of that many, and the reward; zeros at an episode's start.

    With `skip` the encoder's features go to the heads beside the core's output: what is seen now does not have to pass through the memory,
    whose cells may saturate over an episode much longer than the sequences it learns from.
    """

    action_numbers: Tensor

    def __init__(self, encoder: nn.Module, core: Core, *, skip: bool = False, previous_actions: int = 0) -> None:
        super().__init__()
        self.skip, self.previous_actions = skip, previous_actions
        self.register_buffer("action_numbers", torch.arange(previous_actions), persistent=False)
        self.core = core  # first: see `in_cudnns_order`
        self.encoder = encoder
        self.register_load_state_dict_pre_hook(_with_names_of_now)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    @property
    def facts(self) -> Facts:
        return facts_of(self, recurrent=True)

    def initial_state(self, batch_size: int) -> CoreState:
        return self.core.initial_state(batch_size)

    def reset_state(self, state: CoreState, episode_starts: Tensor) -> CoreState:
        """Zeros where an episode starts ([B], true or 1), else unchanged."""
        return self.core.reset_state(state, episode_starts)

    def unroll_core(
        self, obs: Tensor, state: CoreState, episode_starts: Tensor | None = None, previous: Previous | None = None
    ) -> tuple[Tensor, CoreState]:
        """The part before the heads: [T, B, ...] → [T, B, F] and the state after the last step."""
        with self.computing(obs.device):
            features: Tensor = self.encoder(obs.flatten(0, 1)).unflatten(0, obs.shape[:2])
            core, after = self.core.unroll(self._with_previous(features, previous), state, episode_starts)
        return self._float32(torch.cat([core, features], -1) if self.skip else core, after)

    def step_core(self, obs: Tensor, state: CoreState, previous: Previous | None = None) -> tuple[Tensor, CoreState]:
        """One step, [B, ...] → [B, F] and the state after it; equal to `unroll_core` up to rounding."""
        with self.computing(obs.device):
            features = self.encoder.forward(obs)
            core, after = self.core.step(self._with_previous(features, previous), state)
        return self._float32(torch.cat([core, features], -1) if self.skip else core, after)

    def _with_previous(self, features: Tensor, previous: Previous | None) -> Tensor:
        """What the core reads, [..., F] or [..., F + A + 1]; without `previous` as at an episode's start."""
        if not self.previous_actions:
            return features
        if previous is None:
            return torch.cat([features, features.new_zeros(*features.shape[:-1], self.previous_actions + 1)], -1)
        chosen = (previous.actions.unsqueeze(-1) == self.action_numbers).to(features.dtype)
        return torch.cat([features, chosen, previous.rewards.unsqueeze(-1).to(features.dtype)], -1)

    def _float32(self, core: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """What the heads read and what is carried on; the same tensors where they are float32 already."""
        return (core, state) if self.compute_dtype is None else (core.float(), tuple(part.float() for part in state))


def _with_names_of_now(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Checkpoints of the first format have an LSTM's weights as `lstm.…`, from when it could be nothing else."""
    for name in [name for name in state if name.startswith(f"{prefix}lstm.")]:
        state[f"{prefix}core.{name[len(prefix) :]}"] = state.pop(name)
