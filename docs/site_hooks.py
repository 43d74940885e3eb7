"""What the documentation takes from the code: one page per algorithm, the tables of keys and wrappers, the reference and the navigation.

Pages and tables stand in the repository, where they are read too (`make generated` writes them); the reference is the site's alone.
"""

from __future__ import annotations

import html
import importlib
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training import api
from rl_training.envs import wrappers
from rl_training.experiment.config import TrainConfig, shipped_configs
from rl_training.experiment.meanings import meaning
from rl_training.experiment.registry import AlgorithmSpec, algorithm_names, get_algorithm_spec
from rl_training.experiment.schema import config_schema, row_schema
from rl_training.experiment.shipped import describe_shipped, reached
from rl_training.ledger.text import reached_text

DOCS = Path(__file__).resolve().parent

# In reading order; those that are not there are left out, those that are not named here come last.
PAGES = (
    ("Getting started", "index.md"),
    ("Which algorithm should I use?", "choosing.md"),
    ("Atari in ten minutes", "atari-in-ten-minutes.md"),
    ("R2D2 on your own task", "r2d2-on-your-own-task.md"),
    ("From one machine to many", "from-one-machine-to-many.md"),
    ("Command line", "command-line.md"),
    ("Configuration", "configuration.md"),
    ("Checkpoints and resume", "checkpoints.md"),
    ("Environments and episode ends", "environments.md"),
    ("Pixels", "pixels.md"),
    ("Atari", "atari.md"),
    ("Atari compared", "atari-compared.md"),
    ("Action masks", "action_masks.md"),
    ("Callbacks and trackers", "callbacks.md"),
    ("Many machines", "distributed.md"),
    ("Export and import", "export.md"),
    ("Extending", "extending.md"),
    ("Measuring", "measuring.md"),
    ("Results", "results.md"),
    ("Performance", "performance.md"),
    ("From Stable-Baselines3", "migrating-from-stable-baselines3.md"),
    ("From CleanRL", "migrating-from-cleanrl.md"),
    ("Architecture", "architecture.md"),
    ("Yearly sourcebook", "plans/2026-03-12-rl-yearly-sourcebook-design.md"),
)


# Of the reference, by its place in the site: the package whose public names it renders, and what it says first.
REFERENCE = {
    "reference/index.md": (
        "rl_training.api",
        "What users import from `rl_training`. The keys of a class stand on its algorithm's page.",
    ),
    "reference/algorithms.md": ("rl_training.algorithms", "The update mathematics: losses, and the small classes that apply them."),
    "reference/models.md": ("rl_training.models", "Networks."),
    "reference/data.md": ("rl_training.data", "Replay and rollouts."),
}

CONFIGS = (
    "`rl-training configs show NAME` prints one. *Reached* is the greedy return of the best checkpoint: the interquartile mean over seeds "
    "and its 95% interval ([Results](../results.md))."
)


# MkDocs calls these


def on_config(config: Any) -> Any:
    config["nav"] = navigation()
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for name, text in reference_pages().items():
        files.append(File.generated(config, name, content=text))
    return files


# What they say


def navigation() -> list[dict[str, Any]]:
    nav: list[dict[str, Any]] = [{title: file} for title, file in PAGES if (DOCS / file).exists()]
    named = {file for _, file in PAGES}
    others = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    nav += [{_title(DOCS / file): file} for file in others if file not in named and not file.startswith("algorithms/")]
    rows = [{name: f"algorithms/{name}.md"} for name in algorithm_names()]
    nav.append({"Python reference": [{package.replace(".api", ""): file} for file, (package, _) in REFERENCE.items()]})
    after = next(at for at, entry in enumerate(nav) if "Configuration" in entry) + 1
    nav.insert(after, {"Algorithms": [{"All of them": "algorithms/index.md"}, *rows]})
    return nav


def _title(path: Path) -> str:
    first = path.read_text(encoding="utf-8").split("\n", 1)[0]
    return first.removeprefix("#").strip() or path.stem


def algorithm_pages() -> dict[str, str]:
    """The generated pages, by their place in the site."""
    rows = [get_algorithm_spec(name) for name in algorithm_names()]
    return {"algorithms/index.md": _index(rows), **{f"algorithms/{row.name}.md": _page(row) for row in rows}}


def reference_pages() -> dict[str, str]:
    """Pages that mkdocstrings fills from the docstrings of every public name."""
    pages = {}
    for file, (package, first) in REFERENCE.items():
        module = importlib.import_module(package)
        names = sorted(_place(getattr(module, name), f"{package}.{name}") for name in module.__all__)
        pages[file] = f"# {package.replace('.api', '')}\n\n{first}\n\n" + "\n\n".join(f"::: {name}" for name in dict.fromkeys(names)) + "\n"
    return pages


def _place(thing: Any, name: str) -> str:
    """Where a public name is defined: its docstring is read there."""
    return f"{thing.__module__}.{thing.__qualname__}" if hasattr(thing, "__qualname__") else name


def _index(rows: Sequence[AlgorithmSpec]) -> str:
    lines = [(f"[`{row.name}`]({row.name}.md)", row.summary, ", ".join(row.parts), _linked(row.paper)) for row in rows]
    return (
        "# Algorithms\n\nEach algorithm is a row of one table: what defines it is fixed, everything else can be configured. "
        "`rl-training algos` prints the same table.\n\n" + _table(("algorithm", "what it is", "parts", "paper"), lines)
    )


