"""The three ways a run can fail to go on, each with the exit code of the command line, and warnings.

Messages are one line and say what is wrong and where, because they are shown without a traceback.
"""

from __future__ import annotations

import inspect
import re
import sysconfig
import warnings
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
        return partial(type(self), signum=self.signum, run_dir=self.run_dir), self.args


class LearningInterrupted(Interrupted, KeyboardInterrupt):
    """The same where `learn` was called in Python: who catches Ctrl-C there catches this."""


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the line that called into this package: one of ours would say nothing to whoever reads it."""
    level, ours, frame = 1, 1, inspect.currentframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] == __package__:
            ours = level
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=ours + 1)


def warning_text(message: Warning | str) -> str:
    """What a warning says, in one line; Gymnasium's come in colour."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(message)).split()).removeprefix("WARN: ")


def one_line(error: BaseException) -> str:
    """Type and message, and the line of the user's own code that raised it, for errors that are shown without a traceback."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")  # where there is no message
    place, trace = "", error.__traceback__
    while trace is not None:  # the innermost one counts
        file = Path(trace.tb_frame.f_code.co_filename)
        if _is_the_users(file):
            here = Path.cwd()
            place = f" ({file.relative_to(here) if file.is_relative_to(here) else file}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return text + place


def _is_the_users(file: Path) -> bool:
    """Whether a file is neither Python's, nor installed, nor this package's."""
    theirs = (Path(sysconfig.get_path("stdlib")), Path(__file__).parent)
    return file.is_absolute() and not {"site-packages", "dist-packages"} & set(file.parts) and not any(map(file.is_relative_to, theirs))
