"""What a checkpoint of a big replay costs: seconds to write and to read back, its size, and the memory that takes beside the replay's own.

Frames of 84 × 84, stored once, in stacks of 4, prioritized; `--frames 1000000` is the replay of the Atari papers. Small by default.
"""

from __future__ import annotations

import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import arguments, machine, prepare

BLOCK = 4_096  # frames added at a time


def filled(frames: int, device: str) -> Any:
    """A buffer that has been given so many frames, noise, of one long episode."""
    from rl_training.data import PrioritizedReplayBuffer
    from rl_training.data.frames import FrameLayout

    buffer = PrioritizedReplayBuffer(frames, (4, 84, 84), obs_dtype=torch.uint8, device=device, frames=FrameLayout(4))
    noise = np.random.default_rng(0).integers(0, 256, (BLOCK, 84 * 84), np.uint8)
    for first in range(1, frames + 1, BLOCK):
        ids = np.arange(first, min(first + BLOCK, frames + 1))
        count = len(ids)
        stacks = np.maximum(ids[:, None] + np.arange(-3, 1), 0)
        one = {name: np.ones(count, np.float32) for name in ("rewards", "dones", "discounts")}
        items = {"obs": np.maximum(ids - 1, 1), "next_obs": ids, "actions": np.zeros(count, np.int64), **one}
        buffer.add_items({**items, "frames": noise[:count], "frame_stacks": stacks})
    return buffer


def main() -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary one unless given")
    options = parser.parse_args()
    prepare(options)
    from rl_training.experiment.state_files import join_state, read_tensors, split_state, write_tensors

    buffer = filled(options.frames, options.device)
    record: dict[str, Any] = {"machine": machine(options.threads), "frames": options.frames, "device": options.device, "rounds": []}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        file = Path(folder) / "replay.safetensors"
        for _ in range(options.rounds):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # of this round: reading maps the file, whose pages count too
            start = time.perf_counter()
            tree, tensors = split_state(buffer.state_dict(copy=False))
            digest = write_tensors(file, tensors)
            wrote = time.perf_counter() - start
            del tensors
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            start = time.perf_counter()
            buffer.load_state_dict(join_state(tree, read_tensors(file, digest), source=str(file)))
            read = time.perf_counter() - start
            size = file.stat().st_size
            record["rounds"].append({"write_s": wrote, "read_s": read, "bytes": size, "most_memory_beside_kib": grown})
            took = f"written in {wrote:.1f} s, read in {read:.1f} s, {grown / 1024:.0f} MiB beside"
            print(f"{size / 1e9:.2f} GB ({size / options.frames:.0f} bytes a frame): {took}")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
