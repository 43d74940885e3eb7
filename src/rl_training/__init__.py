"""Reinforcement learning in PyTorch: value-based agents that train, evaluate and resume exactly."""

from __future__ import annotations

__version__ = "0.1.0"
