"""Which rule a kind of head learns by."""

from __future__ import annotations

from typing import Literal

from rl_training.algorithms.c51_dqn import CategoricalRule
from rl_training.algorithms.dqn import ScalarRule
from rl_training.algorithms.qr_dqn import QuantileRule
from rl_training.algorithms.rules import Rule
from rl_training.types import LossName


def make_rule(
    head: Literal["scalar", "categorical", "quantile", "implicit"],
    *,
    loss: LossName = "huber",
    kappa: float = 1.0,
    v_min: float = -10.0,
    v_max: float = 10.0,
    num_atoms: int = 51,
    value_rescaling: bool = False,
) -> Rule:
    """The rule of a kind of head; each takes what is its own of the keywords."""
    if head == "categorical":
        return CategoricalRule(num_atoms=num_atoms, v_min=v_min, v_max=v_max, value_rescaling=value_rescaling)
    if head in ("quantile", "implicit"):
        return QuantileRule(kappa=kappa, value_rescaling=value_rescaling)
    return ScalarRule(loss=loss, value_rescaling=value_rescaling)
