"""The shipped configs: where they are, which one is meant by a name, and which one a row has for an environment."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.errors import ConfigError
from rl_training.experiment.explain import nearest
from rl_training.experiment.files import read_json
from rl_training.experiment.yaml_text import read_mapping

_ASSETS = Path(__file__).resolve().parent.parent / "assets"
SHIPPED_CONFIGS = _ASSETS / "configs"
REACHED = _ASSETS / "reached.json"
"""What the shipped configs reached, by name: `make results` writes it from the ledger's records."""


class Shipped(NamedTuple):
    """A shipped config by its name, `<row>/<task>`, with what a list says of it."""

    name: str
    env_id: str
    env_kwargs: dict[str, Any]
    total_timesteps: int

    @property
    def row(self) -> str:
        return self.name.partition("/")[0]


def find_config(path: str | Path) -> Path:
    """The file itself, else the shipped one of that name, with or without a leading `configs/` and `.yaml`."""
    path = Path(path)
    if path.is_file():
        return path
    name = Path(*path.parts[1:]) if path.parts[:1] == ("configs",) else path
    for each in (name, Path(f"{name}.yaml")):
        shipped = Path(os.path.realpath(SHIPPED_CONFIGS / each))  # unlike `resolve` it takes a loop of links for a path that is not there
        if shipped.is_file() and shipped.is_relative_to(SHIPPED_CONFIGS):
            return shipped
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder, not a config")
    ending = "" if name.suffix == ".yaml" else ".yaml"
    close = nearest(f"{name.as_posix()}{ending}", shipped_configs())
    hint = f"; did you mean {path.parts[0] + '/' if name != path else ''}{close.removesuffix(ending)}?" if close else ""
    raise ConfigError(f"{path}: no such config, here or among the shipped ones{hint or ' (rl-training configs lists them)'}")


def shipped_configs() -> tuple[str, ...]:
    """The shipped configs, as `<row>/<task>.yaml`."""
    return tuple(sorted(path.relative_to(SHIPPED_CONFIGS).as_posix() for path in SHIPPED_CONFIGS.glob("*/*.yaml")))


def describe_shipped(row: str = "*") -> tuple[Shipped, ...]:
    """The shipped configs of a row, or of all of them, by name."""
    return tuple(_described(path) for path in sorted(SHIPPED_CONFIGS.glob(f"{row}/*.yaml")))


@cache
def _described(path: Path) -> Shipped:
    values = read_mapping(path, such_as="algo: dqn")
    name = path.relative_to(SHIPPED_CONFIGS).with_suffix("").as_posix()
    return Shipped(name, values["env_id"], values.get("env_kwargs") or {}, values["total_timesteps"])


def shipped_for(row: str, env_id: str) -> str | None:
    """The name of the config shipped for this row on this environment as it is, without keywords and wrappers; None where there is none."""
    return next((each.name for each in describe_shipped(row) if each.env_id == env_id and not each.env_kwargs), None)


def reached() -> dict[str, dict[str, Any]]:
    """What each shipped config reached, where it was measured: `{name: {task, mean, low, high, seeds}}`."""
    found: dict[str, dict[str, Any]] = read_json(REACHED, limit=1 << 20) if REACHED.is_file() else {}
    return found
