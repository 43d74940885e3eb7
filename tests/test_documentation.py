"""Every command, Python block and YAML block of the README and the documentation is run or checked: a stale one fails here.

Runs are scaled down (a few dozen steps of small networks) by one patch of the place where every run begins; all else is as a reader
does it, page by page, in an empty folder that holds one finished run. `runs/<run>` stands for the newest one.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import pytest
import typer

import rl_training
from command_line import SMALL, Cli, Outcome
from rl_training.api import managed
from rl_training.envs import wrappers
from rl_training.envs.atari.source import import_ale
from rl_training.envs.memory import import_popgym
from rl_training.errors import UserError
from rl_training.experiment import registry, schedules
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec
from rl_training.experiment.yaml_text import parse_yaml
from rl_training.ledger.suites import load_suite, plan_groups
from rl_training.ledger.tune import load_space
from rl_training.runtime import workflows
from rl_training.runtime.run import TrainResult

ROOT = Path(__file__).resolve().parent.parent
WRITTEN = [path for path in ROOT.glob("docs/**/*.md") if path.parent.name != "algorithms"]  # those are made from the registry
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *WRITTEN])
PACKAGE = ROOT / "src" / "rl_training"
FOLDERS = [path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()]
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PYPROJECT = (ROOT / "pyproject.toml").read_text()
EXTRAS = set(re.findall(r"^(\w+) = \[", PYPROJECT.split("[project.optional-dependencies]")[1].split("\n[")[0], re.MULTILINE))
ELSEWHERE = {"tensorboard", "pre-commit", "mkdocs", "wandb", "git", "cd", ".", "pytest", "ray"}  # tools of their own, not ours to run here


class Block(NamedTuple):
    language: str
    text: str
    line: int


def blocks(text: str) -> Iterator[Block]:
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(match[1], match[2], text.count("\n", 0, match.start()) + 1)


def shell_commands(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip()


def scaled_down(config: TrainConfig, done: int) -> TrainConfig:
    """The same run, small: networks, memory and the number of steps; nothing else of the config changes."""
    small = {"learning_starts": 20, "batch_size": 8, "buffer_capacity": 500, "features_dim": 8, "recurrent_hidden_size": 8, "num_steps": 16}
    small |= {"train_frequency": 16, "gradient_steps": 2, "num_quantiles": 4, "minibatch_size": 16}
    settings = config.settings.to_dict()
    settings |= {key: min(value, settings[key]) for key, value in small.items() if key in settings}
    if settings.get("hidden_sizes"):
        settings["hidden_sizes"] = [8] * len(settings["hidden_sizes"])
    total = max(done, min(config.total_timesteps, done + 48))
    return config.replace(total_timesteps=total, schedule_timesteps=None, eval_episodes=1, eval_interval=24, algo_kwargs=settings)


class Reader:
    """A command line whose commands know nothing of what the page's Python, or a command before, has imported and registered: each is a
    process of its own where somebody types it."""

    TABLES: tuple[dict[str, Any], ...] = registry._TABLE, managed._CLASSES, gym.registry, wrappers._TABLE, schedules._NAMED

    def __init__(self, cli: Cli) -> None:
        self._cli, self._before = cli, self._registered()

    def __call__(self, *arguments: str) -> Outcome:
        page, modules = self._registered(), self.forget()
        try:
            return self._cli(*arguments)
        finally:
            self.forget()
            self._register(page)
            sys.modules.update(modules)

    def forget(self) -> dict[str, types.ModuleType]:
        """The modules that are no longer there."""
        self._register(self._before)
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("examples.")}

    def _registered(self) -> list[dict[str, Any]]:
        return [dict(table) for table in self.TABLES]

    def _register(self, contents: list[dict[str, Any]]) -> None:
        for table, content in zip(self.TABLES, contents, strict=True):
            table.clear()
            table.update(content)


@pytest.fixture
def reader(cli: Cli, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """Somebody who follows a page. What the page registers ends with it."""
    call = workflows._call_trainer

    def call_scaled_down(config: TrainConfig, **options: Any) -> TrainResult:
        resumed = options.get("resume_from")
        return call(scaled_down(config, 0 if resumed is None else resumed.step), **options)

    monkeypatch.setattr(workflows, "_call_trainer", call_scaled_down)
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for package in (import_popgym, import_ale):  # as `doctor` does: a module registers its environments once, so they must not end
        with contextlib.suppress(UserError):
            package()
    reader = Reader(cli)
    yield reader
    reader.forget()


def with_run(text: str) -> str:
    newest = max(Path("runs").iterdir(), key=lambda run: run.stat().st_mtime_ns)
    return text.replace("runs/<run>", str(newest))


def test_every_extra_for_users_is_explained() -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert all(f"| `{extra}` |" in text for extra in EXTRAS - {"dev", "docs"})


def test_there_is_something_to_read() -> None:
    assert {"train", "test", "check"} <= MAKE_TARGETS and {"dev", "video", "track"} <= EXTRAS
    assert {"README.md", "docs/index.md", "docs/command-line.md", "docs/extending.md"} <= set(PAGES)
    commands = [command for page in PAGES for block in blocks((ROOT / page).read_text()) for command in shell_commands(block.text)]
    assert sum(command.startswith("rl-training ") for command in commands) > 20


@pytest.mark.parametrize("page", PAGES)
def test_a_page_works_when_it_is_followed(page: str, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace: dict[str, Any] = {"__name__": "a_page"}
    for block in blocks((ROOT / page).read_text(encoding="utf-8")):
        where = f"{page}, line {block.line}"
        if block.language == "bash":
            for command in shell_commands(block.text):
                follow(command, where, reader, monkeypatch)
        elif block.language == "python":
            exec(compile(with_run(block.text), where, "exec"), namespace)
        elif block.language == "yaml":
            check_yaml(block.text, where)
        else:
            assert not re.search(r"^(rl-training|make|pip|python) ", block.text, re.MULTILINE), f"{where}: mark the block with its language"


def follow(command: str, where: str, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(with_run(command), comments=True)
    if ">" in words:
        at = words.index(">")
        words, target = words[:at], words[at + 1]
    else:
        target = None
    if "|" in words:  # what comes before it is a small tool that writes observations
        at = words.index("|")
        piped = subprocess.run(words[:at], capture_output=True, text=True, check=True).stdout
        monkeypatch.setattr("sys.stdin", io.StringIO(piped))
        words = words[at + 1 :]
    tool, arguments = words[0], words[1:]
    if tool == "rl-training":
        outcome = (
            reader(*quick(arguments)) if runs_here(arguments) else reader(*[word for word in arguments if word[0] != "-"][:1], "--help")
        )
        assert outcome.code == 0, f"{where}: {command}: {outcome.err}"
        if target is not None:
            Path(target).write_text(outcome.out)
    else:
        check_other(tool, arguments, f"{where}: {command}")


def runs_here(arguments: list[str]) -> bool:
    """Whether it is one of those that these tests know to be quick."""
    quick = ("train", "eval", "resume", "predict", "export", "algos", "configs", "doctor", "report", "--dry-run", "--version")
    return "--actors" not in arguments and any(word in arguments for word in quick)  # test_distributed.py has runs with actors


def quick(arguments: list[str]) -> list[str]:
    if "doctor" in arguments:
        return ["doctor", "--seconds", "0"]
    if "--jobs" in arguments:  # in processes of their own, which the patch does not reach
        return [*arguments, "--total-timesteps", "30", "--set", "eval_episodes=1", "--output-dir", "side-by-side"]
    if "eval" in arguments and "--episodes" in arguments:
        at = arguments.index("--episodes") + 1
        return [*arguments[:at], str(min(2, int(arguments[at]))), *arguments[at + 1 :]]
    return arguments


def check_other(tool: str, arguments: list[str], where: str) -> None:
    if tool == "make":
        assert set(arguments) <= MAKE_TARGETS, where
    elif tool == "pip":
        extras = {extra.strip() for word in arguments for found in re.findall(r"\[(.*?)\]", word) for extra in found.split(",")}
        assert extras <= EXTRAS, where
    elif tool == "python":
        script = ROOT / (arguments[1].replace(".", "/") + ".py" if arguments[0] == "-m" else arguments[0])
        source = script.read_text(encoding="utf-8")
        for option in (word for word in arguments[1:] if word.startswith("--")):
            assert f'"{option.split("=")[0]}"' in source, f"{where}: {option}"
    else:
        assert tool in ELSEWHERE or tool in {"printf", "echo", "export"}, f"{where}: no test knows {tool}"


def check_yaml(text: str, where: str) -> None:
    """A whole config, or some keys of one."""
    values = parse_yaml(text, source=where)
    assert isinstance(values, dict), where
    TrainConfig.from_dict({**{key: value for key, value in SMALL.items() if key != "algo_kwargs"}, **values}, source=where)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_mentions_is_there(page: str) -> None:
    """Commands, files and links inside sentences."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`([^`\n]+)`", text):
        if code.startswith("rl-training ") and "<" not in code:
            check_flags(shlex.split(code)[1:], f"{page}: {code}")
        elif code.startswith("make "):
            assert set(code.split()[1:]) <= MAKE_TARGETS, f"{page}: {code}"
        elif re.fullmatch(r"(examples|tests|benchmarks)/[\w/]+\.py", code):
            assert (ROOT / code).is_file(), f"{page}: {code}"
        elif re.fullmatch(rf"({'|'.join(FOLDERS)})/[\w/]+\.py", code):
            assert (PACKAGE / code).is_file(), f"{page}: {code}"
        elif module := re.match(r"python -m (benchmarks\.\w+)", code):
            assert importlib.util.find_spec(module[1]) is not None, f"{page}: {code}"
    for target in re.findall(r"\]\(([^)#\s]+?)(?:#[\w-]+)?\)", text):
        if not target.startswith(("http://", "https://")):
            assert (ROOT / page).parent.joinpath(target).exists(), f"{page}: {target}"


