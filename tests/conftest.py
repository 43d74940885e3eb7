"""One thread (or OMP_NUM_THREADS) and fixed examples for every test: results must not depend on which tests ran before."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Before anything imports torch or numba, and inherited by the command-line tests' subprocesses.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import yaml
from hypothesis import HealthCheck, settings

from command_line import SMALL, Cli

THREADS = int(os.environ["OMP_NUM_THREADS"].partition(",")[0])  # `make check-numerics` asks for two: sums are then split otherwise

# No deadline: the first example may pay for a JIT compilation, and tests never assert on time.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Updates compiled by earlier sessions are not there, as on a fresh machine: one that compiles unawares shows here, not only in CI."""
    if "RL_TRAINING_CACHE" not in os.environ:  # the workers of one session share one
        os.environ["RL_TRAINING_CACHE"] = folder = tempfile.mkdtemp(prefix="rl_training_tests_")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A training run sets torch's thread count for its process: put it back. Tests without torch do not load it for this."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != THREADS:
        torch.set_num_threads(THREADS)


@pytest.fixture
def float64() -> Iterator[None]:
    """Networks, draws and batches in float64: for tests that compare parameters after Adam.

    Adam divides a gradient by its size + eps. Where a gradient is hardly more than rounding, its rounding counts in full: in float32 a
    gradient of 5e-9, known to 3e-11, moved a parameter by 1e-5 beside eps 1e-8. In float64 gradients are known to about 1e-17, so no step
    is off by more than lr·1e-17/1e-8 = 1e-9·lr, on any processor.
    """
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a small config in it, and we stand there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    return tmp_path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], here: Path) -> Cli:
    return Cli(capsys)


@pytest.fixture
def trained(cli: Cli) -> Path:
    """A finished run."""
    outcome = cli("train", "--config", "small.yaml", "--quiet")
    assert outcome.code == 0, outcome.err
    return Path(outcome.out.strip()).parent.parent
