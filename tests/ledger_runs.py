"""Records and work for the ledger's tests, without training anything: worker processes import this module, so it loads no torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl_training.ledger.suites import Plan

SUITE: dict[str, Any] = {
    "seeds": [1, 2],
    "tasks": [
        {
            "name": "Chain",
            "total_timesteps": 200,
            "solved": 1.0,
            "base": {
                "env_id": "rl_training/Chain-v0",
                "eval_interval": 100,
                "eval_episodes": 2,
                "algo_kwargs": {"learning_starts": 50, "batch_size": 8, "hidden_sizes": [], "buffer_capacity": 500},
            },
            "runs": [{"algo": "dqn"}, {"algo": "double_dqn"}],
        }
    ],
}


def evaluation(mean: float) -> dict[str, float]:
    return {"eval_return_mean": mean, "eval_return_std": 0.0, "eval_episodes": 100}


def record(name: str, algo: str = "dqn", env_id: str = "CartPole-v1", best: float = 1.0, final: float = 1.0, **more: Any) -> dict[str, Any]:
    seed = int(name.rsplit("__seed", 1)[1])
    config = {"algo": algo, "env_id": env_id, "total_timesteps": 200, "seed": seed, "algo_kwargs": {"gamma": 0.9}}
    curve = [[100, final / 2], [200, final]]
    return {"name": name, "seed": seed, "config": config, "best": evaluation(best), "final": evaluation(final), "curve": curve, **more}


def finish(plan: Plan, folder: Path, progress: Callable[[int], None]) -> dict[str, Any]:
    """Done at once; leaves a line in the file LEDGER_STARTED for every start."""
    with open(os.environ["LEDGER_STARTED"], "a") as file:
        file.write(f"{plan.name}\n")
    progress(plan.config.total_timesteps)
    return {**record(plan.name, plan.config.algo, plan.config.env_id), "config": plan.config.to_dict()}


def finish_with_a_warning(plan: Plan, folder: Path, progress: Callable[[int], None]) -> dict[str, Any]:
    for _ in range(2):
        warnings.warn("\x1b[33mWARN: an [odd]\n environment\x1b[0m", UserWarning, stacklevel=1)
    return finish(plan, folder, progress)


def wait_with_a_semaphore(plan: Plan, folder: Path, progress: Callable[[int], None]) -> dict[str, Any]:
    """As a compiler's pool has them; the suite is interrupted meanwhile."""
    lock = multiprocessing.Lock()
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(600)
    raise AssertionError(f"not stopped: {lock}")


class InterruptedAtItsStart:
    """A Ctrl-C that comes while the worker's process still reads what it is to do, and imports the package for it."""

    def __init__(self) -> None:
        self.signum = signal.SIGINT

    def __setstate__(self, state: dict[str, Any]) -> None:
        os.kill(os.getpid(), state["signum"])

    def __call__(self, plan: Plan, folder: Path, progress: Callable[[int], None]) -> dict[str, Any]:
        return finish(plan, folder, progress)


def fail_on_seed_2(plan: Plan, folder: Path, progress: Callable[[int], None]) -> dict[str, Any]:
    if plan.config.seed == 2:
        if plan.config.algo == "dqn":
            raise RuntimeError("the loss is nan")
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory runs out
    return finish(plan, folder, progress)


def interrupt_after_the_first(plan: Plan, folder: Path, progress: Callable[[int], None]) -> dict[str, Any]:
    """The second run interrupts the suite and would go on for ever."""
    started = Path(os.environ["LEDGER_STARTED"])
    if not started.exists():
        return finish(plan, folder, progress)
    Path(os.environ["LEDGER_PID"]).write_text(str(os.getpid()))
    os.kill(int(os.environ["LEDGER_SUITE"]), signal.SIGTERM)
    time.sleep(600)
    raise AssertionError("not stopped")
