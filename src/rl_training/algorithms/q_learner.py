"""The one learner behind every value-based algorithm: view → rule → reduce → gradient → Adam → target."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from typing_extensions import TypedDict

from rl_training.algorithms.adam import FlatAdam
from rl_training.algorithms.rules import ExtraMetric, Rule, RuleLoss
from rl_training.algorithms.views import Aligned, View
from rl_training.data.generators import generator_state, load_generator_state
from rl_training.models.flat import flatten_parameters
from rl_training.models.plain import as_network
from rl_training.types import Batch, State, UpdateResult

Schedule = Callable[[int], float]


def reduce_loss(loss: Tensor, mask: Tensor | None, weights: Tensor | None) -> Tensor:
    """mean(weights · loss), over the steps that count: Σ weight·mask·loss / Σ mask."""
    if weights is not None:
        loss = loss * weights
    # A batch without a single step that counts has loss 0, not NaN.
    return loss.mean() if mask is None else (loss * mask).sum() / mask.sum().clamp(min=1)


def reduction_weights(like: Tensor, mask: Tensor | None, weights: Tensor | None) -> Tensor:
    """∂reduce_loss/∂loss, shaped as the loss."""
    share = torch.full_like(like, 1 / like.numel()) if mask is None else mask / mask.sum().clamp(min=1)
    return share if weights is None else share * weights


REPORTED = {"q_value_mean": "q_value", "target_mean": "target", "td_error_mean": "td_error"}
"""Metrics of every rule, and where they stand in its RuleLoss."""


NO_EXTRA: Mapping[str, ExtraMetric] = {}


class LazyMetrics(Mapping[str, Tensor]):
    """Metrics that are computed when somebody reads them, since most updates are never logged."""

    def __init__(
        self,
        parts: RuleLoss,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        extra: Mapping[str, ExtraMetric] = NO_EXTRA,
        extra_of: tuple[Tensor, ...] = (),
    ) -> None:
        """extra: what the rule alone reports, of the tensors `extra_of`."""
        self._parts, self._mask, self._weights, self._extra, self._extra_of = parts, mask, weights, extra, extra_of

    def __getitem__(self, name: str) -> Tensor:
        with torch.no_grad():
            if name == "loss":
                return reduce_loss(self._parts.loss.detach(), self._mask, self._weights)
            value = self._extra[name](*self._extra_of) if name in self._extra else getattr(self._parts, REPORTED[name])
            return reduce_loss(value, self._mask, None)

    @staticmethod
    def names(rule: Rule) -> tuple[str, ...]:
        """The metrics of a rule."""
        return "loss", *REPORTED, *rule.extra_metrics

    def __iter__(self) -> Iterator[str]:
        return iter(("loss", *REPORTED, *self._extra))

    def __len__(self) -> int:
        return 1 + len(REPORTED) + len(self._extra)


class Outcome(Protocol):
    """What one gradient step leaves to be read."""

    @property
    def metrics(self) -> Mapping[str, Tensor]: ...

    @property
    def td_errors(self) -> Tensor:
        """|δ| as the rule reports it, [B] or [T, B]."""
        ...

    @property
    def priorities(self) -> Tensor:
        """What prioritized replay should rank the batch's items by, [B]."""
        ...


class EagerOutcome:
    """Computes each when it is read."""

    __slots__ = ("_aligned", "_learner", "_parts")

    def __init__(self, learner: QLearner, parts: RuleLoss, aligned: Aligned) -> None:
        self._learner, self._parts, self._aligned = learner, parts, aligned

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        return self._learner.metrics(self._parts, self._aligned)

    @property
    def td_errors(self) -> Tensor:
        return self._parts.td_error

    @property
    def priorities(self) -> Tensor:
        return self._learner.priorities(self._parts, self._aligned)


class LearnerOptions(TypedDict, total=False):
    """What every learner takes beside its network, view and rule; the defaults are QLearner's."""

    double_q: bool
    tau: float  # of a target update; 1 copies
    max_grad_norm: float | None
    adam_eps: float
    seed: int


