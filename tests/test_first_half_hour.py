"""What somebody meets who tries the package in a Python prompt: wrong arguments, Ctrl-C, threads, pickles, warnings."""

from __future__ import annotations

import copy
import pickle
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rl_training import DQN, ManagedAlgorithm, register_algorithm
from rl_training.errors import Interrupted, UserError
from rl_training.experiment import registry
from rl_training.runtime.callbacks import Callback

SMALL: dict[str, Any] = {"learning_starts": 20, "batch_size": 8, "hidden_sizes": [8], "eval_episodes": 1, "eval_interval": 0}


def agent(folder: Path, **more: Any) -> DQN:
    return DQN("CartPole-v1", output_dir=folder, **{**SMALL, **more})


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("100", "total_timesteps must be an integer, got '100'"),
        (True, "total_timesteps must be an integer, got True"),
        (1e3, "total_timesteps must be an integer, got 1000.0; write 1000"),
        (1.5, "total_timesteps must be an integer, got 1.5"),
        (0, "total_timesteps must be >= 1, got 0"),
    ],
)
def test_learn_says_which_numbers_it_takes(steps: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        agent(tmp_path).learn(steps)
    assert str(refused.value) == message and not list(tmp_path.iterdir())


def test_so_does_evaluate_and_numpy_integers_are_integers(tmp_path: Path) -> None:
    mine = agent(tmp_path)
    assert mine.learn(np.int64(30)).metrics["global_step"] == 30
    for number in ("2", True, 0):
        with pytest.raises(UserError, match="the number of episodes must be"):
            mine.evaluate(number)
    with pytest.raises(UserError, match="seed must be an integer, got '1'"):
        mine.evaluate(1, seed="1")  # type: ignore[arg-type]


def test_a_function_that_cannot_be_called_is_refused_before_the_run(tmp_path: Path) -> None:
    for function in (lambda run: None, lambda run, step, more: None, lambda *, run, step: None):
        with pytest.raises(UserError, match=r"called with \(run, step\), and <lambda> takes"):
            agent(tmp_path).learn(30, callbacks=function)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
    seen: list[int] = []
    agent(tmp_path).learn(30, callbacks=[lambda run, step, more=0: seen.append(1), lambda *both: None])
    assert len(seen) == 30


def test_the_repr_says_how_far_it_is(tmp_path: Path) -> None:
    mine = agent(tmp_path, total_timesteps=60)
    mine.learn(30)
    assert "step 30 of 60," in repr(mine)
    mine.learn(60)
    assert "step 90," in repr(mine)


class CtrlC(Callback):
    def on_step(self, run: Any, step: Any) -> None:
        run.signals.signum = 2


def test_an_interrupted_learn_is_told_in_short_and_goes_on(tmp_path: Path) -> None:
    mine = agent(tmp_path, total_timesteps=60)
    with pytest.raises(KeyboardInterrupt) as stopped:  # what a user's own loop over runs catches
        mine.learn(callbacks=CtrlC())
    assert isinstance(stopped.value, Interrupted)
    assert str(stopped.value).startswith("interrupted at step 1; saved ") and str(stopped.value).endswith("; learn() goes on from there")
    shown = "".join(traceback.format_exception(stopped.value))
    assert "off_policy.py" not in shown and "managed.py" in shown
    assert mine.learn().metrics["global_step"] == 60


@pytest.mark.parametrize("do", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_agent_is_saved_not_pickled(do: Any) -> None:
    with pytest.raises(UserError, match=r"agent.save\(path\) writes what it has learned, DQN.load\(path\) reads it"):
        do(DQN("CartPole-v1"))


def test_a_warning_names_the_line_that_called(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agent(tmp_path, learning_starts=1_000).learn(30)
    (told,) = [each for each in caught if "nothing is learned" in str(each.message)]
    assert told.filename == __file__


def test_a_seed_decides_also_while_another_thread_builds_its_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_TABLE", dict(registry._TABLE))
    others: list[threading.Thread] = []
    built = threading.Event()

    def build(settings: Any, spaces: Any) -> nn.Module:
        first = nn.Linear(4, 8)
        if first.weight.device.type == "meta":  # only counted
            pass
        elif not others:  # in the middle of this one, another begins, and stays in the middle of its own
            others.append(threading.Thread(target=lambda: weights(seed=2)))
            others[0].start()
            others[0].join(timeout=0.5)
        elif threading.current_thread() in others:
            built.wait(timeout=10)
        return nn.Sequential(first, nn.ReLU(), nn.Linear(8, 2))

    class Mine(ManagedAlgorithm, row="mine"):
        """Mine."""

    def weights(seed: int) -> torch.Tensor:
        return nn.utils.parameters_to_vector(Mine("CartPole-v1", seed=seed).network.parameters())

    register_algorithm("mine", trainer="rl_training.runtime.dqn_trainer:train_dqn", network=build, summary="mine")
    beside = weights(seed=1)
    built.set()
    others[0].join()
    assert torch.equal(beside, weights(seed=1))
