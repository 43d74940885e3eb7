"""Files that were changed at random: every one is read as it is or refused in one line, and whatever is refused leaves no trace.

A short form of the campaign in benchmarks/faults. Half of the changes have their digests made right, as a stranger would.
"""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoint_files import edit
from rl_training.errors import RunError, UserError
from rl_training.experiment.checkpointing import open_checkpoint
from rl_training.ledger.report import write_report
from rl_training.runtime.workflows import predict, resume_training, train
from test_dqn_trainer_smoke import smoke_config
from test_untrusted import snapshot

VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**31, 2**70, 10**400, 0.5, -1e308, "", "x", "\x00", "\ud800", "../../x", "a" * 5_000),
    *([], [1], [[[]]], {}, {"": 1}, {"$tensor": "float32[2]"}, {"$tensor": 3}, {"$float": "nan"}, {"$float": []}, {"x": {"y": None}}),
)


def changed_value(value: Any, rng: random.Random) -> None:
    """One value inside becomes another, goes, or comes under another key. Every branch is as likely, however much stands under it."""
    while True:
        last = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        inner = value[last]
        if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.2:
            break
        value = inner
    kind = rng.random()
    if kind < 0.15:
        del value[last]
    elif kind < 0.25 and isinstance(value, dict):
        value[rng.choice(("", "x", "$tensor", "a/b", "\ud800"))] = value.pop(last)
    else:
        value[last] = rng.choice(VALUES)


def changed_bytes(content: bytes, rng: random.Random, upto: int = 400) -> bytes:
    """A few bytes flipped near the beginning, where headers are; cut off; or with something put in."""
    if not content:
        return b"x"
    damaged, kind = bytearray(content), rng.random()
    for _ in range(rng.randint(1, 4)):
        damaged[rng.randrange(min(len(damaged), upto))] = rng.randrange(256)
    if kind < 0.2:
        return bytes(damaged[: rng.randrange(len(damaged))])
    if kind < 0.4:
        place = rng.randrange(len(damaged))
        return bytes(damaged[:place]) + rng.choice((b"\0", b"[" * 2_000, b"\xff\xfe", b"9" * 5_000, b"null")) + bytes(damaged[place:])
    return bytes(damaged)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with a normalised environment, so that statistics are read too."""
    config = smoke_config(
        tmp_path_factory.mktemp("fuzz"),
        total_timesteps=60,
        checkpoint_interval=30,
        log_interval=30,
        eval_interval=0,
        eval_episodes=1,
        env_kwargs={"wrappers": ["normalize_observation"], "max_episode_steps": 15},
        algo_kwargs={"learning_starts": 20, "batch_size": 4, "hidden_sizes": [4], "buffer_capacity": 80, "prioritized": True, "n_step": 2},
    )
    return train(config).run_dir


def manifest(run: Path, rng: random.Random) -> None:
    edit(open_checkpoint(run).path, lambda found: changed_value(found, rng))


def manifest_bytes(run: Path, rng: random.Random) -> None:
    file = open_checkpoint(run).path / "manifest.json"
    file.write_bytes(changed_bytes(file.read_bytes(), rng, upto=10**6))


def tensors(run: Path, rng: random.Random) -> None:
    checkpoint = open_checkpoint(run).path
    file = checkpoint / rng.choice(("model.safetensors", "training.safetensors", "replay.safetensors"))
    file.write_bytes(changed_bytes(file.read_bytes(), rng))
    if rng.random() < 0.8:
        edit(checkpoint)


def metadata(run: Path, rng: random.Random) -> None:
    file = run / "metadata.json"
    if rng.random() < 0.5:
        file.write_bytes(changed_bytes(file.read_bytes(), rng, upto=10**6))
    else:
        found = json.loads(file.read_text())
        changed_value(found, rng)
        file.write_text(json.dumps(found))


def config(run: Path, rng: random.Random) -> None:
    file = run / "config.yaml"
    file.write_bytes(changed_bytes(file.read_bytes(), rng, upto=10**6))
    if rng.random() < 0.5:
        shutil.rmtree(run / "checkpoints")  # a run that starts over reads nothing else


@pytest.mark.parametrize(("change", "times"), [(manifest, 100), (manifest_bytes, 20), (tensors, 40), (metadata, 20), (config, 30)])
def test_whatever_is_changed_is_read_or_refused(
    whole: Path, tmp_path: Path, change: Callable[[Path, random.Random], None], times: int
) -> None:
    refused = 0
    for seed in range(times):
        run = tmp_path / "run"
        shutil.copytree(whole, run, symlinks=True)
        change(run, random.Random(seed))
        before = snapshot(tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                for answer in predict(run, [[0.0, 0.1, 0.0, 0.1]]):
                    json.dumps(answer, allow_nan=False)
            except UserError as error:
                assert "\n" not in str(error)
            assert snapshot(tmp_path) == before, (change, seed)
            try:
                resume_training(run, total_timesteps=64)
            except UserError as error:
                refused += 1
                assert "\n" not in str(error) and len(str(error)) < 2_000
                assert snapshot(tmp_path) == before, (change, seed, str(error))
            except RunError:  # such as learning that diverges by a damaged weight
                pass
            try:
                write_report([tmp_path], tmp_path / "report.html")
            except UserError as error:
                assert "\n" not in str(error)
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
    assert refused > times / 10
