"""Values that do not change once they are checked, and say what to do instead to whoever tries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from pydantic import BaseModel, ConfigDict

from rl_training.errors import ConfigError
from rl_training.experiment.explain import shown


class Frozen(BaseModel):
    """A checked record: strict, without unknown keys, of finite numbers, and never changed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def _instead(self, key: str, value: str) -> str:
        """What to write in place of an assignment; `value` as it is shown."""
        raise NotImplementedError

    if not TYPE_CHECKING:  # type checkers see that the fields are read-only by themselves

        def __setattr__(self, name: str, value: Any) -> None:
            if name.startswith("_"):  # private: what validation keeps beside the fields
                super().__setattr__(name, value)
            else:
                raise ConfigError(f"{name} cannot be assigned; {self._instead(name, shown(value))}")

        def __delattr__(self, name: str) -> None:
            raise ConfigError(f"{name} cannot be deleted; {self._instead(name, '...')}")


class FrozenDict(dict[str, Any]):
    """A mapping inside a config. It has been parsed already: a later change of it would be checked by nobody and, mostly, do nothing."""

    def __init__(self, name: str, values: dict[str, Any]) -> None:
        super().__init__(values)
        self._name = name

    def _refuse(self, *arguments: Any, **keywords: Any) -> NoReturn:
        key, value = (arguments[0], shown(arguments[1])) if len(arguments) == 2 and isinstance(arguments[0], str) else ("key", "...")
        raise ConfigError(f"{self._name} of a config cannot be changed in place; {changed_copy(self._name, key, value)}")

    __setitem__ = __delitem__ = __ior__ = pop = popitem = clear = update = setdefault = _refuse

    def __reduce__(self) -> tuple[Any, ...]:  # a copy is whoever's makes it
        return dict, (dict(self),)


def changed_copy(mapping: str, key: str, value: str) -> str:
    """How to get a config with one key of a mapping changed."""
    return f'config.replace({mapping}={{**config.{mapping}, "{key}": {value}}}) gives a changed copy'
