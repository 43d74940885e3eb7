"""Generators' states go from a checkpoint into a run, on whatever device it was saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoint_files import edit
from rl_training.data.generators import generator_state, load_generator_state
from rl_training.runtime.workflows import resume_training, train
from test_dqn_trainer_smoke import smoke_config

CUDA_STATE = torch.arange(16, dtype=torch.uint8)  # seed and offset: a CUDA generator's state is 16 bytes, a CPU one's 5,056


def test_a_state_goes_round() -> None:
    for generator, draw in (
        (np.random.default_rng(3), lambda g: g.random(4).tolist()),
        (torch.Generator().manual_seed(3), lambda g: torch.rand(4, generator=g).tolist()),
    ):
        state: Any = generator_state(generator)
        expected = draw(generator)  # type: ignore[no-untyped-call]
        load_generator_state(generator, state)
        assert draw(generator) == expected  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("state", [CUDA_STATE, np.random.default_rng(0).bit_generator.state])
def test_a_state_of_another_device_leaves_the_seed(state: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    load_generator_state(generator, state)
    assert torch.equal(torch.rand(4, generator=generator), torch.rand(4, generator=torch.Generator().manual_seed(3)))
    numpy = np.random.default_rng(3)
    load_generator_state(numpy, CUDA_STATE)  # replay lives in tensors on a GPU, and draws there
    assert numpy.random() == np.random.default_rng(3).random()


def as_saved_on_cuda(checkpoint: Path) -> list[str]:
    """Every torch generator's state in a checkpoint becomes one of CUDA's; where they stood."""
    changed: list[tuple[str, str]] = []
    for part in ("training", "replay"):
        tensors = load_file(checkpoint / f"{part}.safetensors")
        for name in [name for name in tensors if name.endswith("generator")]:
            tensors[name] = CUDA_STATE.clone()
            changed.append((part, name))
        save_file(tensors, checkpoint / f"{part}.safetensors")

    def say(manifest: dict[str, Any]) -> None:
        manifest["config"]["device"] = "cuda"
        for part, name in changed:
            *path, last = name.split("/")
            node = manifest["state"][part]
            for key in path:
                node = node[key]
            node[last] = {"$tensor": "uint8[16]"}

    edit(checkpoint, say)
    return [name for _, name in changed]


@pytest.mark.parametrize("algo", ["noisy_dqn", "drqn"])
def test_a_run_of_a_gpu_goes_on_without_one(algo: str, tmp_path: Path) -> None:
    result = train(smoke_config(tmp_path, algo, total_timesteps=120))
    assert as_saved_on_cuda(result.checkpoint_path) == ["actor/generator", "learner/generator"]
    with pytest.warns(UserWarning, match="began on cuda and goes on on cpu"):
        resumed = resume_training(result.run_dir, total_timesteps=160, device="cpu")
    assert resumed.metrics["global_step"] == 160
