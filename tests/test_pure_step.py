"""One gradient step as a pure function does what the learner's eager code does, for every value-based row."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rl_training.algorithms.pure_step import PureStep
from rl_training.models.flat import flatten_parameters, parameters_from, split_like
from tests.value_rows import ROWS, batches, parts_of

CLOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.mark.parametrize("algo", ROWS)
def test_pure_and_eager_agree_on_100_batches(algo: str) -> None:
    (_, eager, replay, _), (_, pure, _, _) = parts_of(algo), parts_of(algo)
    first = next(batches(replay, 1))
    step = PureStep(pure, first)
    assert torch.equal(pure.generator.get_state(), eager.generator.get_state()), "making it must not draw"
    pure.gradient_step = lambda batch, rate: step.apply(lambda inputs: step(*inputs), batch, rate)
    for index, batch in enumerate(batches(replay, 100)):
        assert step.takes(batch)
        mine, theirs = (learner.update(batch, global_step=index + 1) for learner in (pure, eager))
        assert list(mine.metrics) == list(theirs.metrics)
        for name, value in theirs.metrics.items():
            torch.testing.assert_close(mine.metrics[name], value, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")
        torch.testing.assert_close(pure.last_priorities, eager.last_priorities, **CLOSE)
        torch.testing.assert_close(pure.last_td_errors, eager.last_td_errors, **CLOSE)
        if "indices" in batch:  # so that the next batch's weights differ
            replay.update_priorities(batch["indices"], eager.last_priorities)
    mine, theirs = pure.state_dict(), eager.state_dict()
    for part in ("q_network", "target_network", "optimizer"):
        torch.testing.assert_close(mine[part], theirs[part], **CLOSE)
    assert torch.equal(mine["generator"], theirs["generator"])
