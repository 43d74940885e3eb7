"""Copying a checkpoint, whole or not at all, and what a copy may be put over."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from rl_training.errors import CheckpointError
from rl_training.experiment.checkpointing import Checkpoint, with_checkpoint
from rl_training.experiment.files import (
    HIDDEN,
    Lock,
    beside,
    failing_as_run_error,
    is_real_directory,
    is_regular,
    reason,
    remove,
    replace_directory,
    sync,
)
from rl_training.experiment.manifest import FILES, MANIFEST, is_file_name, read_manifest


def copy_checkpoint(source: str | Path, destination: str | Path) -> Path:
    """A copy of the checkpoint at `source`, whole or not at all. An older checkpoint at `destination` is replaced, anything else is not."""
    final = Path(destination)
    require_replaceable(final)
    return with_checkpoint(source, lambda checkpoint: _copied(checkpoint, final))


def _copied(checkpoint: Checkpoint, final: Path) -> Path:
    opened = checkpoint.path.resolve()
    if final.resolve() == opened:
        return final
    with failing_as_run_error(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        _sweep(final)
        temporary = beside(final, ".new-")
        try:
            temporary.mkdir()
            lock = Lock.of(temporary)
            for name in (MANIFEST, *FILES, *(f"{name}.safetensors" for name in checkpoint.shard_files)):
                _copy_file(opened / name, temporary / name, needed=name == MANIFEST)
            sync(temporary)
            replace_directory(temporary, final)
            if lock is not None:
                lock.release()
        finally:
            remove(temporary)
    return final


def _copy_file(source: Path, copy: Path, *, needed: bool) -> None:
    if not os.path.lexists(source):
        if needed:
            raise CheckpointError(f"{source}: is missing")
        return
    if not is_regular(source):
        raise CheckpointError(f"{source}: is not a regular file")
    try:
        shutil.copyfile(source, copy)
    except FileNotFoundError:
        raise CheckpointError(f"{source}: is missing") from None
    sync(copy)


def _sweep(final: Path) -> None:
    """Removes what processes that were killed while they copied here left behind: nobody has the lock of those."""
    for prefix in HIDDEN:
        for left in final.parent.glob(f"{_escaped(prefix + final.name)}.*"):
            if is_real_directory(left) and (lock := Lock.of(left)) is not None:
                remove(left)
                lock.release()


def _escaped(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)


def require_replaceable(final: Path) -> None:
    """Raises CheckpointError unless a checkpoint may be put at `final`: nothing is there, an empty folder, or a checkpoint of ours."""
    if not os.path.lexists(final):
        return
    refusal = "so nothing is written over it"
    if not is_real_directory(final):
        raise CheckpointError(f"{final}: is {'a link' if final.is_symlink() else 'no folder'}, {refusal}")
    try:
        names = sorted(entry.name for entry in final.iterdir())
    except OSError as error:
        raise CheckpointError(f"{final}: cannot be read ({reason(error)}), {refusal}") from None
    if not names:
        return
    foreign = [name for name in names if name != MANIFEST and not is_file_name(name)]
    if MANIFEST not in names or foreign:
        also = f" (it holds {foreign[0]!r:.60})" if foreign else ""
        raise CheckpointError(f"{final}: exists and is no checkpoint{also}, {refusal}")
    try:
        read_manifest(final)
    except CheckpointError as error:
        raise CheckpointError(f"{final}: exists and is no checkpoint of ours ({error}), {refusal}") from None
