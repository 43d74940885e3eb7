"""Environments: making them, wrapping them, and one meaning of a step and of an episode's end."""

from __future__ import annotations

from rl_training.envs.factory import make_envs, require_spaces
from rl_training.envs.restoring import Restored
from rl_training.envs.vector import VectorEnvs
from rl_training.envs.wrappers import register_wrapper

__all__ = ["Restored", "VectorEnvs", "make_envs", "register_wrapper", "require_spaces"]
