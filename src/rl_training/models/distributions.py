"""What the outputs of a policy mean: the distribution of an action, as a network's head predicts it.

A distribution has no parameters of its own: it reads them from `outputs` [..., P]. Acting goes through NumPy (a handful of rows, where
every torch call costs more than its arithmetic), learning through torch.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from rl_training.types import Array

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


FORBIDDEN = -1e8
"""The logit of a forbidden action while learning. Its probability is 0 in float32, as with −∞, and p·log p is 0 instead of 0·(−∞)."""


def allowed_logits(outputs: Tensor, masks: Tensor | None) -> Tensor:
    """The outputs [..., P] of a categorical policy that chooses among what `masks` [..., P] allows (None: everything)."""
    return outputs if masks is None else outputs.masked_fill(~masks, FORBIDDEN)


class Evaluated(NamedTuple):
    """Given actions under a distribution."""

    log_prob: Tensor  # [...]
    entropy: Tensor  # [...]


class Distribution(ABC):
    """Actions as the learner keeps them are [..., *action_shape]; `to_env` makes them what the environment takes."""

    num_outputs: int  # P
    action_shape: tuple[int, ...]
    action_dtype: torch.dtype
    parameters: dict[str, int]  # what the outputs are, one after the other, and how many numbers each has

    @abstractmethod
    def sample(self, outputs: Array, rng: np.random.Generator) -> Array:
        """One action for each row."""

    @abstractmethod
    def mode(self, outputs: Array) -> Array:
        """The likeliest action of each row."""

    def to_env(self, actions: Array) -> Array:
        return actions

    @abstractmethod
    def greedy(self, outputs: Tensor) -> Tensor:
        """`to_env(mode(outputs))` [B, ...] in torch: what an exported policy does."""

    @abstractmethod
    def describe(self, outputs: Array) -> dict[str, Any]:
        """One row of outputs [P] in words a person reads, as JSON can hold them."""

    @abstractmethod
    def evaluate(self, outputs: Tensor, actions: Tensor) -> Evaluated:
        """outputs: [..., P]; actions: [..., *action_shape]. Differentiable."""


def _gumbel_argmax(logits: Array, rng: np.random.Generator) -> Array:
    """argmax_a (l_a − log E_a) with E_a exponential is distributed as softmax(l): no probabilities, no cumulative sum."""
    exponential = np.maximum(rng.standard_exponential(logits.shape, np.float32), np.finfo(np.float32).tiny)  # 0 comes once in 10^8 draws
    actions: Array = (logits - np.log(exponential)).argmax(-1)
    return actions


def _probabilities(logits: Array) -> list[float]:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    shares: list[float] = (weights / weights.sum()).tolist()
    return shares


class Categorical(Distribution):
    """One of n actions; the outputs are logits."""

    action_shape = ()
    action_dtype = torch.int64

    def __init__(self, num_actions: int) -> None:
        self.num_outputs = num_actions
        self.parameters = {"logits": num_actions}

    def sample(self, outputs: Array, rng: np.random.Generator) -> Array:
        return _gumbel_argmax(outputs, rng)

    def mode(self, outputs: Array) -> Array:
        actions: Array = outputs.argmax(-1)
        return actions

    def greedy(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(-1)

    def describe(self, outputs: Array) -> dict[str, Any]:
        return {"probabilities": _probabilities(outputs)}

    def evaluate(self, outputs: Tensor, actions: Tensor) -> Evaluated:
        log_p = torch.log_softmax(outputs, -1)
        return Evaluated(log_p.gather(-1, actions.unsqueeze(-1)).squeeze(-1), -(log_p.exp() * log_p).sum(-1))


class MultiCategorical(Distribution):
    """Independent choices, one of n_k each; the outputs are their logits one after the other."""

    action_dtype = torch.int64

    def __init__(self, sizes: Sequence[int], start: Sequence[int] = (), shape: Sequence[int] | None = None) -> None:
        """sizes: [K]; start: the smallest value of each choice (0 where not given); shape: of one action of the environment."""
        self.sizes = [int(size) for size in sizes]
        self._shape = (len(self.sizes),) if shape is None else tuple(shape)
        self.num_outputs, self.action_shape = sum(self.sizes), (len(self.sizes),)
        self.parameters = {"logits": self.num_outputs}
        self._parts = [Categorical(size) for size in self.sizes]
        self._cuts = list(itertools.accumulate(self.sizes))[:-1]
        self._start = np.asarray(start or [0] * len(self.sizes), np.int64)

    def sample(self, outputs: Array, rng: np.random.Generator) -> Array:
        return np.stack([_gumbel_argmax(part, rng) for part in np.split(outputs, self._cuts, -1)], -1)

    def mode(self, outputs: Array) -> Array:
        return np.stack([part.argmax(-1) for part in np.split(outputs, self._cuts, -1)], -1)

    def to_env(self, actions: Array) -> Array:
        return (actions + self._start).reshape(-1, *self._shape)

    def greedy(self, outputs: Tensor) -> Tensor:
        logits: Sequence[Tensor] = outputs.split(self.sizes, -1)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        actions = torch.stack([part.argmax(-1) for part in logits], -1) + torch.from_numpy(self._start)
        return actions.reshape(-1, *self._shape)

    def describe(self, outputs: Array) -> dict[str, Any]:
        return {"probabilities": [_probabilities(part) for part in np.split(outputs, self._cuts)]}

    def evaluate(self, outputs: Tensor, actions: Tensor) -> Evaluated:
        """log π(a) = Σ_k log π_k(a_k), H = Σ_k H_k."""
        logits: Sequence[Tensor] = outputs.split(self.sizes, -1)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        parts = [part.evaluate(each, actions[..., k]) for k, (part, each) in enumerate(zip(self._parts, logits, strict=True))]
        log_prob = torch.stack([part.log_prob for part in parts]).sum(0)
        return Evaluated(log_prob, torch.stack([part.entropy for part in parts]).sum(0))


class DiagonalGaussian(Distribution):
    """Independent normal actions; the outputs are the means, then the logarithms of the standard deviations.

    Bounds: what the policy drew is what it learns from, with the density of the unbounded Gaussian; only what the *environment* gets is
    clipped to its bounds (`to_env`). So mass beyond a bound acts like the bound, and no density has to be corrected. Actions are not
    rescaled: an environment whose bounds are far from ±1 wants a wrapper.
    """

    action_dtype = torch.float32

    def __init__(self, low: Array, high: Array, shape: Sequence[int]) -> None:
        """low, high: [D], infinite where there is no bound; shape: of one action of the environment, D numbers in all."""
        self.dim = math.prod(shape)
        self.num_outputs, self.action_shape = 2 * self.dim, (self.dim,)
        self.parameters = {"mean": self.dim, "log_std": self.dim}
        self._shape = tuple(shape)
        self._low, self._high = np.asarray(low, np.float32).reshape(self.dim), np.asarray(high, np.float32).reshape(self.dim)

    def sample(self, outputs: Array, rng: np.random.Generator) -> Array:
        mean, log_std = outputs[..., : self.dim], outputs[..., self.dim :]
        actions: Array = mean + np.exp(log_std) * rng.standard_normal(mean.shape, np.float32)
        return actions

    def mode(self, outputs: Array) -> Array:
        return outputs[..., : self.dim]

    def to_env(self, actions: Array) -> Array:
        return np.clip(actions, self._low, self._high).reshape(-1, *self._shape)

    def greedy(self, outputs: Tensor) -> Tensor:
        low, high = torch.from_numpy(self._low), torch.from_numpy(self._high)
        return outputs[..., : self.dim].clamp(low, high).reshape(-1, *self._shape)

    def describe(self, outputs: Array) -> dict[str, Any]:
        return {"mean": outputs[: self.dim].tolist(), "std": np.exp(outputs[self.dim :]).tolist()}

    def evaluate(self, outputs: Tensor, actions: Tensor) -> Evaluated:
        """z = (a − μ)/σ:  log π = Σ −z²/2 − log σ − ½ log 2π;  H = Σ log σ + ½ + ½ log 2π."""
        mean, log_std = outputs[..., : self.dim], outputs[..., self.dim :]
        z = (actions - mean) * torch.exp(-log_std)
        log_prob = -(0.5 * z * z + log_std + _HALF_LOG_TAU).sum(-1)
        return Evaluated(log_prob, (log_std + (0.5 + _HALF_LOG_TAU)).sum(-1))


def make_distribution(action: Mapping[str, Any]) -> Distribution:
    """The distribution for an action space as `describe_action_space` gives it (and a checkpoint's manifest holds it)."""
    kind = action["kind"]
    if kind == "discrete":
        return Categorical(int(action["n"]))
    if kind == "multi_discrete":
        return MultiCategorical(action["nvec"], action["start"], action["shape"])
    if kind == "box":
        return DiagonalGaussian(action["low"], action["high"], action["shape"])
    raise ValueError(f"there is no distribution for actions of kind {kind!r}")
