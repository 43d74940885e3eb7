"""Bad input in one line: what is wrong, where, and the nearest thing that would have been right."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError


def nearest(name: object, candidates: Iterable[str]) -> str | None:
    """The candidate most like `name`, or None where nothing is like it."""
    found = difflib.get_close_matches(str(name), list(candidates), n=1, cutoff=0.7)
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
    key = prefix + ".".join(str(part) for part in error["loc"])
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
        return f"{key} must be {sign} {context[name]}, got {value!r}"
    if kind == "literal_error":
        return f"{key} must be one of {context['expected']}, got {value!r}"
    if kind == "int_type" and isinstance(value, float) and value.is_integer():
        return f"{key} must be an integer, got {value!r}; write {int(value)}"
    if kind in _KINDS:
        return f"{key} must be {_KINDS[kind]}, got {value!r}"
    return f"{key}: {error['msg']}, got {value!r}"


def one_line(error: ValidationError, *, prefix: str = "", unknown: Callable[[str], str]) -> str:
    """The first of pydantic's complaints in our words, and how many more there are.

    `unknown(key)` is what to say after a key that does not exist.
    """
    errors = error.errors(include_url=False)
    # An unknown key is nearly always the cause of a missing one: say it first.
    errors.sort(key=lambda each: each["type"] != "extra_forbidden")
    rest = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return " ".join(_one(errors[0], prefix, unknown).split()) + rest
