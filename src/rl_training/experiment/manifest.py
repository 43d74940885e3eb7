"""`manifest.json`: what a checkpoint says of itself, and the digests by which damage is found.

A digest per file finds a flipped bit or a torn copy. It says nothing about who wrote the checkpoint: whoever changes a file can change
its digest too, so everything is checked as if a stranger had written it.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import read_json, reason
from rl_training.experiment.registry import algorithm_names
from rl_training.experiment.runs import versions
from rl_training.experiment.state_files import join_state

FORMAT_VERSION = 2
READABLE = (1, 2)
"""Formats that eval and predict read; resume goes on from the newest alone. Format 1 had no digests."""

MANIFEST = "manifest.json"
FILES = ("model.safetensors", "training.safetensors", "replay.safetensors")
REPLAY_FILE = re.compile(r"replay(-\d{1,4})?\.safetensors")
"""Of a replay in shards each has its own."""
MAX_BYTES = 64 << 20
_KINDS = {"algo": str, "env_id": str, "step": int, "config": dict, "state": dict, "files": dict}


def manifest_of(config: TrainConfig) -> dict[str, Any]:
    """What every manifest says of its run."""
    return {"algo": config.algo, "env_id": config.env_id, "config": config.to_dict(), "versions": versions()}


def seal(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with the digest of all it says."""
    said = {key: value for key, value in manifest.items() if key != "digest"}
    canonical = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return {**said, "digest": hashlib.sha256(canonical.encode()).hexdigest()}


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """The manifest in the directory `checkpoint`, checked; what is wrong with it is a CheckpointError."""
    file = checkpoint / MANIFEST
    try:
        manifest = read_json(file, limit=MAX_BYTES)
    except FileNotFoundError:
        raise CheckpointError(f"{file}: is missing") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: not a whole manifest ({reason(error)})") from None
    if not isinstance(manifest, dict) or type(manifest.get("format_version")) is not int:
        raise CheckpointError(f"{file}: not the manifest of a checkpoint")
    version = manifest["format_version"]
    if version not in READABLE:
        known = " and ".join(map(str, READABLE))
        hint = "; a newer rl_training wrote it" if version > FORMAT_VERSION else ""
        raise CheckpointError(f"{file}: has format {_short(version)}, and this version reads formats {known}{hint}")
    if version == 1:
        manifest = {**manifest, "files": {}}
    elif manifest.get("digest") != seal(manifest)["digest"]:
        raise CheckpointError(f"{file}: is damaged (its digest is another)")
    for key, kind in _KINDS.items():
        if type(manifest.get(key)) is not kind:
            raise CheckpointError(f"{file}: {key} is missing or no {kind.__name__}")
    if not 0 <= manifest["step"] < 10**18:
        raise CheckpointError(f"{file}: step is {_short(manifest['step'])}")
    if manifest["algo"] not in algorithm_names():
        register = "import the module that registers it; on the command line: --import MODULE"
        raise CheckpointError(f"{file}: algorithm {manifest['algo']!r:.60} is not known here ({register})")
    for name, found in manifest["files"].items():
        if not is_file_name(name) or not isinstance(found, str) or not re.fullmatch(r"[0-9a-f]{64}", found):
            raise CheckpointError(f"{file}: {name!r:.60} in files is no digest of a file of a checkpoint")
    plain = join_state({key: value for key, value in manifest.items() if key != "state"}, {}, source=str(file))
    return {**plain, "state": manifest["state"]}


def is_file_name(name: str) -> bool:
    """Whether a checkpoint may hold a file of this name, beside its manifest."""
    return name in FILES or REPLAY_FILE.fullmatch(name) is not None


def _short(number: int) -> str:
    return str(number) if abs(number) < 10**20 else "a number of more than twenty digits"
