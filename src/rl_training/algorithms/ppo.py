"""PPO (arXiv:1707.06347): epochs of clipped policy-gradient steps on one rollout, with GAE advantages (arXiv:1506.02438)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from rl_training.algorithms.adam import FlatAdam
from rl_training.algorithms.policy_losses import approximate_kl, clipped_surrogate, normalized, value_loss
from rl_training.algorithms.rollouts import RolloutView, StepView
from rl_training.algorithms.schedules import Schedule
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.models.distributions import Distribution, Evaluated, allowed_logits
from rl_training.models.flat import flatten_parameters
from rl_training.models.modes import evaluating
from rl_training.types import Array, Batch, OptimizerName, State, UpdateResult

KL_TOLERANCE = 1.5  # of `target_kl`, as OpenAI's Spinning Up and Stable-Baselines3 stop


class MinibatchLosses(NamedTuple):
    """What one minibatch gave, per step: [B] or [T, B]."""

    log_probs: Tensor
    old_log_probs: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    mask: Tensor | None
    clip: float | Tensor


DifferentiateMinibatch: TypeAlias = Callable[[Batch, float | Tensor], tuple[MinibatchLosses, Callable[[], Sequence[Tensor | None]]]]
"""(minibatch, clip) → its losses, and what makes of them the gradients of the parameters: not called where `target_kl` stops."""
LearnMinibatch: TypeAlias = Callable[[Batch, float, float], MinibatchLosses | None]
"""(minibatch, learning rate, clip) → the losses of one gradient step on it; None: `target_kl` stopped it."""


class PPOMetrics(Mapping[str, Tensor]):
    """Means over every step of every minibatch, computed when somebody reads them."""

    NAMES = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance")

    def __init__(self, minibatches: list[MinibatchLosses], *, ent_coef: float, vf_coef: float, fit: tuple[Array, Array] | None) -> None:
        self._minibatches, self._ent_coef, self._vf_coef, self._fit = minibatches, ent_coef, vf_coef, fit

    def _mean(self, per_step: Callable[[MinibatchLosses], Tensor]) -> Tensor:
        masks = [losses.mask for losses in self._minibatches]
        values = torch.cat([per_step(losses).reshape(-1) for losses in self._minibatches])
        if masks[0] is None:
            return values.mean()
        mask = torch.cat([mask.reshape(-1) for mask in masks if mask is not None])
        return (values * mask).sum() / mask.sum().clamp(min=1)

    @torch.no_grad()
    def __getitem__(self, name: str) -> Tensor:
        if name == "policy_loss":
            return self._mean(lambda losses: losses.policy)
        if name == "value_loss":
            return self._mean(lambda losses: losses.value)
        if name == "entropy":
            return self._mean(lambda losses: losses.entropy)
        if name == "approx_kl":
            return self._mean(lambda losses: approximate_kl(losses.log_probs - losses.old_log_probs))
        if name == "clip_fraction":
            return self._mean(lambda losses: (torch.expm1(losses.log_probs - losses.old_log_probs).abs() > losses.clip).float())
        if name == "loss":
            return self["policy_loss"] + self._vf_coef * self["value_loss"] - self._ent_coef * self["entropy"]
        if name == "explained_variance" and self._fit is not None:
            returns, values = self._fit
            variance = returns.var()
            return torch.tensor(float("nan") if variance == 0 else 1 - (returns - values).var() / variance)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.NAMES if self._fit is not None else self.NAMES[:-1])

    def __len__(self) -> int:
        return len(self.NAMES) - (self._fit is None)


class Evaluation(NamedTuple):
    """A rollout under the policy that made it, all [T, E]."""

    log_probs: Array
    values: Array
    next_values: Array  # of the observation each action really led to; anything after a termination


class PPO:
    """Owns the network and its optimizer. `learn` takes a full rollout; `update` is one gradient step on one minibatch.

    clip_coef and learning_rate may be schedules over environment steps. `target_kl` ends a rollout's epochs early. Advantages are
    normalised per minibatch. The loss is policy + vf_coef·value − ent_coef·entropy, each a mean over the steps that count.
    """

    model_key = "actor_critic"  # where the acting network stands in `state_dict()`
    view: type[RolloutView] = StepView

    def __init__(
        self,
        actor_critic: Any,
        learning_rate: float | Schedule,
        gamma: float,
        *,
        gae_lambda: float = 0.95,
        update_epochs: int = 10,
        minibatch_size: int = 64,
        clip_coef: float | Schedule = 0.2,
        ent_coef: float = 0.0,
        vf_coef: float = 0.5,
        vf_clip: float | None = None,
        target_kl: float | None = None,
        normalize_advantage: bool = True,
        max_grad_norm: float | None = 0.5,
        adam_eps: float = 1e-5,
        optimizer: OptimizerName = "adam",
        weight_decay: float = 0.0,
    ) -> None:
        self.actor_critic, self.distribution = actor_critic, cast("Distribution", actor_critic.distribution)
        self.learning_rate, self.clip_coef = learning_rate, clip_coef
        self.gamma, self.gae_lambda = gamma, gae_lambda
        self.update_epochs, self.minibatch_size = update_epochs, minibatch_size
        self.ent_coef, self.vf_coef, self.vf_clip = ent_coef, vf_coef, vf_clip
        self.target_kl, self.normalize_advantage, self.max_grad_norm = target_kl, normalize_advantage, max_grad_norm
        self.parameters = list(actor_critic.parameters())
        self._flat = flatten_parameters(actor_critic)
        shapes = [p.shape for p in self.parameters]
        self.optimizer = FlatAdam(self._flat, shapes, eps=adam_eps, kind=optimizer, weight_decay=weight_decay)
        self.gradient: DifferentiateMinibatch = self.autograd  # two places where something faster may be put
        self.gradient_step: LearnMinibatch = self.eager_step

    def current_learning_rate(self, global_step: int) -> float:
        return self.learning_rate(global_step) if callable(self.learning_rate) else self.learning_rate

    def current_clip(self, global_step: int) -> float:
        return self.clip_coef(global_step) if callable(self.clip_coef) else self.clip_coef

    # A rollout

    def learn(self, rollout: RolloutBuffer, *, global_step: int) -> UpdateResult:
        """`update_epochs` passes over the rollout's minibatches, or fewer where `target_kl` stops them.

        global_step: where the rollout began; its schedules stand there throughout.
        """
        if not rollout.num_transitions:  # nothing but reset steps
            return UpdateResult({}, 0)
        with evaluating(self.actor_critic):  # as it acted
            found = self.evaluate(rollout)
        advantages = rollout.advantages(found.values, found.next_values, gamma=self.gamma, gae_lambda=self.gae_lambda)
        returns = advantages + found.values
        items = rollout.items(log_probs=found.log_probs, values=found.values, advantages=advantages, returns=returns)
        done: list[MinibatchLosses] = []
        for batch in self.view(rollout).minibatches(items, self.minibatch_size, epochs=self.update_epochs):
            losses = self._gradient_step(batch, global_step)
            if losses is None:
                break
            done.append(losses)
        valid = rollout.field("valid")
        return self._result(done, fit=(returns[valid], found.values[valid]))

    @torch.no_grad()
    def evaluate(self, rollout: RolloutBuffer) -> Evaluation:
        """Log-probabilities and values of a whole rollout in one pass: the network has not changed since it acted."""
        view = self.view(rollout)
        outputs, values = self.forward(view.passed())
        log_probs = self.policy(view.taken(outputs), view.items()).log_prob
        return Evaluation(view.here(log_probs), view.here(values), view.ahead(values))

    # A minibatch

    def update(self, batch: Batch, *, global_step: int) -> UpdateResult:
        """One gradient step, or none where `target_kl` is passed.

        batch: `obs, actions, log_probs, values` (of the policy that acted), `advantages, returns`: [B, ...], or [T, B, ...] with a `mask`;
        and `action_masks`, where the policy that acted had them.
        """
        losses = self._gradient_step(batch, global_step)
        return self._result([] if losses is None else [losses])

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The policy's outputs and the values of a minibatch, [B, ...] or [T, B, ...]."""
        outputs, values = self.actor_critic(batch["obs"])
        return outputs, values

    def policy(self, outputs: Tensor, batch: Batch) -> Evaluated:
        """The batch's `actions` under the policy of these outputs, among what its `action_masks` allow, where it has them."""
        return self.distribution.evaluate(allowed_logits(outputs, batch.get("action_masks")), batch["actions"])

    def advantages(self, batch: Batch) -> Tensor:
        advantages = batch["advantages"]
        return normalized(advantages, batch.get("mask")) if self.normalize_advantage else advantages

    def autograd(self, batch: Batch, clip: float | Tensor) -> tuple[MinibatchLosses, Callable[[], Sequence[Tensor | None]]]:
        """The gradient by torch's autograd, of any network."""
        mask = batch.get("mask")
        with torch.enable_grad():
            outputs, values = self.forward(batch)
            policy = self.policy(outputs, batch)
            surrogate = clipped_surrogate(policy.log_prob, batch["log_probs"], self.advantages(batch), clip)
            fit = value_loss(values, batch["returns"], batch.get("values"), self.vf_clip)
            loss = surrogate + self.vf_coef * fit - self.ent_coef * policy.entropy
            loss = loss.mean() if mask is None else (loss * mask).sum() / mask.sum().clamp(min=1)
        found = MinibatchLosses(
            policy.log_prob.detach(), batch["log_probs"], surrogate.detach(), fit.detach(), policy.entropy.detach(), mask, clip
        )
        return found, lambda: torch.autograd.grad(loss, self.parameters, allow_unused=True)

    def _gradient_step(self, batch: Batch, global_step: int) -> MinibatchLosses | None:
        return self.gradient_step(batch, self.current_learning_rate(global_step), self.current_clip(global_step))

    @torch.no_grad()
    def eager_step(self, batch: Batch, learning_rate: float | Tensor, clip: float | Tensor) -> MinibatchLosses | None:
        losses, gradient = self.gradient(batch, clip)
        if self.target_kl is not None and float(self._result([losses]).metrics["approx_kl"]) > KL_TOLERANCE * self.target_kl:
            return None
        self.optimizer.step(gradient(), learning_rate, self.max_grad_norm)
        return losses

    def _result(self, done: list[MinibatchLosses], fit: tuple[Array, Array] | None = None) -> UpdateResult:
        metrics: Mapping[str, Tensor] = PPOMetrics(done, ent_coef=self.ent_coef, vf_coef=self.vf_coef, fit=fit) if done else {}
        return UpdateResult(metrics, len(done))

    def state_dict(self) -> State:
        return {"actor_critic": dict(self.actor_critic.state_dict()), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.actor_critic.load_state_dict(state["actor_critic"])  # copies in place: the parameters stay views of the flat tensor
        self.optimizer.load_state_dict(state["optimizer"])
