"""The `checkpoints/` of a run: a checkpoint is written beside its final name, synced, then renamed, and removed by renaming it first."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError
from rl_training.experiment.checkpointing import STEP_NAME, linked, steps_in
from rl_training.experiment.files import failing_as_run_error, is_real_directory, remove, replace_directory, sync, write_json
from rl_training.experiment.manifest import FORMAT_VERSION, MANIFEST, REPLAY_FILE, read_manifest, seal
from rl_training.experiment.state_files import split_state, write_tensors
from rl_training.types import State


class CheckpointStore:
    """The `checkpoints/` of one run: saves, links, rotates. One process writes at a time."""

    def __init__(self, directory: str | Path, keep: int) -> None:
        self.directory, self.keep = Path(directory), keep
        if self.directory.is_symlink():
            raise CheckpointError(f"{self.directory}: is a link, and a run writes only into its own folder")
        with failing_as_run_error(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            for entry in sorted(self.directory.glob(".*step_*")):  # left by a process that was killed while it wrote
                name = entry.name.removeprefix(".old-")
                if STEP_NAME.fullmatch(name) and not os.path.lexists(self.directory / name):
                    entry.rename(self.directory / name)
                else:
                    remove(entry)

    def path(self, step: int) -> Path:
        return self.directory / f"step_{step}"

    def has(self, step: int) -> bool:
        return is_real_directory(self.path(step))

    def save(
        self,
        step: int,
        *,
        model: State,
        training: State,
        replay: State | None,
        manifest: Mapping[str, Any],
        link_latest: bool = True,
        write_more: Callable[[Path], Mapping[str, tuple[State, str]]] | None = None,
    ) -> Path:
        """Writes the checkpoint of `step` and rotates the older ones. `manifest` is `manifest_of(config)` and plain values of your own.

        write_more: writes further files into a folder (see `WritesFiles`).

        A failure leaves every older checkpoint as it was, and no half of this one.
        """
        final, temporary = self.path(step), self.directory / f".new-step_{step}"
        states = {"model": model, "training": training} | ({} if replay is None else {"replay": replay})
        with failing_as_run_error(final):
            try:
                temporary.mkdir()
                trees, files = {}, {}
                for name, state in states.items():
                    trees[name], tensors = split_state(state)
                    file = temporary / f"{name}.safetensors"
                    files[file.name] = write_tensors(file, tensors)
                    del tensors
                for name, (tree, found) in write_more(temporary).items() if write_more is not None else ():
                    trees[name], files[f"{name}.safetensors"] = tree, found
                about, _ = split_state({**manifest, "format_version": FORMAT_VERSION, "step": step, "files": files})
                write_json(temporary / MANIFEST, seal({**about, "state": trees}))
                sync(temporary)
                replace_directory(temporary, final)
            finally:
                remove(temporary)
            if link_latest:
                self._link("latest", step)
            self._rotate(replay_at=None if replay is None else step)
        return final

    def rewrite(self, step: int, *, run: State, manifest: Mapping[str, Any]) -> None:
        """Puts `run` (plain values) in the place of the training state's, and `manifest` in that of the checkpoint of `step`, whose files
        stay as they are: what a run has measured since it saved them."""
        path = self.path(step)
        with failing_as_run_error(path):
            old = read_manifest(path)
            about, _ = split_state({**{key: value for key, value in old.items() if key != "state"}, **manifest})
            state = {**old["state"], "training": {**old["state"]["training"], "run": split_state(run)[0]}}
            write_json(path / MANIFEST, seal({**about, "state": state}))

    def mark_best(self, step: int) -> None:
        """Makes `best` point at the checkpoint of `step`."""
        with failing_as_run_error(self.directory / "best"):
            self._link("best", step)
            self._rotate()

    def cut_after(self, step: int) -> None:
        """Forgets what lies past `step`, where the run goes on from: all but the best checkpoint, of which the replay goes."""
        with failing_as_run_error(self.directory):
            if self.has(step):  # first: from here on a resumed run goes on from there, whatever is still to be removed
                self._link("latest", step)
            else:  # the run starts over
                remove(self.directory / "latest")
            best = linked(self.directory, "best")
            for later in (each for each in steps_in(self.directory) if each > step):
                if self.path(later) == best:
                    self._remove_replay(later)
                else:
                    remove(self.path(later))

    def _link(self, name: str, step: int) -> None:
        if not self.has(step):
            raise FileNotFoundError(f"there is no checkpoint of step {step}")
        temporary = self.directory / f".link-{name}-step_{step}"
        remove(temporary)
        temporary.symlink_to(f"step_{step}")
        os.replace(temporary, self.directory / name)
        sync(self.directory)

    def _rotate(self, replay_at: int | None = None) -> None:
        latest, best = linked(self.directory, "latest"), linked(self.directory, "best")
        steps = steps_in(self.directory)
        for step in steps[: -self.keep]:
            if self.path(step) not in (latest, best):
                remove(self.path(step))
        if replay_at is not None:
            for step in steps:
                if step != replay_at:
                    self._remove_replay(step)

    def _remove_replay(self, step: int) -> None:
        for file in sorted(self.path(step).glob("replay*.safetensors"), reverse=True):  # first the one that says that there is a replay
            if REPLAY_FILE.fullmatch(file.name):
                remove(file)
