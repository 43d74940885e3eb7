"""YAML as people write it: `1e-3` is a number, a key given twice is a mistake, and aliases do not make much of little."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from rl_training.errors import ConfigError
from rl_training.experiment.explain import no_mapping, shown
from rl_training.experiment.files import read_text, reason

MAX_BYTES = 1 << 18
"""Of a file that is read as YAML. Python reads a megabyte of it in a quarter of a minute, and no config is that long."""

MAX_EXPANDED = 1 << 20
"""Of what a text says when every alias is written out: values and their characters."""


class _Loader(yaml.SafeLoader):
    """SafeLoader (nothing is ever constructed but plain values) without two of YAML 1.1's traps."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                if key_node.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key_node.value} is given twice", key_node.start_mark)
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {first: list(known) for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()}
# YAML 1.1 asks for a dot and a sign (`1.0e-3`); people and JSON write 1e-3.
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"), list("-+0123456789"))


def parse_yaml(text: str, *, source: str) -> Any:
    """The plain value in `text`, or a ConfigError with line and column."""
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{source}: is larger than the {MAX_BYTES:,} characters that are read as YAML")
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _expanded(node, {})
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise ConfigError(f"{source}:{place} {' '.join(str(error.problem or error.context).split())}") from None
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{source}: not text YAML can hold, at position {error.position} ({error.reason})") from None
    except (ValueError, RecursionError) as error:  # such as the date 2024-99-99, or a thousand brackets
        raise ConfigError(f"{source}: {' '.join(str(error).split())}") from None


def read_yaml(path: Path, *, source: str | None = None) -> Any:
    """The plain value in the file `path`, or a ConfigError that begins with `source` (the path if not said)."""
    name = str(path) if source is None else source
    try:
        text = read_text(path, limit=MAX_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: cannot be read ({reason(error)})") from None
    return parse_yaml(text, source=name)


def read_mapping(path: Path, *, such_as: str) -> dict[str, Any]:
    """The keys and values in the file `path`; keys are text."""
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: {no_mapping(values, such_as=such_as)}")
    if strange := [key for key in values if not isinstance(key, str)]:
        raise ConfigError(f"{path}: {shown(strange[0])} is no key, which is text")
    return values


def _expanded(node: yaml.Node, known: dict[int, int]) -> int:
    """How much stands under `node` with every alias written out; ValueError where that is too much, or has no end."""
    found = known.get(id(node))
    if found is not None:
        if found < 0:
            raise ValueError("an alias stands inside of what it is an alias of")
        return found
    known[id(node)] = -1  # under way
    if isinstance(node, yaml.ScalarNode):
        total = 1 + len(node.value)
    else:
        inner = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        total = 1 + sum(_expanded(each, known) for each in inner)
    if total > MAX_EXPANDED:
        raise ValueError("its aliases, written out, are too much to read")
    known[id(node)] = total
    return total
