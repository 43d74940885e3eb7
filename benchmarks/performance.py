"""Writes docs/performance.md and its plots from benchmarks/results/*.json: `python -m benchmarks.performance` (`make performance`).

Every figure on the page stands in a record; a record that is not there is named as missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl_training.experiment.files import write_text
from rl_training.ledger.drawing import picture, words

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
PROSE = Path(__file__).with_name("performance_page.md")  # what no record says
IMAGES = ROOT / "docs" / "images"
COMPILED = "ours, compiled"

Record = dict[str, Any]


def load(name: str) -> Record | None:
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return None
    record: Record = json.loads(path.read_text(encoding="utf-8"))
    return record


def where(record: Record) -> str:
    """The machine of a record, in a line."""
    m = record["machine"]
    hardware = " and one ".join(part for part in (f"{m['cores']} × {m['cpu']}", m.get("gpu")) if part)
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items() if name != "rl-training")
    threads = f"{m['threads'] or 'default'} torch thread{'s' if m['threads'] != 1 else ''}"  # 0: torch's own number was left as it was
    return f"{m['time'][:10]}, {hardware}, {threads}; Python {m['python']}, {versions}."


def command(name: str, record: Record) -> str:
    """What a record was made with; the options that say where and on what are in `where`."""
    elsewhere = ("json", "threads", "clock", "no_compile")
    given = {key.replace("_", "-"): str(value) for key, value in record.get("options", {}).items() if value and key not in elsewhere}
    shown = [f"--{key} {value!r}" if " " in value else f"--{key} {value}" for key, value in given.items()]
    return f"`python -m benchmarks.{' '.join([name, *shown])}`"


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def comparison(results: list[Record]) -> list[str]:
    """Ours and the peers, a row for each case, with ratios to the best peer."""
    names = list(dict.fromkeys(name for result in results for name in result["medians"]))
    lines = [f"| case | {' | '.join(names)} | ratio |", f"| --- |{' ---: |' * (len(names) + 1)}"]
    for result in results:
        cells = [number(result["medians"][name]) if name in result["medians"] else "" for name in names]
        ratios = result.get("ratios") or ({"ours": result["ratio"]} if result.get("ratio") else {})
        text = ", ".join(
            f"{ratio:.1f}×{'' if name == 'ours' else ' (' + name.removeprefix('ours, ') + ')'}" for name, ratio in ratios.items()
        )
        lines.append(f"| {result['case']} ({result['unit']}) | {' | '.join(cells)} | {text} |")
    return lines


def break_even(record: Record) -> list[str]:
    """After how many updates a compilation has paid for itself."""
    seconds = record.get("compile_seconds", {})
    lines = ["| case | compiling, s | eager, updates/s | compiled, updates/s | pays after |", "| --- | ---: | ---: | ---: | ---: |"]
    found = False
    for result in record["results"]:
        medians = result["medians"]
        cases = [case for case in seconds if result["case"].startswith(case)]
        if not cases or COMPILED not in medians:
            continue
        cost = seconds[max(cases, key=len)]  # "QR-DQN, 51 quantiles" begins "QR-DQN, 51 quantiles, double" too
        saved = 1 / medians["ours"] - 1 / medians[COMPILED]
        pays = f"{cost / saved:,.0f} updates" if saved > 0 else "never"
        lines.append(f"| {result['case']} | {cost:.0f} | {number(medians['ours'])} | {number(medians[COMPILED])} | {pays} |")
        found = True
    return lines if found else []


def section(title: str, name: str, missing: list[str], note: str = "", *, module: str = "") -> list[str]:
    """A record's table, and what it says about itself; `module` is the benchmark that made it, where it has another name."""
    record = load(name)
    if record is None:
        missing.append(name)
        return []
    tables = [result for result in record["results"] if "ours" in result["medians"]]
    source = f"{command(module or name, record)}; {where(record)}"
    notes = [line for text in (note, record.get("about", "")) if text for line in (text, "")]
    return [f"## {title}", "", *notes, *comparison(tables), "", source, ""]


