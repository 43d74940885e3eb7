"""Checkpoints as a stranger would change them: with every digest made right again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl_training.experiment.files import digest, is_regular
from rl_training.experiment.manifest import FILES, MANIFEST, seal


def edit(checkpoint: Path, change: Callable[[dict[str, Any]], Any] = lambda manifest: None) -> None:
    """Changes the manifest, then makes its digests those of the files beside it and of itself."""
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    manifest["files"] = {name: digest(checkpoint / name) for name in FILES if is_regular(checkpoint / name)}
    change(manifest)
    (checkpoint / MANIFEST).write_text(json.dumps(seal(manifest)))
