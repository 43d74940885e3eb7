"""What the keys of a config may hold: values that a file holds too, so that a resumed run gets exactly what the first one got."""

from __future__ import annotations

import numbers
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from rl_training.experiment.explain import shown
from rl_training.experiment.frozen import FrozenDict
from rl_training.experiment.schedules import named_callables


def plain(value: Any, where: str = "") -> Any:
    """`value` as YAML and JSON can hold it; tuples become lists."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, numbers.Integral):  # NumPy's too
        if int(value).bit_length() > 1_024:
            raise ValueError(f"{where} must be a smaller number, got {shown(int(value))}")
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if where.count(".") > 16:  # a YAML alias can make a list its own element
        raise ValueError(f"{where[:40]}... is nested too deeply")
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}.{index}") for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{where}.{shown(key)} must have text for its key")
            _text(key, f"{where}.{key}")
        return {key: plain(item, f"{where}.{key}") for key, item in value.items()}
    raise ValueError(f"{where} must be a number, text, list or mapping (it is saved with the run), got {shown(value)}")


def _text(value: str, where: str = "") -> str:
    """Text that a file can hold: JSON can spell half a character, and YAML writes a NUL that nobody can read back."""
    if "\0" in value or (not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value)):
        raise ValueError(f"{where} must be text that a file can hold, got {shown(value)}".strip())
    return value


def _mapping(value: Any) -> Any:
    if value is None:  # `algo_kwargs:` with nothing under it
        return {}
    return plain(value) if isinstance(value, Mapping) else value


EnvKwargs = Annotated[dict[str, Any], BeforeValidator(_mapping), AfterValidator(partial(FrozenDict, "env_kwargs"))]
EvalEnvKwargs = Annotated[dict[str, Any], BeforeValidator(_mapping), AfterValidator(partial(FrozenDict, "eval_env_kwargs"))]
AlgoKwargs = Annotated[
    dict[str, Any], BeforeValidator(lambda value: _mapping(named_callables(value))), AfterValidator(partial(FrozenDict, "algo_kwargs"))
]


def _folder(value: Any) -> Path:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise ValueError(f"must be text, got {shown(value)}")
    return Path(_text(text))


Folder = Annotated[Path, BeforeValidator(_folder)]
Text = Annotated[str, AfterValidator(_text)]
