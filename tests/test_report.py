"""The report page: what it finds, that nothing in a run breaks out of it, its arithmetic in Node, the page itself in a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import ledger_runs
from browser import Browser, find_browser
from rl_training.cli import main
from rl_training.errors import UserError
from rl_training.ledger import run_views
from rl_training.ledger.report import PAGE, page_data, render, thinned, write_report
from rl_training.ledger.run_views import find_runs
from rl_training.ledger.statistics import Statistics

EVIL = "</script><img src=x onerror='window.broken = 1'>"


def write_records(folder: Path) -> Path:
    folder.mkdir()
    for algo, finals in (("dqn", (10.0, 20.0, 60.0)), ("qr_dqn", (40.0, 50.0, 90.0))):
        for seed, final in enumerate(finals, 1):
            raw = ledger_runs.record(f"{algo}__cartpole__seed{seed}", algo, best=final + 1, final=final, wall_time_s=3.5)
            (folder / f"{raw['name']}.json").write_text(json.dumps(raw))
    (folder / "statistics.json").write_text(
        json.dumps({"iqm [[11.0, 21.0, 61.0]]": [31, 11, 61], "iqm [[10.0, 20.0, 60.0]]": [30, 10, 60]})
    )
    return folder


def write_run(folder: Path, seed: int, rate: float = 0.1, tag: str = "") -> Path:
    folder.mkdir(parents=True)
    config = {
        "algo": "dqn",
        "env_id": "Acrobot-v1",
        "seed": seed,
        "total_timesteps": 300,
        "tags": [tag] if tag else [],
        "algo_kwargs": {"learning_rate": rate},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "metadata.json").write_text(json.dumps({"command": ["train", EVIL], "hardware": {"cpu_cores": 2}}))
    measured = [{"step": step, "eval/mean_reward": -float(step + seed), "time/time_elapsed": step / 10} for step in (100, 300, 200)]
    lines = [json.dumps(record) for record in measured] + ['{"step": 150, "rollout/ep_rew_mean": -7.0}', '{"step": 300, "eval/mean_re']
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    return folder


def data_of(page: str) -> Any:
    (found,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


# What it finds


def test_records_and_run_directories_anywhere_below(tmp_path: Path) -> None:
    write_records(tmp_path / "records")
    write_run(tmp_path / "runs" / "deep" / "a", seed=1)
    names = [run.name for run in find_runs([tmp_path])]
    assert names == [f"{algo}__cartpole__seed{seed}" for algo in ("dqn", "qr_dqn") for seed in (1, 2, 3)] + ["a"]


def test_a_run_directory_is_read_as_it_stands(tmp_path: Path) -> None:
    """Half a last line (the run goes on) is left out; best and final are those of its own evaluations."""
    (run,) = find_runs([write_run(tmp_path / "a", seed=1, tag="mine")])
    assert run.evaluation == [(100, -101.0), (200, -201.0), (300, -301.0)]
    assert (run.best, run.final, run.seconds, run.label, run.judged) == (-101.0, -301.0, 30.0, "mine", "the run's own evaluations")
    assert run.training == [(150, -7.0)]


def test_runs_of_one_config_are_one_group_and_groups_are_told_apart(tmp_path: Path) -> None:
    for name, seed, rate in (("a", 1, 0.1), ("b", 2, 0.1), ("c", 1, 0.5)):
        write_run(tmp_path / name, seed=seed, rate=rate)
    data = page_data(list(find_runs([tmp_path])), Statistics(frozen=True))
    assert [group["title"] for group in data["groups"]] == ["dqn (learning_rate=0.1)", "dqn (learning_rate=0.5)"]
    assert [run["group"] for run in data["runs"]] == [0, 0, 1]
    assert data["summary"] == "3 runs, 2 configs on 1 task"


def test_a_seed_that_was_run_twice_is_counted_once(tmp_path: Path) -> None:
    """The run that went furthest stands for it: b was cut at step 100, c is a repetition of a and the later one."""
    for name, seed in (("a", 1), ("b", 1), ("c", 1), ("d", 2), ("e", 3)):
        write_run(tmp_path / name, seed=seed)
    cut = tmp_path / "b" / "metrics.jsonl"
    cut.write_text(cut.read_text().splitlines()[0])
    asked: list[list[float]] = []

    class Asked(Statistics):
        def iqm(self, scores: Any) -> Any:
            asked.append(list(scores))
            raise KeyError

    data = page_data(list(find_runs([tmp_path])), Asked())
    assert len(data["groups"]) == 1 and [run["counted"] for run in data["runs"]] == [False, False, True, True, True]
    assert asked[0] == [-101.0, -102.0, -103.0]  # best of c, d and e: three seeds
    assert data["summary"] == "5 runs, 1 config on 1 task; 2 repeat a seed and are not counted"


def test_two_seeds_are_too_few_for_an_interval_however_often_they_are_run(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_run(tmp_path / name, seed=seed)
    (group,) = page_data(list(find_runs([tmp_path])), Statistics({}))["groups"]
    assert "intervals" not in group


def test_stored_intervals_are_shown_and_no_others(tmp_path: Path) -> None:
    folder = write_records(tmp_path / "records")
    write_report([folder], tmp_path / "page.html")
    groups = data_of((tmp_path / "page.html").read_text())["groups"]
    assert groups[0]["intervals"] == {"best": [31, 11, 61], "final": [30, 10, 60]} and "intervals" not in groups[1]


def test_a_long_curve_is_thinned_with_its_ends() -> None:
    curve = [(step, float(step)) for step in range(10_000)]
    thin = thinned(curve, 100)
    assert len(thin) == 100 and thin[0] == curve[0] and thin[-1] == curve[-1]
    assert thinned(curve[:5], 100) == curve[:5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing_here"], "nothing_here: no such file or folder"),
        (["empty"], "empty: no runs there"),
        (["records", "-o", "no_folder/page.html"], "there is no folder no_folder"),
        (["records", "-o", "empty"], "empty: is a folder"),
        (["records/statistics.json"], "statistics.json: is no record of a run"),
        ([], "Missing argument 'FOLDER'"),
    ],
)
def test_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    write_records(tmp_path / "records")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.rglob("*"))
    assert main(["report", *arguments]) == 2 and message in capsys.readouterr().err
    assert set(tmp_path.rglob("*")) == before


def test_a_config_that_is_none(tmp_path: Path) -> None:
    write_run(tmp_path / "a", seed=1)
    (tmp_path / "a" / "config.yaml").write_text("[1]")
    with pytest.raises(UserError, match=r"config\.yaml: is no config"):
        list(find_runs([tmp_path]))


# What it writes


def test_no_text_of_a_run_can_end_the_data(tmp_path: Path) -> None:
    write_run(tmp_path / "a", seed=1, tag=EVIL)
    write_report([tmp_path], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("</script") == 2 and "<img" not in page
    data = data_of(page)
    assert data["runs"][0]["config"]["tags"] == [EVIL] and data["groups"][0]["title"] == f"dqn {EVIL}"


def test_it_asks_for_nothing_outside_itself(tmp_path: Path) -> None:
    write_records(tmp_path / "records")
    write_report([tmp_path], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "default-src 'none'" in page
    assert not re.search(r"""(src|href)\s*=|@import|url\(|fetch\(|XMLHttp""", page)
    assert set(re.findall(r"https?://[^\"' )]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_numbers_json_does_not_have_become_null() -> None:
    assert data_of(render({"a": float("nan"), "b": [float("inf")], "c": "<&>"})) == {"a": None, "b": [None], "c": "<&>"}


# Its arithmetic, in Node


def in_node(expression: str) -> Any:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node here (its test in a browser may still run)")
    script = f"const page = require({json.dumps(str(PAGE / 'page.js'))}); console.log(JSON.stringify({expression}));"
    done = subprocess.run([node, "-e", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("page.iqm([100, 1, 2, 3, 4])", 3),  # one of five is cut at each end
        ("page.iqm([5])", 5),
        ("page.quantile([1, 2, 3, 10], 0.25)", 1.75),
        ("page.valueAt([[0, 1], [10, 3]], 5)", 2),
        ("page.valueAt([[0, 1], [10, 3]], 11)", None),
        ("page.valueAt([], 1)", None),
        # the second run has no point at 10: between 0 (at step 0) and 8 (at step 20) it is 4
        ("page.summarise([[[0, 2], [10, 6], [20, 4]], [[0, 0], [20, 8]]], 'mean', 'range')", [[0, 1, 0, 2], [10, 5, 4, 6], [20, 6, 4, 8]]),
        ("page.summarise([[[0, 2]], [[5, 4]]], 'mean', 'none')", [[0, 2, None, None], [5, 4, None, None]]),
        ("page.summarise([Array.from({length: 999}, (_, i) => [i, i])], 'median', 'middle', 3)", [[0] * 4, [499] * 4, [998] * 4]),
        ("page.ticks(0, 100, 5)", [0, 20, 40, 60, 80, 100]),
        ("page.ticks(-180, 15, 4)", [-150, -100, -50, 0]),
        ("page.ticks(3, 3)", [3]),
        ("page.ticks(-1, 1, 2).map((tick) => Object.is(tick, -0))", [False, False, False]),
        # 10 steps took 2 seconds, the next 10 took 8: step 15 came at 2 + 4
        ("page.overTime([[5, 1], [15, 2], [99, 3]], [[0, 0], [10, 2], [20, 10]])", [[1, 1], [6, 2]]),
        ("page.overTime([[5, 1]], [])", []),
        # only training has a line to draw: it is drawn whatever was asked for, and what has one is never taken away
        ("page.kindOf([{runs: [{curves: {evaluation: [[1, 1]], training: [[1, 1], [2, 2]]}}]}], 'evaluation')", "training"),
        ("page.kindOf([{runs: [{curves: {evaluation: [[1, 1], [2, 2]], training: [[1, 1], [2, 2]]}}]}], 'evaluation')", "evaluation"),
        ("page.kindOf([{runs: [page.asRun([[1, 1]])]}], 'evaluation')", "training"),  # a point is more than nothing
        ("page.kindOf([{runs: [{curves: {evaluation: [[1, 1], [2, 2]], training: []}}]}], 'training')", "evaluation"),
        ("page.kindOf([{runs: [{curves: {evaluation: [[1, 1]], training: []}}]}], 'training')", "evaluation"),  # no episode has ended
        ("page.kindOf([{runs: []}], 'training')", "training"),
        ("page.withPublished([{published: 1}, {published: null}], 'training', 'steps')", [{"published": 1}, 1, {"published": None}]),
        ("page.withPublished([{published: 1}], 'evaluation', 'steps')", [{"published": 1}]),
        ("page.withPublished([{published: 1}], 'training', 'time')", [{"published": 1}]),
        ("new Set([...Array(24).keys()].map((index) => JSON.stringify(page.looks(index)))).size", 24),
        ("[500, 476.512, 0.00012345, 'x', null, [1, 'a']].map(page.show)", ["500", "476.5", "0.0001234", "x", "", '[1,"a"]']),
        ("[{a: 10}, {a: null}, {a: 9}].sort(page.compareBy('a', true)).map((row) => row.a)", [9, 10, None]),
        ("[{a: 10}, {a: null}, {a: 9}].sort(page.compareBy('a', false)).map((row) => row.a)", [10, 9, None]),
        ("['s10', 's9'].map((a) => ({a})).sort(page.compareBy('a', true)).map((row) => row.a)", ["s9", "s10"]),
        (
            "page.sideBySide([{a: 1, b: [1]}, {a: 1, b: [2], c: 0}]).map((row) => [row.key, row.differs])",
            [["a", False], ["b", True], ["c", True]],
        ),
    ],
)
def test_arithmetic(expression: str, value: Any) -> None:
    assert in_node(expression) == value


# The page, in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no browser is installed here (chromium, or what RL_TRAINING_BROWSER names)")
    with Browser(program) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Browser:
    write_records(tmp_path / "records")
    write_run(tmp_path / "runs" / "evil", seed=1, tag=EVIL)
    write_report([tmp_path / "records", tmp_path / "runs"], tmp_path / "page.html")
    browser.problems.clear()
    browser.requests.clear()
    browser.open(tmp_path / "page.html")
    return browser


def texts(page: Browser, selector: str) -> list[str]:
    found: list[str] = page.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => each.textContent)")
    return found


def count(page: Browser, selector: str) -> int:
    return len(texts(page, selector))


def test_it_draws_curves_with_bands_and_hides_them(page: Browser) -> None:
    assert texts(page, "#task option") == ["CartPole-v1", "Acrobot-v1"]
    assert count(page, "#curves .line") == count(page, "#curves .band") == 2
    assert texts(page, "#legend button") == ["qr_dqn", "dqn"]  # the best first
    page.run("document.querySelector('#legend button').click()")
    assert count(page, "#curves .line") == 1 and texts(page, "#curves .line title") == ["dqn"]
    page.run("document.querySelector('#legend button').click()")
    assert count(page, "#curves .line") == 2
    page.run("band.value = 'none'; band.onchange()")
    assert count(page, "#curves .band") == 0
    page.run("task.value = 'Acrobot-v1'; task.onchange()")
    assert count(page, "#curves .line") == 1
    assert page.problems == []


def write_fifteen(folder: Path) -> Path:
    """Fifteen configs on one task, one of them with twice the steps, and one on another: long names, and times."""
    for number in range(16):
        task = "Acrobot-v1" if number == 15 else "CartPole-v1"
        config = {
            "algo": "dqn",
            "env_id": task,
            "seed": 1,
            "total_timesteps": 600 if number == 14 else 300,
            "tags": [f"config number {number} with a rather long name that goes on"],
            "env_kwargs": {"wrappers": [{"keep": {"indices": list(range(30))}}]} if number == 15 else {},
        }
        run = folder / f"run{number}"
        run.mkdir(parents=True)
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        lines = [
            {"step": step, "eval/mean_reward": number + step / 1e3, "time/time_elapsed": step / (1 + number)} for step in (100, 200, 300)
        ]
        (run / "metrics.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    return folder


def test_fifteen_configs_can_be_read(browser: Browser, tmp_path: Path) -> None:
    write_report([write_fifteen(tmp_path / "runs")], tmp_path / "page.html")
    browser.problems.clear()
    browser.open(tmp_path / "page.html")
    browser.run("task.value = 'CartPole-v1'; task.onchange()")
    assert texts(browser, "#budget option") == ["300 steps", "600 steps", "all of them"]
    assert len(texts(browser, "#legend button")) == 14  # the one with another budget is on another axis
    shown = texts(browser, "#curves .line title")
    assert [re.search(r"number (\d+)", title)[1] for title in shown] == ["13", "12", "11", "10", "9"]  # type: ignore[index]
    browser.run("document.getElementById('all').click()")
    looks = browser.run(
        "[...document.querySelectorAll('#curves .line')].map((l) => `${l.getAttribute('stroke')} ${l.getAttribute('stroke-dasharray')}`)"
    )
    assert len(looks) == len(set(looks)) == 14
    browser.run("document.getElementById('none').click()")
    assert count(browser, "#curves .line") == 0
    browser.run("document.getElementById('few').click(); budget.value = '600'; budget.onchange()")
    assert len(texts(browser, "#curves .line title")) == 1
    assert count(browser, "#multiples svg") == 2 and browser.problems == []


def test_curves_over_wall_time(browser: Browser, tmp_path: Path) -> None:
    write_report([write_fifteen(tmp_path / "runs")], tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    browser.run("task.value = 'CartPole-v1'; task.onchange(); axis.value = 'time'; axis.onchange()")
    assert texts(browser, "#curves text")[-1] == "seconds" and count(browser, "#curves .line") == 5
    middle = "{clientX: box.left + box.width / 2, clientY: box.top + 50}"
    browser.run(f"box = curves.getBoundingClientRect(); curves.dispatchEvent(new MouseEvent('mousemove', {middle}))")
    assert re.match(r"\d+ s\n", texts(browser, "#tip")[0])


def test_large_numbers_stand_inside_their_drawing(browser: Browser, tmp_path: Path) -> None:
    """Returns of minus a hundred million, which hardly differ: the small drawings' labels were cut off on the left."""
    run = write_run(tmp_path / "runs" / "a", seed=1)
    lines = [{"step": step, "eval/mean_reward": -123_456_789.0 - step / 100} for step in (100, 200, 300)]
    (run / "metrics.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    write_report([tmp_path / "runs"], tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    left = "getBoundingClientRect().left"
    out = browser.run(f"[...document.querySelectorAll('svg text')].map((text) => text.{left} - text.closest('svg').{left})")
    assert len(out) > 4 and min(out) >= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 800, 400])
def test_nothing_stands_out_of_the_page(browser: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    write_report([write_fifteen(tmp_path / "runs")], tmp_path / "page.html")
    browser.show(width=width, height=900, scheme=scheme)
    browser.open(tmp_path / "page.html")
    browser.run("document.querySelectorAll('#runs input').forEach((box, index) => { if (index < 3) box.click(); })")
    browser.run("document.querySelector('#runs tbody td button').click()")
    assert browser.run("document.documentElement.scrollWidth") <= browser.run("document.documentElement.clientWidth")
    ground, ink = (browser.run(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color"))
    bright = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ground, ink)]
    assert (bright[0] > bright[1]) == (scheme == "light") and abs(bright[0] - bright[1]) > 400


def test_a_narrow_window_shows_what_the_runs_returned_and_whole_names(browser: Browser, tmp_path: Path) -> None:
    write_report([write_fifteen(tmp_path / "runs")], tmp_path / "page.html")
    browser.show(width=800, height=900, scheme="light")
    browser.open(tmp_path / "page.html")
    for table, seen in (("groups", ["best: IQM", "final: IQM ▼"]), ("runs", ["best", "final"])):
        edge = browser.run(f"document.getElementById('{table}').parentElement.getBoundingClientRect().right")
        heads = "[head.innerText, head.getBoundingClientRect().right]"
        right = dict(browser.run(f"[...document.querySelectorAll('#{table} th')].map((head) => {heads})"))
        assert all(right[name] <= edge for name in seen), (table, edge, right)
        cut = browser.run(f"[...document.querySelectorAll('#{table} td')].filter((cell) => cell.scrollWidth > cell.clientWidth).length")
        assert cut == 0  # configs are told apart by the end of their names


def test_recorded_videos_stand_beside_their_run(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "javascript:a #1", seed=1)
    for name in ("play.mp4", "100%.mp4"):
        (run / name).write_bytes(b"a video")
    (run / "stray.mp4").symlink_to(tmp_path / "elsewhere.mp4")  # nothing is read through a link to nowhere
    (tmp_path / "reports").mkdir()
    write_report([tmp_path / "runs"], tmp_path / "reports" / "page.html")
    browser.requests.clear()
    browser.open(tmp_path / "reports" / "page.html")
    assert texts(browser, "#runs tbody button") == ["javascript:a #1 ▶"]
    browser.run("document.querySelector('#runs tbody button').click()")
    addresses = browser.run("[...document.querySelectorAll('#details-videos video')].map((video) => video.src)")
    assert addresses == [(run / name).as_uri() for name in ("100%.mp4", "play.mp4")]
    assert {address.partition(":")[0] for address in browser.requests} <= {"file", "data"}  # data: the player's own buttons


def test_it_counts_seeds(page: Browser, tmp_path: Path) -> None:
    assert texts(page, "#groups tbody td:nth-child(3)") == ["3", "3", "1"]
    write_run(tmp_path / "runs" / "evil again", seed=1, tag=EVIL)
    write_report([tmp_path / "records", tmp_path / "runs"], tmp_path / "page.html")
    page.open(tmp_path / "page.html")
    assert texts(page, "#groups tbody td:nth-child(3)") == ["3", "3", "1"]
    assert sorted(texts(page, "#runs tbody td:nth-child(5)")) == ["1", "1", "1", "1 (again)", "2", "2", "3", "3"]


def test_moving_over_the_curves_reads_them(page: Browser) -> None:
    middle = "{clientX: box.left + box.width * (64 + 432) / 960, clientY: box.top + 50}"
    page.run(f"box = curves.getBoundingClientRect(); curves.dispatchEvent(new MouseEvent('mousemove', {middle}))")
    assert page.run("tip.hidden") is False
    # Halfway between steps 100 and 200; three seeds' interquartile mean is their mean: from 60/2 to 60, and from 30/2 to 30.
    # The mouse stands on whole pixels, of which one is a quarter of a step: 45 and 22.5 to one digit.
    (step, first, second) = texts(page, "#tip")[0].split("\n")
    assert step in ("step 149", "step 150", "step 151")
    (best, name), (other, control) = first.split("  "), second.split("  ")
    assert (name, control) == ("qr_dqn", "dqn")
    assert (float(best), float(other)) == (pytest.approx(45, abs=0.5), pytest.approx(22.5, abs=0.5))
    page.run("curves.dispatchEvent(new MouseEvent('mouseleave'))")
    assert page.run("tip.hidden") is True


def test_it_sorts_and_filters(page: Browser) -> None:
    def finals() -> list[str]:
        return texts(page, "#runs tbody td:nth-child(8)")

    page.run("filter.value = 'cartpole'; filter.oninput()")
    assert len(finals()) == 6
    page.run("[...document.querySelectorAll('#runs th button')].find((b) => b.textContent.startsWith('final')).click()")
    assert finals() == ["90", "60", "50", "40", "20", "10"]  # numbers begin with the largest
    page.run("[...document.querySelectorAll('#runs th button')].find((b) => b.textContent.startsWith('final')).click()")
    assert finals() == ["10", "20", "40", "50", "60", "90"]
    page.run("filter.value = 'qr seed3'; filter.oninput()")
    assert finals() == ["90"]
    assert texts(page, "#groups tbody tr:first-child td")[4:7] == ["61", "", "41 to 91"]  # qr_dqn has no stored interval
    assert page.problems == []


def test_chosen_runs_stand_side_by_side_and_one_shows_its_config(page: Browser) -> None:
    assert page.run("comparison.hidden") is True
    for name in ("dqn__cartpole__seed1", "qr_dqn__cartpole__seed1"):
        page.run(f"document.querySelector('[aria-label=\"choose {name}\"]').click()")
    assert page.run("comparison.hidden") is False and count(page, "#compared .line") == 2
    assert texts(page, "#compare tbody th") == ["best", "final", "algo"]  # seed, steps and gamma are the same
    assert texts(page, "#compare tbody tr:last-child td") == ["dqn", "qr_dqn"]
    page.run("differences.click()")
    assert "algo_kwargs.gamma" in texts(page, "#compare tbody th")
    page.run("clear.click()")
    assert page.run("comparison.hidden") is True
    page.run("document.querySelector('#runs tbody td button').click()")
    assert texts(page, "#details-name") == ["dqn__cartpole__seed1"] and "algo_kwargs.gamma" in texts(page, "#details-config dt")
    assert page.problems == []


def test_what_a_run_is_called_stays_text_and_nothing_is_asked_for(page: Browser) -> None:
    page.run("task.value = 'Acrobot-v1'; task.onchange()")
    page.run("document.querySelector('[aria-label=\"choose evil\"]').click()")
    page.run("[...document.querySelectorAll('#runs tbody td button')].at(-1).click()")
    assert f"dqn {EVIL}" in texts(page, "#legend button") and count(page, "img") == 0
    assert page.run("window.broken === undefined") is True
    assert all(address.startswith("file:") for address in page.requests) and page.requests
    assert page.problems == []


# Beside what others published


def write_atari(folder: Path, env_kwargs: dict[str, Any], game: str = "Pong") -> Path:
    """Two seeds of the suite's DQN on a game: one evaluation, and training returns of four stretches."""
    folder.mkdir(exist_ok=True)
    for seed in (1, 2):
        raw = ledger_runs.record(f"dqn__atari_{game.lower()}__seed{seed}", "dqn", f"ALE/{game}-v5", suite="atari", wall_time_s=600.0)
        raw["config"] |= {"total_timesteps": 1_000_000, "env_kwargs": env_kwargs}
        raw |= {"curve": [[1_000_000, -5.0]], "training": [[250_000 * k, -20.0 + 3 * k + seed, 300] for k in (1, 2, 3, 4)]}
        (folder / f"{raw['name']}.json").write_text(json.dumps(raw))
    return folder


def test_published_runs_stand_beside_the_suites_own_as_far_as_those_go(tmp_path: Path) -> None:
    (group,) = page_data(list(find_runs([write_atari(tmp_path, {"preset": "dopamine"})])), Statistics(frozen=True))["groups"]
    assert group["published"]["title"] == "Dopamine: DQN CNN, 5 runs"
    assert [[step for step, _ in run] for run in group["published"]["curves"]] == [[250_000, 500_000, 750_000, 1_000_000]] * 5


@pytest.mark.parametrize("change", [{"env_kwargs": {"preset": "sb3"}}, {"game": "Tennis"}])
def test_runs_that_were_played_otherwise_stand_alone(tmp_path: Path, change: dict[str, Any]) -> None:
    runs = list(find_runs([write_atari(tmp_path, **{"env_kwargs": {"preset": "dopamine"}, **change})]))
    assert len(runs) == 2 and all(run.published is None for run in runs)


@pytest.mark.parametrize("suite", [None, 3, "nobody's", ["atari"], "classic"])
def test_a_record_of_no_shipped_suite_has_nothing_beside_it(tmp_path: Path, suite: Any) -> None:
    write_atari(tmp_path, {"preset": "dopamine"})
    for path in tmp_path.glob("*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "suite": suite}))
    assert [run.published for run in find_runs([tmp_path])] == [None, None]


def test_it_draws_our_training_beside_theirs_with_both_bands(browser: Browser, tmp_path: Path) -> None:
    write_records(tmp_path / "records")
    write_atari(tmp_path / "records", {"preset": "dopamine"})
    write_report([tmp_path / "records"], tmp_path / "page.html")
    browser.problems.clear()
    browser.open(tmp_path / "page.html")
    browser.run("task.selectedIndex = [...task.options].findIndex((each) => each.value.includes('Pong')); task.onchange()")
    assert browser.run("curve.value") == "training"  # one evaluation makes no curve
    ours, theirs = "dqn", "Dopamine: DQN CNN, 5 runs"
    assert texts(browser, "#legend button") == texts(browser, "#curves .line title") == [ours, theirs]
    assert count(browser, "#curves .band") == 2 and "Dotted" in texts(browser, "#published")[0]
    drawn = {
        key: browser.run(f"[...document.querySelectorAll('#curves .line')].map((line) => line.getAttribute('{key}'))")
        for key in ("stroke", "stroke-dasharray")
    }
    assert len(set(drawn["stroke"])) == 1 and len(set(drawn["stroke-dasharray"])) == 2
    browser.run("document.querySelectorAll('#legend button')[1].click()")
    assert texts(browser, "#curves .line title") == [ours]
    browser.run("document.querySelectorAll('#legend button')[1].click()")
    browser.run("axis.value = 'time'; axis.onchange()")  # nobody knows how long theirs took
    assert texts(browser, "#legend button") == texts(browser, "#curves .line title") == [ours] and texts(browser, "#published") == [""]
    browser.run("axis.value = 'steps'; axis.onchange(); task.value = 'CartPole-v1'; task.onchange()")
    assert browser.run("curve.value") == "evaluation" and count(browser, "#curves .line") == 2
    assert browser.problems == []


@pytest.mark.parametrize(
    "config",
    [
        "tags: 3\nalgo: dqn",
        "1: 2\nalgo: {x: 1}\nnull: 3",
        "env_kwargs: [1]\ntotal_timesteps: {a: 1}\nseed: [2]",
        "algo: dqn\nenv_kwargs: {when: 2024-01-01, data: !!binary aGVsbG8=, some: !!set {a, b}}",
        f"seed: 0x{'f' * 5000}\ntotal_timesteps: .inf",
        "tags: [null, {a: 1}]",
    ],
)
def test_a_strange_run_is_shown_and_not_stumbled_over(tmp_path: Path, config: str) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(config)
        (tmp_path / name / "metadata.json").write_text("[" * 100_000)
        lines = ['{"step": 1, "eval/mean_reward": 1' + "0" * 400 + "}", '{"step": 1' + "0" * 40 + "}", "[" * 100_000, "NaN", '{"step": 1}']
        (tmp_path / name / "metrics.jsonl").write_text("\n".join(lines))
    assert "2 runs" in write_report([tmp_path], tmp_path / "page.html")


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    os.mkfifo(tmp_path / "runs" / "pipe.json")
    (tmp_path / "runs" / "deep.json").write_text("[" * 100_000)
    (tmp_path / "runs" / "strange.json").write_text(json.dumps({**ledger_runs.record("dqn__a__seed1"), "seed": 1e400}))
    with pytest.raises(UserError, match="no runs there"):
        write_report([tmp_path / "runs"], tmp_path / "page.html")
    (tmp_path / "runs" / "one.json").write_text(json.dumps({**ledger_runs.record("dqn__a__seed1"), "wall_time_s": "long", "git": "main"}))
    os.mkfifo(tmp_path / "page.html")
    with pytest.raises(UserError, match="is no regular file"):
        write_report([tmp_path / "runs"], tmp_path / "page.html")
    for text in ("[" * 100_000, "[1]", '{"iqm [[1]]": "abc"}', '{"iqm [[1]]": [1, 2]}'):
        (tmp_path / "runs" / "statistics.json").write_text(text)
        with pytest.raises(UserError, match=r"statistics\.json: cannot be read"):
            write_report([tmp_path / "runs"], tmp_path / "other.html")


def test_a_password_of_an_older_run_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("algo: dqn\ntrackers: [{mlflow: {tracking_uri: 'https://me:hunter2@host/x?token=sesame'}}]")
    (tmp_path / "metadata.json").write_text(
        json.dumps({"command": ["train", "--set", "trackers=[{mlflow: {tracking_uri: http://a:hunter2@b}}]"]})
    )
    (tmp_path / "metrics.jsonl").write_text("")
    write_report([tmp_path], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "hunter2" not in page and "sesame" not in page and "***@host" in page


def test_a_huge_line_of_measurements_is_not_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.experiment.files.LONGEST_LINE", 64)
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1}\n{"step": 2, "text": "' + "x" * 200 + '"}\n{"step": 3}\n')
    assert [record["step"] for record in run_views._measurements(metrics)] == [1, 3]
