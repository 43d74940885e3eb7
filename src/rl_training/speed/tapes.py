"""Forward passes that keep what their gradient needs, and the gradient by hand.

At the size of these networks each node that autograd records and replays shows beside the product it makes. A *taped* pass runs without
autograd and hands back a `pullback`: the same products as autograd's, without its nodes. (Measured and left: the same inside an
`autograd.Function`. The engine's cost per Python node ate what it saved.) tests/test_tapes.py holds them equal to autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_training.models.actor_critic import ActorCriticHeads, MLPActorCritic
from rl_training.models.heads import CategoricalHead, Draws, QuantileHead, ScalarHead, StreamHead
from rl_training.models.image_torsos import MinAtarTorso
from rl_training.models.layers import Stream
from rl_training.models.mlp_layers import NORM_EPS, RELU, TANH, Activation
from rl_training.models.network import CoreState
from rl_training.models.q_network import QNetwork
from rl_training.models.recurrent.actor_critic import RecurrentActorCritic
from rl_training.models.torsos import ChainedTorso, MLPTorso
from rl_training.speed.patches import has_patches, layers_of, patches_of
from rl_training.types import Previous

Pullback: TypeAlias = Callable[[Tensor], tuple[list[Tensor], Tensor]]
"""∂L/∂output → the gradients of W₁, b₁, W₂, b₂, …, then those of the norms, and ∂L/∂input before any activation that made the input."""


class InPlace(NamedTuple):
    """An activation whose derivative its output tells, so that a tape keeps one tensor a layer."""

    apply_: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]  # (∂L/∂output, output) → ∂L/∂input


ACTIVATIONS: dict[Activation, InPlace] = {
    # Not aten.threshold_backward: a call by way of torch.ops costs more than the second kernel it saves (2.5 µs each, in an update).
    RELU: InPlace(torch.relu_, lambda grad, out: out.sign().mul_(grad)),
    TANH: InPlace(torch.tanh_, lambda grad, out: torch.addcmul(grad, grad * out, out, value=-1)),  # 1 − tanh²
}


def taped_stack(
    x: Tensor,
    params: Sequence[Tensor],
    *,
    activation: Activation = RELU,
    activate_last: bool,
    norms: Sequence[Tensor] = (),
    input_gradient: bool = True,
) -> tuple[Tensor, Pullback]:
    """`linear_stack` of [B, in] with its pullback; to be called without autograd.

    With g = ∂L/∂(Wx + b):  ∂L/∂W = gᵀx,  ∂L/∂b = Σ_B g,  ∂L/∂x = gW, and an activation scales g by its derivative. Where nothing below
    learns, `input_gradient=False` spares the last product, and an empty tensor stands for it. A layer norm's gradient is torch's kernel;
    the norms' gradients come after those of the layers.
    """
    apply_, backward = ACTIVATIONS[activation]
    inputs, normed = [], []
    last = len(params) - 2
    for i in range(0, len(params), 2):
        inputs.append(x)
        x = F.linear(x, params[i], params[i + 1])
        if activate_last or i < last:
            if norms:
                before = x
                x, mean, scale = torch.native_layer_norm(x, x.shape[-1:], norms[i], norms[i + 1], NORM_EPS)
                normed.append((before, mean, scale))
            x = apply_(x)
    out = x

    def before_activation(i: int, grad: Tensor, made: Tensor, of_norms: list[Tensor]) -> Tensor:
        """∂L/∂(Wx + b) of layer i, from that of what its activation made of it."""
        grad = backward(grad, made)
        if norms:
            (x, mean, scale), gain, bias = normed[i], norms[2 * i], norms[2 * i + 1]
            kernel = torch.ops.aten.native_layer_norm_backward.default
            grad, of_gain, of_bias = kernel(grad, x, x.shape[-1:], mean, scale, gain, bias, [True, True, True])
            of_norms += [of_bias, of_gain]
        return grad

    def pullback(grad: Tensor) -> tuple[list[Tensor], Tensor]:
        grads: list[Tensor] = []
        of_norms: list[Tensor] = []
        if activate_last and inputs:
            grad = before_activation(len(inputs) - 1, grad, out, of_norms)
        for i in range(len(inputs) - 1, -1, -1):
            grads += [grad.sum(0), _transposed_product(grad, inputs[i])]
            if i > 0:
                grad = before_activation(i - 1, grad.mm(params[2 * i]), inputs[i], of_norms)
            elif input_gradient:
                grad = grad.mm(params[0])
            else:
                grad = grad.new_empty(0)
        return grads[::-1] + of_norms[::-1], grad

    return out, pullback


def taped_convolution(torso: MinAtarTorso, obs: Tensor) -> tuple[Tensor, Callable[[Tensor], list[Tensor]]]:
    """`torso.encode` of [B, C, H, W] with the gradients of its filters and biases; to be called without autograd.

    With the patches of image i as columns X_i and g_i = ∂L/∂(W X_i + b):  ∂L/∂W = Σ_i g_i X_iᵀ,  ∂L/∂b = Σ_i g_i, over positions too.
    """
    convolution, activate = layers_of(torso)
    apply_, backward = ACTIVATIONS[activate.activation]
    patches, filters, biases = patches_of(torso, obs), convolution.weight.flatten(1), cast("Tensor", convolution.bias).unsqueeze(-1)
    out = apply_(torch.bmm(filters.expand(len(patches), *filters.shape), patches).add_(biases))

    def pullback(grad: Tensor) -> list[Tensor]:
        grad = backward(grad.view_as(out), out)
        return [torch.bmm(grad, patches.transpose(1, 2)).sum(0).view_as(convolution.weight), grad.sum((0, 2))]

    return out.flatten(1), pullback


NARROW = 8
"""Inputs up to which gᵀx is several times faster as (xᵀg)ᵀ on the CPU: 6 µs instead of 22 for CartPole's four, 128 rows and 128 units."""


