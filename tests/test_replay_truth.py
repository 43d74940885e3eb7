"""`benchmarks.replay_truth` finds a run's replay to be what its games showed, and notices where it is not."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("ale_py")
pytest.importorskip("benchmarks", reason="the benchmarks are in the repository, not in the source distribution")

from benchmarks.replay_truth import compared, verdict
from rl_training.data.frames import FrameStore
from rl_training.runtime.behaviour import EpsilonGreedy

pytestmark = pytest.mark.filterwarnings("ignore:evaluation at step:RuntimeWarning")


def found(folder: Path, steps: int) -> dict[str, Any]:
    """Breakout's episodes are short: some end within so few steps."""
    return compared(Namespace(config="qr_dqn/atari_breakout", num_envs=2, steps=steps, device="cpu"), str(folder))


def test_a_run_holds_what_its_games_showed_and_acts_on_its_own_values(tmp_path: Path) -> None:
    run = found(tmp_path, 600)
    assert verdict(run) is None and run["steps"] == 600 and run["episodes"] > 0 and run["asked"] > 0
    # An update every 4 steps from step 600/20 = 30 on: at 32, 36, … 600. Each step begins a window of three; of the two games' last ones
    # two are open at the end, unless an episode ended there.
    assert run["updates"] == run["updates_due"] == 143 and 596 <= run["transitions"] <= 600


def other_actions(behaviour: Any, actions: Any) -> Any:
    return (actions + 1) % 4


def frames_before(store: FrameStore, rows: Any, stacks: Any = FrameStore.stacks) -> Any:
    return stacks(store, (rows - 1).clamp_min(0))


@pytest.mark.parametrize(
    "fault",
    [mock.patch.object(EpsilonGreedy, "to_env", other_actions), mock.patch.object(FrameStore, "stacks", frames_before)],
    ids=["other actions were taken", "other frames are sampled"],
)
def test_it_notices_a_replay_that_holds_something_else(tmp_path: Path, fault: Any) -> None:
    with fault:
        run = found(tmp_path, 120)
    told = verdict(run)
    assert told is not None and told.startswith("the replay is not what the games showed") and run["missing"] == run["invented"] > 0
    assert np.isfinite(run["furthest_q"])
