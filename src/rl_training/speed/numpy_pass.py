"""The acting pass of small feed-forward networks in NumPy, on the parameters' own memory.

For one observation, or a few, torch's dispatch costs several times the products it makes. What is said here is said by the networks too
(`forward`, `q_values`, `step`); tests/test_numpy_pass.py holds the two equal, row by row. What has no form here (implicit heads, LSTMs, a
network or part of a user's own) acts through torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from rl_training.models.actor_critic import MLPActorCritic
from rl_training.models.heads import CategoricalHead, Head, QuantileHead, ScalarHead, StreamHead
from rl_training.models.image_torsos import Activate
from rl_training.models.layers import Stream
from rl_training.models.mlp_layers import NORM_EPS, RELU, TANH, Activation, layer_parameters
from rl_training.models.network import CoreState
from rl_training.models.q_network import QNetwork
from rl_training.models.torsos import ChainedTorso, MLPTorso
from rl_training.speed.patches import has_patches, layers_of, patch_index
from rl_training.speed.tapes import overrides

if TYPE_CHECKING:
    from rl_training.types import Array

Forward: TypeAlias = Callable[["Array", CoreState, "Array"], tuple["Array", CoreState]]
"""As `runtime.actor.Forward`."""

NumpyPass: TypeAlias = Callable[["Array", "Array | None"], "Array"]
"""(obs [E, ...], noise [E, noise_dim] or None) → what `network.step` says, [E, ...]."""

_ZERO = np.zeros((), np.float32)  # an array: NumPy takes a while to find a dtype for a number
_ON_ARRAYS: dict[Activation, Callable[[Any], Any]] = {
    RELU: lambda x: np.maximum(x, _ZERO, out=x),
    TANH: lambda x: np.tanh(x, out=x),
}
"""The activations, in place."""

LARGEST = 1 << 18
"""Multiplications of one layer up to which OpenBLAS stays on one thread. Beyond, torch is as fast, and keeps to the run's threads."""


def numpy_pass(network: Any, num_envs: int) -> NumpyPass | None:
    """The network's acting pass, reading its parameters where they lie now; None where it has no such form or is too large to gain by it.

    Only for what is exactly ours: a subclass that changes a pass would be answered by the wrong one.
    """
    if num_envs * max((p.numel() for p in network.parameters()), default=0) > LARGEST:
        return None
    if any(part.activation not in _ON_ARRAYS for part in network.modules() if isinstance(part, (Activate, MLPTorso, Stream))):
        return None
    if type(network) is MLPActorCritic:
        return _actor_critic_pass(network)
    if not isinstance(network, QNetwork) or overrides(network, QNetwork, "step", "q_values", "forward"):
        return None
    torso, head = network.torso, network.head
    if not isinstance(head, StreamHead) or type(head) not in _Q_VALUES:
        return None
    if network.stack is not None:
        assert type(torso) is MLPTorso, "what makes it one stack"
        whole = _layers([*torso.layers, *head.advantage.layers], (), torso.activation, activate_last=False)
        return lambda obs, noise: whole(_floats(obs))
    encode = _encoder_pass(torso)
    if encode is None:
        return None
    features, outputs, q_values = encode, _head_pass(head), _Q_VALUES[type(head)](head)
    return lambda obs, noise: q_values(outputs(features(obs), noise))


def numpy_forward(network: Any, obs: Array, state: CoreState, generator: torch.Generator) -> Forward | None:
    """`network.step` without torch, where the network has such a form here."""
    made = numpy_pass(network, len(obs))
    if made is None:
        return None
    run, noisy = made, bool(isinstance(network, QNetwork) and network.head.noise_dim)
    parameter = next(network.parameters())
    address = parameter.data_ptr()

    def forward(obs: Array, state: CoreState, is_first: Array) -> tuple[Array, CoreState]:
        nonlocal run, address
        if parameter.data_ptr() != address:  # the parameters were moved: the arrays would go on reading the old ones
            run, address = numpy_pass(network, len(obs)) or run, parameter.data_ptr()
        noise = network.draw(generator, is_first.shape, "acting").noise.numpy() if noisy else None
        return run(obs, noise), state

    return forward


def _floats(obs: Array) -> Array:
    return obs if obs.dtype.kind == "f" else obs.astype(np.float32)


def _array(parameter: Tensor) -> Array:
    array: Array = parameter.detach().numpy()
    return array


def _row(parameter: Tensor) -> Array:
    """[n] as [1, n]: added to one environment's [1, n], it is not broadcast, which takes NumPy several times as long."""
    return _array(parameter)[None]


def _weights_and_rows(params: Sequence[Tensor]) -> list[tuple[Array, Array]]:
    """W₁, b₁, W₂, b₂, … in pairs, the biases as rows."""
    return [(_array(weight), _row(bias)) for weight, bias in _pairs(params)]


def _encoder_pass(torso: Any) -> Callable[[Array], Array] | None:
    """`torso.forward` of what is exactly ours: layers, MinAtar's convolution, or these after that one."""
    if type(torso) is ChainedTorso:
        first, rest = _encoder_pass(torso.first), _encoder_pass(torso.layers)
        return None if first is None or rest is None else lambda obs: rest(first(obs))
    if type(torso) is MLPTorso:
        layers = _layers(torso.layers, torso.norms, torso.activation, activate_last=True)
        return lambda obs: layers(_floats(obs))
    return _convolution_pass(torso) if has_patches(torso) else None


