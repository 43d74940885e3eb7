"""What the repository has beside the code: a workflow, issue forms, a citation, a Dockerfile, and a package that installs.

The workflow and the Dockerfile are only read here: nothing on this side runs them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import rl_training

ROOT = Path(__file__).resolve().parent.parent
if not (ROOT / ".github").is_dir():
    pytest.skip("the repository's own files are not in the source distribution", allow_module_level=True)
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
EXTRAS = set(re.findall(r"^(\w+) = \[", PYPROJECT.split("[project.optional-dependencies]")[1].split("\n[")[0], re.MULTILINE))


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_workflow_runs_what_exists_on_every_supported_python() -> None:
    jobs = read(".github/workflows/ci.yml")["jobs"]
    supported = re.findall(r"Programming Language :: Python :: (3\.\d+)", PYPROJECT)
    assert jobs["test"]["strategy"]["matrix"]["python"] == supported
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    for command in commands:
        tool, *words = command.split()
        if tool == "make":
            assert {word for word in words if "=" not in word} <= MAKE_TARGETS, command
        else:
            assert tool == ".venv/bin/python" and (ROOT / words[-1]).is_file(), command
    assert {"make check PYTHON=python", "make test PYTHON=python"} <= set(commands)


@pytest.mark.parametrize("form", ["bug_report.yml", "feature_request.yml"])
def test_issue_forms_are_forms(form: str) -> None:
    content = read(f".github/ISSUE_TEMPLATE/{form}")
    assert content.keys() >= {"name", "description", "body"}
    assert all(part["type"] in {"textarea", "input", "dropdown", "checkboxes", "markdown"} for part in content["body"])
    ids = [part["id"] for part in content["body"]]
    assert len(set(ids)) == len(ids) and all(part["attributes"]["label"] for part in content["body"])


def test_the_citation_is_of_this_version() -> None:
    citation = read("CITATION.cff")
    assert citation["version"] == rl_training.__version__ and citation["license"] == "MIT" and citation["authors"]
    assert citation.keys() >= {"cff-version", "message", "title"}


def test_the_dockerfile_copies_and_installs_what_there_is() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert {step[0] for step in steps} <= {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "ENTRYPOINT", "CMD"}
    kept = (ROOT / ".dockerignore").read_text().split()
    for source in [word for name, rest in steps if name == "COPY" for word in rest.split()[:-1]]:
        assert (ROOT / source).exists() and f"!{source}" in kept, source
    (extras,) = re.findall(r"\.\[(.*?)\]", text)
    assert set(extras.split(",")) <= EXTRAS
    assert '["rl-training"]' in text


@pytest.mark.slow
def test_the_package_builds_installs_and_trains(tmp_path: Path) -> None:
    """sdist and wheel; the wheel made from the sdist is the same; installed apart from the clone it trains by a shipped config."""
    pytest.importorskip("hatchling")
    dist = tmp_path / "dist"
    build(ROOT, dist)
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    with tarfile.open(sdist) as packed:
        names = [Path(*Path(member.name).parts[1:]).as_posix() for member in packed.getmembers()]
        packed.extractall(tmp_path / "unpacked", filter="data")
    assert {"README.md", "LICENSE", "CITATION.cff", "src/rl_training/assets/configs/dqn/cartpole.yaml", "tests/test_cli.py"} <= set(names)
    assert not [name for name in names if name.startswith(("configs/", "benchmarks/results/", ".venv"))]
    (source,) = (tmp_path / "unpacked").iterdir()
    build(source, tmp_path / "again", "-t", "wheel")
    (again,) = (tmp_path / "again").glob("*.whl")
    inside = [sorted(zipfile.ZipFile(file).namelist()) for file in (wheel, again)]
    assert inside[0] == inside[1]
    needed = {"py.typed", "api/algorithms.pyi", "assets/reached.json", "assets/configs/dqn/cartpole.yaml", "assets/report/page.html"}
    assert {f"rl_training/{name}" for name in needed} <= set(inside[0])
    assert not [name for name in inside[0] if not name.startswith("rl_training")]

    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    where = [sys.executable, "-c", "import rl_training; print(rl_training.__file__)"]
    assert Path(run(where, tmp_path, environment).strip()).is_relative_to(site)
    train = [sys.executable, "-m", "rl_training", "train", "dqn", "--env", "CartPole-v1", "--total-timesteps", "60", "--quiet"]
    checkpoint = tmp_path / run(train, tmp_path, environment).strip()
    assert checkpoint.name == "step_60" and (checkpoint / "model.safetensors").is_file()


def build(source: Path, to: Path, *more: str) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(to), *more], cwd=source, check=True, capture_output=True)


def run(command: list[str], cwd: Path, environment: dict[str, str]) -> str:
    return subprocess.run(command, cwd=cwd, env=environment, check=True, capture_output=True, text=True).stdout
