"""Environments in worker processes: one that dies is named, one that hangs is not waited for."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs.factory import make_envs
from rl_training.errors import RunError, UserError


class Fails(gym.Env[Any, Any]):
    """Action 1 brings its fault."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, fault: str, main_pid: int = 0) -> None:
        self.fault = fault
        if fault == "made" and os.getpid() != main_pid:
            raise OSError("the port is taken")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        if action == 1:
            if self.fault == "exit":
                os._exit(3)
            if self.fault == "killed":  # by the system, where memory is short
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "sys.exit":
                raise SystemExit(3)
            if self.fault == "hang":
                time.sleep(3600)
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("exit", r"the process of environment 1 \(exit code 3\) ended by itself"),
        ("killed", r"the process of environment 1 \(exit code -9\) ended by itself"),
        ("sys.exit", r"environment 1 raised SystemExit: 3 \(.*test_workers\.py, line \d+\) in step 1 of its episode 0"),
    ],
)
def test_a_worker_that_dies_is_named(fault: str, message: str) -> None:
    envs = make_envs(Fails, num_envs=3, seed=0, env_kwargs={"fault": fault}, vectorization="async")
    workers = multiprocessing.active_children()
    envs.reset()
    with pytest.raises(RunError, match=f"^{message}$"):
        envs.step(np.array([0, 1, 0]))
    envs.close()
    assert not any(worker.is_alive() for worker in workers)


def test_a_worker_that_hangs_is_not_waited_for() -> None:
    envs = make_envs(Fails, num_envs=2, seed=0, env_kwargs={"fault": "hang"}, vectorization="async")
    workers = multiprocessing.active_children()
    envs.reset()

    def leave(signum: int, frame: Any) -> None:  # what the second Ctrl-C does
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, leave)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            envs.step(np.array([0, 1]))
    finally:
        signal.signal(signal.SIGALRM, old)
    envs.close()
    assert [worker.exitcode for worker in workers] == [-signal.SIGKILL] * 2


def test_an_environment_that_only_a_worker_cannot_make_is_refused() -> None:
    before = multiprocessing.active_children()
    with pytest.raises(UserError, match=r"cannot be made.*OSError: the port is taken"):
        make_envs(Fails, num_envs=2, seed=0, env_kwargs={"fault": "made", "main_pid": os.getpid()}, vectorization="async")
    assert multiprocessing.active_children() == before
