"""Plays an environment with a policy that `rl-training export` wrote, by onnxruntime and NumPy alone: neither torch nor rl_training.

rl-training export --checkpoint runs/<run> -o policy.onnx
python examples/onnx_policy.py policy.onnx --episodes 5
"""

from __future__ import annotations

import argparse
import json
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
import onnxruntime


class OnnxPolicy:
    """One environment's policy; a recurrent one carries its state until `reset`, and one that reads several images the last of them."""

    def __init__(self, file: str) -> None:
        self._session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        self.about = self._session.get_modelmeta().custom_metadata_map
        inputs = {given.name: given for given in self._session.get_inputs()}
        self._parts = json.loads(self.about["observation"])  # an input for each array of the environment's observation
        self._zeros = {name: np.zeros((inputs[name].shape[0], 1, inputs[name].shape[2]), np.float32) for name in "hc" if name in inputs}
        self._num_actions = inputs["action_mask"].shape[1] if "action_mask" in inputs else None
        self._reads_previous = "previous_action" in inputs
        self._images: deque[Any] = deque(maxlen=json.loads(self.about["spaces"]).get("frame_stack", 1))
        self.reset()

    def reset(self) -> None:
        self._state, self._starts, self._action = dict(self._zeros), True, 0
        self._images.clear()

    def __call__(self, obs: Any, reward: float = 0.0, action_mask: Any = None) -> Any:
        """The greedy action, as the environment takes it; `reward` is what came with `obs`."""
        arrays = {part["input"]: np.asarray(_part_of(obs, part), part["dtype"]) for part in self._parts}
        if self._images.maxlen != 1:
            arrays["obs"] = self._stacked(arrays["obs"])
        given = {name: array[None] for name, array in arrays.items()} | self._state
        if self._state:
            given["episode_start"] = np.array([self._starts])
        if self._reads_previous:
            given |= {"previous_action": np.array([self._action]), "previous_reward": np.array([reward], np.float32)}
        if self._num_actions is not None:
            given["action_mask"] = np.ones((1, self._num_actions), bool) if action_mask is None else np.asarray(action_mask, bool)[None]
        action, *state = self._session.run(["action", *(f"next_{name}" for name in self._state)], given)
        self._state, self._starts, self._action = dict(zip(self._state, state, strict=True)), False, action[0]
        return action[0]

    def _stacked(self, image: Any) -> Any:
        """The last images, oldest first; black ones before an episode's start."""
        while len(self._images) < (self._images.maxlen or 0):
            self._images.append(np.zeros_like(image))
        self._images.append(image)
        return np.stack(self._images)


def allowed(env: Any, info: dict[str, Any]) -> Any:
    """The actions that may be chosen now, where the environment says so: `info["action_mask"]`, or a method `action_masks()`."""
    if "action_mask" in info or not env.has_wrapper_attr("action_masks"):
        return info.get("action_mask")
    return env.get_wrapper_attr("action_masks")()


def _part_of(obs: Any, part: dict[str, Any]) -> Any:
    """What stands at the part's entry of a Dict or Tuple; the observation itself where that is one array."""
    for key in part["entry"]:
        obs = obs[key]
    return obs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--episodes", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    policy = OnnxPolicy(arguments.file)
    left = json.loads(policy.about["wrappers"])["outside"]
    print(f"row: {policy.about['row']}, environment: {policy.about['env_id']}, wrappers to apply: {left or 'none'}")
    env = gym.make(policy.about["env_id"])
    for episode in range(arguments.episodes):
        obs, info = env.reset(seed=arguments.seed + episode)
        policy.reset()
        total, reward, done = 0.0, 0.0, False
        while not done:
            obs, reward, terminated, truncated, info = env.step(policy(obs, float(reward), allowed(env, info)))
            total, done = total + float(reward), terminated or truncated
        print(f"return {total:g}")
    env.close()


if __name__ == "__main__":
    main()
