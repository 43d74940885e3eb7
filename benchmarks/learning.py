"""What the shipped configs learn: config × seeds, one JSON per run, a table of all.

    python -m benchmarks.learning configs/dqn/cartpole.yaml configs/qr_dqn/cartpole.yaml --seeds 1,2,3,4,5 --threshold 475

Each run is re-evaluated greedily on fresh episodes (another seed than any evaluation it was chosen by): its best checkpoint as the run
chose it, and its final policy. A run whose JSON exists is not repeated, so an interrupted table goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import machine

FRESH = 1_000_003  # added to the seed: episodes that no evaluation of the run has played


def run_name(config: str, label: str, seed: int) -> str:
    path = Path(config)
    return "__".join([path.parent.name, path.stem, *([label] if label else []), f"seed{seed}"])


def run_one(job: dict[str, Any]) -> dict[str, Any]:
    """One run and its two evaluations, in a process of its own."""
    from rl_training.experiment.config import load_config
    from rl_training.runtime.workflows import evaluate_checkpoint, train

    folder = Path(tempfile.mkdtemp(prefix="learning-"))
    overrides = [f"seed={job['seed']}", f"output_dir={folder}", "threads=1", "device=cpu", *job["set"]]
    config = load_config(job["config"], overrides)
    try:
        result = train(config)
        checkpoints = result.run_dir / "checkpoints"
        fresh = job["seed"] + FRESH
        best = evaluate_checkpoint(checkpoints / "best", num_episodes=job["episodes"], seed=fresh)
        final = evaluate_checkpoint(checkpoints / "latest", num_episodes=job["episodes"], seed=fresh)
        records = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
        metadata = json.loads((result.run_dir / "metadata.json").read_text())
    finally:
        shutil.rmtree(folder)
    kept = {**config.to_dict(), "output_dir": "runs"}  # where it ran is nobody's business
    return {
        "name": job["name"],
        "label": job["label"],
        "config_file": job["config"],
        "config": kept,
        "seed": job["seed"],
        "best": best,
        "final": final,
        "best_step": result.metrics["best_step"],
        "num_updates": result.metrics["num_updates"],
        "wall_time_s": round(result.metrics["wall_time_s"], 1),
        "curve": [[record["step"], record["eval/mean_reward"]] for record in records if "eval/mean_reward" in record],
        "git": metadata.get("git"),
        "versions": metadata.get("versions"),
    }


def table(records: list[dict[str, Any]], threshold: float | None) -> str:
    """One row per config: the means over fresh episodes of each seed, best checkpoint and final policy."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["name"].rsplit("__seed", 1)[0], []).append(record)
    head = "| config | best checkpoint, per seed | final policy, per seed | mean ± std of final |"
    lines = [
        head + (f" ≥{threshold:g}: best, final |" if threshold is not None else ""),
        "|" + " --- |" * (5 if threshold is not None else 4),
    ]
    for name, group in groups.items():
        group.sort(key=lambda record: record["seed"])
        best, final = ([record[kind]["eval_return_mean"] for record in group] for kind in ("best", "final"))
        spread = statistics.stdev(final) if len(final) > 1 else 0.0
        cells = [
            name,
            ", ".join(f"{x:.4g}" for x in best),
            ", ".join(f"{x:.4g}" for x in final),
            f"{statistics.mean(final):.4g} ± {spread:.3g}",
        ]
        if threshold is not None:
            cells.append(f"{sum(x >= threshold for x in best)}/{len(best)}, {sum(x >= threshold for x in final)}/{len(final)}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="+")
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--episodes", type=int, default=100, help="fresh evaluation episodes")
    parser.add_argument("--threshold", type=float)
    parser.add_argument("--label", default="", help="names a variant made with --set")
    parser.add_argument("--set", action="append", default=[], help="key=value, as rl-training train --set")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/learning"))
    options = parser.parse_args()

    options.results.mkdir(parents=True, exist_ok=True)
    jobs, records = [], []
    for config in options.configs:
        for seed in (int(text) for text in options.seeds.split(",")):
            name = run_name(config, options.label, seed)
            file = options.results / f"{name}.json"
            if file.exists():
                records.append(json.loads(file.read_text()))
            else:
                jobs.append(
                    {"name": name, "config": config, "seed": seed, "set": options.set, "label": options.label, "episodes": options.episodes}
                )
    where = machine(threads=1)
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=1) as pool:
        for record in pool.imap_unordered(run_one, jobs):
            record["machine"] = where
            file = options.results / f"{record['name']}.json"
            file.with_suffix(".tmp").write_text(json.dumps(record, indent=1) + "\n")
            file.with_suffix(".tmp").replace(file)
            records.append(record)
            best, final = (record[kind]["eval_return_mean"] for kind in ("best", "final"))
            print(
                f"{record['name']}: best {best:.1f} (step {record['best_step']}), final {final:.1f}, {record['wall_time_s']:.0f} s",
                flush=True,
            )
    print(table(records, options.threshold))


if __name__ == "__main__":
    main()