def _transposed_product(grad: Tensor, x: Tensor) -> Tensor:
    """gᵀx."""
    return x.t().mm(grad).t() if x.shape[-1] <= NARROW else grad.t().mm(x)


def taped_stream(stream: Stream, x: Tensor, noise: Tensor | None = None, *, input_gradient: bool = True) -> tuple[Tensor, Pullback]:
    """`Stream.forward` with its gradient by hand, in the order of `parameters()`; noise as one draw for all rows.

    With W = μ_w + σ_w ⊙ E, E = ε_out ε_inᵀ:  ∂L/∂μ_w = ∂L/∂W  and  ∂L/∂σ_w = ∂L/∂W ⊙ E; likewise for b with ε_out.
    """
    params, activation, norms = stream.params, stream.activation, stream.norms
    if not stream.noise_sizes:
        return taped_stack(x, params, activation=activation, activate_last=False, norms=norms, input_gradient=input_gradient)
    if noise is None:
        out, plain = taped_stack(x, params, activation=activation, activate_last=False, norms=norms)
        eps: Sequence[Tensor] = [torch.zeros(size, device=x.device) for size in stream.noise_sizes]
    else:
        eps = noise.split(stream.noise_sizes, dim=-1)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        out, plain = taped_stack(x, stream.noisy_parameters(eps), activation=activation, activate_last=False, norms=norms)

    def pullback(grad: Tensor) -> tuple[list[Tensor], Tensor]:
        grads, grad_x = plain(grad)
        both = []
        for i in range(len(stream.layers)):
            weight, bias = grads[2 * i : 2 * i + 2]
            eps_in, eps_out = eps[2 * i : 2 * i + 2]
            both += [weight, bias, weight * torch.outer(eps_out, eps_in), bias * eps_out]
        return both + grads[2 * len(stream.layers) :], grad_x

    return out, pullback


