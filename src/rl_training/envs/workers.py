"""Environments in processes of their own: Gymnasium's AsyncVectorEnv, with workers that can be relied on.

Signals are the main process's: a terminal's Ctrl-C and a scheduler's SIGTERM reach every process of the group, and saving the checkpoint
then needs the workers. So they ignore both, and whoever holds them ends them: by asking, and by SIGKILL where that does not help.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import connection, util
from multiprocessing.process import BaseProcess
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState, _async_worker

from rl_training.envs.episodes import FAILURES
from rl_training.errors import RunError, UserError, one_line

PATIENCE = 10.0
"""Seconds that environments have to close."""


def _work(index: int, make: Callable[[], Any], pipe: Any, parent_pipe: Any, shared_memory: Any, errors: Any, *rest: Any) -> None:
    """Gymnasium's worker, after its environment was made: that may fail here alone, where a port or a GPU is taken."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        env = make()
    except FAILURES as error:
        errors.put((index, UserError, error if isinstance(error, UserError) else UserError(one_line(error)), ""))
        pipe.recv()
        pipe.send((None, False))
        return
    with contextlib.suppress(EOFError, ConnectionError):  # the main process is gone
        _async_worker(index, lambda: env, pipe, parent_pipe, shared_memory, errors, *rest)


class WorkerVectorEnv(AsyncVectorEnv[Any, Any]):
    """SAME_STEP autoreset, a process for each environment. One that dies is named; none outlives this object or this process."""

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env[Any, Any]]]) -> None:
        try:
            super().__init__(env_fns, copy=False, autoreset_mode=AutoresetMode.SAME_STEP, worker=_work)
        except BaseException as error:
            self.closed, processes = True, getattr(self, "processes", [])
            death = self._death() if processes and isinstance(error, (EOFError, OSError)) else None
            _kill(processes)
            if death is not None:
                raise UserError(str(death)) from error
            raise
        # Before multiprocessing's own end, which waits for processes that ignore its SIGTERM.
        self._kill = util.Finalize(self, _kill, args=(self.processes,), exitpriority=10)

    def step(self, actions: Any) -> Any:
        with self._naming_the_dead():
            return super().step(actions)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        with self._naming_the_dead():
            return super().reset(seed=seed, options=options)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        with self._naming_the_dead():
            return super().call(name, *args, **kwargs)

    def set_attr(self, name: str, values: Any) -> None:
        with self._naming_the_dead():
            super().set_attr(name, values)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Environments that wait for a call are asked to close. One in the middle of a step may never come back: it is not waited for."""
        try:
            if not terminate and self._state is AsyncState.DEFAULT:
                for pipe in self.parent_pipes:
                    with contextlib.suppress(OSError):  # that of a worker that is gone
                        pipe.send(("close", None))
                end = time.monotonic() + (PATIENCE if timeout is None else timeout)
                for process in self.processes:
                    process.join(max(0.0, end - time.monotonic()))
        finally:
            self._kill()
            for pipe in self.parent_pipes:
                pipe.close()

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Gymnasium prints the worker's traceback first; the error names its environment."""
        failed = sorted((self.error_queue.get() for success in successes if not success), key=lambda error: error[0])
        for index, *_ in failed:
            self.parent_pipes[index].close()
        if failed:
            self._state = AsyncState.DEFAULT
            raise failed[0][2]

    @contextlib.contextmanager
    def _naming_the_dead(self) -> Any:
        try:
            yield
        except (EOFError, OSError) as error:  # of a pipe: what an environment raises comes as a RunError
            self._state = AsyncState.DEFAULT  # the others can close
            raise self._death() from error

    def _death(self) -> RunError:
        ended = connection.wait([process.sentinel for process in self.processes], timeout=1.0)
        dead = [(i, process) for i, process in enumerate(self.processes) if process.sentinel in ended]
        for _, process in dead:
            process.join(1.0)  # its pipes close a moment before it is gone
        named = ", ".join(f"environment {i} (exit code {process.exitcode})" for i, process in dead)
        return RunError(f"the process of {named or 'an environment'} ended by itself")


def _kill(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        if process.pid is not None and process.is_alive():
            process.kill()
    for process in processes:
        if process.pid is not None:
            process.join()
