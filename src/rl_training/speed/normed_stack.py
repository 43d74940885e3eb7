"""A Q-network that is layers with layer norm and ReLU, and a plain last one, run forwards and back over buffers that are kept.

Torch makes the products, numba what stands between them (norm_kernels.py). PQN's networks are of this kind. tests/test_normed_stack.py
holds pass and gradient equal to autograd's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.pqn import PQN, MinibatchGradient
from rl_training.models.heads import ScalarHead
from rl_training.models.mlp_layers import NORM_EPS, RELU
from rl_training.models.network import CoreState
from rl_training.models.q_network import QNetwork
from rl_training.models.torsos import MLPTorso
from rl_training.speed.hand_gradients import HandReturnsGradient
from rl_training.speed.tapes import NARROW, has_tape, overrides
from rl_training.types import Array, Batch

Forward: TypeAlias = Callable[[Array, CoreState, Array], tuple[Array, CoreState]]
"""As `runtime.actor.Forward`."""

MOST_SIZES = 4
"""Numbers of rows for which buffers are kept: minibatches of a rollout have two."""


@cache
def _kernels() -> Any:
    from rl_training.speed import norm_kernels

    return norm_kernels


def is_normed_stack(network: Any) -> bool:
    """Whether `NormedStack` says what the network says: only of what is exactly ours, on the CPU."""
    if not has_tape(network) or overrides(network, QNetwork, "step", "q_values"):
        return False
    torso, head = network.torso, network.head
    if type(torso) is not MLPTorso or type(head) is not ScalarHead or head.value is not None or head.noise_dim:
        return False
    if torso.activation is not RELU or head.advantage.activation is not RELU:
        return False
    params, norms = _parameters(network)
    known = all(p.is_cpu and p.dtype in (torch.float32, torch.float64) for p in params)
    return known and 0 < len(norms) == len(params) - 2  # one for each layer but the last


def _parameters(network: QNetwork) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """W₁, b₁, W₂, b₂, …, and the gains and shifts of the norms."""
    torso, head = network.torso, network.head
    assert isinstance(torso, MLPTorso) and isinstance(head, ScalarHead), "see `is_normed_stack`"
    return (*torso.params, *head.advantage.params), (*torso.norms, *head.advantage.norms)


class _Layer:
    """One hidden layer: its parameters where they lie, and its buffers for so many rows."""

    def __init__(self, rows: int, weight: Tensor, bias: Tensor, gain: Tensor, shift: Tensor) -> None:
        self.weight, self.transposed = weight, weight.t()
        self.arrays = [x.numpy() for x in (bias, gain, shift)]
        self.normed, self.out, self.grad = (weight.new_empty(rows, len(weight)) for _ in range(3))  # x̂, what is made of it, and ∂L/∂ either
        self.normed_array, self.out_array, self.grad_array = (x.numpy() for x in (self.normed, self.out, self.grad))
        self.scale = weight.new_empty(rows).numpy()


class NormedStack:
    """`network` over `rows` observations: what it gives is overwritten by the next call."""

    def __init__(self, network: QNetwork, rows: int, grads: Sequence[Tensor] = ()) -> None:
        """grads: where the gradients of `parameters()` are written; without them there is no `backward`."""
        params, norms = _parameters(network)
        layers, gains = [p.detach() for p in params], [p.detach() for p in norms]
        self.layers = [_Layer(rows, *layers[i : i + 2], *gains[i : i + 2]) for i in range(0, len(gains), 2)]
        self.weight, self.bias = layers[-2], layers[-1].numpy()
        self._transposed = self.weight.t()
        self.q = self.weight.new_empty(rows, len(self.weight))  # without its bias
        self.q_array = self.q.numpy()
        self._obs = self.q
        if not grads:
            return
        places = {id(p): grad for p, grad in zip(network.parameters(), grads, strict=True)}
        self._grads = [places[id(p)] for p in params]
        of_norms = [places[id(p)].numpy() for p in norms]
        self._small = [(self._grads[i + 1].numpy(), *of_norms[i : i + 2]) for i in range(0, len(norms), 2)]  # of bias, gain and shift
        self.of_bias = self._grads[-1].numpy()
        self.grad = torch.empty_like(self.q)  # ∂L/∂Q; this and `of_bias` are to be filled before `backward`
        self.grad_array = self.grad.numpy()

    def forward(self, obs: Tensor) -> None:
        """Fills `q`."""
        kernel = _kernels().normalize_relu
        self._obs = x = obs
        for layer in self.layers:
            torch.mm(x, layer.transposed, out=layer.normed)
            kernel(layer.normed_array, *layer.arrays, NORM_EPS, layer.scale, layer.out_array)
            x = layer.out
        torch.mm(x, self._transposed, out=self.q)

    def backward(self) -> None:
        """From `grad` and what `forward` left: the gradients of all parameters but the last bias."""
        kernel = _kernels().normalize_relu_backward
        grad, weight = self.grad, self.weight
        for i in range(len(self.layers), 0, -1):
            layer = self.layers[i - 1]
            torch.mm(grad.t(), layer.out, out=self._grads[2 * i])
            torch.mm(grad, weight, out=layer.grad)
            kernel(layer.grad_array, layer.out_array, layer.normed_array, layer.scale, layer.arrays[1], *self._small[i - 1])
            grad, weight = layer.grad, layer.weight
        if self._obs.shape[1] <= NARROW:
            self._grads[0].copy_(self._obs.t().mm(grad).t())
        else:
            torch.mm(grad.t(), self._obs, out=self._grads[0])


class Stacks:
    """The network as a `NormedStack` for each number of rows that is asked for."""

    def __init__(self, network: QNetwork, grads: Sequence[Tensor] = ()) -> None:
        self._network, self._grads = network, grads
        self._first = next(network.parameters())
        self._address, self._made = self._first.data_ptr(), dict[int, NormedStack]()

    def __call__(self, rows: int) -> NormedStack:
        if self._first.data_ptr() != self._address:  # the parameters were moved: the arrays would go on reading the old ones
            self._address = self._first.data_ptr()
            self._made.clear()
        found = self._made.get(rows)
        if found is None:
            if len(self._made) >= MOST_SIZES:
                self._made.clear()
            found = self._made[rows] = NormedStack(self._network, rows, self._grads)
        return found


class NormedReturnsGradient(HandReturnsGradient):
    """The same over kept buffers, written to where the optimizer reads it."""

    def __init__(self, learner: PQN) -> None:
        super().__init__(learner)
        self._stacks, self._grads = Stacks(learner.q_network, learner.optimizer.grads), learner.optimizer.grads

    @torch.no_grad()
    def __call__(self, batch: Batch) -> MinibatchGradient:
        obs = batch["obs"]
        if "mask" in batch or obs.dtype is not self._grads[0].dtype:
            return super().__call__(batch)
        stack = self._stacks(len(obs))
        stack.forward(obs)
        chosen = np.empty(len(obs), stack.q_array.dtype)
        arrays = stack.q_array, stack.bias, batch["actions"].numpy(), batch["returns"].numpy(), chosen, stack.grad_array, stack.of_bias
        _kernels().returns_gradient(*arrays)
        stack.backward()
        return MinibatchGradient(self._grads, torch.from_numpy(chosen))  # a new array: what is reported is read later


def use_normed_stack(learner: PQN) -> None:
    """Where its network is one."""
    if type(learner) is PQN and is_normed_stack(learner.q_network):
        learner.gradient = NormedReturnsGradient(learner)


def normed_forward(network: Any, obs: Array, state: CoreState, generator: torch.Generator) -> Forward | None:
    """`network.step` of such a network."""
    if not is_normed_stack(network):
        return None
    stacks = Stacks(network)

    @torch.no_grad()
    def forward(obs: Array, state: CoreState, is_first: Array) -> tuple[Array, CoreState]:
        stack = stacks(len(obs))
        stack.forward(torch.from_numpy(obs if obs.dtype == stack.q_array.dtype else obs.astype(stack.q_array.dtype)))
        return stack.q_array + stack.bias, state

    return forward