def ablation(missing: list[str]) -> list[str]:
    """Each piece of speed/ with and without it; MinAtar's, PQN's and the GPU's are records of their own."""
    lines = []
    for name in ("ablation", "ablation_minatar", "ablation_pqn", "ablation_gpu"):
        record = load(name)
        if record is None:
            missing.append(name)
            continue
        rows = [
            f"| {result['case']} | {result['unit']} | {number(result['medians']['ours'])} | {number(result['medians']['without'])} | "
            + f"{result['ratios']['ours']:.2f}× |"
            for result in record["results"]
        ]
        head = ["| piece and case | unit | with | without | ratio |", "| --- | --- | ---: | ---: | ---: |"]
        lines += [*head, *rows, "", f"{command('ablation', record)}; {where(record)}", ""]
    return [f"## {SPEED}", "", SPEED_NOTE, "", *lines] if lines else []


SPEED = "What each piece of speed/ is worth"
SPEED_NOTE = (
    "The same work with and without one piece, in turns, with all other pieces in place. "
    "A piece that gives less than 1.05× in its best case is removed. Packed rows are at that limit: other runs of `--only 'packed rows'` "
    "gave 1.05× (15 rounds) and, on a busy machine, 1.11×, 1.26× and 1.01× (11 rounds each)."
)


def gpu(missing: list[str]) -> list[str]:
    record = load("gpu")
    if record is None:
        missing.append("gpu")
        return []
    lines = ["## On a GPU", "", f"{command('gpu', record)}; {where(record)}", ""]
    equal = record.get("equality", {})
    if equal:
        bits = [algo for algo, found in equal.items() if found.get("equal_bits")]
        others = [f"{algo} ({found.get('difference', found.get('error'))})" for algo, found in equal.items() if not found.get("equal_bits")]
        lines += [
            "After 100 updates from the same seeds, CUDA graphs and eager code give the same parameters, bit for bit: "
            + f"{', '.join(bits)}."
            + (f" Different: {', '.join(others)}." if others else ""),
            "",
        ]
    lines += [*comparison(record["results"]), ""]
    runs = record.get("solve", {}).get("runs", [])
    if runs:
        lines += [
            "Time to solve CartPole-v1 with 64 native environments: until the greedy policy's mean return over 20 episodes is 475, graph "
            "capture and evaluations included:",
            "",
            "| seed | seconds | environment steps | updates | mean return |",
            "| ---: | ---: | ---: | ---: | ---: |",
            *(f"| {r['seed']} | {r['seconds']:.1f} | {r['env_steps']:,} | {r['updates']:,} | {r['curve'][-1][1]} |" for r in runs),
            "",
        ]
    return lines


def pixels(missing: list[str]) -> list[str]:
    """Learners over frames that are stored once, and whole Atari loops, on a GPU."""
    lines = []
    record = load("gpu_pixels")
    if record is None:
        missing.append("gpu_pixels")
    else:
        ways = list(dict.fromkeys(way for rates in record["learner"].values() for way in rates))
        lines += [
            "Sampled inside a CUDA graph, the frame store gives the same batches as a buffer of whole stacks, bit for bit "
            f"({record['equality']['batches']:,} batches in {record['equality']['worlds']} random environments).",
            "",
            "Updates/s of the learner. Frames of 84 × 84 are stored once, on the GPU, and stacked by four inside the update's graph. "
            "In the last column the replay is in page-locked host memory (TF32) and each batch is copied to the GPU.",
            "",
            f"| case | {' | '.join(ways)} | replay in host memory |",
            f"| --- |{' ---: |' * (len(ways) + 1)}",
        ]
        for case, rates in record["learner"].items():
            cells = [number(rates[way]["rate"]) if way in rates else "" for way in ways]
            host = record.get("host", {}).get(case, {}).get("tf32")
            lines.append(f"| {case} | {' | '.join(cells)} | {number(host['rate']) if host else ''} |")
        lines += ["", f"{command('gpu_pixels', record)}; {where(record)}", ""]
    record = load("atari_gpu")
    if record is None:
        missing.append("atari_gpu")
    else:
        lines += [
            "Whole loops on Pong, with 64 games of ALE's own vector environment unless noted:",
            "",
            "| case | steps/s | updates/s |",
            "| --- | ---: | ---: |",
        ]
        for case, found in record["results"].items():
            updates = found.get("updates_per_second")
            lines.append(f"| {ATARI.get(case, case)} | {number(found['steps_per_second'])} | {number(updates) if updates else ''} |")
        own = [f"{case}: {command('atari_gpu', found)}." for case, found in record["results"].items() if "options" in found]
        lines += ["", " ".join([f"{command('atari_gpu', record)}; {where(record)}", *own]), ""]
    return ["## Pixels on a GPU", "", *lines] if lines else []


