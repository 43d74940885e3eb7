"""Environment steps per second of DQN on CartPole, whole loop: act, step, store, sample, update. One environment.

Ours stands there twice, as it is and with its update compiled; compiling is done before the clock starts.

All of them do the same work: the same environment (which looks at the clock itself, at its `--warm`-th and its last step, so that
imports, set-up and final evaluation count for nobody), networks of the same sizes, batch 64, Huber loss, Adam, a fixed ε, the target
copied every 500 steps.
Ours clips the gradient norm, as Stable-Baselines3 does and the single-file loop does not; ours alone also writes its usual logs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

from benchmarks import cleanrl_style
from benchmarks.common import COMPILED, Contender, arguments, clock, compare, prepare, save

ENV_ID = "TimedCartPole-v1"
LEARNING_STARTS, BATCH, CAPACITY, TARGET, EPSILON = 500, 64, 100_000, 500, 0.1


class TimedCartPole(CartPoleEnv):
    """CartPole that looks at the clock at two of its steps."""

    first: ClassVar[int] = 0
    last: ClassVar[int] = 0
    marks: ClassVar[dict[int, float]] = {}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.count = 0

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == self.first or self.count == self.last:
            self.marks.setdefault(self.count, clock())  # the training environment gets there before any evaluation
        return super().step(action)


def timed(train: Callable[[int], object], first: int, last: int, *, env: Any = TimedCartPole) -> Contender:
    """Steps per second between the two marks of a run of `last` steps. env: the class that looks at the clock."""

    def measure() -> float:
        env.first, env.last, env.marks = first, last, {}
        train(last)
        return (last - first) / (env.marks[last] - env.marks[first])

    return measure


def train_sb3(total: int, *, hidden: tuple[int, ...], every: int, device: str = "cpu") -> None:
    from stable_baselines3 import DQN

    model = DQN(
        "MlpPolicy",
        ENV_ID,
        learning_rate=1e-3,
        buffer_size=CAPACITY,
        learning_starts=LEARNING_STARTS,
        batch_size=BATCH,
        train_freq=every,
        gradient_steps=1,
        target_update_interval=TARGET,
        exploration_initial_eps=EPSILON,
        exploration_final_eps=EPSILON,
        policy_kwargs={"net_arch": list(hidden)},
        device=device,
        seed=0,
    )
    model.learn(total)


def train_single_file(total: int, *, hidden: tuple[int, ...], every: int, vector: bool) -> None:
    cleanrl_style.train(
        ENV_ID,
        total_timesteps=total,
        hidden=hidden,
        batch_size=BATCH,
        train_frequency=every,
        learning_starts=LEARNING_STARTS,
        target_update_interval=TARGET,
        buffer_capacity=CAPACITY,
        epsilon=EPSILON,
        vector=vector,
    )


def train_ours(total: int, *, hidden: tuple[int, ...], every: int, threads: int, device: str = "cpu", compile: bool = False) -> None:
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.workflows import train

    with tempfile.TemporaryDirectory() as output_dir:
        train(
            TrainConfig(
                algo="dqn",
                env_id=ENV_ID,
                seed=0,
                total_timesteps=total,
                output_dir=output_dir,
                device=device,
                threads=threads,
                compile=compile,
                eval_interval=0,
                eval_episodes=1,
                checkpoint_interval=0,
                algo_kwargs={
                    "learning_rate": 1e-3,
                    "buffer_capacity": CAPACITY,
                    "learning_starts": LEARNING_STARTS,
                    "batch_size": BATCH,
                    "train_frequency": every,
                    "target_update_interval": TARGET,
                    "epsilon_start": EPSILON,
                    "epsilon_end": EPSILON,
                    "hidden_sizes": hidden,
                    "max_grad_norm": 10.0,
                },
            )
        )


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--warm", type=int, default=1_500, help="steps before the clock starts (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=6_000, help="steps on the clock (default: %(default)s)")
    options = parser.parse_args()
    prepare(options)
    gym.register(id=ENV_ID, entry_point=TimedCartPole, max_episode_steps=500)
    results = []
    for hidden in ((64, 64), (120, 84)):
        for every in (1, 4):
            case = f"DQN, CartPole, hidden {hidden}, an update every {f'{every} steps' if every > 1 else 'step'}"
            if options.only not in case:
                continue
            work: dict[str, Callable[[int], object]] = {
                "ours": partial(train_ours, hidden=hidden, every=every, threads=options.threads),
                "stable-baselines3": partial(train_sb3, hidden=hidden, every=every),
                "CleanRL-style": partial(train_single_file, hidden=hidden, every=every, vector=True),
                "CleanRL-style, bare environment": partial(train_single_file, hidden=hidden, every=every, vector=False),
            }
            if not options.no_compile:
                work[COMPILED] = partial(train_ours, hidden=hidden, every=every, threads=options.threads, compile=True)
            contenders = {name: timed(run, options.warm, options.warm + options.steps) for name, run in work.items()}
            results.append(compare(case, "environment steps/s", contenders, rounds=options.rounds))
    save(options.json, options, results)


if __name__ == "__main__":
    main()