def _page(row: AlgorithmSpec) -> str:
    managed = next((kind for kind in vars(api).values() if getattr(kind, "row", None) == row.name), None)
    configs = [name for name in shipped_configs() if name.startswith(f"{row.name}/")]
    configs.sort(key=lambda name: not name.endswith("/cartpole.yaml"))  # first the one that needs no extra
    said = f"{row.summary[0].upper()}{row.summary[1:]}." if managed is None else (inspect.getdoc(managed) or "").split("\n\n")[0]
    parts = [f"# {row.name}", _linked(said)]
    python = "" if managed is None else f", in Python `rl_training.{managed.__name__}`"
    paper = f" Paper: {_linked(row.paper)}." if row.paper and row.paper not in said else ""
    parts.append(f"In a config `algo: {row.name}`{python}.{paper}")
    identity = [(f"`{key}`", f"`{_yaml(value)}`") for key, value in row.fixed.items()]
    identity += [(f"`{key}`", f"at least `{least}`") for key, least in row.minimum.items()]
    if identity:
        parts += [
            "## What it is",
            "Fixed for this algorithm; a config that says otherwise is rejected.",
            _table(("key", "value"), identity),
        ]
    parts.append(f"Observations: {_spaces(row.observations)}. Actions: {_spaces(row.actions)}.")
    if configs:
        parts += ["## Train it", f"```bash\nrl-training train --config {configs[0].removesuffix('.yaml')}\n```"]
    if managed is not None:
        name = managed.__name__
        made = f'.from_config("{configs[0].removesuffix(".yaml")}")\nagent.learn()' if configs else '("CartPole-v1")\nagent.learn(50_000)'
        parts.append(f"```python\nfrom rl_training import {name}\n\nagent = {name}{made}\n```")
    if configs:
        parts += ["## Shipped configs", CONFIGS, _configs(row.name)]
    parts += ["## Settings", f"{inspect.getdoc(row.settings)} Settings go under `algo_kwargs`.", _settings(row)]
    return "\n\n".join(parts) + "\n"


def _configs(row: str) -> str:
    """The row's shipped configs: task, steps, and what was reached where it was measured."""
    known, lines = reached(), []
    for each in describe_shipped(row):
        found = known.get(each.name)
        figures = reached_text(found) if found else "not measured"
        lines.append((f"`{each.name}`", found["task"] if found else f"`{each.env_id}`", f"{each.total_timesteps:,}", figures))
    return _table(("config", "task", "steps", "reached"), lines)


def _settings(row: AlgorithmSpec) -> str:
    schema = row_schema(row.name)["properties"]
    lines = []
    for key, field in row.settings.model_fields.items():
        if key in row.fixed:
            continue
        default = row.defaults.get(key, field.default)
        needs = " and ".join(f"`{need}`" for need in row.settings.needs(key))
        said = html.escape(meaning(key, field), quote=False)
        lines.append((f"`{key}`", f"`{_yaml(default)}`", _kind(schema[key]), said, needs))
    return _table(("key", "default", "takes", "meaning", "only with"), lines)


def with_tables(markdown: str) -> str:
    """A page with its generated tables as they should be: each between `<!-- table: config -->`, or wrappers, and `<!-- table: end -->`."""
    tables = {"config": _config_table, "wrappers": _wrapper_table}
    between = r"(<!-- table: (\w+) -->\n).*?(<!-- table: end -->)"
    return re.sub(between, lambda match: f"{match[1]}{tables[match[2]]()}\n{match[3]}", markdown, flags=re.DOTALL)


def _config_table() -> str:
    schema = config_schema()["properties"]
    lines = []
    for key, field in TrainConfig.model_fields.items():
        default = "required" if field.is_required() else f"`{_yaml(field.get_default(call_default_factory=True))}`"
        lines.append(
            (f"`{key}`", default, "" if key == "algo" else _kind(schema[key]), html.escape(schema[key].get("description", ""), quote=False))
        )
    return _table(("key", "default", "takes", "meaning"), lines)


def _wrapper_table() -> str:
    lines = []
    for name in wrappers.wrapper_names():
        target = wrappers._TABLE.get(name) or wrappers._ADAPTER[name]
        arguments = [p for p in list(inspect.signature(target).parameters.values())[1:] if p.name != "update"]
        shown = ", ".join(f"`{p.name}`" + ("" if p.default is p.empty else f" ({_yaml(p.default)})") for p in arguments)
        lines.append((f"`{name}`", shown, (inspect.getdoc(target) or "").split("\n\n")[0].replace("\n", " ")))
    return _table(("name", "arguments", "what it does"), lines)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _linked(paper: str) -> str:
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", paper)


def _spaces(kinds: tuple[str, ...]) -> str:
    return " or ".join(kind.replace("_", "-") for kind in kinds)


def _yaml(value: Any) -> str:
    """A value as a config writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_yaml(item) for item in value) + "]"
    return str(value)


def _kind(schema: Mapping[str, Any]) -> str:
    """What a key takes, from its JSON schema, in a few words."""
    if "anyOf" in schema:
        return " or ".join(_kind(option) for option in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{_yaml(value)}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "anything")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "array":
        items = schema.get("items", {})
        return f"list of {_kind(items)}" if items.get("type") else "list"
    bounds = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
    limits = [f"{sign} {schema[name]:g}" for name, sign in bounds.items() if name in schema and schema[name] < 2**60]
    names = {"boolean": "true or false", "string": "text", "object": "mapping", "null": "`null`"}
    return f"{names.get(kind, kind)} {', '.join(limits)}".strip()