ATARI = {
    "envs": "the environments alone, random actions",
    "dqn": "DQN, Nature network, batch 32, an update every 4 steps",
    "dqn_padded": "DQN as `dqn/atari_pong` has it: the same with Dopamine's padded convolutions (7,744 features)",
    "r2d2": "R2D2, 64 sequences of 40 + 80 steps, LSTM 512, an update every 64 steps",
    "btr": "BTR, IMPALA × 2, batch 256, an update every 64 steps",
    "pqn": "PQN, Nature network, 128 games, no replay",
}


SCALING = {
    "environments": "Steps/s of DQN on CartPole's native vector environment, an update every 64 steps, by number of environments",
    "batch": "Transitions/s of the DQN learner (hidden 64 × 64), by batch size",
    "replay": "Sample and update pairs per second of prioritized replay (batch 32), by number of items",
    "sequences": "Steps/s of the R2D2 learner (batch 32, LSTM 64), by sequence length",
}


def scaling(missing: list[str]) -> tuple[list[str], dict[Path, str]]:
    record = load("scaling")
    if record is None:
        missing.append("scaling")
        return [], {}
    lines, images = ["## Scaling", "", f"{command('scaling', record)}; {where(record)}", ""], {}
    for result in record["results"]:
        points = [(float(name.removeprefix("ours, ")), value) for name, value in result["medians"].items()]
        image = IMAGES / f"scaling_{result['case']}.svg"
        images[image] = chart(points, x=result["case"], y=result["unit"])
        values = "; ".join(f"{x:,.0f}: {number(y)}" for x, y in points)
        lines += [
            f"![{result['unit']} by {result['case']}](images/{image.name})",
            "",
            f"{SCALING[result['case']]}: {values}.",
            "",
        ]
    return lines, images


def actors(missing: list[str]) -> list[str]:
    """Actors on Ray: how far they scale, where the learner binds, and what a step costs beside the local loop."""
    record = load("distributed") or {}
    missing += [f"distributed ({name})" for name in ("scaling", "learner", "driver", "overhead") if name not in record]
    if not record:
        return []
    lines = ["## Actors on Ray", ""]

    def table(name: str, what: str, head: str, cells: Callable[[Record], list[str]]) -> list[str]:
        if name not in record:
            return []
        rows = [f"| {' | '.join(cells(row))} |" for row in record[name]["rows"]]
        columns = f"| --- |{' ---: |' * (head.count('|') - 2)}"
        options = {key: value for key, value in record[name]["options"].items() if key not in ("what", "seeds")}
        source = f"{command(f'distributed {name}', {'options': options})}, load {record[name]['load']}; {where(record[name])}"
        return [what, "", head, columns, *rows, "", source, ""]

    lines += table(
        "scaling",
        "How acting scales: one environment per actor, which waits 5 ms in each step, and hardly any learning.",
        "| actors | steps/s | of linear | the learner waits |",
        lambda row: [str(row["actors"]), number(row["steps_per_s"]), f"{row['of_linear']:.2f}", f"{row['waiting_share']:.0%}"],
    )
    lines += table(
        "learner",
        f"The same with {record.get('learner', {}).get('options', {}).get('actors')} actors and increasingly frequent updates "
        "(batches of 32, 64 × 64 units).",
        "| steps per update | steps/s | updates/s | the learner waits | age of the acting weights, in updates |",
        lambda row: [str(row["train_frequency"]), *(number(row[key]) for key in ("steps_per_s", "updates_per_s")),
                     f"{row['waiting_share']:.0%}", number(row["staleness_updates"])],
    )  # fmt: skip
    lines += table(
        "driver",
        "Where the driver's time goes when the learner is the bottleneck (an update every step).",
        f"| actors | updates/s | {' | '.join(DRIVER)} |",
        lambda row: [str(row["actors"]), number(row["updates_per_s"]), *(f"{row[key]:.1%}" for key in DRIVER)],
    )
    lines += table(
        "overhead",
        "What actors cost on CartPole with an update every 64 steps: steps/s, and processor time per step in µs (CartPole's own step takes "
        "about 10).",
        "| actors | environments | steps/s | driver | actor | Ray's own processes | all |",
        lambda row: [
            str(row["actors"]),
            str(row["num_envs"]),
            number(row["steps_per_s"]),
            *(number(row[key]) for key in COSTS),
            number(sum(row[key] for key in COSTS)),
        ],
    )
    return lines


