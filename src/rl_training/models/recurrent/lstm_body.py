"""What every recurrent network here is made of before its heads: MLP encoder, then LSTM."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor, nn

from rl_training.models.network import CoreState, Facts, facts_of
from rl_training.models.stack import RELU, Activation
from rl_training.models.torsos import MLPTorso

LSTMState: TypeAlias = tuple[Tensor, Tensor]
"""(h, c), each [L, B, H]."""


class LSTMBody(nn.Module):
    """obs → encoder (the identity where `encoder_sizes` is empty) → LSTM.

    A sequence without an episode start inside is one `nn.LSTM` call; with `episode_starts` given, the state is zeroed wherever one begins.
    With `skip` the encoder's features go to the heads beside the LSTM's output: what is seen now does not have to pass through the memory,
    whose cells may saturate over an episode much longer than the sequences it learns from.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        encoder_sizes: Sequence[int],
        hidden_size: int,
        num_layers: int,
        activation: Activation = RELU,
        *,
        skip: bool = False,
    ) -> None:
        super().__init__()
        self.obs_shape = tuple(obs_shape)
        self.hidden_size, self.num_layers, self.skip = hidden_size, num_layers, skip
        sizes = [prod(self.obs_shape), *encoder_sizes]
        self.core_dim = hidden_size + (sizes[-1] if skip else 0)  # what the heads read
        # First, and in cuDNN's order, so that `flatten_parameters` lays the weights out as cuDNN wants them: at the start of their storage,
        # all matrices before all biases. Otherwise it copies them together at every call, and warns.
        self.lstm = nn.LSTM(sizes[-1], hidden_size, num_layers)
        for name in [name for name, _ in self.lstm.named_parameters() if name.startswith("bias")]:
            bias = self.lstm.get_parameter(name)
            delattr(self.lstm, name)
            self.lstm.register_parameter(name, bias)  # now the last one; nn.LSTM itself computes with its own list, which is unchanged
        self.encoder = MLPTorso(sizes[0], encoder_sizes, activation)

    @property
    def facts(self) -> Facts:
        return facts_of(self, recurrent=True)

    def initial_state(self, batch_size: int) -> LSTMState:
        zeros = next(self.parameters()).new_zeros(self.num_layers, batch_size, self.hidden_size)
        return zeros, zeros.clone()

    def reset_state(self, state: CoreState, episode_starts: Tensor) -> LSTMState:
        """Zeros where an episode starts ([B], true or 1), else unchanged."""
        starts = torch.as_tensor(episode_starts, device=state[0].device).bool()[:, None]
        return state[0].masked_fill(starts, 0), state[1].masked_fill(starts, 0)

    def unroll_core(self, obs: Tensor, state: CoreState, episode_starts: Tensor | None = None) -> tuple[Tensor, LSTMState]:
        """The part before the head: [T, B, ...] → core outputs [T, B, core_dim] and the state after the last step."""
        features = self.encoder(obs.reshape(*obs.shape[:2], -1))
        core, after = self._unroll_lstm(features, state, episode_starts)
        return torch.cat([core, features], -1) if self.skip else core, after

    def _unroll_lstm(self, features: Tensor, state: CoreState, episode_starts: Tensor | None) -> tuple[Tensor, LSTMState]:
        if episode_starts is None:
            core, (h, c) = self.lstm(features, (state[0], state[1]))
            return core, (h, c)
        # One LSTM call per stretch between starts (of any batch element), rather than one per step.
        starts = torch.as_tensor(episode_starts, device=features.device).bool()
        cuts = [0, *[t for t in starts.any(1).nonzero().flatten().tolist() if t > 0], len(features)]
        cores = []
        h, c = state[0], state[1]
        for begin, end in itertools.pairwise(cuts):
            h, c = self.reset_state((h, c), starts[begin])
            core, (h, c) = self.lstm(features[begin:end], (h, c))
            cores.append(core)
        return torch.cat(cores), (h, c)

    def step_core(self, obs: Tensor, state: CoreState) -> tuple[Tensor, LSTMState]:
        """One step without gradient: [B, ...] → core outputs [B, core_dim] and the state after it. Equal to `unroll_core` up to rounding.

        The cell of each layer by itself: for a single step, what `nn.LSTM` prepares on the CPU costs more than the step.
        """
        x = features = self.encoder.forward(obs.flatten(1))
        after_h, after_c = [], []
        for weights, h, c in zip(self.lstm.all_weights, state[0], state[1], strict=True):
            x, cell = torch.lstm_cell(x, (h, c), *weights)
            after_h.append(x)
            after_c.append(cell)
        return torch.cat([x, features], -1) if self.skip else x, (torch.stack(after_h), torch.stack(after_c))