def taped_head(head: StreamHead, features: Tensor, draws: Draws) -> tuple[Tensor, Pullback]:
    """`Head.forward` of [B, F] with its gradient by hand, in the order of `parameters()`.

    Q = V + A − mean_a A:  ∂L/∂V = Σ_a ∂L/∂Q_a  and  ∂L/∂A = ∂L/∂Q − mean_a ∂L/∂Q, for each atom or quantile.
    """
    noise, cut = draws.noise, head.advantage.noise_dim
    advantage, from_advantage = taped_stream(head.advantage, features, None if noise is None else noise[..., :cut])
    shaped = advantage if head.outputs == 1 else advantage.view(-1, head.action_dim, head.outputs)
    if head.value is None:
        return shaped, lambda grad: from_advantage(grad.view_as(advantage))
    value, from_value = taped_stream(head.value, features, None if noise is None else noise[..., cut:])
    out = (value if head.outputs == 1 else value.unsqueeze(-2)) + (shaped - shaped.mean(1, keepdim=True))

    def pullback(grad: Tensor) -> tuple[list[Tensor], Tensor]:
        grads_a, features_a = from_advantage((grad - grad.mean(1, keepdim=True)).view_as(advantage))
        grads_v, features_v = from_value(grad.sum(1).view_as(value))
        return grads_a + grads_v, features_a + features_v

    return out, pullback


def has_tape(network: Any) -> bool:
    """Whether `taped_q_network` says what `network.forward` says: only of what is exactly ours."""
    if not isinstance(network, QNetwork) or overrides(network, QNetwork, "forward") or network.compute_dtype is not None:
        return False
    torso, head = network.torso, network.head
    if not isinstance(head, StreamHead) or type(head) not in (ScalarHead, CategoricalHead, QuantileHead):
        return False
    if type(head) is QuantileHead and head.outputs == 1:
        return False  # one quantile keeps its axis, which the tape would drop
    streams = [stream for stream in (head.advantage, head.value) if stream is not None]
    return has_taped_encoder(torso) and all(stream.activation in ACTIVATIONS for stream in streams)


def has_taped_encoder(torso: Any) -> bool:
    """Whether `taped_encoder` says what this torso says."""
    if type(torso) is ChainedTorso:
        return has_taped_encoder(torso.first) and has_taped_encoder(torso.layers)
    if type(torso) is MLPTorso:
        return torso.activation in ACTIVATIONS
    return has_patches(torso) and layers_of(torso)[1].activation in ACTIVATIONS


def overrides(network: Any, base: type, *names: str) -> bool:
    """Whether a network of a user's own changes one of these methods of `base`."""
    return any(name in vars(network) or getattr(type(network), name) is not getattr(base, name) for name in names)


def taped_q_network(network: QNetwork, obs: Tensor, draws: Draws) -> tuple[Tensor, Callable[[Tensor], list[Tensor]]]:
    """`forward` of [B, ...] without autograd, and from ∂L/∂out the gradients of `parameters()`."""
    if network.stack is not None:
        out, whole = taped_stack(_floats(obs), network.stack, activate_last=False, input_gradient=False)
        return out, lambda grad: whole(grad)[0]
    assert isinstance(network.head, StreamHead), "see `has_tape`"
    features, from_torso = taped_encoder(network.torso, obs)
    out, from_head = taped_head(network.head, features, draws)

    def gradients(grad: Tensor) -> list[Tensor]:
        grads, grad_features = from_head(grad)
        return from_torso(grad_features) + grads

    return out, gradients


def taped_encoder(torso: Any, obs: Tensor) -> tuple[Tensor, Callable[[Tensor], list[Tensor]]]:
    """Features of [B, ...] without autograd, and from ∂L/∂features the gradients of `parameters()`."""
    if isinstance(torso, MLPTorso):
        features, pullback = taped_stack(
            _floats(obs), torso.params, activation=torso.activation, activate_last=True, norms=torso.norms, input_gradient=False
        )
        return features, lambda grad: pullback(grad)[0]
    if isinstance(torso, MinAtarTorso):
        return taped_convolution(torso, obs)
    assert isinstance(torso, ChainedTorso), "see `has_tape`"
    first, from_first = taped_encoder(torso.first, obs)
    layers = torso.layers
    features, from_layers = taped_stack(first, layers.params, activation=layers.activation, activate_last=True, norms=layers.norms)

    def gradients(grad: Tensor) -> list[Tensor]:
        grads, grad_first = from_layers(grad)
        return from_first(grad_first) + grads

    return features, gradients


