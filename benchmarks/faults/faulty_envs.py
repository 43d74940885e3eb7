"""Environments that fail, each in its own way: `benchmarks.faults.faulty_envs:Faulty-v0` with `fault` and `at` as keywords.

A fault comes in the constructor, in a reset, in step `at` of its process, at the end of an episode, or in `close`. `FAULTS` says for each
what the command line must answer.
"""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

ENV_ID = "benchmarks.faults.faulty_envs:Faulty-v0"
EPISODE = 12


class OddError(Exception):
    """One that nobody expects: two arguments, and lines in its text."""

    def __init__(self, first: str, second: int) -> None:
        super().__init__(f"{first}\nin a second line\n{second}")


def _raises(error: BaseException) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


def _hang() -> None:
    while True:
        time.sleep(3600)


@dataclass(frozen=True)
class Fault:
    """Where it comes, what it does, and how the command must end; `keeps`: a checkpoint was there before and must be whole.

    `act` raises, or gives what the environment returns instead: an observation (reset), or changes of a step (its five fields by name)."""

    where: str  # construct, reset, later reset, step, end, close, spaces
    act: Callable[[], Any]
    codes: tuple[int, ...] = (1,)
    only_async: bool = False

    @property
    def keeps(self) -> bool:
        return self.where in ("later reset", "step", "end", "close")


MAIN_PID = os.getpid()


def _in_worker(act: Callable[[], Any]) -> None:
    """Gymnasium makes one environment in the main process, to read its spaces."""
    if os.getpid() != MAIN_PID:
        act()


def _ignore_interrupts() -> dict[str, Any]:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return {}


def _step(**changes: Any) -> Fault:
    return Fault("step", lambda: changes)


def _end(**changes: Any) -> Fault:
    return Fault("end", lambda: changes)


def _reset(obs: Any, where: str = "reset") -> Fault:
    return Fault(where, lambda: obs, (1, 2) if where == "reset" else (1,))  # before the first one nothing is written


def _box(low: Any, high: Any, shape: tuple[int, ...], dtype: Any = np.float32) -> gym.Space[Any]:
    return gym.spaces.Box(low, high, shape, dtype)


_ERRORS: dict[str, BaseException] = {
    "OSError": OSError(5, "no such device"),
    "RuntimeError": RuntimeError("the simulator is gone"),
    "SystemExit": SystemExit(3),
    "SystemExit 0": SystemExit(0),
    "SystemExit text": SystemExit("good bye"),
    "MemoryError": MemoryError(),
    "RecursionError": RecursionError("too deep"),
    "StopIteration": StopIteration("done"),
    "ZeroDivisionError": ZeroDivisionError("division by zero"),
    "odd error": OddError("first", 2),
    "ImportError": ImportError("no module named simulator"),
    "UnicodeError": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    "KeyError": KeyError("position"),
    "NotImplementedError": NotImplementedError(),
}

