"""`doctor`: versions, machine, extras, environments, and a speed check."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest
from packaging.requirements import Requirement

from command_line import Cli
from rl_training import __version__
from rl_training.runtime import doctor


def test_what_it_says(cli: Cli) -> None:
    done = cli("doctor", "--seconds", "0")
    assert done.code == 0 and done.err == ""
    sections = [line for line in done.out.splitlines() if not line.startswith(" ")]
    assert sections == ["versions", "machine", "extras", "environments"]
    lines = {line.split("   ")[0].strip(): line for line in done.out.splitlines()}
    assert __version__ in lines["rl-training"] and metadata.version("torch") in lines["torch"]
    assert lines["CartPole-v1 (Gymnasium)"].endswith(" yes") and lines["rl_training/TMaze-v0 (this package)"].endswith(" yes")


def test_the_speed_check_measures_stepping_and_training() -> None:
    lines = [line for line in doctor.examine(0.6) if line.section == "speed"]
    assert lines[0].name.startswith("CartPole-v1")
    assert {name for line in lines for name in ("dqn", "drqn") if f"configs/{name}/cartpole.yaml on cpu" in line.name} == {"dqn", "drqn"}
    for line in lines:
        assert float(line.finding.split()[0].replace(",", "")) > 0
    for line in lines[1:]:
        assert float(line.finding.split("with ")[1].split()[0].replace(",", "")) > 0


class Extras:
    """What a distribution's metadata says of its extras."""

    def get_all(self, name: str) -> list[str]:
        return ["one", "two", "three"]


def test_extras_name_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extra may ask for another package's extra: gymnasium[box2d] is complete when that one's packages are there."""
    needs: dict[str, Any] = {
        "rl-training": ["numpy", 'a[x]>=1 ; extra == "one"', 'gone ; extra == "two"', 'here ; python_version < "3" and extra == "two"'],
        "a": ['b ; extra == "x"', 'c ; extra == "y"', "d"],
    }
    monkeypatch.setattr(metadata, "metadata", lambda name: Extras())

    def requires(name: str) -> Any:
        if name not in needs:
            raise metadata.PackageNotFoundError(name)
        return needs[name]

    monkeypatch.setattr(metadata, "requires", requires)
    assert doctor.extras() == {"one": ["b"], "two": ["gone"], "three": []}


def test_every_extra_of_this_package_is_looked_at() -> None:
    assert "dev" in doctor.extras()
    assert all(Requirement(text).name for text in metadata.requires("rl-training") or ())
