"""Updates per second of the learner alone: sample 64 transitions, loss, gradient, Adam, priorities. No environment, no compilation.

Every learner draws from its own replay of the same 10,000 transitions, with networks of the same layers. Ours stands beside each peer with
the same choice of double Q-learning as that peer makes. Multi-step returns are made where each library makes them: Tianshou when it
samples, ours when it stores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.common import arguments, compare, prepare, repeat_for, save
from benchmarks.learner_peers import ACTIONS, BATCH, OBS_DIM, ROWS, TARGET_EVERY, Work, data, sb3, single_file, tianshou

HIDDEN = (64, 64)
LEARNER: dict[str, Any] = {"learning_rate": 1e-3, "gamma": 0.99, "target_update_interval": TARGET_EVERY}
SUPPORT: dict[str, Any] = {"v_min": 0.0, "v_max": 100.0}


def ours(learner: Any, *, prioritized: bool = False) -> Work:
    from rl_training.data import PrioritizedReplayBuffer, ReplayBuffer

    buffer: Any = PrioritizedReplayBuffer(ROWS, (OBS_DIM,)) if prioritized else ReplayBuffer(ROWS, (OBS_DIM,))
    buffer.add_batch(**data()._asdict())
    step = 0

    def work(n: int) -> None:
        nonlocal step
        for _ in range(n):
            step += 1
            batch = buffer.sample(BATCH)
            learner.update(batch, global_step=step)
            if prioritized:
                buffer.update_priorities(batch["indices"], learner.last_priorities)

    return work


def our_dqn() -> Work:
    from rl_training.algorithms import DQN
    from rl_training.models import MLPQNetwork

    return ours(DQN(MLPQNetwork(OBS_DIM, ACTIONS, HIDDEN), max_grad_norm=10.0, **LEARNER))


def our_qr_dqn(quantiles: int, double_q: bool) -> Work:
    from rl_training.algorithms import QRDQN
    from rl_training.models import MLPQRQNetwork

    return ours(QRDQN(MLPQRQNetwork(OBS_DIM, ACTIONS, quantiles, HIDDEN), num_quantiles=quantiles, double_q=double_q, **LEARNER))


def our_c51() -> Work:
    from rl_training.algorithms import C51DQN
    from rl_training.models import MLPC51QNetwork

    return ours(C51DQN(MLPC51QNetwork(OBS_DIM, ACTIONS, 51, hidden_sizes=HIDDEN, **SUPPORT), double_q=True, **SUPPORT, **LEARNER))


def our_iqn() -> Work:
    from rl_training.algorithms import IQN
    from rl_training.models import MLPIQNetwork

    return ours(IQN(MLPIQNetwork(OBS_DIM, ACTIONS, HIDDEN, num_quantiles=64, num_target_quantiles=64), double_q=True, **LEARNER))


def our_rainbow() -> Work:
    from rl_training.algorithms import C51DQN
    from rl_training.models import MLPC51QNetwork

    network = MLPC51QNetwork(OBS_DIM, ACTIONS, 51, hidden_sizes=HIDDEN, dueling=True, noisy=True, **SUPPORT)
    return ours(C51DQN(network, double_q=True, **SUPPORT, **LEARNER), prioritized=True)


CASES: dict[str, dict[str, Callable[[], Work]]] = {
    "DQN": {"ours": our_dqn, "stable-baselines3": lambda: sb3(HIDDEN), "CleanRL-style": lambda: single_file(HIDDEN)},
    **{
        name: case
        for n in (51, 200)
        for name, case in {
            f"QR-DQN, {n} quantiles": {"ours": lambda n=n: our_qr_dqn(n, False), "sb3-contrib": lambda n=n: sb3(HIDDEN, n)},
            f"QR-DQN, {n} quantiles, double": {
                "ours": lambda n=n: our_qr_dqn(n, True),
                "tianshou": lambda n=n: tianshou("qr_dqn", HIDDEN, outputs=n),
            },
        }.items()
    },
    "C51, 51 atoms, double": {"ours": our_c51, "tianshou": lambda: tianshou("c51", HIDDEN, outputs=51)},
    "IQN, 64 and 64 samples, double": {"ours": our_iqn, "tianshou": lambda: tianshou("iqn", HIDDEN, taus=(64, 64))},
    "Rainbow, 51 atoms, 3 steps": {"ours": our_rainbow, "tianshou": lambda: tianshou("rainbow", HIDDEN, outputs=51, n_step=3)},
}


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement (default: %(default)s)")
    options = parser.parse_args()
    prepare(options)
    results = []
    for case, makers in CASES.items():
        if options.only not in case:
            continue
        torch.manual_seed(0)
        contenders = {name: repeat_for(make(), options.seconds) for name, make in makers.items()}
        results.append(compare(f"{case}, batch {BATCH}, hidden {HIDDEN}", "updates/s", contenders, rounds=options.rounds))
    save(options.json, options, results)


if __name__ == "__main__":
    main()
