"""What a stranger's run can make its reader do: links to write through, a module to import, a place to write to, numbers to choke on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults.children import command, run
from benchmarks.faults.runs import TIMEOUT, changed, snapshot, tiny, verdict, write_config
from benchmarks.faults.tally import Played

MEMORY = 2 << 30
PATIENCE = 20.0

LINKS = (
    ".new-config.yaml",
    ".new-metadata.json",
    ".new-metrics.jsonl",
    "metrics.jsonl",
    "config.yaml",
    "metadata.json",
    "checkpoints",
    "checkpoints/latest",
    "checkpoints/best",
    "checkpoints/.link-latest",
    "checkpoints/.new-step_80",
    "checkpoints/step_80",
    "checkpoints/.old-step_80",
)
BOMBS: tuple[dict[str, Any], ...] = (
    {"threads": 100_000},
    {"threads": 2**40},
    {"num_envs": 10**8},
    {"num_envs": 2**31},
    {"keep_checkpoints": 2**80},
    {"seed": 2**63},
    {"eval_episodes": 2**80},
    {"total_timesteps": 2**80},
    {"log_interval": 2**80},
    {"env_kwargs": {"wrappers": [{"frame_stack": {"n": 10**9}}]}},
    {"env_kwargs": {"wrappers": [{"frame_stack": {"n": 2**40}}]}},
    *(
        {"algo_kwargs": {key: value}}
        for key in ("n_step", "batch_size", "buffer_capacity", "gradient_steps", "learning_starts", "target_update_interval")
        for value in (2**31, 2**40, 2**63, 2**80)
    ),
    *({"algo_kwargs": {"hidden_sizes": value}} for value in ([2**31], [10**9, 10**9], [2**62], [1] * 10_000, [2**80])),
    *({"algo": "c51_dqn", "algo_kwargs": {"num_atoms": value}} for value in (2**31, 2**40, 10**9)),
    *({"algo": "qr_dqn", "algo_kwargs": {"num_quantiles": value}} for value in (2**31, 2**40, 10**9)),
    *({"algo": "iqn", "algo_kwargs": {key: 10**9}} for key in ("num_quantiles", "num_target_quantiles", "embedding_dim")),
    *({"algo": "ppo", "algo_kwargs": {key: value}} for key in ("num_steps", "minibatch_size") for value in (2**31, 2**40, 2**80)),
    *(
        {"algo": "r2d2", "algo_kwargs": {key: value}}
        for key in ("sequence_length", "recurrent_hidden_size", "recurrent_num_layers", "features_dim", "burn_in")
        for value in (2**31, 2**40, 10**9)
    ),
    *({"algo_kwargs": {"learning_rate": value}} for value in (1e300, 1e39, 5e-324)),
)
IDS = (
    ".x:y",
    ":",
    "a:",
    ":b",
    "..:x",
    "planted:",
    "planted:Thing-v0",
    "os:CartPole-v1",
    "no.such:Id",
    "",
    "x" * 5000,
    "CartPole-v1\n",
    "é-v0",
    "a/b/c-v1",
)


def links(every: int, start: Path, folder: Path, played: Played) -> None:
    """A link where resume writes: nothing outside the run's folder may be written, made or removed."""
    for name, victim_exists in [(name, exists) for name in LINKS for exists in (True, False)][::every]:
        place, outside = folder / "round", folder / "outside"
        shutil.copytree(start, place, symlinks=True)
        outside.mkdir()
        victim, link = outside / "victim", place / "run" / name
        if victim_exists:
            victim.write_text("precious", encoding="utf-8")
        if link.is_dir() and not link.is_symlink():
            shutil.rmtree(link)
        link.unlink(missing_ok=True)
        link.symlink_to(victim)
        before = snapshot(outside)
        ended = run(command("resume", "--checkpoint", place / "run", "--total-timesteps", "80", "--quiet"), timeout=TIMEOUT, cwd=place)
        touched = changed(before, snapshot(outside))
        wrong = ("let in", f"{touched} outside was written") if touched else verdict(ended, (0, 1, 2))
        played.add(*((None, "") if wrong is None else (wrong[0], f"{name} is a link: {wrong[1]}")))
        shutil.rmtree(place)
        shutil.rmtree(outside)


def names(every: int, start: Path, folder: Path, played: Played) -> None:
    """A checkpoint that names a module to import, or a folder to write to."""
    for verb, edit in [(verb, edit) for edit in _edits() for verb in ("eval", "resume")][::every]:
        place = folder / "round"
        shutil.copytree(start, place, symlinks=True)
        (place / "planted.py").write_text("from pathlib import Path\nPath('executed').write_text('yes')\n", encoding="utf-8")
        name, path = edit(place)
        arguments = ("--episodes", "1") if verb == "eval" else ("--total-timesteps", "80", "--quiet")
        ended = run(command(verb, "--checkpoint", path, *arguments), timeout=TIMEOUT, cwd=place)
        wrong = verdict(ended, (0, 1, 2))
        for left, text in (("executed", "its module was imported"), ("elsewhere", "a run was made where the checkpoint says")):
            if (place / left).exists():
                wrong = "let in", text
        played.add(*((None, "") if wrong is None else (wrong[0], f"{verb}, {name}: {wrong[1]}")))
        shutil.rmtree(place)


def _edits() -> Iterator[Callable[[Path], tuple[str, Path]]]:
    def env_id(value: str) -> Callable[[Path], tuple[str, Path]]:
        def edit(place: Path) -> tuple[str, Path]:
            _edit_manifest(place / "run" / "checkpoints" / "step_60", env_id=value)
            config = place / "run" / "config.yaml"
            config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text("utf-8")), "env_id": value}), encoding="utf-8")
            return f"env_id {value!r:.30}", place / "run"

        return edit

    def bare(place: Path) -> tuple[str, Path]:
        shutil.copytree(place / "run" / "checkpoints" / "step_60", place / "bare")
        _edit_manifest(place / "bare", output_dir=str(place / "elsewhere"))
        return "a bare checkpoint", place / "bare"

    yield from (env_id(value) for value in IDS)
    yield bare


def _edit_manifest(checkpoint: Path, **changes: Any) -> None:
    file = checkpoint / "manifest.json"
    manifest = json.loads(file.read_text("utf-8"))
    manifest["config"] |= changes
    manifest |= {key: value for key, value in changes.items() if key in manifest}
    file.write_text(json.dumps(manifest), encoding="utf-8")


def explode(bombs: Sequence[dict[str, Any]], folder: Path, played: Played) -> None:
    """Numbers too large to allocate, loop over or hold, in a config to train: a line, soon, or a run."""
    for bomb in bombs:
        config = tiny(bomb.get("algo", "dqn"), total=40, checkpoint_interval=0, eval_interval=0)
        changes = {**bomb, "algo_kwargs": {**config["algo_kwargs"], **bomb.get("algo_kwargs", {})}}
        path = write_config({**config, **changes}, folder / "round")
        before = snapshot(folder / "round")
        ended = run(command("train", "--config", path, "--quiet"), timeout=PATIENCE, cwd=folder, memory=MEMORY)
        wrong = verdict(ended, (0, 1, 2))
        written = changed(before, snapshot(folder / "round"))
        if wrong is None and ended.code == 2 and written:
            wrong = "write before refusal", ", ".join(written[:3])
        played.add(*((None, "") if wrong is None else (wrong[0], f"train with {bomb!r:.80}: {wrong[1]}")))
        shutil.rmtree(folder / "round")