DRIVER = ("update", "sample", "orders", "weights", "decoding", "insertion", "waiting", "other")
COSTS = ("us_driver", "us_actors", "us_ray")


def chart(points: list[tuple[float, float]], *, x: str, y: str) -> str:
    """A line on doubly logarithmic axes, as SVG."""
    width, height, left, bottom = 420, 240, 60, 36
    xs, ys = [math.log10(p[0]) for p in points], [math.log10(p[1]) for p in points]
    low, high = math.floor(min(ys)), math.ceil(max(ys))
    high = max(high, low + 1)
    span = (max(xs) - min(xs)) or 1.0

    def at(px: float, py: float) -> tuple[float, float]:
        return left + (px - min(xs)) / span * (width - left - 20), height - bottom - (py - low) / (high - low) * (height - bottom - 16)

    marks = [at(px, py) for px, py in zip(xs, ys, strict=True)]
    grid = [(at(min(xs), decade)[1], decade) for decade in range(low, high + 1)]
    parts = [
        *(f'<line x1="{left}" x2="{width - 20}" y1="{gy:.1f}" y2="{gy:.1f}" stroke="#8884"/>' for gy, _ in grid),
        *(words(left - 6, gy + 4, f"{10**decade:,}", "end") for gy, decade in grid),
        *(words(mx, height - bottom + 16, f"{p[0]:,.0f}", "middle") for (mx, _), p in zip(marks, points, strict=True)),
        words((left + width) / 2, height - 4, x, "middle"),
        words(left, 11, y, "start"),
        f'<polyline fill="none" stroke="#3f78c4" stroke-width="2" points="{" ".join(f"{mx:.1f},{my:.1f}" for mx, my in marks)}"/>',
        *(f'<circle cx="{mx:.1f}" cy="{my:.1f}" r="3" fill="#3f78c4"/>' for mx, my in marks),
    ]
    return picture(width, height, parts)


def pages() -> dict[Path, str]:
    """Every file that this script writes, with its text."""
    from rl_training.runtime.accelerate import BREAK_EVEN_UPDATES

    missing: list[str] = []
    lines: list[str] = []
    lines += section("The whole loop, on the CPU", "throughput", missing)
    lines += section(
        "MinAtar, the whole loop on the CPU", "minatar_cpu", missing, "In processor time (`--clock cpu`), on a shared machine."
    )
    lines += section("The learner alone, on the CPU", "learner", missing)
    record = load("learner")
    paid = [] if record is None else break_even(record)
    if paid:
        lines += ["### When compiling pays", "", *paid, ""]
    lines += section(
        "R2D2's learner, on the CPU",
        "recurrent",
        missing,
        "The bare variants do only the network's passes and Adam: the least an update can be.",
    )
    lines += section("Replay", "replay", missing)
    lines += ablation(missing)
    lines += gpu(missing)
    lines += pixels(missing)
    lines += section("Atari compared with Stable-Baselines3, on a GPU", "atari_peer", missing)
    lines += section("Atari compared with Stable-Baselines3, on the CPU", "atari_cpu", missing, module="atari_peer")
    more, images = scaling(missing)
    lines += more
    lines += actors(missing)
    lines += section("PPO and recurrent PPO, the whole loop on the CPU", "on_policy", missing)
    pqn = "The single file is PQN in CleanRL's style. In processor time (`--clock cpu`), on a shared machine."
    lines += section("PQN, the whole loop on the CPU", "pqn_cpu", missing, pqn)
    left = f"Not measured yet: {', '.join(missing)} (`make bench`; the GPU's part is `python -m benchmarks.gpu`)." if missing else ""
    page = PROSE.read_text(encoding="utf-8").format(tables="\n".join(lines).rstrip(), missing=left, enough=BREAK_EVEN_UPDATES)
    return {PAGE: page.rstrip() + "\n", **images}


def main() -> None:
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