class QLearner:
    """Owns the online and target network, the optimizer and the randomness of updates. Algorithms choose its view and rule."""

    model_key = "q_network"  # where the acting network stands in `state_dict()`

    def __init__(
        self,
        q_network: Any,
        *,
        view: View,
        rule: Rule,
        learning_rate: float | Schedule,
        target_update_interval: int,
        double_q: bool = False,
        tau: float = 1.0,
        max_grad_norm: float | None = None,
        adam_eps: float = 1e-8,
        seed: int = 0,
    ) -> None:
        q_network = as_network(q_network)
        self.q_network = q_network
        self.target_network = copy.deepcopy(q_network).requires_grad_(False).eval()  # its targets are not dropped out
        self.view, self.rule = view, rule
        self.learning_rate = learning_rate
        self.target_update_interval, self.tau = target_update_interval, tau
        self.double_q, self.max_grad_norm = double_q, max_grad_norm
        self._parameters = list(q_network.parameters())
        self._flat = flatten_parameters(q_network)
        self.flat_target = flatten_parameters(self.target_network)
        self.optimizer = FlatAdam(self._flat, [p.shape for p in self._parameters], eps=adam_eps)
        self.generator = torch.Generator(self._flat.device).manual_seed(seed)
        self.last_step = 0
        self.last_outcome: Outcome | None = None
        self.gradient_step: Callable[[Batch, float], Outcome] = self.eager_step
        """(batch, learning rate) → outcome; runtime/accelerate.py puts a compiled form of `eager_step` in its place."""

    @property
    def last_priorities(self) -> Tensor:
        """What prioritized replay should rank the last batch's items by, [B]."""
        return self._last_update().priorities

    @property
    def last_td_errors(self) -> Tensor:
        """|δ| of the last update as its rule reports it, [B] or [T, B]."""
        return self._last_update().td_errors

    def _last_update(self) -> Outcome:
        if self.last_outcome is None:
            raise RuntimeError("no update has been made yet")
        return self.last_outcome

    def current_learning_rate(self, global_step: int) -> float:
        return self.learning_rate(global_step) if callable(self.learning_rate) else self.learning_rate

    def align(self, batch: Batch, online: Any = None, target: Any = None) -> Aligned:
        """What the networks (its own unless given) say of a batch."""
        online, target = (self.q_network if online is None else online), (self.target_network if target is None else target)
        return self.view.align(batch, online, target, double_q=self.double_q, generator=self.generator)

    def compare(self, batch: Batch, online: Any = None, target: Any = None) -> tuple[RuleLoss, Aligned]:
        """`align`, and how far what it gave is from the target."""
        aligned = self.align(batch, online, target)
        with torch.no_grad():
            goal = self.rule.target(aligned.bootstrap, aligned.rewards, aligned.discounts)
        return self.rule.loss(aligned.chosen, goal, aligned.taus), aligned

    def evaluate_loss(self, batch: Batch) -> tuple[Tensor, RuleLoss, Aligned]:
        """The loss of a batch and what it was made of; an update itself goes without the number (see `LazyMetrics`)."""
        parts, aligned = self.compare(batch)
        return reduce_loss(parts.loss, aligned.mask, aligned.weights), parts, aligned

    def gradients(self, parts: RuleLoss, aligned: Aligned, parameters: Sequence[Tensor] | None = None) -> Sequence[Tensor | None]:
        """∂reduce_loss/∂parameters of the online network: by autograd, or by hand where the network can (see `Aligned.pullback`)."""
        if aligned.pullback is None:
            loss = reduce_loss(parts.loss, aligned.mask, aligned.weights)
            return torch.autograd.grad(loss, parameters or self._parameters, allow_unused=True)
        # loss = Σ weight·mask·l / Σ mask, so ∂loss/∂chosen = weight·mask/Σ mask · ∂l/∂chosen
        with torch.no_grad():
            grad = parts.gradient
            if aligned.weights is None and aligned.mask is None:
                return aligned.pullback(grad * (1 / aligned.rewards.numel()))
            share = reduction_weights(aligned.rewards, aligned.mask, aligned.weights)
            return aligned.pullback(grad * (share if grad.ndim == share.ndim else share.unsqueeze(-1)))

    def priorities(self, parts: RuleLoss, aligned: Aligned) -> Tensor:
        return parts.priority

    def metrics(self, parts: RuleLoss, aligned: Aligned) -> LazyMetrics:
        of = (aligned.bootstrap, aligned.rewards, aligned.discounts)
        return LazyMetrics(parts, aligned.mask, aligned.weights, self.rule.extra_metrics, of)

    def eager_step(self, batch: Batch, learning_rate: float) -> Outcome:
        """One step of Adam along the batch's gradient."""
        parts, aligned = self.compare(batch)
        self.optimizer.step(self.gradients(parts, aligned), learning_rate, self.max_grad_norm)
        return EagerOutcome(self, parts, aligned)

    def update(self, batch: Batch, *, global_step: int) -> UpdateResult:
        """One gradient step; then the target follows if `global_step` crossed a multiple of `target_update_interval`."""
        outcome = self.last_outcome = self.gradient_step(batch, self.current_learning_rate(global_step))
        self.follow(global_step)
        return UpdateResult(outcome.metrics, 1)

    def follow(self, global_step: int) -> None:
        """The clock is at `global_step`: sync the target if a multiple of `target_update_interval` was crossed since the last call."""
        crossed = global_step // self.target_update_interval - self.last_step // self.target_update_interval
        self.last_step = global_step
        if crossed > 0:
            self.sync_target(crossed)

    @torch.no_grad()
    def sync_target(self, times: int = 1) -> None:
        """θ⁻ ← (1 − τ)θ⁻ + τθ, as often as given: (1 − τ)ᵏθ⁻ + (1 − (1 − τ)ᵏ)θ. τ = 1 copies.

        Buffers (a batch norm's statistics) are copied whatever τ is.
        """
        if self.tau == 1:
            self.flat_target.copy_(self._flat)
        else:
            self.flat_target.lerp_(self._flat, 1 - (1 - self.tau) ** times)
        for mine, theirs in zip(self.target_network.buffers(), self.q_network.buffers(), strict=True):
            mine.copy_(theirs)

    def state_dict(self) -> State:
        return {
            "q_network": dict(self.q_network.state_dict()),
            "target_network": dict(self.target_network.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "generator": generator_state(self.generator),
            "last_step": self.last_step,
        }

    def load_state_dict(self, state: State) -> None:
        for name in ("q_network", "target_network"):
            module: nn.Module = getattr(self, name)
            module.load_state_dict(state[name])  # copies in place: the parameters stay views of the flat tensor
        self.optimizer.load_state_dict(state["optimizer"])
        load_generator_state(self.generator, state["generator"])
        self.last_step = int(state["last_step"])
