"""PPO's gradient by hand: losses and distributions in closed form, the network by its tape (tapes.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from rl_training.algorithms.policy_losses import clipped_ratio, clipped_surrogate, value_loss
from rl_training.algorithms.ppo import PPO, MinibatchLosses
from rl_training.algorithms.rollouts import initial_state, previous_in
from rl_training.models.actor_critic import MLPActorCritic
from rl_training.models.distributions import Categorical, DiagonalGaussian, Distribution, MultiCategorical, allowed_logits
from rl_training.models.recurrent.actor_critic import RecurrentActorCritic
from rl_training.speed.tapes import PolicyGradients, has_policy_tape, taped_mlp_policy, taped_recurrent_policy
from rl_training.types import Batch


def use_hand_gradients(learner: PPO) -> None:
    """Where the learner's network and distribution are ours; else its gradient stays autograd's."""
    if has_policy_tape(learner.actor_critic) and type(learner.distribution) in _EVALUATES:
        learner.gradient = HandGradient(learner)


class HandGradient:
    """What `PPO.autograd` gives, up to rounding."""

    def __init__(self, learner: PPO) -> None:
        self._learner = learner

    @torch.no_grad()
    def __call__(self, batch: Batch, clip: float | Tensor) -> tuple[MinibatchLosses, Callable[[], Sequence[Tensor | None]]]:
        learner, mask, old_log_probs = self._learner, batch.get("mask"), batch["log_probs"]
        outputs, values, gradients = _taped(learner.actor_critic, batch)
        # A forbidden action's probability is 0, and so is its gradient: what the masks did to its logit needs no way back.
        policy = evaluate(learner.distribution, allowed_logits(outputs, batch.get("action_masks")), batch["actions"])
        advantages = learner.advantages(batch)
        surrogate = clipped_surrogate(policy.log_prob, old_log_probs, advantages, clip)
        fit = value_loss(values, batch["returns"], batch.get("values"), learner.vf_clip)

        def gradient() -> Sequence[Tensor | None]:  # called without autograd
            # The mean over the steps that count: each has this share in the loss.
            share: Tensor | float = 1.0 / values.numel() if mask is None else mask / mask.sum().clamp(min=1)
            grad_log_prob = surrogate_gradient(policy.log_prob, old_log_probs, advantages, clip) * share
            grad_entropy = -learner.ent_coef * share if learner.ent_coef else 0.0
            grad_values = value_gradient(values, batch["returns"], batch.get("values"), learner.vf_clip) * (learner.vf_coef * share)
            return gradients(policy.pullback(grad_log_prob, grad_entropy), grad_values)

        return MinibatchLosses(policy.log_prob, old_log_probs, surrogate, fit, policy.entropy, mask, clip), gradient


def _taped(network: MLPActorCritic | RecurrentActorCritic, batch: Batch) -> tuple[Tensor, Tensor, PolicyGradients]:
    if isinstance(network, RecurrentActorCritic):
        return taped_recurrent_policy(network, batch["obs"], initial_state(batch), *previous_in(batch))
    return taped_mlp_policy(network, batch["obs"])


def surrogate_gradient(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip: float | Tensor) -> Tensor:
    """∂clipped_surrogate/∂log π = −ρA where ρA is the smaller one, else 0."""
    ratio = torch.exp(log_probs - old_log_probs)
    plain = ratio * advantages
    return -(plain * (plain <= clipped_ratio(ratio, clip) * advantages))


def value_gradient(values: Tensor, returns: Tensor, old_values: Tensor | None, clip: float | None) -> Tensor:
    """∂value_loss/∂V = 2(V − R), and 0 where the clipped term is the larger one and V is beyond the clip."""
    error = values - returns
    if clip is None or old_values is None:
        return 2 * error
    move = values - old_values
    clipped = old_values + move.clamp(-clip, clip) - returns
    return 2 * error * ((error.abs() >= clipped.abs()) | (move.abs() <= clip))


class Evaluated(NamedTuple):
    """Given actions under a distribution, and from ∂L/∂log_prob and ∂L/∂entropy (a number, or shaped alike) to ∂L/∂outputs."""

    log_prob: Tensor  # [...]
    entropy: Tensor  # [...]
    pullback: Callable[[Tensor, Tensor | float], Tensor]


def evaluate(distribution: Distribution, outputs: Tensor, actions: Tensor) -> Evaluated:
    """`Distribution.evaluate` with its gradient by hand."""
    return _EVALUATES[type(distribution)](distribution, outputs, actions)


def _categorical(distribution: Distribution, logits: Tensor, actions: Tensor) -> Evaluated:
    """∂log π(a)/∂l = 1_a − p;  ∂H/∂l_j = −p_j (log p_j + H)."""
    log_p = torch.log_softmax(logits, -1)
    p, index = log_p.exp(), actions.unsqueeze(-1)
    entropy = -(p * log_p).sum(-1)

    def pullback(grad_log_prob: Tensor, grad_entropy: Tensor | float) -> Tensor:
        g = grad_log_prob.unsqueeze(-1)
        grad = (p * -g).scatter_add_(-1, index, g)
        if isinstance(grad_entropy, float):
            return grad if grad_entropy == 0 else grad.addcmul_(p, log_p + entropy.unsqueeze(-1), value=-grad_entropy)
        return grad.addcmul_(p * grad_entropy.unsqueeze(-1), log_p + entropy.unsqueeze(-1), value=-1)

    return Evaluated(log_p.gather(-1, index).squeeze(-1), entropy, pullback)


def _multi_categorical(distribution: MultiCategorical, logits: Tensor, actions: Tensor) -> Evaluated:
    """log π(a) = Σ_k log π_k(a_k), H = Σ_k H_k."""
    choices: Sequence[Tensor] = logits.split(distribution.sizes, -1)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    parts = [_categorical(distribution, each, actions[..., k]) for k, each in enumerate(choices)]

    def pullback(grad_log_prob: Tensor, grad_entropy: Tensor | float) -> Tensor:
        return torch.cat([part.pullback(grad_log_prob, grad_entropy) for part in parts], -1)

    log_prob, entropy = (torch.stack(each).sum(0) for each in ([part.log_prob for part in parts], [part.entropy for part in parts]))
    return Evaluated(log_prob, entropy, pullback)


def _gaussian(distribution: DiagonalGaussian, outputs: Tensor, actions: Tensor) -> Evaluated:
    """z = (a − μ)/σ:  ∂log π/∂μ = z/σ,  ∂log π/∂log σ = z² − 1,  ∂H/∂log σ = 1."""
    found = distribution.evaluate(outputs, actions)
    mean, log_std = outputs[..., : distribution.dim], outputs[..., distribution.dim :]
    inverse_std = torch.exp(-log_std)
    z = (actions - mean) * inverse_std

    def pullback(grad_log_prob: Tensor, grad_entropy: Tensor | float) -> Tensor:
        g = grad_log_prob.unsqueeze(-1)
        h = grad_entropy if isinstance(grad_entropy, float) else grad_entropy.unsqueeze(-1)
        return torch.cat([g * z * inverse_std, g * (z * z - 1) + h], -1)

    return Evaluated(found.log_prob, found.entropy, pullback)


Evaluates: TypeAlias = Callable[..., Evaluated]
_EVALUATES: dict[type[Distribution], Evaluates] = {
    Categorical: _categorical,
    MultiCategorical: _multi_categorical,
    DiagonalGaussian: _gaussian,
}
