"""What a rule is: how a bootstrap becomes a TD target, the loss between it and what the network says, and what is reported of both.

A rule works on any rank: `...` is [B] for transitions and [T, B] for sequences. It never sees networks, batches or time: a view (views.py)
has aligned those, and a backup (backups.py) has chosen among the next actions. Loss = rule ∘ backup ∘ view. Each rule stands with its
algorithm: dqn.py, c51_dqn.py, qr_dqn.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from rl_training.algorithms.backups import Bootstrap

ExtraMetric: TypeAlias = Callable[[Bootstrap, Tensor, Tensor], Tensor]
"""(bootstrap, rewards, discounts) → one number per element, [...]."""


class Rule(ABC):
    """One kind of TD learning. `target` and `loss` make one; the rest is what it reports, as it is for one output per action.

    chosen: the online network's outputs for the action taken, [...], or [..., N] where a head has N per action.
    """

    extra_metrics: Mapping[str, ExtraMetric] = {}
    """What this rule alone reports beside the metrics of all, computed only when somebody reads it."""

    @abstractmethod
    def target(self, bootstrap: Bootstrap, rewards: Tensor, discounts: Tensor) -> Tensor:
        """The finished target; rewards and discounts are [...]. `bellman` makes it of scalars and quantiles."""

    @abstractmethod
    def loss(self, chosen: Tensor, target: Tensor, taus: Tensor | None = None) -> Tensor:
        """One loss per element, [...]. taus: the quantile levels of `chosen`, where the head drew some."""

    def q_value(self, chosen: Tensor) -> Tensor:
        """The expected return that `chosen` says, [...]."""
        return chosen

    def target_value(self, target: Tensor) -> Tensor:
        """The target's mean, [...]."""
        return target

    def td_error(self, td: TDLoss) -> Tensor:
        """|δ|, [...]."""
        return (td.target_value - td.q_value).abs_()

    def priority(self, td: TDLoss) -> Tensor:
        """What prioritized replay should rank by, [...]."""
        return td.td_error


def td_target(rewards: Tensor, discounts: Tensor, bootstrap: Tensor) -> Tensor:
    """y = R + Γ·Q', where Γ already holds γ^k and is 0 after a termination."""
    return torch.addcmul(rewards, discounts, bootstrap)


def rescale(x: Tensor, eps: float = 1e-3) -> Tensor:
    """h(x) = sign(x)(√(|x|+1) − 1) + εx (arXiv:1805.11593, §3.2); √(a+1) − 1 = a/(√(a+1) + 1), so that small values keep their digits."""
    a = x.abs()
    return torch.sign(x) * (a / (torch.sqrt(a + 1) + 1)) + eps * x


def unrescale(x: Tensor, eps: float = 1e-3) -> Tensor:
    """h⁻¹ (arXiv:1805.11593, proposition A.2), in the form that does not cancel in float32.

    With u = √(|x|' + 1), |h| = u − 1 + ε(u² − 1) is a quadratic in u − 1 =: v:  ε v² + (1 + 2ε) v = |y|, so
    v = 2|y| / ((1 + 2ε) + √((1 + 2ε)² + 4ε|y|))   and   |x| = u² − 1 = v(v + 2): sums of positive terms only.
    """
    y = x.abs()
    b = 1 + 2 * eps
    v = 2 * y / (b + torch.sqrt(b * b + 4 * eps * y))
    return torch.sign(x) * v * (v + 2)


def bellman(rewards: Tensor, discounts: Tensor, bootstrap: Bootstrap, *, value_rescaling: bool = False) -> Tensor:
    """R + Γ·z, or R2D2's h(R + Γ·h⁻¹(z)), of outputs [...] or [..., N] with rewards and discounts [...].

    Both map return distributions quantile by quantile, since they rise with z. Of a mixture z is Σ_a π_a (z_a + shift_a), in the reward's
    units.
    """
    values = unrescale(bootstrap.outputs) if value_rescaling else bootstrap.outputs
    if bootstrap.probabilities is not None:
        values = mixed(values, bootstrap.probabilities, bootstrap.shift)
    if values.ndim > rewards.ndim:
        rewards, discounts = rewards.unsqueeze(-1), discounts.unsqueeze(-1)
    target = td_target(rewards, discounts, values)
    return rescale(target) if value_rescaling else target


