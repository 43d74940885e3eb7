"""YAML as people write it: `1e-3` is a number, and a key given twice is a mistake."""

from __future__ import annotations

import re
from typing import Any

import yaml

from rl_training.errors import ConfigError


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
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise ConfigError(f"{source}:{place} {' '.join(str(error.problem or error.context).split())}") from None
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{source}: not text YAML can hold, at position {error.position} ({error.reason})") from None
    except (ValueError, RecursionError) as error:  # such as the date 2024-99-99, or a thousand brackets
        raise ConfigError(f"{source}: {' '.join(str(error).split())}") from None
