"""Environment steps per second of PPO and recurrent PPO on 8 CartPole environments, whole loop: act, step, GAE, epochs of minibatches.

Ours and the peers do the same work: the same environment (which looks at the clock itself, at the first step of two rollouts, so that
whole rounds of collecting and learning lie between, and imports, set-up and final evaluation count for nobody), networks of the same
shape, the same rollouts, epochs, minibatches and clipping, tanh, Adam. The recurrent ones share one LSTM between policy and value and read
the observation directly (`shared_lstm=True, enable_critic_lstm=False` of sb3-contrib).
Every run starts from scratch, so episodes are short throughout; sb3-contrib steps its LSTM in a loop only where an episode starts inside a
minibatch, so it is faster later in a run than here. Ours alone also writes its usual logs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym

from benchmarks.common import Contender, arguments, compare, prepare, save
from benchmarks.throughput import ENV_ID, TimedCartPole

NUM_ENVS = 8


@dataclass(frozen=True)
class Case:
    name: str
    num_steps: int
    minibatch: int
    epochs: int
    hidden: tuple[int, ...]
    lstm: int | None = None


CASES = (
    Case("PPO, RL Zoo's CartPole settings", 32, 256, 20, (64, 64)),
    Case("PPO, minibatches of 64", 256, 64, 10, (64, 64)),
    Case("recurrent PPO, RL Zoo's CartPole settings", 32, 256, 20, (64,), lstm=64),
    Case("recurrent PPO, rollouts of 128, minibatches of 128", 128, 128, 10, (64,), lstm=64),
)


def timed(train: Callable[[int], object], case: Case, warm: int, rollouts: int) -> Contender:
    """Environment steps per second over `rollouts` rounds, after `warm` of them."""
    first, last = warm * case.num_steps + 1, (warm + rollouts) * case.num_steps + 1

    def measure() -> float:
        TimedCartPole.first, TimedCartPole.last, TimedCartPole.marks = first, last, {}
        train(NUM_ENVS * last)
        return NUM_ENVS * (last - first) / (TimedCartPole.marks[last] - TimedCartPole.marks[first])

    return measure


def train_sb3(total: int, *, case: Case) -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    options: dict[str, Any] = {
        "learning_rate": 1e-3,
        "n_steps": case.num_steps,
        "batch_size": case.minibatch,
        "n_epochs": case.epochs,
        "gamma": 0.98,
        "gae_lambda": 0.8,
        "max_grad_norm": 0.5,
        "device": "cpu",
        "seed": 0,
    }
    envs = make_vec_env(ENV_ID, n_envs=NUM_ENVS, seed=0)
    network: dict[str, Any] = {"net_arch": {"pi": list(case.hidden), "vf": list(case.hidden)}}
    if case.lstm is None:
        PPO("MlpPolicy", envs, policy_kwargs=network, **options).learn(total)
        return
    from sb3_contrib import RecurrentPPO

    network |= {"lstm_hidden_size": case.lstm, "shared_lstm": True, "enable_critic_lstm": False}
    RecurrentPPO("MlpLstmPolicy", envs, policy_kwargs=network, **options).learn(total)


def train_ours(total: int, *, case: Case, threads: int) -> None:
    settings: dict[str, Any] = {
        "learning_rate": 1e-3,
        "num_steps": case.num_steps,
        "minibatch_size": case.minibatch,
        "update_epochs": case.epochs,
        "gamma": 0.98,
        "gae_lambda": 0.8,
        "max_grad_norm": 0.5,
    }
    if case.lstm is None:
        settings |= {"hidden_sizes": case.hidden}
    else:
        settings |= {"features_dim": None, "hidden_sizes": [], "recurrent_hidden_size": case.lstm, "head_hidden_sizes": case.hidden}
    train_rollouts("ppo" if case.lstm is None else "recurrent_ppo", settings, total, num_envs=NUM_ENVS, threads=threads)


def train_rollouts(algo: str, settings: dict[str, Any], total: int, *, num_envs: int, threads: int) -> None:
    """Ours, for nothing but its speed: no evaluation on the way, no checkpoints."""
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.workflows import train

    with tempfile.TemporaryDirectory() as output_dir:
        train(
            TrainConfig(
                algo=algo,
                env_id=ENV_ID,
                seed=0,
                total_timesteps=total,
                num_envs=num_envs,
                output_dir=output_dir,
                device="cpu",
                threads=threads,
                eval_interval=0,
                eval_episodes=1,
                checkpoint_interval=0,
                algo_kwargs=settings,
            )
        )


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--warm", type=int, default=2, help="rollouts before the clock starts (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=4_096, help="about how many environment steps on the clock (default: %(default)s)")
    options = parser.parse_args()
    prepare(options)
    gym.register(id=ENV_ID, entry_point=TimedCartPole, max_episode_steps=500)
    results = []
    for case in CASES:
        if options.only not in case.name:
            continue
        rollouts = max(1, round(options.steps / (NUM_ENVS * case.num_steps)))
        peer = "stable-baselines3" if case.lstm is None else "sb3-contrib"
        work = {"ours": partial(train_ours, case=case, threads=options.threads), peer: partial(train_sb3, case=case)}
        contenders = {name: timed(run, case, options.warm, rollouts) for name, run in work.items()}
        name = f"{case.name}: {NUM_ENVS} environments, hidden {case.hidden}" + ("" if case.lstm is None else f", LSTM {case.lstm}")
        results.append(compare(name, "environment steps/s", contenders, rounds=options.rounds))
    save(options.json, options, results)


if __name__ == "__main__":
    main()