def mixed(values: Tensor, probabilities: Tensor, shift: Tensor | None) -> Tensor:
    """Σ_a π_a (z_a + shift_a): [..., A] → [...], or [..., A, N] → [..., N]."""
    if values.ndim == probabilities.ndim:
        return (probabilities * (values if shift is None else values + shift)).sum(-1)
    moved = values if shift is None else values + shift.unsqueeze(-1)
    return (probabilities.unsqueeze(-1) * moved).sum(-2)


class TDLoss:
    """A rule's loss (with its graph) and what it reports. Each is computed when somebody reads it, since most updates are not logged, and
    once, since what is reported is made of one another."""

    def __init__(self, rule: Rule, chosen: Tensor, target: Tensor, taus: Tensor | None = None) -> None:
        self.rule, self.chosen, self.target, self.taus = rule, chosen, target, taus

    @cached_property
    def loss(self) -> Tensor:
        with torch.set_grad_enabled(self.chosen.requires_grad):  # whoever reads it first, a metric too
            return self.rule.loss(self.chosen, self.target, self.taus)

    @cached_property
    def q_value(self) -> Tensor:
        return self.rule.q_value(self.chosen.detach())

    @cached_property
    def target_value(self) -> Tensor:
        return self.rule.target_value(self.target)

    @cached_property
    def td_error(self) -> Tensor:
        return self.rule.td_error(self)

    @cached_property
    def priority(self) -> Tensor:
        return self.rule.priority(self)


def reduce_loss(loss: Tensor, mask: Tensor | None, weights: Tensor | None) -> Tensor:
    """mean(weights · loss), over the steps that count: Σ weight·mask·loss / Σ mask."""
    if weights is not None:
        loss = loss * weights
    # A batch without a single step that counts has loss 0, not NaN.
    return loss.mean() if mask is None else (loss * mask).sum() / mask.sum().clamp(min=1)


REPORTED = {"q_value_mean": "q_value", "target_mean": "target_value", "td_error_mean": "td_error"}
"""Metrics of every rule, and where they stand in its TDLoss."""


NO_EXTRA: Mapping[str, ExtraMetric] = {}


class LazyMetrics(Mapping[str, Tensor]):
    """Metrics that are computed when somebody reads them, since most updates are never logged."""

    def __init__(
        self,
        td: TDLoss,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        extra: Mapping[str, ExtraMetric] = NO_EXTRA,
        extra_of: tuple[Bootstrap, Tensor, Tensor] | None = None,
    ) -> None:
        """extra: what the rule alone reports, of bootstrap, rewards and discounts."""
        self._td, self._mask, self._weights, self._extra, self._extra_of = td, mask, weights, extra, extra_of

    def __getitem__(self, name: str) -> Tensor:
        with torch.no_grad():
            if name == "loss":
                return reduce_loss(self._td.loss.detach(), self._mask, self._weights)
            if self._extra_of is not None and name in self._extra:
                return reduce_loss(self._extra[name](*self._extra_of), self._mask, None)
            return reduce_loss(getattr(self._td, REPORTED[name]), self._mask, None)

    @staticmethod
    def names(rule: Rule) -> tuple[str, ...]:
        """The metrics of a rule."""
        return "loss", *REPORTED, *rule.extra_metrics

    def __iter__(self) -> Iterator[str]:
        return iter(("loss", *REPORTED, *self._extra))

    def __len__(self) -> int:
        return 1 + len(REPORTED) + len(self._extra)
