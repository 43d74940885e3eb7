"""Keeps what was tried for a config: the runs of `benchmarks/trials/*.yaml` in short, in benchmarks/results/trials.json.

rl-training ledger benchmarks/trials/acrobot.yaml --results tried    # makes the runs, on seeds of their own
python -m benchmarks.keep_trials tried                               # adds them to the file; what it holds of others stays
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.experiment.files import write_text
from rl_training.ledger.records import Record, read_records

RESULTS = Path(__file__).resolve().parent / "results" / "trials.json"
ABOUT = (
    "Runs that chose a config: seeds from 101, never those of a suite that judges it. By suite, config and seed: "
    "the mean return of the best checkpoint and of the last policy, over fresh greedy episodes."
)


def same(config: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two configs agree in all that both name: a setting that came to the package later had no other value before."""
    pairs = [(config[key], other[key]) for key in config.keys() & other.keys()]
    return all(same(one, two) if isinstance(one, Mapping) and isinstance(two, Mapping) else one == two for one, two in pairs)


def added(kept: dict[str, Any], records: tuple[Record, ...]) -> dict[str, Any]:
    """`kept` with `records`. A setting whose config has changed since begins anew."""
    for record in records:
        suite = kept.setdefault(str(record.raw["suite"]), {})
        about = {key: record.config[key] for key in ("total_timesteps", "num_envs", "env_kwargs", "algo_kwargs")}
        trial = suite.get(record.group)
        if trial is None or not same(trial["config"], about):
            trial = suite[record.group] = {"config": about, "runs": {}}
        scores = {policy: round(record.score(policy), 2) for policy in ("best", "final")}
        trial["runs"][str(record.seed)] = {**scores, "commit": (record.commit or "")[:12]}
    return kept


def text(value: Any, depth: int = 0) -> str:
    """JSON with a line for each config and one for its runs."""
    if depth == 4 or not isinstance(value, dict):
        return json.dumps(value, allow_nan=False)
    items = ",\n".join(f"{' ' * (depth + 1)}{json.dumps(key)}: {text(item, depth + 1)}" for key, item in value.items())
    return f"{{\n{items}\n{' ' * depth}}}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="the folder the ledger wrote them to")
    options = parser.parse_args()
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))["trials"] if RESULTS.is_file() else {}
    write_text(RESULTS, text({"about": ABOUT, "trials": added(kept, read_records(options.records))}) + "\n")


if __name__ == "__main__":
    main()
