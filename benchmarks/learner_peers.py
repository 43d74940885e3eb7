"""The peers' learners, each as `work(n)`: n updates from their own replay, as their own training loops call them.

Where there is a target network, Tianshou always lets the online network select its action (double Q-learning); the others never do here.
Ours is measured with the same choice as the peer it stands beside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from benchmarks import cleanrl_style

Work = Callable[[int], object]

OBS_DIM, ACTIONS, BATCH, ROWS = 4, 2, 64, 10_000
TARGET_EVERY = 500


class Data(NamedTuple):
    """ROWS made-up transitions of CartPole's shapes, the same for everybody."""

    obs: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_obs: np.ndarray
    dones: np.ndarray


def data() -> Data:
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((2, ROWS, OBS_DIM), dtype=np.float32)
    ends = (rng.random(ROWS) < 0.02).astype(np.float32)
    return Data(obs[0], rng.integers(ACTIONS, size=ROWS), np.ones(ROWS, np.float32), obs[1], ends)


def single_file(hidden: tuple[int, ...]) -> Work:
    learner, replay = cleanrl_style.Learner(OBS_DIM, ACTIONS, hidden), cleanrl_style.Replay(ROWS, OBS_DIM, 0)
    for row in zip(*data(), strict=True):
        replay.add(*row)

    def work(n: int) -> None:
        for _ in range(n):
            learner.update(replay, BATCH)

    return work


def sb3(hidden: tuple[int, ...], quantiles: int | None = None) -> Work:
    """DQN of Stable-Baselines3, or QR-DQN of sb3-contrib: `train(n)`, which spreads its own bookkeeping over n updates."""
    from sb3_contrib import QRDQN
    from stable_baselines3 import DQN
    from stable_baselines3.common.logger import configure

    policy: dict[str, Any] = {"net_arch": list(hidden)} | ({} if quantiles is None else {"n_quantiles": quantiles})
    kind = DQN if quantiles is None else QRDQN
    model = kind("MlpPolicy", "CartPole-v1", learning_rate=1e-3, buffer_size=ROWS, policy_kwargs=policy, device="cpu", seed=0)
    model.set_logger(configure(None, []))
    for obs, action, reward, next_obs, done in zip(*data(), strict=True):
        model.replay_buffer.add(obs[None], next_obs[None], np.array([action]), np.array([reward]), np.array([done]), [{}])
    return lambda n: model.train(n, batch_size=BATCH)


def tianshou(kind: str, hidden: tuple[int, ...], *, outputs: int = 1, taus: tuple[int, int] = (0, 0), n_step: int = 1) -> Work:
    """`kind`: c51, qr_dqn, iqn (`taus`: samples of the online and the target network) or rainbow (all six parts)."""
    from tianshou.algorithm import C51, IQN, QRDQN, RainbowDQN
    from tianshou.algorithm.modelfree.c51 import C51Policy
    from tianshou.algorithm.modelfree.iqn import IQNPolicy
    from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import ImplicitQuantileNetwork, NoisyLinear
    from tianshou.utils.torch_utils import policy_within_training_step

    space = gym.spaces.Discrete(ACTIONS)
    common: dict[str, Any] = {
        "optim": AdamOptimizerFactory(lr=1e-3),
        "gamma": 0.99,
        "n_step_return_horizon": n_step,
        "target_update_freq": TARGET_EVERY,
    }
    net: dict[str, Any] = {"state_shape": OBS_DIM, "action_shape": ACTIONS, "num_atoms": outputs}
    support = {"num_atoms": outputs, "v_min": 0.0, "v_max": 100.0}
    algorithm: Any
    if kind == "c51":
        algorithm = C51(policy=C51Policy(Net(**net, hidden_sizes=hidden, softmax=True), space, **support), **common)
    elif kind == "qr_dqn":
        policy = QRDQNPolicy(model=Net(**net, hidden_sizes=hidden), action_space=space)
        algorithm = QRDQN(policy=policy, num_quantiles=outputs, **common)
    elif kind == "iqn":
        torso = Net(state_shape=OBS_DIM, hidden_sizes=hidden[:-1])
        model = ImplicitQuantileNetwork(preprocess_net=torso, action_shape=ACTIONS, hidden_sizes=hidden[-1:], num_cosines=64)
        sizes = {"online_sample_size": taus[0], "target_sample_size": taus[1]}
        algorithm = IQN(policy=IQNPolicy(model=model, action_space=space, **sizes), **common)
    else:
        stream = {"hidden_sizes": hidden[-1:], "linear_layer": NoisyLinear}
        model = Net(**net, hidden_sizes=hidden[:-1], softmax=True, dueling_param=(stream, stream))
        algorithm = RainbowDQN(policy=C51Policy(model, space, **support), **common)
    buffer = PrioritizedReplayBuffer(ROWS, alpha=0.6, beta=0.4) if kind == "rainbow" else ReplayBuffer(ROWS)
    for obs, action, reward, next_obs, done in zip(*data(), strict=True):
        terminated = bool(done)
        buffer.add(Batch(obs=obs, act=action, rew=reward, terminated=terminated, truncated=False, obs_next=next_obs, info={}))
    policy = algorithm.policy

    def work(n: int) -> None:
        with policy_within_training_step(policy):
            for _ in range(n):
                algorithm.update(buffer, BATCH)

    return work
