"""docs/architecture.md names the files of one eager DQN update: they are what really runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import rl_training
from rl_training.runtime.off_policy import SampledUpdates
from value_rows import parts_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"


def named() -> list[str]:
    """The files in the page's table, with their folders: a name without one stands in the folder of the one before it."""
    table = PAGE.read_text(encoding="utf-8").split("### The walk of one DQN update")[1].split("*Eager with speed on*")[0]
    files, folder = [], ""
    for cell in re.findall(r"^\| [0-9–]+ \| ([^|]+) \|", table, flags=re.M):
        for name in re.findall(r"`([^`]+)`", cell):
            folder = name.rpartition("/")[0] if "/" in name else folder
            files.append(f"{folder}/{name.rpartition('/')[2]}")
    return files


def test_the_walk_of_an_update_is_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_TRAINING_SPEED", "0")
    parts = parts_of("dqn")
    parts.feed.flush()
    parts.learner.learning_rate = 1e-3  # a schedule would be one file more
    update = SampledUpdates(parts.learner, parts.replay, 16, None)
    update(1)
    root, walked = Path(rl_training.__file__).parent, set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(root):
            walked.add(path.relative_to(root).as_posix())

    sys.setprofile(note)
    try:
        update(2)
    finally:
        sys.setprofile(None)
    assert walked == set(named())
    assert len(named()) <= 14
