"""Updates per second of the learner alone: sample 64 transitions, loss, gradient, Adam, priorities. No environment.

Ours stands there twice, as it is and with its step compiled ahead of time; what compiling took is said apart.

Every learner draws from its own replay of the same 10,000 transitions, with networks of the same layers. Ours stands beside each peer with
the same choice of double Q-learning as that peer makes. Multi-step returns are made where each library makes them: Tianshou when it
samples, ours when it stores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.common import COMPILED, arguments, compare, compiled_fresh, prepare, repeat_for, save
from benchmarks.learner_peers import ACTIONS, BATCH, OBS_DIM, ROWS, TARGET_EVERY, Work, data, sb3, single_file, tianshou

HIDDEN = (64, 64)
LEARNER: dict[str, Any] = {"learning_rate": 1e-3, "gamma": 0.99, "target_update_interval": TARGET_EVERY}
SUPPORT: dict[str, Any] = {"v_min": 0.0, "v_max": 100.0}


def ours(learner: Any, *, prioritized: bool = False, compiled: str | None = None) -> Work:
    """compiled: the case's name, if its step is to be compiled."""
    from rl_training.data import PrioritizedReplayBuffer, ReplayBuffer
    from rl_training.runtime.accelerate import accelerate_learner

    accelerate_learner(learner)  # as a run does
    buffer: Any = PrioritizedReplayBuffer(ROWS, (OBS_DIM,)) if prioritized else ReplayBuffer(ROWS, (OBS_DIM,))
    buffer.add_batch(**data()._asdict())
    how = {}
    if compiled is not None:
        how = {"packed": True}  # as a run does
        compiled_fresh(learner, buffer.sample(BATCH, **how), compiled, buffer.unpack)
    step = 0

    def work(n: int) -> None:
        nonlocal step
        for _ in range(n):
            step += 1
            batch = buffer.sample(BATCH, **how)
            learner.update(batch, global_step=step)
            if prioritized:
                buffer.update_priorities(batch["indices"], learner.last_priorities)

    return work


def our_dqn(**how: Any) -> Work:
    from rl_training.algorithms import DQN
    from rl_training.models import MLPQNetwork

    return ours(DQN(MLPQNetwork(OBS_DIM, ACTIONS, HIDDEN), max_grad_norm=10.0, **LEARNER), **how)


def our_qr_dqn(quantiles: int, double_q: bool, **how: Any) -> Work:
    from rl_training.algorithms import QRDQN
    from rl_training.models import MLPQRQNetwork

    network = MLPQRQNetwork(OBS_DIM, ACTIONS, quantiles, HIDDEN)
    return ours(QRDQN(network, num_quantiles=quantiles, double_q=double_q, **LEARNER), **how)


def our_c51(**how: Any) -> Work:
    from rl_training.algorithms import C51DQN
    from rl_training.models import MLPC51QNetwork

    network = MLPC51QNetwork(OBS_DIM, ACTIONS, 51, hidden_sizes=HIDDEN, **SUPPORT)
    return ours(C51DQN(network, double_q=True, **SUPPORT, **LEARNER), **how)


def our_iqn(**how: Any) -> Work:
    from rl_training.algorithms import IQN
    from rl_training.models import MLPIQNetwork

    network = MLPIQNetwork(OBS_DIM, ACTIONS, HIDDEN, num_quantiles=64, num_target_quantiles=64)
    return ours(IQN(network, double_q=True, **LEARNER), **how)


def our_rainbow(**how: Any) -> Work:
    from rl_training.algorithms import C51DQN
    from rl_training.models import MLPC51QNetwork

    network = MLPC51QNetwork(OBS_DIM, ACTIONS, 51, hidden_sizes=HIDDEN, dueling=True, noisy=True, **SUPPORT)
    return ours(C51DQN(network, double_q=True, **SUPPORT, **LEARNER), prioritized=True, **how)


CASES: dict[str, dict[str, Callable[..., Work]]] = {
    "DQN": {"ours": our_dqn, "stable-baselines3": lambda: sb3(HIDDEN), "CleanRL-style": lambda: single_file(HIDDEN)},
    **{
        name: case
        for n in (51, 200)
        for name, case in {
            f"QR-DQN, {n} quantiles": {"ours": lambda n=n, **how: our_qr_dqn(n, False, **how), "sb3-contrib": lambda n=n: sb3(HIDDEN, n)},
            f"QR-DQN, {n} quantiles, double": {
                "ours": lambda n=n, **how: our_qr_dqn(n, True, **how),
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
        works = {name: make() for name, make in makers.items()}
        if not options.no_compile:
            works[COMPILED] = makers["ours"](compiled=case)
        contenders = {name: repeat_for(work, options.seconds) for name, work in works.items()}
        results.append(compare(f"{case}, batch {BATCH}, hidden {HIDDEN}", "updates/s", contenders, rounds=options.rounds))
    save(options.json, options, results)


if __name__ == "__main__":
    main()