def test_the_suite_and_the_space_of_the_measuring_page_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite, _, space = (block.text for block in blocks((ROOT / "docs/measuring.md").read_text(encoding="utf-8")) if block.language == "text")
    monkeypatch.chdir(tmp_path)
    Path("suite.yaml").write_text(suite)
    Path("space.yaml").write_text(space)
    Path("mine.yaml").write_text((ROOT / "configs/dqn/cartpole.yaml").read_text(encoding="utf-8"))
    groups = plan_groups(load_suite("suite.yaml"))
    assert [group.name for group in groups] == ["dqn__cartpole", "mine__wide"] and len(groups[1].plans) == 5
    assert "updates_per_step" in load_space("space.yaml").space


def anchors(page: Path) -> set[str]:
    """Where GitHub lets a link into a page lead: its headings, in small letters, without punctuation, with hyphens for spaces."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_headings(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([\w-]+)\)", text):
        if not target.startswith(("http://", "https://")):
            there = (ROOT / page).parent / target if target else ROOT / page
            assert anchor in anchors(there), f"{page}: {target}#{anchor}"


def check_flags(words: list[str], where: str) -> None:
    from rl_training.cli import app

    command: Any = typer.main.get_command(app)
    known = {"--help"}
    for word in words:
        known |= {name for parameter in command.params for name in parameter.opts}
        if word.startswith("-"):
            assert word.split("=")[0] in known, f"{where}: {word}"
        elif hasattr(command, "commands") and word in command.commands:
            command = command.commands[word]
        else:
            assert not hasattr(command, "commands"), f"{where}: there is no command {word}"


def cells(notebook: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", sorted(ROOT.glob("examples/*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(
    notebook: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its cells as they stand, without Jupyter: only what shows a video in a page is put in the place of IPython's."""
    for module in ("matplotlib", "onnxruntime", "moviepy", "pygame"):
        pytest.importorskip(module)
    shown: list[tuple[Any, ...]] = []
    display = types.ModuleType("IPython.display")
    display.Video = lambda *arguments, **options: shown.append(arguments)  # type: ignore[attr-defined]
    ipython = types.ModuleType("IPython")
    ipython.__dict__.update(version_info=(9, 0), get_ipython=lambda: None)  # matplotlib asks for both
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells(notebook)):
        exec(compile("".join(cell["source"]), f"{notebook.name}, code cell {number}", "exec"), namespace)
    action, values, (asked, _) = namespace["action"], namespace["values"], namespace["agent"].predict(namespace["obs"])
    assert action == asked and values.shape == (1, 2)
    assert shown == [("episode.mp4",)] and Path("episode.mp4").stat().st_size > 1_000
    assert {"policy.onnx", "my_agent"} <= {path.name for path in Path().iterdir()}


