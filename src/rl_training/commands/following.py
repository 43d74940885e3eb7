"""What to type next: command lines that can be pasted as they are printed."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.errors import UserError

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.run import TrainResult


def after_training(result: TrainResult, imports: Sequence[str]) -> list[str]:
    """Measure, watch where there is something to see, train on. imports: the modules that this command was told to import."""
    run, config = result.run_dir, _config_of(result.run_dir)
    best = run / "checkpoints" / "best"
    policy = ["--checkpoint", str(best if best.exists() else run)]
    video = "" if importlib.util.find_spec("moviepy") else "  # first: pip install 'rl-training[video]'"
    watch = [_line("eval", config, imports, *policy, "--record", "play.mp4") + video] if _has_pictures(config) else []
    return [
        _line("eval", config, imports, *policy, "--seed", "2026"),
        *watch,
        _line("resume", config, imports, "--checkpoint", str(run), *_longer(config, int(result.metrics["global_step"]))),
    ]


def after_seeds(output_dir: Path) -> list[str]:
    """Look at the runs side by side."""
    return [shlex.join(["rl-training", "report", str(output_dir), "-o", "report.html"])]


def after_tuning(config: Path, imports: Sequence[str]) -> list[str]:
    """Train what was found, with seeds that did not choose it."""
    return [_line("train", None, imports, "--config", str(config), "--seeds", "1-5")]


def to_go_on(run_dir: Path, imports: Sequence[str]) -> str:
    """After an interrupt: up to the run's own total."""
    return _line("resume", _config_of(run_dir), imports, "--checkpoint", str(run_dir))


def _config_of(run_dir: Path) -> TrainConfig | None:
    from rl_training.experiment.config import load_config

    try:
        return load_config(run_dir / "config.yaml")
    except (UserError, OSError):  # it is only a hint
        return None


def _line(name: str, config: TrainConfig | None, imports: Sequence[str], *arguments: str) -> str:
    """`rl-training NAME …` with what a run's files do not decide: the modules to import and, to resume on a cluster, its address."""
    modules, address = list(imports), None
    if config is not None:
        from rl_training.runtime.trainer_setup import module_of

        modules += [module] if (module := module_of(config.env_id)) is not None else []
        address = config.ray_address if name == "resume" else None
    before = [word for module in dict.fromkeys(modules) for word in ("--import", module)]
    return shlex.join(["rl-training", *before, name, *([] if address is None else ["--ray-address", address]), *arguments])


def _has_pictures(config: TrainConfig | None) -> bool:
    """Whether the environment can be recorded, as far as can be said without making one: a function that makes it says nothing."""
    from gymnasium.envs.registration import load_env_creator

    from rl_training.envs.factory import find_env

    if config is None:
        return True
    try:
        entry = find_env(config.env_id).entry_point
        creator: Any = load_env_creator(entry) if isinstance(entry, str) else entry
    except (UserError, ImportError, AttributeError):
        return False
    if not isinstance(creator, type):
        return True
    metadata = getattr(creator, "metadata", None)  # of a gym.Wrapper a property, which only the made one can be asked for
    return isinstance(metadata, Mapping) and "rgb_array" in (metadata.get("render_modes") or ())


def _longer(config: TrainConfig | None, reached: int) -> list[str]:
    """What makes `resume` train on: nothing where the run ended before its total, else twice the steps, rounded up to two digits."""
    from rl_training.runtime.schedules import end_at_zero

    if config is not None and reached < max(config.total_timesteps, config.horizon):
        return []
    total = 2 * (reached if config is None else config.total_timesteps)
    unit = 10 ** max(len(str(total)) - 2, 0)
    extend = config is not None and end_at_zero(config.settings, config.horizon)  # else nothing would be learned
    return ["--total-timesteps", str(-(-total // unit) * unit), *(["--extend-schedule"] if extend else [])]