def _floats(obs: Tensor) -> Tensor:
    return obs if obs.is_floating_point() else obs.float()


def has_policy_tape(network: Any) -> bool:
    """Whether `taped_mlp_policy` or `taped_recurrent_policy` says what `network.forward` says: only of what is exactly ours."""
    if isinstance(network, RecurrentActorCritic):  # any encoder and core: they go through autograd
        ours = type(network.heads) is ActorCriticHeads and not overrides(network, RecurrentActorCritic, "forward", "unroll_core")
    else:
        ours = type(network) is MLPActorCritic and not overrides(network, MLPActorCritic, "forward") and network.compute_dtype is None
    return ours and network.heads.policy.activation in ACTIVATIONS


PolicyGradients: TypeAlias = Callable[[Tensor, Tensor], Sequence[Tensor | None]]
"""(∂L/∂outputs, ∂L/∂values) → the gradients of `parameters()`."""


def taped_policy_heads(
    heads: ActorCriticHeads, features: Tensor, *, input_gradient: bool
) -> tuple[Tensor, Tensor, Callable[[Tensor, Tensor], tuple[list[Tensor], Tensor]]]:
    """[B, F] → outputs, values [B], and from their gradients those of `parameters()` and of the features."""
    out, from_policy = taped_stream(heads.policy, features, input_gradient=input_gradient)
    values, from_value = taped_stream(heads.value, features, input_gradient=input_gradient)
    outputs = heads.with_std(out)

    def pullback(grad_outputs: Tensor, grad_values: Tensor) -> tuple[list[Tensor], Tensor]:
        grad_out = grad_outputs[..., : out.shape[-1]]
        grads_p, features_p = from_policy(grad_out)
        grads_v, features_v = from_value(grad_values.unsqueeze(-1))
        grads = grads_p + grads_v
        if heads.log_std is not None:
            grads = [grad_outputs[..., out.shape[-1] :].sum(0), *grads]  # a parameter of the module's own comes first
        return grads, features_p + features_v

    return outputs, values.squeeze(-1), pullback


@torch.no_grad()
def taped_mlp_policy(network: MLPActorCritic, obs: Tensor) -> tuple[Tensor, Tensor, PolicyGradients]:
    """`MLPActorCritic.forward`, all by hand."""
    outputs, values, pullback = taped_policy_heads(network.heads, _floats(obs), input_gradient=False)
    return outputs, values, lambda grad_outputs, grad_values: pullback(grad_outputs, grad_values)[0]


def taped_recurrent_policy(
    network: RecurrentActorCritic, obs: Tensor, state: CoreState | None, previous: Previous | None = None
) -> tuple[Tensor, Tensor, PolicyGradients]:
    """`RecurrentActorCritic.forward`: the heads by hand, the core and what is below it by autograd."""
    state = network.initial_state(obs.shape[1]) if state is None else state
    body = [*network.core.parameters(), *network.encoder.parameters()]
    with torch.enable_grad():
        core, _ = network.unroll_core(obs, state, previous=previous)
    with torch.no_grad():
        outputs, values, pullback = taped_policy_heads(network.heads, core.detach().flatten(0, 1), input_gradient=True)

    def gradients(grad_outputs: Tensor, grad_values: Tensor) -> Sequence[Tensor | None]:
        grads, grad_core = pullback(grad_outputs.flatten(0, 1), grad_values.flatten())
        return [*torch.autograd.grad(core, body, grad_core.view_as(core), allow_unused=True), *grads]

    return outputs.view(*obs.shape[:2], -1), values.view(obs.shape[:2]), gradients
