"""Bad input in one line: what is wrong, where, and the nearest thing that would have been right."""

from __future__ import annotations

import difflib
import numbers
import reprlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import ValidationError


class _Short(reprlib.Repr):
    """`repr` that looks only at what it shows: a value somebody else wrote may be of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxtuple, self.maxdict, self.maxstring, self.maxother = 3, 8, 8, 4, 60, 60

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 200 else f"an integer of {x.bit_length()} bits"


_SHORT = _Short()


def shown(value: object) -> str:
    """A value as a message shows it: whole where it is short."""
    return " ".join(_SHORT.repr(value).split())


def no_mapping(value: object, *, such_as: str) -> str:
    """What to say of a file that holds `value` where keys and values are wanted."""
    wanted = f"must hold keys and values, such as `{such_as}`"
    return f"is empty; it {wanted}" if value is None else f"{wanted}, got {shown(value)}"


def whole_number(value: object, name: str, *, least: int) -> int:
    """An argument that counts something; ConfigError in the words of a config's keys where it is none."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        write = f"; write {int(value)}" if isinstance(value, float) and value.is_integer() else ""
        raise ConfigError(f"{name} must be an integer, got {shown(value)}{write}")
    if value < least:
        raise ConfigError(f"{name} must be >= {least}, got {shown(int(value))}")
    return int(value)


def nearest(name: object, candidates: Iterable[str]) -> str | None:
    """The candidate most like `name`, or None where nothing is like it."""
    found = difflib.get_close_matches(str(name)[:100], list(candidates), n=1, cutoff=0.7)
    return found[0] if found else None


def did_you_mean(name: object, candidates: Iterable[str]) -> str:
    """`; did you mean X?`, or all the candidates where none is near and they are few."""
    known = sorted(candidates)
    close = nearest(name, known)
    if close:
        return f"; did you mean {close}?"
    return f"; known: {', '.join(known)}" if len(known) <= 20 else ""


_KINDS = {
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "finite_number": "a finite number",
}
_BOUNDS = {"greater_than": (">", "gt"), "greater_than_equal": (">=", "ge"), "less_than": ("<", "lt"), "less_than_equal": ("<=", "le")}


def _one(error: Any, prefix: str, unknown: Callable[[str], str]) -> str:
    key = prefix + ".".join(f"{part!s:.60}" for part in error["loc"])
    kind, value, context = error["type"], error.get("input"), error.get("ctx", {})
    if kind == "value_error":  # raised by our own validators, whose text is finished
        text = str(context["error"])
        return f"{key}{'' if text.startswith('.') else ' '}{text}" if error["loc"] else prefix + text
    if kind == "extra_forbidden":
        return key + unknown(str(error["loc"][-1]))
    if kind == "missing":
        return f"{key} is missing"
    if kind in _BOUNDS:
        sign, name = _BOUNDS[kind]
        return f"{key} must be {sign} {context[name]}, got {shown(value)}"
    if kind == "literal_error":
        return f"{key} must be one of {context['expected']}, got {shown(value)}"
    if kind == "int_type" and isinstance(value, float) and value.is_integer():
        return f"{key} must be an integer, got {shown(value)}; write {int(value)}"
    if kind in _KINDS:
        return f"{key} must be {_KINDS[kind]}, got {shown(value)}"
    if kind == "too_short":
        return f"{key} must hold at least {context['min_length']} values, got {context['actual_length']}"
    if kind == "too_long":
        return f"{key} must hold at most {context['max_length']} values, got {context['actual_length']}"
    return f"{key}: {error['msg']}, got {shown(value)}"


def one_line(error: ValidationError, *, prefix: str = "", unknown: Callable[[str], str]) -> str:
    """The first of pydantic's complaints in our words, and how many more there are.

    `unknown(key)` is what to say after a key that does not exist.
    """
    errors = error.errors(include_url=False)
    # An unknown key is nearly always the cause of a missing one: say it first.
    errors.sort(key=lambda each: each["type"] != "extra_forbidden")
    rest = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return " ".join(_one(errors[0], prefix, unknown).split()) + rest
