"""Cores: the memory of a recurrent network, between its encoder and its head."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from rl_training.models.network import CoreState
from rl_training.types import STATE_NAMES

R = TypeVar("R", bound=nn.RNNBase)


class Core(nn.Module, ABC):
    """Features → outputs [..., out_dim], with a state of one or two `parts` [num_layers, B, out_dim] that it carries from step to step.

    A core of your own says how a sequence runs through it (`forward`); where episodes start, and acting step by step, is done here.
    """

    def __init__(self, out_dim: int, num_layers: int = 1, parts: int = 1) -> None:
        super().__init__()
        if not 1 <= parts <= len(STATE_NAMES):  # what replay and rollouts store
            raise ValueError(f"a core's state has 1 … {len(STATE_NAMES)} parts, got {parts}")
        self.out_dim, self.num_layers, self.parts = out_dim, num_layers, parts

    @abstractmethod
    def forward(self, features: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """A sequence [T, B, F] in which no episode starts → outputs [T, B, out_dim] and the state after its last step."""

    def initial_state(self, batch_size: int) -> CoreState:
        """Zeros."""
        like = next(self.parameters())
        return tuple(like.new_zeros(self.num_layers, batch_size, self.out_dim) for _ in range(self.parts))

    def reset_state(self, state: CoreState, episode_starts: Tensor) -> CoreState:
        """Zeros where an episode starts ([B], true or 1), else unchanged."""
        starts = torch.as_tensor(episode_starts, device=state[0].device).bool()[:, None]
        return tuple(part.masked_fill(starts, 0) for part in state)

    def unroll(self, features: Tensor, state: CoreState, episode_starts: Tensor | None = None) -> tuple[Tensor, CoreState]:
        """The same with the state zeroed wherever an episode starts ([T, B]); `None` promises that none does."""
        if episode_starts is None:
            return self.forward(features, state)
        # One call per stretch between starts (of any batch element), rather than one per step.
        starts = torch.as_tensor(episode_starts, device=features.device).bool()
        cuts = [0, *[t for t in starts.any(1).nonzero().flatten().tolist() if t > 0], len(features)]
        outputs = []
        for begin, end in itertools.pairwise(cuts):
            output, state = self.forward(features[begin:end], self.reset_state(state, starts[begin]))
            outputs.append(output)
        return torch.cat(outputs), state

    def step(self, features: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """One step, [B, F] → [B, out_dim]; equal to `forward` up to rounding."""
        outputs, state = self.forward(features[None], state)
        return outputs[0], state


class LSTMCore(Core):
    """Long short-term memory (Hochreiter & Schmidhuber 1997); its state is (h, c)."""

    def __init__(self, in_dim: int, hidden_size: int, num_layers: int = 1) -> None:
        super().__init__(hidden_size, num_layers, parts=2)
        self.lstm = in_cudnns_order(nn.LSTM(in_dim, hidden_size, num_layers))

    def forward(self, features: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        outputs, after = self.lstm(features, (state[0], state[1]))
        return outputs, after

    def step(self, features: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """The cell of each layer by itself: for a single step, what `nn.LSTM` prepares on the CPU costs more than the step."""
        x, hs, cs = features, [], []
        for weights, h, c in zip(self.lstm.all_weights, state[0], state[1], strict=True):
            x, cell = torch.lstm_cell(x, (h, c), *weights)
            hs.append(x)
            cs.append(cell)
        return x, (torch.stack(hs), torch.stack(cs))


class GRUCore(Core):
    """Gated recurrent unit (arXiv:1406.1078); its state is (h,). Three gates instead of four, and half the state to store."""

    def __init__(self, in_dim: int, hidden_size: int, num_layers: int = 1) -> None:
        super().__init__(hidden_size, num_layers)
        self.gru = in_cudnns_order(nn.GRU(in_dim, hidden_size, num_layers))

    def forward(self, features: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        outputs, h = self.gru(features, state[0])
        return outputs, (h,)

    def step(self, features: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        """As for the LSTM."""
        x, hs = features, []
        for weights, h in zip(self.gru.all_weights, state[0], strict=True):
            x = torch.gru_cell(x, h, *weights)
            hs.append(x)
        return x, (torch.stack(hs),)


def in_cudnns_order(rnn: R) -> R:
    """Its parameters in the order in which cuDNN wants them in memory: all matrices, then all biases.

    `flatten_parameters` lays parameters out in their order, and a network registers its core first: so the weights start their storage,
    and cuDNN uses them where they lie. Otherwise it copies them together at every call, and warns.
    """
    for name in [name for name, _ in rnn.named_parameters() if name.startswith("bias")]:
        bias = rnn.get_parameter(name)
        delattr(rnn, name)
        rnn.register_parameter(name, bias)  # now the last one; torch computes with a list of its own, which is unchanged
    return rnn


MakeCore: TypeAlias = Callable[[int, int, int], Core]
"""(in_dim, hidden_size, num_layers) → core."""