def test_notebooks_hold_no_outputs() -> None:
    found = [cell for notebook in ROOT.glob("examples/*.ipynb") for cell in cells(notebook)]
    assert len(found) > 4 and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in found)


@pytest.mark.parametrize("page", PAGES)
def test_pictures_are_there_and_small(page: str) -> None:
    for target in re.findall(r"!\[[^]]+\]\(([^)\s]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        picture = (ROOT / page).parent / target
        assert picture.stat().st_size < 200_000, target
        if picture.suffix == ".svg":
            elsewhere = re.search(r"(?:href|src|url)[=(][\"']?https?:", picture.read_text(encoding="utf-8"))
            assert elsewhere is None, f"{target} asks for something elsewhere"


# The pages made from the registry


def site_hooks() -> Any:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_row_has_a_page_made_from_it() -> None:
    pages: Mapping[str, str] = site_hooks().algorithm_pages()
    assert set(pages) == {"algorithms/index.md", *(f"algorithms/{name}.md" for name in algorithm_names())}
    for name in algorithm_names():
        row, page = get_algorithm_spec(name), pages[f"algorithms/{name}.md"]
        assert "](" not in row.summary and f"[`{name}`]({name}.md)" in pages["algorithms/index.md"]
        assert all(f"| `{key}` |" in page for key in row.settings.model_fields)
        for block in blocks(page):
            if block.language == "bash":
                check_flags(shlex.split(block.text)[1:], name)
            elif block.language == "yaml":
                check_yaml(block.text, name)
            else:
                compile(block.text, name, "exec")


def test_a_row_added_later_appears_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_TABLE", dict(registry._TABLE))
    registry.register_algorithm("a_new_row", trainer="m:f", summary="something new", fixed={"dueling": True}, defaults={"gamma": 0.5})
    hooks = site_hooks()
    page = hooks.algorithm_pages()["algorithms/a_new_row.md"]
    assert "Something new." in page and "| `dueling` | `true` |" in page and "| `gamma` | `0.5` |" in page
    (algorithms,) = (entry["Algorithms"] for entry in hooks.navigation() if "Algorithms" in entry)
    assert algorithms[-1] == {"a_new_row": "algorithms/a_new_row.md"}


def test_the_navigation_has_every_page_once() -> None:
    found = [file for entry in site_hooks().navigation() for file in entry.values() if isinstance(file, str)]
    assert sorted(found) == sorted(path.removeprefix("docs/") for path in PAGES if path.startswith("docs/"))
    assert found[0] == "index.md"


def test_tables_stand_where_they_are_read() -> None:
    """On GitHub too, which runs no hooks."""
    text = (ROOT / "docs" / "configuration.md").read_text() + (ROOT / "docs" / "environments.md").read_text()
    assert all(f"| `{key}` |" in text for key in (*TrainConfig.model_fields, *wrappers.wrapper_names()))


def test_what_is_generated_is_what_the_code_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    import generate  # type: ignore[import-not-found]

    for path, text in generate.generated().items():
        assert path.is_file() and path.read_text(encoding="utf-8") == text, f"{path.name} is not what the code says: make generated"
    pages = {path.name for path in (ROOT / "docs" / "algorithms").iterdir()}
    assert pages == {"index.md", *(f"{name}.md" for name in algorithm_names())}


def test_the_reference_has_every_public_name() -> None:
    pages = site_hooks().reference_pages()
    for package, file in (("rl_training", "index"), ("rl_training.algorithms", "algorithms"), ("rl_training.data", "data")):
        page = pages[f"reference/{file}.md"]
        for name in importlib.import_module(package).__all__:
            assert re.search(rf"^::: rl_training\.[\w.]*\b{name}$", page, re.MULTILINE) or name == "__version__", name


@pytest.mark.parametrize("page", ["migrating-from-stable-baselines3.md", "migrating-from-cleanrl.md"])
def test_what_a_migration_page_calls_ours_is_ours(page: str) -> None:
    """Each name in the column `here` is a key, a row, a class, a wrapper, a flag or a method that exists."""
    keys = set(TrainConfig.model_fields) | {key for name in algorithm_names() for key in get_algorithm_spec(name).settings.model_fields}
    names = keys | set(algorithm_names()) | set(rl_training.__all__) | set(wrappers.wrapper_names()) | {"auto", "sync", "async", "linear"}
    methods = {name for name in dir(rl_training.DQN) if not name.startswith("_")} | {"run.stop", "Callback.on_step"}
    count = 0
    for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("| ") or cells[1] in ("here", "---"):
            continue
        for code in re.findall(r"`([^`]+)`", cells[1]):
            name = re.split(r"[(=]", code)[0]
            if code.startswith("rl-training ") or code.startswith("eval "):
                check_flags(shlex.split(code.removeprefix("rl-training ")), page)
            elif code.startswith("--"):
                check_flags(["train", code], page)
            elif not name.startswith("checkpoints/") and name != "n":
                assert name in names or name in methods, f"{page}: {code}"
            count += 1
    assert count > 25


def test_the_port_quotes_its_record() -> None:
    """The migration page's two blocks are those that were run side by side, and its table is what came out."""
    from benchmarks import sb3_port

    if not sb3_port.RECORD.is_file():
        pytest.skip("the records are in the repository, not in the source distribution")
    page, record = sb3_port.PAGE.read_text(encoding="utf-8"), json.loads(sb3_port.RECORD.read_text(encoding="utf-8"))
    assert sb3_port.code(page) == record["code"]
    assert "\n".join(sb3_port.table(record["results"])) in page
