"""What must start fast does not load torch (a second or more), nor anything else that is heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "numba", "scipy", "tensorboard", "gymnasium")


def modules_after(code: str) -> set[str]:
    """The top-level modules a fresh interpreter has loaded after running `code` (a SystemExit ends only `code`)."""
    script = f"import sys\ntry:\n    {code}\nexcept SystemExit as e:\n    assert not e.code, e.code\nprint('@@', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.rsplit("@@", 1)[1].split()}


@pytest.mark.parametrize(
    "code",
    [
        "import rl_training",
        "import rl_training, rl_training.cli; rl_training.__version__",
        "import rl_training; rl_training.TrainConfig",
        "import rl_training.experiment.config, rl_training.experiment.settings, rl_training.experiment.registry",
        "from rl_training.cli import main; sys.argv = ['rl-training', '--help']; sys.exit(main())",
        "from rl_training.cli import main; sys.argv = ['rl-training', '--version']; sys.exit(main())",
        "from rl_training.cli import main; sys.argv = ['rl-training', 'train', '--help']; sys.exit(main())",
        "from rl_training.cli import main; sys.argv = ['rl-training', 'algos']; sys.exit(main())",
    ],
)
def test_light_commands_load_nothing_heavy(code: str) -> None:
    loaded = modules_after(code)
    assert "rl_training" in loaded
    assert not loaded.intersection(HEAVY)


def test_the_probe_sees_torch_when_it_is_loaded() -> None:
    """The test above would pass for ever if `modules_after` could not see a heavy module."""
    assert "torch" in modules_after("import torch")
