"""Agents that leave the package, and weights that come in: ONNX and torch.export, and Stable-Baselines3's zip files."""

import numpy as _numpy  # noqa: F401  (before torch, as in runtime/workflows.py)
