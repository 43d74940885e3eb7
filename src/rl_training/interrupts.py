"""Ctrl-C while modules are imported.

What is raised inside an import ends in a traceback, or is taken for a module that does not work: torch's C++ code, for one, swallows it.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import NoReturn


def importing(frame: FrameType | None) -> bool:
    """Whether this frame, or one that called it, imports a module."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def leave(signum: int, frame: FrameType | None) -> NoReturn:
    """Ends the process at once, in one line: a signal's handler for when there is nothing to put in order."""
    sys.stdout.flush()
    os.write(2, b"interrupted\n")
    os._exit(128 + signum)