FAULTS: dict[str, Fault] = {
    **{f"constructor raises {name}": Fault("construct", _raises(error), (1, 2)) for name, error in _ERRORS.items()},
    **{f"reset raises {name}": Fault("reset", _raises(error), (1, 2)) for name, error in _ERRORS.items()},
    **{f"step raises {name}": Fault("step", _raises(error)) for name, error in _ERRORS.items()},
    "a later reset raises": Fault("later reset", _raises(ValueError("no more levels"))),
    "a later reset exits": Fault("later reset", _raises(SystemExit(0))),
    "close raises": Fault("close", _raises(RuntimeError("cannot close")), (0, 1)),
    "close exits": Fault("close", _raises(SystemExit(0)), (0, 1)),
    # observations
    "reset: shape (1,)": _reset(np.zeros(1, np.float32)),
    "reset: shape (5,)": _reset(np.zeros(5, np.float32)),
    "reset: shape (4, 1)": _reset(np.zeros((4, 1), np.float32)),
    "reset: scalar": _reset(np.float32(0.0)),
    "reset: NaN": _reset(np.full(4, np.nan, np.float32)),
    "reset: None": _reset(None),
    "reset: text": _reset("start"),
    "reset: dict": _reset({"obs": np.zeros(4, np.float32)}),
    "later reset: shape (1,)": _reset(np.zeros(1, np.float32), "later reset"),
    "later reset: NaN": _reset(np.full(4, np.inf, np.float32), "later reset"),
    "step: shape (1,)": _step(obs=np.ones(1, np.float32)),
    "step: shape (3,)": _step(obs=np.zeros(3, np.float32)),
    "step: shape (2, 4)": _step(obs=np.zeros((2, 4), np.float32)),
    "step: scalar": _step(obs=1.0),
    "step: NaN": _step(obs=np.array([0, np.nan, 0, 0], np.float32)),
    "step: infinity": _step(obs=np.array([0, 0, -np.inf, 0], np.float32)),
    "step: 1e39 as float64": _step(obs=np.full(4, 1e39)),
    "step: None": _step(obs=None),
    "step: objects": _step(obs=np.array([None, 1, 2, 3], object)),
    "step: text": _step(obs="left"),
    "end: shape (1,)": _end(obs=np.ones(1, np.float32)),
    "end: shape (3,)": _end(obs=np.zeros(3, np.float32)),
    "end: NaN": _end(obs=np.full(4, np.nan, np.float32)),
    "end: None": _end(obs=None),
    # rewards and flags
    "reward NaN": _step(reward=float("nan")),
    "reward infinite": _step(reward=float("inf")),
    "reward 1e39": _step(reward=1e39),
    "reward None": _step(reward=None),
    "reward text": _step(reward="much"),
    "reward of two": _step(reward=np.array([1.0, 2.0])),
    "reward of one in a list": Fault("step", lambda: {"reward": [1.0]}, (0, 1)),
    "reward 10**400": _step(reward=10**400),
    "reward complex": _step(reward=1j),
    "terminated None": Fault("step", lambda: {"terminated": None}, (0, 1)),
    "terminated text": Fault("step", lambda: {"terminated": "no"}, (0, 1)),
    "terminated of two": _step(terminated=np.array([False, True])),
    "truncated 2.5": Fault("step", lambda: {"truncated": 2.5}, (0, 1)),
    "info a list": Fault("step", lambda: {"info": ["a"]}, (0, 1)),
    "info None": Fault("step", lambda: {"info": None}, (0, 1)),
    "info with final_obs": Fault("step", lambda: {"info": {"final_obs": 3, "_final_obs": 4}}, (0, 1)),
    "four values": Fault("step", lambda: {"fields": 4}),
    "no values": Fault("step", lambda: {"fields": 0}),
    # spaces
    "no spaces": Fault("spaces", lambda: (None, None), (2,)),
    "a space of dicts": Fault("spaces", lambda: (gym.spaces.Dict({"a": gym.spaces.Discrete(2)}), gym.spaces.Discrete(2)), (2,)),
    "a space of text": Fault("spaces", lambda: (gym.spaces.Text(3), gym.spaces.Discrete(2)), (2,)),
    "an empty space": Fault("spaces", lambda: (_box(-1, 1, (0,)), gym.spaces.Discrete(2)), (0, 1, 2)),
    "a huge space": Fault("spaces", lambda: (_box(-1, 1, (1 << 34,)), gym.spaces.Discrete(2)), (1, 2)),
    "a lying space": Fault("spaces", lambda: (_box(-1, 1, (7,)), gym.spaces.Discrete(2)), (1, 2)),
    "continuous actions": Fault("spaces", lambda: (_box(-1, 1, (4,)), _box(-1, 1, (2,))), (2,)),
    # processes
    "a worker exits with 0": Fault("step", lambda: os._exit(0), only_async=True),
    "a worker exits with 7": Fault("step", lambda: os._exit(7), only_async=True),
    "a worker is killed": Fault("step", lambda: os.kill(os.getpid(), signal.SIGKILL), only_async=True),
    "a worker segfaults": Fault("step", lambda: os.kill(os.getpid(), signal.SIGSEGV), only_async=True),
    "a worker dies in its constructor": Fault("construct", lambda: _in_worker(lambda: os._exit(1)), (1, 2), only_async=True),
    "a worker dies in its reset": Fault("reset", lambda: os._exit(1), (1, 2), only_async=True),
    "a worker dies in close": Fault("close", lambda: _in_worker(lambda: os._exit(9)), (0, 1), only_async=True),
    # noise
    "prints much": Fault("step", lambda: print("x" * 100_000) or {}, (0,)),
    "warns": Fault("step", lambda: warnings.warn("old\nway", stacklevel=1) or {}, (0,)),
    "changes signal handlers": Fault("step", _ignore_interrupts, (0,)),
    "changes folder": Fault("step", lambda: os.chdir("/") or {}, (0,)),
    "endless episodes": Fault("step", lambda: {"terminated": False, "truncated": False, "endless": True}, (0,)),
}


class Faulty(gym.Env[Any, Any]):
    """Twelve steps an episode, four numbers, two actions; deterministic until its fault."""

    observation_space: gym.Space[Any] = _box(-10, 10, (4,))
    action_space: gym.Space[Any] = gym.spaces.Discrete(2)

    def __init__(self, fault: str = "", at: int = 0, main_pid: int = 0) -> None:
        global MAIN_PID
        MAIN_PID = main_pid or MAIN_PID
        self._fault = FAULTS.get(fault)
        self._at, self._steps, self._resets, self._closed = at, 0, 0, False
        self._state = np.zeros(4, np.float32)
        if self._is_at("spaces") and self._fault is not None:
            self.observation_space, self.action_space = self._fault.act()
        if self._is_at("construct") and self._fault is not None:
            self._fault.act()

    def _is_at(self, where: str) -> bool:
        return self._fault is not None and self._fault.where == where

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._state = self.np_random.uniform(-1, 1, 4).astype(np.float32)
        self._length = 0
        late = self._steps >= self._at
        if self._fault is not None and (self._is_at("reset") or (self._is_at("later reset") and late)):
            return self._fault.act(), {}
        return self._state, {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        self._length += 1
        self._state = np.clip(self._state + (0.1 if action else -0.1), -10, 10).astype(np.float32)
        fields = {"obs": self._state, "reward": 1.0, "terminated": self._length >= EPISODE, "truncated": False, "info": {}}
        count = 5
        ends = bool(fields["terminated"])
        if self._fault is not None and self._steps >= self._at and (self._is_at("step") or (self._is_at("end") and ends)):
            changes = self._fault.act() or {}
            count = changes.pop("fields", 5) if "fields" in (changes := dict(changes)) else 5
            if changes.pop("endless", False) and self._length >= 3_000:
                changes["truncated"] = True  # an evaluation has to end some day
            fields |= changes
        return tuple(fields[name] for name in ("obs", "reward", "terminated", "truncated", "info"))[:count]

    def close(self) -> None:
        if self._is_at("close") and self._fault is not None and not self._closed:
            self._closed = True
            self._fault.act()


gym.register("Faulty-v0", entry_point=Faulty)
