"""Death at every single file operation: in a save, a rotation, a cut, a copy, a resume. What is left is old or new, and goes on.

Python's audit events name each operation before it happens, so nothing of the package is patched; `os.fsync`, which has none, is. A file
that was about to be synced loses its second half, as it may where the machine itself dies.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.children import Work, command, run
from benchmarks.faults.runs import TIMEOUT, broken, listed, resumable_step, run_directory, tiny, trained, verdict, write_config
from benchmarks.faults.tally import Case, Played
from tests.resume_harness import differences

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.truncate", "os.chmod"}

Observe = Callable[[], Any]


class Operations:
    """Counts what a process does to files in `folder`; dies before number `die_at`, or notes what `observe` sees before each."""

    def __init__(self, folder: Path, *, die_at: int | None = None, observe: Observe | None = None) -> None:
        self._folder, self._die_at, self._observe = str(folder), die_at, observe
        self.seen: list[Any] = []
        self._count, self._busy = 0, False
        self._fsync = os.fsync

    def watch(self) -> None:
        """For the rest of this process: an audit hook cannot be taken away."""
        sys.addaudithook(self._hook)
        os.fsync = self._synced

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._busy or not (event in CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES)):
            return
        path = arguments[0]
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        inside = isinstance(path, (str, os.PathLike)) and (not os.path.isabs(path) or os.fspath(path).startswith(self._folder))
        if inside:
            self._next(lambda: None)

    def _synced(self, descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        self._next(lambda: _halve(f"/proc/self/fd/{number}"))
        self._fsync(number)

    def _next(self, before_death: Callable[[], None]) -> None:
        self._busy = True
        if self._count == self._die_at:
            before_death()
            os.kill(os.getpid(), signal.SIGKILL)
        if self._observe is not None:
            self.seen.append(self._observe())
        self._count += 1
        self._busy = False


def _halve(path: str) -> None:
    if os.path.isfile(path):
        os.truncate(path, os.path.getsize(path) // 2)


@dataclass(frozen=True)
class Scenario:
    """Something that writes. `prepare(folder)` makes what it starts from, `work(folder)` does it, `judge(folder, seen, reference)` says
    what is wrong afterwards, where `seen` is what `observe(folder)` had seen at that operation of an undisturbed process."""

    name: str
    prepare: Callable[[Path], None]
    work: Callable[[Path], Work]
    observe: Callable[[Path], Any]
    judge: Callable[[Path, Any, Path], tuple[str, str] | None]


def cases(scale: str, seed: int) -> list[Case]:
    chosen = SCENARIOS if scale != "short" else [SCENARIOS[0], SCENARIOS[-2]]
    stride = {"short": 17, "modest": 3, "full": 1}[scale]
    pieces = 4 if scale != "short" else 1
    return [
        Case(f"torn {scenario.name} {piece + 1}/{pieces}", functools.partial(_play, scenario, stride, piece, pieces, seed))
        for scenario in chosen
        for piece in range(pieces)
    ]


def _play(scenario: Scenario, stride: int, piece: int, pieces: int, seed: int, folder: Path, played: Played) -> None:
    start, whole = folder / "start", folder / "round"
    start.mkdir()
    scenario.prepare(start)
    shutil.copytree(start, whole, symlinks=True)
    noted = folder / "seen.json"

    def undisturbed() -> None:
        operations = Operations(whole, observe=lambda: scenario.observe(whole))
        operations.watch()
        try:
            scenario.work(whole)()
        finally:
            noted.write_text(json.dumps(operations.seen), encoding="utf-8")

    ended = run(undisturbed, timeout=TIMEOUT, cwd=folder)
    if ended.code != 0:
        raise RuntimeError(f"undisturbed, {scenario.name} ended with {ended.code}: {ended.last_line}")
    seen = json.loads(noted.read_text(encoding="utf-8"))
    reference = folder / "reference"
    whole.rename(reference)
    for number in list(range(seed % stride, len(seen), stride))[piece::pieces]:
        shutil.copytree(start, whole, symlinks=True)

        def dies(number: int = number) -> None:
            Operations(whole, die_at=number).watch()
            scenario.work(whole)()

        ended = run(dies, timeout=TIMEOUT, cwd=folder)
        if ended.code != 137:
            played.add(*(verdict(ended, (137,)) or (None, "")))
        else:
            found = scenario.judge(whole, seen[number], reference)
            played.add(*((None, "") if found is None else (found[0], f"operation {number} of {len(seen)}: {found[1]}")))
        shutil.rmtree(whole)


# Runs: killed while they write, resumed by their path


def _observe_run(folder: Path) -> int:
    """The step that `latest` leads to: what must not be lost from here on."""
    found = run_directory(folder)
    try:
        return -1 if found is None else int(os.readlink(found / "checkpoints" / "latest").removeprefix("step_"))
    except OSError:
        return -1


def _judge_run(total: int, floor: int, folder: Path, seen: Any, reference: Path) -> tuple[str, str] | None:
    """Every checkpoint listed is whole, none that was done is lost, and the run goes on to the bytes of an undisturbed one."""
    found = run_directory(folder)
    if found is None:
        return None if seen < 0 else ("lost", "no run is left")
    for step in listed(found):
        if (reason := broken(found / "checkpoints" / f"step_{step}")) is not None:
            return "torn", reason
    step = resumable_step(found)
    if step < min(seen, floor) if floor >= 0 else step < seen:
        return "lost", f"goes on from {step}, and {seen} was done"
    if step >= 0 and (reason := broken(found, replay=True)) is not None:
        return "lost", reason
    return _judge_resumed(found, folder, reference, total)


def _judge_resumed(found: Path, folder: Path, reference: Path, total: int) -> tuple[str, str] | None:
    """Resumed, the run ends with the bytes of an undisturbed one."""
    ended = run(command("resume", "--checkpoint", found, "--quiet"), timeout=TIMEOUT, cwd=folder)
    if (wrong := verdict(ended, (0,))) is not None:
        return ("lost" if wrong[0] == "wrong exit code" else wrong[0]), f"resume: {wrong[1]}"
    other = run_directory(reference)
    assert other is not None
    differing = differences(other, found, total)
    return ("differing bytes", ", ".join(differing)) if differing else None


def _training(algo: str, **changes: Any) -> Scenario:
    config = tiny(algo, **changes)
    return Scenario(
        f"train {algo} keep {config.get('keep_checkpoints', 3)}",
        prepare=lambda folder: None,
        work=lambda folder: command("train", "--config", write_config(config, folder), "--quiet"),
        observe=_observe_run,
        judge=functools.partial(_judge_run, config["total_timesteps"], -1),
    )


def _killed_after(config: dict[str, Any], folder: Path, step: int) -> Path:
    """The directory of a run that died when it had saved the checkpoint of `step`."""

    def work() -> None:
        from rl_training.experiment.config import TrainConfig
        from rl_training.runtime.callbacks import Callback
        from rl_training.runtime.workflows import train

        class Dies(Callback):
            def on_checkpoint(self, run: Any, path: Path) -> None:
                if path.name == f"step_{step}":
                    os.kill(os.getpid(), signal.SIGKILL)

        train(TrainConfig(**{**config, "output_dir": str(folder)}), callbacks=[Dies()])

    folder.mkdir(exist_ok=True)
    ended = run(work, timeout=TIMEOUT, cwd=folder)
    found = run_directory(folder)
    if ended.code != 137 or found is None:
        raise RuntimeError(f"a run that was to die at {step} ended with {ended.code}: {ended.last_line}")
    return found


def _resuming(algo: str, back_to: int | None) -> Scenario:
    """Resume from an older checkpoint cuts what lies past it; from the newest it only writes its config and notes again."""
    config = tiny(algo, keep_checkpoints=9)

    def prepare(folder: Path) -> None:
        run_dir = _killed_after(config, folder, 180)
        if back_to is not None:
            # Its replay has been rotated away; a user who means to come back to it keeps a copy of all of it.
            full = _killed_after(config, folder / "earlier", back_to) / "checkpoints" / f"step_{back_to}"
            shutil.rmtree(run_dir / "checkpoints" / full.name)
            shutil.copytree(full, run_dir / "checkpoints" / full.name)
            shutil.rmtree(folder / "earlier")

    def work(folder: Path) -> Work:
        found = run_directory(folder)
        assert found is not None
        path = found if back_to is None else found / "checkpoints" / f"step_{back_to}"
        return command("resume", "--checkpoint", path, "--quiet")

    def judge(folder: Path, seen: Any, reference: Path) -> tuple[str, str] | None:
        found = run_directory(folder)
        assert found is not None
        for step in listed(found):
            if (reason := broken(found / "checkpoints" / f"step_{step}")) is not None:
                return "torn", reason
        if (reason := broken(found, replay=True)) is not None:
            return "lost", reason
        return _judge_resumed(found, folder, reference, 240)

    return Scenario(f"resume {algo} from {back_to or 'latest'}", prepare, work, lambda folder: None, judge)


# Copies: `agent.save` and `SaveBest`


def _files(path: Path) -> dict[str, bytes] | None:
    return {each.name: each.read_bytes() for each in sorted(path.iterdir())} if path.is_dir() else None


def _copying(replaces: bool) -> Scenario:
    def prepare(folder: Path) -> None:
        trained(tiny(total=120), folder / "new")
        if replaces:
            old = trained(tiny(total=120, seed=5), folder / "old")
            shutil.copytree(old / "checkpoints" / "step_120", folder / "saved")

    def source(folder: Path) -> Path:
        found = run_directory(folder / "new")
        assert found is not None
        return found / "checkpoints" / "step_120"

    def work(folder: Path) -> Work:
        def save() -> None:
            import rl_training

            rl_training.DQN.load(source(folder)).save(folder / "saved")

        return save

    def judge(folder: Path, seen: Any, reference: Path) -> tuple[str, str] | None:
        left, new, old = _files(folder / "saved"), _files(source(folder)), None
        if replaces:
            found = run_directory(folder / "old")
            assert found is not None
            old = _files(found / "checkpoints" / "step_120")
        if left is None and replaces:
            return "lost", "the checkpoint that was there is gone"
        if left not in (None, new, old):
            return "torn", f"saved holds {sorted(left or ())}"
        ended = run(work(folder), timeout=TIMEOUT, cwd=folder)
        if ended.code != 0:
            return "lost", f"it cannot be saved again: {ended.last_line}"
        if _files(folder / "saved") != new:
            return "torn", "saved again, it is not what was saved"
        litter = sorted(path.name for path in folder.iterdir() if path.name not in ("new", "old", "saved"))
        return ("torn", f"{', '.join(litter)} is left for good") if litter else None

    return Scenario(f"agent.save {'over a checkpoint' if replaces else 'to a new place'}", prepare, work, lambda folder: None, judge)


def _saving_best() -> Scenario:
    config = tiny(total=160, eval_interval=40, checkpoint_interval=80)

    def work(folder: Path) -> Work:
        def train() -> None:
            from rl_training import SaveBest
            from rl_training.experiment.config import TrainConfig
            from rl_training.runtime.workflows import train

            train(TrainConfig(**{**config, "output_dir": str(folder)}), callbacks=[SaveBest(folder / "best-of-it")])

        return train

    def judge(folder: Path, seen: Any, reference: Path) -> tuple[str, str] | None:
        saved = folder / "best-of-it"
        if not saved.exists():
            return ("lost", "the best checkpoint is gone") if seen else None
        reason = broken(saved)
        return None if reason is None else ("torn", reason)

    def observe(folder: Path) -> bool:
        return (folder / "best-of-it" / "manifest.json").exists()

    return Scenario("SaveBest", lambda folder: None, work, observe, judge)


SCENARIOS: Sequence[Scenario] = (
    _training("dqn", keep_checkpoints=1),
    _training("r2d2", keep_checkpoints=2),
    _training("ppo", keep_checkpoints=1, num_envs=4),
    _resuming("dqn", None),
    _resuming("dqn", 60),
    _resuming("ppo", 120),
    _copying(replaces=False),
    _copying(replaces=True),
    _saving_best(),
)