def _convolution_pass(torso: Any) -> Callable[[Array], Array]:
    """`MinAtarTorso.encode`: the filters times the patches of each image (patches.py)."""
    convolution, after = layers_of(torso)
    biases: Tensor = convolution.bias  # type: ignore[assignment]  # it has some
    filters, column, activate = _array(convolution.weight), _array(biases)[:, None], _ON_ARRAYS[after.activation]
    rows, size, high = filters.reshape(len(filters), -1), convolution.kernel_size[0], np.float32(torso.high)

    def run(obs: Array) -> Array:
        patches = obs.reshape(len(obs), -1).take(patch_index(obs.shape[1:], size), 1).reshape(len(obs), rows.shape[1], -1)
        x: Array = np.matmul(rows, patches.astype(np.float32) if high == 1 else patches / high)
        x += column
        activate(x)
        return x.reshape(len(obs), -1)

    return run


def _layers(layers: Any, norms: Sequence[Tensor], activation: Activation, *, activate_last: bool) -> Callable[[Array], Array]:
    """`mlp_layers.linear_stack`."""
    params = _weights_and_rows(layer_parameters(layers))
    activated = _activations(norms, activation, count=len(params) if activate_last else len(params) - 1)
    steps = [(weight.T, bias, activate) for (weight, bias), activate in zip_longest(params, activated)]

    def run(x: Array) -> Array:
        for weight, bias, activate in steps:
            x = x.dot(weight)
            x += bias
            if activate is not None:
                activate(x)
        return x

    return run


def _activations(norms: Sequence[Tensor], activation: Activation, *, count: int) -> list[Callable[[Any], Any]]:
    """What comes after each of `count` layers, in place: the activation, after a layer norm where there are `norms`."""
    activate = _ON_ARRAYS[activation]
    if not norms:
        return [activate] * count

    def after(gain: Array, bias: Array) -> Callable[[Array], Array]:
        share = np.full(gain.size, 1 / gain.size, gain.dtype)  # a product with it is the mean, in less time than NumPy's

        def run(x: Array) -> Any:
            x -= x.dot(share)[:, None]
            x *= (1 / np.sqrt((x * x).dot(share) + gain.dtype.type(NORM_EPS)))[:, None]
            x *= gain
            x += bias
            return activate(x)

        return run

    return [after(_row(gain), _row(bias)) for gain, bias in _pairs(norms)]


def _pairs(params: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(params[::2], params[1::2], strict=True))


def _stream_pass(stream: Stream) -> NumpyPass:
    """`Stream.forward`; noise has a row for each environment."""
    plain = _layers(stream.layers, stream.norms, stream.activation, activate_last=False)
    if not stream.noise_dim:
        return lambda x, noise: plain(x)
    params, sigmas = _weights_and_rows(layer_parameters(stream.layers)), _weights_and_rows(stream.sigmas)
    ends = np.cumsum([0, *stream.noise_sizes]).tolist()
    cuts = _pairs([slice(a, b) for a, b in pairwise(ends)])
    activated = [*_activations(stream.norms, stream.activation, count=len(params) - 1), None]

    def run(x: Array, noise: Array | None) -> Array:
        if noise is None:
            return plain(x)
        for (weight, bias), (weight_sigma, bias_sigma), (ins, outs), activate in zip(params, sigmas, cuts, activated, strict=True):
            spread = (x * noise[:, ins]).dot(weight_sigma.T)
            spread += bias_sigma
            spread *= noise[:, outs]
            x = x.dot(weight.T)
            x += bias
            x += spread
            if activate is not None:
                activate(x)
        return x

    return run


def _head_pass(head: StreamHead) -> NumpyPass:
    """`Head.per_action`: [E, F] → [E, A], or [E, A, N]."""
    advantage, cut = _stream_pass(head.advantage), head.advantage.noise_dim
    value = None if head.value is None else _stream_pass(head.value)
    shape = (-1, head.action_dim) if head.outputs == 1 else (-1, head.action_dim, head.outputs)
    if value is None:
        return advantage if head.outputs == 1 else lambda x, noise: advantage(x, noise).reshape(shape)

    def run(x: Array, noise: Array | None) -> Array:
        a = advantage(x, None if noise is None else noise[:, :cut]).reshape(shape)
        v = value(x, None if noise is None else noise[:, cut:])
        a -= a.mean(1, keepdims=True)
        a += v if head.outputs == 1 else v[:, None]
        return a

    return run


def _categorical(head: Any) -> Callable[[Array], Array]:
    support = _array(head.support)

    def q_values(logits: Array) -> Array:
        p = np.exp(logits - logits.max(-1, keepdims=True))
        q: Array = p.dot(support) / p.sum(-1)
        return q

    return q_values


def _quantile(head: Any) -> Callable[[Array], Array]:
    return (lambda out: out.mean(-1)) if head.outputs > 1 else (lambda out: out)


_Q_VALUES: dict[type[Head], Callable[[Any], Callable[[Array], Array]]] = {
    ScalarHead: lambda head: lambda out: out,
    CategoricalHead: _categorical,
    QuantileHead: _quantile,
}
"""`q_values` of each kind of head."""


def _actor_critic_pass(network: MLPActorCritic) -> NumpyPass:
    policy = _stream_pass(network.heads.policy)
    if network.heads.log_std is None:
        return lambda obs, noise: policy(_floats(obs), None)
    log_std = _array(network.heads.log_std)

    def run(obs: Array, noise: Array | None) -> Array:
        mean = policy(_floats(obs), None)
        return np.concatenate([mean, np.broadcast_to(log_std, mean.shape)], -1)

    return run
