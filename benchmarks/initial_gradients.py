"""How large a network's first gradients are beside Adam's ε, by how it starts: `python -m benchmarks.initial_gradients`.

Random actions in Pong, batches of three-step transitions, the learners of the configs `qr_dqn/atari_pong` and `iqn/atari_pong` before their
first update. For each convolution of the torso: the root mean square gradient over ε, and the share √v/(√v + ε) of Adam's step that is left
beside ε. Last, the standard deviation of a Q-value from image to image. Geometric means over seeds. Needs the extra atari.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

from rl_training.algorithms import IQN, QRDQN
from rl_training.data import NStepAccumulator, ReplayBuffer
from rl_training.envs.atari.game import AtariGame
from rl_training.envs.atari.presets import PRESETS
from rl_training.experiment.config import load_config

LEARNERS: dict[str, Any] = {"qr_dqn": QRDQN, "iqn": IQN}
STARTS = [(padding, start) for padding in ("valid", "same") for start in ("torch", "variance_scaling")]
BATCHES = 4


def played(steps: int) -> tuple[ReplayBuffer, int]:
    """Three-step transitions of random actions, and how many actions there are."""
    game = AtariGame("pong", PRESETS["dopamine"])
    actions = int(game.action_space.n)  # type: ignore[attr-defined]
    replay, windows = ReplayBuffer(steps, (4, 84, 84), obs_dtype=torch.uint8), NStepAccumulator(3, 0.99, 1)
    random = np.random.default_rng(0)
    stack, (frame, _) = np.zeros((1, 4, 84, 84), np.uint8), game.reset(seed=0)
    stack[0, -1] = frame
    for _ in range(steps):
        action = random.integers(actions, size=1)
        frame, reward, over, cut, _ = game.step(int(action[0]))
        after = np.concatenate([stack[:, 1:], frame[None, None]], axis=1)
        rewards, terminated, truncated = np.array([reward], np.float32), np.array([over]), np.array([cut])
        items = windows.push(obs=stack, actions=action, rewards=rewards, next_obs=after, terminated=terminated, truncated=truncated)
        if len(items["actions"]):
            replay.add_batch(**items)
        stack = after
        if over or cut:
            stack = np.zeros_like(stack)
            stack[0, -1] = game.reset()[0]
    return replay, actions


def measure(algo: str, padding: str, start: str, seed: int, replay: ReplayBuffer, actions: int) -> list[float]:
    """Of each convolution the gradient over ε, then of each the share that ε leaves, then the Q-values' deviation between images."""
    config = load_config(f"{algo}/atari_pong")
    settings: Any = config.spec.parse({**config.algo_kwargs, "torso_padding": padding, "initialization": start})
    torch.manual_seed(seed)
    spaces = {"obs_shape": [4, 84, 84], "num_actions": actions, "image": {"high": 255}}
    network: Any = config.spec.build_network(settings, spaces)
    learner = LEARNERS[algo](network, 0.0, settings.gamma, settings.target_update_interval, kappa=settings.kappa, seed=seed)
    where = [i for i, (name, p) in enumerate(network.named_parameters()) if name.startswith("torso") and p.ndim == 4]
    squares = [torch.zeros(()) for _ in where]
    for _ in range(BATCHES):
        grads = learner.autograd(replay.sample(settings.batch_size)).parameters
        squares = [total + grads[i] ** 2 / BATCHES for total, i in zip(squares, where, strict=True)]
    eps = settings.adam_eps
    with torch.no_grad():
        spread = network.q_values(replay.sample(64)["obs"]).std(0).mean()
    roots = [total.sqrt() for total in squares]
    sizes = [total.mean().sqrt() / eps for total in squares]
    return [float(x) for x in (*sizes, *((root / (root + eps)).mean() for root in roots), spread)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4_000, help="of random actions (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="(default: %(default)s)")
    options = parser.parse_args()
    replay, actions = played(options.steps)
    for algo in LEARNERS:
        for padding, start in STARTS:
            found = [measure(algo, padding, start, seed, replay, actions) for seed in range(options.seeds)]
            *values, spread = np.exp(np.log(found).mean(0))
            sizes, shares = values[:3], values[3:]
            print(
                f"{algo:6} {padding:5} {start:16} gradient / ε {' '.join(f'{x:5.2f}' for x in sizes)}"
                f"   step left by ε {' '.join(f'{x:.2f}' for x in shares)}   spread {spread:.2e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
