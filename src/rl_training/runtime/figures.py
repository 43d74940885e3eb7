"""Returns as people read them."""

from __future__ import annotations

from collections.abc import Mapping


def figure(value: float) -> str:
    """A return or its deviation: with one decimal, or more where it is small."""
    return f"{value:.1f}" if abs(value) >= 10 or float(value).is_integer() else f"{value:.3g}"


def spread(mean: float, deviation: float) -> str:
    """Both with as many decimals, the fewer the larger they are: `390.7 ± 12.1`, `9.20 ± 0.75`, `0.931 ± 0.014`."""
    larger, whole = max(abs(mean), abs(deviation)), float(mean).is_integer() and float(deviation).is_integer()
    decimals = 1 if whole or larger >= 10 else 2 if larger >= 1 else 3
    return f"{mean:.{decimals}f} ± {deviation:.{decimals}f}"


def evaluated(metrics: Mapping[str, float]) -> str:
    """What an evaluation gave: `390.7 ± 12.1 over 20 episodes`."""
    episodes = int(metrics["eval_episodes"])
    return f"{spread(metrics['eval_return_mean'], metrics['eval_return_std'])} over {episodes} {'episode' if episodes == 1 else 'episodes'}"
