"""Passwords and tokens in addresses: used by the process they were given to, and written nowhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
_USER = re.compile(r"(?<=://)[^/\s'\"]*@")  # https://user:password@host, https://token@host
_QUERY = re.compile(r"([?&][\w.-]*(?:password|passwd|token|secret|key|credential)[\w.-]*=)[^&\s'\"]+", re.IGNORECASE)


def masked(value: Any) -> Any:
    """`value` with the credentials of every address in its text masked."""
    if isinstance(value, str):
        return _QUERY.sub(rf"\1{MASK}", _USER.sub(f"{MASK}@", value)) if "://" in value else value
    if isinstance(value, Mapping):
        return {key: masked(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(item) for item in value]
    return value
