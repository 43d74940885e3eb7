"""Returns as people read them."""

from __future__ import annotations


def figure(value: float) -> str:
    """A return or its deviation: with one decimal, or more where it is small."""
    return f"{value:.1f}" if abs(value) >= 10 or float(value).is_integer() else f"{value:.3g}"


def spread(mean: float, deviation: float) -> str:
    """`0.931 ± 0.0138`."""
    return f"{figure(mean)} ± {figure(deviation)}"
