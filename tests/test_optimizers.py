"""The flat optimizers are torch's: Adam, AdamW and RAdam, eager, as a compiler takes them, and with the count of steps on the device."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from learners import batch_of, parameters_of
from rl_training.algorithms import DQN
from rl_training.algorithms.adam import FlatAdam, coefficients, moved
from rl_training.models import MLPQNetwork

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("float64")]

TORCH: dict[Any, type[torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "radam": torch.optim.RAdam}
RATE, EPS = 3e-3, 1e-6
# Of 100 steps each is off by the rounding of parameters of order 1 (1e-16), of a gradient near 0 by at most 3e-3·1e-17/1e-6.
CLOSE = {"rtol": 0, "atol": 1e-12}


@pytest.mark.parametrize("kind", TORCH)
@pytest.mark.parametrize(("weight_decay", "max_grad_norm"), [(0.0, None), (0.02, 0.05)])
def test_a_learner_steps_as_torch_s_optimizer(kind: Any, weight_decay: float, max_grad_norm: float | None) -> None:
    """100 updates of the flat optimizer and of torch.optim's + clip_grad_norm_ on the same losses: RAdam rectifies from the sixth on."""
    torch.manual_seed(0)
    network = MLPQNetwork(4, 2, (16, 16))
    reference = copy.deepcopy(network)
    options: Any = {"max_grad_norm": max_grad_norm, "adam_eps": EPS, "optimizer": kind, "weight_decay": weight_decay}
    algorithm = DQN(network, RATE, 0.9, 10**9, **options)
    target = copy.deepcopy(reference)
    optimizer = TORCH[kind](reference.parameters(), lr=RATE, eps=EPS, weight_decay=weight_decay)  # type: ignore[call-arg]
    clipped = 0
    for step in range(100):
        batch = batch_of(seed=step)
        algorithm.update(batch, global_step=step)
        with torch.no_grad():
            y = batch["rewards"] + 0.9 * (1 - batch["dones"]) * target(batch["next_obs"]).amax(-1)
        loss = nn.functional.huber_loss(reference(batch["obs"]).gather(1, batch["actions"][:, None])[:, 0], y)
        optimizer.zero_grad()
        loss.backward()
        if max_grad_norm is not None:
            clipped += int(nn.utils.clip_grad_norm_(reference.parameters(), max_grad_norm) > max_grad_norm)
        optimizer.step()
    torch.testing.assert_close(parameters_of(network), parameters_of(reference), **CLOSE)
    assert max_grad_norm is None or clipped > 20  # the bound was felt


@pytest.mark.parametrize("kind", TORCH)
def test_the_formula_that_a_compiler_takes_is_the_kernel_s(kind: Any) -> None:
    """`moved` is what a compiled step is made of; its coefficients are numbers there, and tensors where the count is on the device."""
    torch.manual_seed(0)
    start = torch.randn(20)
    flat = FlatAdam(start.clone(), [(20,)], eps=EPS, kind=kind, weight_decay=0.02)
    by_numbers, by_tensors = ((start.clone(), torch.zeros(20), torch.zeros(20)) for _ in range(2))
    for step in range(1, 31):
        grad = torch.randn(20)
        flat.step([grad], RATE, None)
        how = (kind, (0.9, 0.999), EPS, 0.02)
        for held, count, rate in ((by_numbers, step, RATE), (by_tensors, torch.tensor(float(step)), torch.tensor(RATE))):
            by = coefficients(how[0], count, rate, *how[1:])
            new = moved(held[0], flat.decayed(grad, held[0]), held[1], held[2], by, flat.betas)
            for mine, after in zip(held, new, strict=True):
                mine.copy_(after)
    for held in (by_numbers, by_tensors):
        torch.testing.assert_close(held, (flat.parameters, flat.mean, flat.variance), **CLOSE)
