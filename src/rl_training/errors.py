"""The three ways a run can fail to go on, each with the exit code of the command line.

Messages are one line and say what is wrong and where, because they are shown without a traceback.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any


class UserError(ValueError):
    """Bad input: exit code 2, nothing written."""


class ConfigError(UserError):
    """A config, key or value that cannot be used."""


class CheckpointError(UserError):
    """A checkpoint that is missing, truncated, hostile, from the future or of another algorithm."""


class SpaceError(UserError):
    """An observation or action space the chosen row does not support."""


class RunError(RuntimeError):
    """A failure while running: exit code 1, the last checkpoint stays loadable."""


class Interrupted(RunError):
    """SIGINT or SIGTERM, after a checkpoint was saved: exit code 128 + signal number."""

    def __init__(self, message: str, *, signum: int, run_dir: Path | None = None) -> None:
        super().__init__(message)
        self.signum, self.run_dir = signum, run_dir  # the run to go on with, where there is one

    def __reduce__(self) -> tuple[Any, ...]:  # a worker process hands its error to the one that started it
        return partial(Interrupted, signum=self.signum, run_dir=self.run_dir), self.args
