"""Agents that leave the package, and weights that come in: ONNX and torch.export, and Stable-Baselines3's zip files."""
