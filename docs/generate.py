"""Writes what is made from the code (`make generated`): the algorithms' pages, the tables of keys and wrappers, and the stub that editors
read the keywords of the managed classes from."""

from __future__ import annotations

import sys
from pathlib import Path

import site_hooks

from rl_training import api
from rl_training.api.keywords import Keyword, keywords_of
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
STUB = ROOT / "src" / "rl_training" / "api" / "algorithms.pyi"

_HEAD = """\
# Made by `make generated` from the registry and its settings, for editors and type checkers: the keywords of each class.
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

import gymnasium as gym
from typing_extensions import Self, Unpack

from rl_training.api.managed import ManagedAlgorithm as ManagedAlgorithm
from rl_training.experiment.config import TrainConfig

_Source: TypeAlias = TrainConfig | str | gym.Env[Any, Any] | Callable[..., Any]
"""


def stub() -> str:
    """One TypedDict for the config's keys and one for each kind of settings; a class for each row."""
    rows = [name for name in algorithm_names() if _class_of(name)]
    kinds = {get_algorithm_spec(name).settings: name for name in reversed(rows)}
    parts = [_HEAD, _keywords("_ConfigKeywords", "TypedDict", [key for key in keywords_of(rows[0]) if not key.of_row])]
    for settings, name in reversed(kinds.items()):
        own = [key for key in keywords_of(name) if key.of_row]
        parts.append(_keywords(_name(settings), "_ConfigKeywords", own))
    for name in rows:
        parts.append(_class(_class_of(name) or "", name, _name(get_algorithm_spec(name).settings)))
    return "\n".join(parts)


def _class_of(row: str) -> str | None:
    """The name of the class that the package exports for a row."""
    return next((name for name, kind in vars(api).items() if getattr(kind, "row", None) == row), None)


def _name(settings: type) -> str:
    return f"_{settings.__name__.removesuffix('Settings')}Keywords"


def _keywords(name: str, base: str, keys: list[Keyword]) -> str:
    return f"class {name}({base}, total=False):\n" + "".join(f"    {key.name}: {key.type}\n" for key in keys)


def _class(name: str, row: str, keywords: str) -> str:
    return (
        f"class {name}(ManagedAlgorithm, row={row!r}):\n"
        f"    def __init__(self, config: _Source, **keywords: Unpack[{keywords}]) -> None: ...\n"
        "    @classmethod\n"
        "    def from_config(  # type: ignore[override]  # the keys of this row alone\n"
        f"        cls, config: str | Path, **overrides: Unpack[{keywords}]\n"
        "    ) -> Self: ...\n"
    )


def generated() -> dict[Path, str]:
    """Every file that is generated, or holds something that is, and what it should hold."""
    pages = {DOCS / name: text for name, text in site_hooks.algorithm_pages().items()}
    tables = {path: site_hooks.with_tables(path.read_text(encoding="utf-8")) for path in sorted(DOCS.glob("*.md"))}
    return {STUB: stub(), **pages, **tables}


def main() -> int:
    for path, text in generated().items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
