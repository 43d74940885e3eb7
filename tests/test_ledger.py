"""The ledger: suites that name what does not exist, runs that fail or are interrupted, records of other configs, and judgements."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from rich.console import Console

import ledger_runs
from rl_training.cli import main
from rl_training.errors import Interrupted, UserError
from rl_training.experiment.config import TrainConfig
from rl_training.ledger import runner
from rl_training.ledger.display import Display
from rl_training.ledger.judging import at_most, fallen_short, false_failures, pass_rate_at_least
from rl_training.ledger.records import Claim, Record, differences, read_record, read_records, write_record
from rl_training.ledger.runner import Outcome, look, run_plans
from rl_training.ledger.suites import Plan, load_suite, plan_groups, shipped_suites
from rl_training.ledger.training import TrainingReturns
from rl_training.types import Episode

SILENT = Console(quiet=True)


@pytest.fixture
def suite_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEDGER_STARTED", str(tmp_path / "started"))
    monkeypatch.setenv("LEDGER_PID", str(tmp_path / "pid"))
    monkeypatch.setenv("LEDGER_SUITE", str(os.getpid()))
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(ledger_runs.SUITE))
    return path


@pytest.fixture
def plans(suite_file: Path) -> list[Plan]:
    return [plan for group in plan_groups(load_suite(suite_file)) for plan in group.plans]


def run(plans: list[Plan] | tuple[Plan, ...], results: Path, work: Any = ledger_runs.finish, jobs: int = 2) -> Outcome:
    return run_plans(plans, results, jobs=jobs, display=Display(len(plans), 1, console=SILENT), work=work)


# Suites


@pytest.mark.parametrize("name", shipped_suites())
def test_every_shipped_suite_can_be_run(name: str) -> None:
    """With three seeds at least, where a run does not name its own: of a long one, or beside the table's, fewer are made."""
    suite = load_suite(name)
    runs = [run for task in suite.tasks for run in task.runs]
    for given, group in zip(runs, plan_groups(suite), strict=True):
        assert len(group.plans) >= 3 or (given.seeds and len(given.seeds) == len(group.plans))


def test_a_plan_is_the_config_on_one_thread_with_its_seed_and_budget(plans: list[Plan]) -> None:
    assert [plan.name for plan in plans] == [f"{algo}__chain__seed{seed}" for algo in ("dqn", "double_dqn") for seed in (1, 2)]
    config = plans[3].config
    assert (config.algo, config.seed, config.total_timesteps, config.threads, config.device) == ("double_dqn", 2, 200, 1, "cpu")


def test_a_suite_can_be_run_on_a_gpu(suite_file: Path, plans: list[Plan]) -> None:
    """Where it ran is a circumstance: such a record is the same run's."""
    on_gpu = [plan for group in plan_groups(load_suite(suite_file), device="cuda") for plan in group.plans]
    assert [plan.config.replace(device="cpu") for plan in on_gpu] == [plan.config for plan in plans]
    assert {plan.config.device for plan in on_gpu} == {"cuda"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": [{"algo": "dqnn"}]}, "algo 'dqnn' is unknown; did you mean dqn?"),
        ({"runs": ["configs/dqn/no_such.yaml"]}, "configs/dqn/no_such.yaml: no such config"),
        ({"runs": [{"algo": "dqn", "set": {"algo_kwargs.batchsize": 3}}]}, "did you mean batch_size?"),
        ({"runs": [{"algo": "dqn"}, {"algo": "dqn"}]}, "dqn__chain is named twice"),
        ({"runs": [{"config": "configs/dqn/cartpole.yaml", "algo": "dqn"}]}, "either a config or an algo"),
        ({"runs": []}, "runs"),
        ({"base": None}, "no base"),
        ({"stepps": 3}, "tasks.0.stepps is not a key of a suite"),
        ({"total_timesteps": 0}, "total_timesteps must be >= 1"),
    ],
)
def test_a_suite_that_cannot_be_run_is_bad_input(
    suite_file: Path, change: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    task = {**ledger_runs.SUITE["tasks"][0], **change}
    suite_file.write_text(yaml.safe_dump({**ledger_runs.SUITE, "tasks": [task]}))
    assert main(["ledger", str(suite_file)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and message in err
    assert list(suite_file.parent.iterdir()) == [suite_file]


def test_a_suite_that_is_not_there(suite_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "clasic"]) == 2
    assert "did you mean classic?" in capsys.readouterr().err


# Running


def test_two_suites_on_one_folder_share_its_runs(plans: list[Plan], tmp_path: Path) -> None:
    results = tmp_path / "results"
    theirs = subprocess.Popen([sys.executable, "-c", OTHER_SUITE, str(tmp_path / "mine.yaml"), str(results)], cwd=Path(__file__).parent)
    ours = run(plans, results)
    assert theirs.wait(timeout=300) == 0
    started = (tmp_path / "started").read_text().split()
    assert sorted(started) == sorted(plan.name for plan in plans)  # each once, whoever began it
    assert sorted(record.name for record in ours.records) == sorted(started) and not ours.failures
    assert sorted(path.name for path in results.iterdir()) == sorted(f"{plan.name}.json" for plan in plans)


OTHER_SUITE = """
if __name__ == "__main__":
    import sys
    from pathlib import Path
    import ledger_runs
    from rl_training.ledger.display import Display
    from rl_training.ledger.runner import run_plans
    from rl_training.ledger.suites import load_suite, plan_groups
    plans = [plan for group in plan_groups(load_suite(sys.argv[1])) for plan in group.plans]
    display = Display(len(plans), 1, quiet=True)
    outcome = run_plans(plans, Path(sys.argv[2]), jobs=2, display=display, work=ledger_runs.finish)
    sys.exit(len(outcome.records) != len(plans))
"""


def test_a_record_that_is_made_elsewhere_is_waited_for(plans: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results"
    results.mkdir()
    claim = Claim.of(results, plans[0].name)
    assert claim is not None and Claim.of(results, plans[0].name) is None
    looks = iter(range(3))

    def sleep(seconds: float) -> None:  # the other suite ends its run while we wait
        if next(looks) == 1:
            write_record(results, ledger_runs.finish(plans[0], tmp_path, lambda step: None))
            claim.release()

    monkeypatch.setattr(runner.time, "sleep", sleep)
    outcome = run(plans[:1], results)
    assert [record.name for record in outcome.records] == [plans[0].name]
    assert (tmp_path / "started").read_text().split() == [plans[0].name]  # by the other one alone
    assert [path.name for path in results.iterdir()] == [f"{plans[0].name}.json"]


def test_what_is_done_is_not_repeated_and_what_failed_is(plans: list[Plan], tmp_path: Path) -> None:
    results = tmp_path / "results"
    outcome = run(plans, results, ledger_runs.fail_on_seed_2)
    assert outcome.failures.keys() == {"dqn__chain__seed2", "double_dqn__chain__seed2"}
    assert outcome.failures["dqn__chain__seed2"] == "RuntimeError: the loss is nan"
    assert "exit code -9" in outcome.failures["double_dqn__chain__seed2"]
    state = look(plans, results)
    assert [plan.name for plan in state.missing] == ["dqn__chain__seed2", "double_dqn__chain__seed2"] and not state.stale
    before = {path: path.read_bytes() for path in results.iterdir()}
    assert len(before) == 2
    run(state.missing, results)
    assert (tmp_path / "started").read_text().split().count("dqn__chain__seed1") == 1
    assert not look(plans, results).missing
    assert all(path.read_bytes() == content for path, content in before.items())


def test_an_interrupted_suite_keeps_what_is_finished_and_leaves_nothing_behind(plans: list[Plan], tmp_path: Path) -> None:
    results = tmp_path / "results"
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="finished and kept: 1;") as stopped:
        run(plans, results, ledger_runs.interrupt_after_the_first, jobs=1)
    assert stopped.value.signum == signal.SIGTERM and signal.getsignal(signal.SIGTERM) is handler
    assert [path.name for path in results.iterdir()] == ["dqn__chain__seed1.json"]
    with pytest.raises(ProcessLookupError):  # the run that would have gone on is dead
        os.kill(int((tmp_path / "pid").read_text()), 0)
    run(look(plans, results).missing, results)
    started = (tmp_path / "started").read_text().split()
    assert sorted(started) == sorted(plan.name for plan in plans)  # each once, the finished one not again
    assert len(read_records(results)) == 4


def test_an_interrupt_while_a_run_starts_is_the_suites_alone(
    plans: list[Plan], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal sends it to both, and the run would print a traceback before the suite says that it was interrupted."""
    first = resource_tracker.ResourceTracker()  # this is the first run of its process, however many tests came before
    for name in ("ensure_running", "getfd"):
        monkeypatch.setattr(resource_tracker, name, getattr(first, name))
    outcome = run(plans[:1], tmp_path / "results", ledger_runs.InterruptedAtItsStart())
    assert not outcome.failures and len(outcome.records) == 1 and "Traceback" not in capfd.readouterr().err
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())  # here it is heard again


def test_a_warning_of_a_run_is_one_line_that_names_it(plans: list[Plan], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    display = Display(1, 1)
    outcome = run_plans(plans[:1], tmp_path / "results", jobs=1, display=display, work=ledger_runs.finish_with_a_warning)
    told = [line for line in capfd.readouterr().err.splitlines() if "WARN" in line.upper()]
    assert told == ["dqn__chain__seed1: warning: an [odd] environment"] and len(outcome.records) == 1


INTERRUPTED_SUITE = OTHER_SUITE.replace("finish)", "wait_with_a_semaphore)")


def test_what_an_interrupted_run_leaves_is_cleared_away_without_a_word(suite_file: Path, tmp_path: Path) -> None:
    """The process that does it warned of "leaked semaphore objects" when all was over."""
    command = [sys.executable, "-c", INTERRUPTED_SUITE, str(suite_file), str(tmp_path / "results")]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0 and "Interrupted" in done.stderr and "leaked" not in done.stderr and "resource_tracker" not in done.stderr


def test_a_worker_can_say_that_it_was_interrupted() -> None:
    """Processes of a pool hand their errors over pickled; one that cannot be read back leaves the pool waiting for ever."""
    received = pickle.loads(pickle.dumps(Interrupted("stopped at step 3", signum=15)))
    assert isinstance(received, Interrupted) and str(received) == "stopped at step 3" and received.signum == 15


def test_a_suite_from_the_command_line(suite_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real training, once: the record holds the config, the curve, both evaluations, the commit and the machine."""
    Path("mark.py").write_text("import os\nwith open('imported', 'a') as file:\n    file.write(f'{os.getpid()}\\n')\n")
    arguments = ("--import", "mark", "ledger", str(suite_file), "--results", "out", "--seeds", "7", "--jobs", "1")
    assert main([*arguments, "--dry-run"]) == 0
    assert "2 runs, 0 done, 2 to do (400 environment steps)" in capsys.readouterr().out
    assert not Path("out").exists()
    task = {**ledger_runs.SUITE["tasks"][0], "runs": [{"algo": "dqn"}]}
    suite_file.write_text(yaml.safe_dump({**ledger_runs.SUITE, "tasks": [task]}))
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "[1/1] dqn__chain__seed7: best" in err and "| dqn__chain |" in out
    assert len(set(Path("imported").read_text().split())) == 2  # here and in the run's process, which knows rows and environments by it
    raw = json.loads(Path("out/dqn__chain__seed7.json").read_text())
    assert raw["best"]["eval_episodes"] == raw["final"]["eval_episodes"] == 100
    assert [step for step, _ in raw["curve"]] == [100, 200]
    assert raw["config"]["total_timesteps"] == 200 and raw["config"]["output_dir"] == "runs"
    assert raw["machine"]["cores"] and raw["versions"]["torch"] and (raw["suite"], raw["algorithm"]) == ("mine", "dqn")
    assert main(arguments) == 0
    assert "1 done, 0 to do" in capsys.readouterr().out


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """As if the package were not installed."""
    monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.parametrize("dry", [["--dry-run"], []])
def test_results_that_are_a_file_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], dry: list[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["ledger", "smoke", "--results", str(tmp_path / "file"), *dry]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'file'}: is no folder of records\n"


def test_a_dry_run_says_what_is_there_what_is_missing_and_what_cannot_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "ale_py")
    (tmp_path / "qr_dqn__atari_pong__seed2.json").write_text(json.dumps(ledger_runs.record("qr_dqn__atari_pong__seed2", "qr_dqn")))
    assert main(["ledger", "atari", "--results", str(tmp_path), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "  qr_dqn__atari_pong: there: seed 2; to do: seeds 1, 3 (1,000,000 steps each)\n" in out
    assert "  btr__atari_pong: to do: seeds 1, 2 (5,000,000 steps each)\n" in out
    assert "  r2d2__atari_boxing_plain: to do: seed 1 (1,000,000 steps)\n" in out
    assert out.count("cannot be run here: environments ALE/… need the package ale-py: pip install 'rl-training[atari]'") == 1


def test_only_some_configs_and_those_for_another_device(suite_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A config that is about a kind of device is run on no other; which are run is chosen by their names, beside that."""
    (chain,) = ledger_runs.SUITE["tasks"]
    on_cpu, on_gpu = {"label": "on_cpu", "device": "cpu"}, {"label": "on_gpu", "device": "cuda"}
    runs = [{"algo": "dqn"}, {"algo": "dqn", **on_cpu}, {"algo": "double_dqn", **on_gpu}]
    suite_file.write_text(yaml.safe_dump({**ledger_runs.SUITE, "tasks": [{**chain, "runs": runs}]}))
    devices = {group.name: {plan.config.device for plan in group.plans} for group in plan_groups(load_suite(suite_file), device="cuda:1")}
    assert devices == {"dqn__chain": {"cuda:1"}, "dqn__chain__on_cpu": {"cpu"}, "double_dqn__chain__on_gpu": {"cuda"}}

    def asked(*options: str) -> tuple[int, str, str]:
        return main(["ledger", str(suite_file), "--results", "out", "--dry-run", *options]), *capsys.readouterr()

    to_do, left_out = "{}: to do: seeds 1, 2 (200 steps each)\n", "{}: left out, it is for --device {}\n"
    code, out, _ = asked("--device", "cuda:1")
    assert code == 0 and "4 runs, 0 done, 4 to do" in out and to_do.format("double_dqn__chain__on_gpu") in out
    assert left_out.format("dqn__chain__on_cpu", "cpu") in out
    code, out, _ = asked()
    assert code == 0 and "4 runs, 0 done, 4 to do" in out and to_do.format("dqn__chain__on_cpu") in out
    assert left_out.format("double_dqn__chain__on_gpu", "cuda") in out
    code, out, _ = asked("--only", "*__on_cpu")
    assert code == 0 and "2 runs, 0 done, 2 to do" in out and to_do.format("dqn__chain__on_cpu") in out and "on_gpu" not in out
    code, _, err = asked("--only", "dqn_chain")
    assert code == 2 and err.startswith("error: --only 'dqn_chain': no config of suite mine has such a name; did you mean dqn__chain?")
    for part in ("chain", "n__c"):
        code, _, err = asked("--only", part)
        assert code == 2 and f"did you mean '*{part}*'?" in err
    code, _, err = asked("--only", "")
    assert code == 2 and "did you mean" not in err
    code, _, err = asked("--only", "*__on_gpu")
    assert (code, err) == (2, "error: --device cpu: what was asked of suite mine is for --device cuda\n")


def test_a_suite_whose_environments_are_not_installed(
    suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without any it is bad input; with some the others are run, and the end says what is left."""
    without(monkeypatch, "ale_py")
    assert main(["ledger", "atari", "--results", str(tmp_path / "out"), "--jobs", "1"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: environments ALE/… need") and captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
    (chain,) = ledger_runs.SUITE["tasks"]
    pong = {**chain, "name": "Pong", "base": {"env_id": "ALE/Pong-v5"}, "runs": [{"algo": "dqn"}]}
    suite_file.write_text(yaml.safe_dump({"seeds": [1], "tasks": [{**chain, "runs": [{"algo": "dqn"}]}, pong]}))
    assert main(["ledger", str(suite_file), "--results", str(tmp_path / "out"), "--jobs", "1"]) == 1
    captured = capsys.readouterr()
    assert "of 2 runs 1 could not be made: environments ALE/… need" in captured.err
    assert [path.name for path in (tmp_path / "out").glob("*.json")] == ["dqn__chain__seed1.json"]


def test_the_commit_can_be_told_where_there_is_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rl_training.experiment.runs import git_state

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state() is None
    monkeypatch.setenv("RL_TRAINING_COMMIT", "abc")
    assert git_state() == {"commit": "abc", "dirty": None}


# Records


def test_a_record_of_another_config_is_named_and_kept(
    plans: list[Plan], suite_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    run(plans, results)
    file = results / "dqn__chain__seed1.json"
    raw = json.loads(file.read_text())
    raw["config"]["total_timesteps"] = 100
    raw["config"]["algo_kwargs"]["gamma"] = 0.5
    raw["config"]["threads"] = 8  # how it was run, not what
    raw["config"]["a_key_of_yesterday"] = 1
    del raw["config"]["vectorization"]
    file.write_text(json.dumps(raw))
    assert sorted(differences(read_record(file), plans[0])) == ["algo_kwargs.gamma", "total_timesteps"]
    assert main(["ledger", str(suite_file), "--results", str(results)]) == 0
    out = capsys.readouterr().out
    assert "4 done, 0 to do" in out and "dqn__chain__seed1 was made with another algo_kwargs.gamma, total_timesteps" in out
    assert main(["ledger", str(suite_file), "--results", str(results), "--redo", "--dry-run"]) == 0
    assert "dqn__chain: there: seed 2; to do: seed 1 (200 steps)" in capsys.readouterr().out


def test_a_setting_that_a_record_does_not_know_had_its_default(plans: list[Plan], tmp_path: Path) -> None:
    """One that stands under a switch counts where the switch was on."""
    raw = ledger_runs.record("dqn__chain__seed1")
    settings = plans[0].config.settings
    (tmp_path / "dqn__chain__seed1.json").write_text(json.dumps({**raw, "config": {**raw["config"], "algo_kwargs": {}}}))
    record = read_record(tmp_path / "dqn__chain__seed1.json")
    own = {f"algo_kwargs.{key}" for key, value in settings if value != type(settings).model_fields[key].default}
    found = {key for key in differences(record, plans[0]) if key.startswith("algo_kwargs")}
    assert own and found == own

    prioritized = {**plans[0].config.algo_kwargs, "prioritized": True, "prioritized_alpha": 0.9}
    plan = dataclasses.replace(plans[0], config=TrainConfig(**{**plans[0].config.to_dict(), "algo_kwargs": prioritized}))
    assert {key for key in differences(record, plan) if "priorit" in key} == {"algo_kwargs.prioritized"}


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"name": "a__seed1", "config": {}}'])
def test_a_file_that_is_no_record(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=r"a\.json"):
        read_records(tmp_path)


def test_seeds_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    for seed in (10, 9):
        (tmp_path / f"a__seed{seed}.json").write_text(json.dumps(ledger_runs.record(f"dqn__a__seed{seed}")))
    assert [record.seed for record in read_records(tmp_path)] == [9, 10]


# Judgements


def test_k_of_n() -> None:
    groups = plan_groups(load_suite("smoke"))
    group = next(group for group in groups if group.name == "dqn__chain")
    assert group.judgement is not None

    def records(*scores: float) -> list[Record]:
        raws = [ledger_runs.record(f"dqn__chain__seed{seed}", final=score) for seed, score in enumerate(scores, 1)]
        return [Record.from_json(raw, source="here") for raw in raws]

    need = group.judgement.needed
    assert not list(fallen_short([group], records(*[1.0] * need, *[0.0] * (4 - need))))
    assert list(fallen_short([group], records(*[1.0] * (need - 1), *[0.5] * (5 - need))))


def test_how_surely_a_sound_program_passes() -> None:
    # P(X ≤ 1) for two fair coins: 3/4
    assert at_most(1, 2, 0.5) == pytest.approx(0.75)
    # 20 of 20: the p with p^20 = 0.05
    assert pass_rate_at_least(20, 20) == pytest.approx(0.05 ** (1 / 20))
    # 1 of 2: P(X ≥ 1) = 1 − (1−p)² = 0.05
    assert pass_rate_at_least(1, 2) == pytest.approx(1 - 0.95**0.5)
    assert pass_rate_at_least(0, 20) == 0.0
    p = 0.05 ** (1 / 20)
    assert false_failures(20, 20, needed=1, seeds=3) == pytest.approx((1 - p) ** 3) == pytest.approx(0.0027, abs=1e-4)
    assert (
        false_failures(20, 20, needed=2, seeds=4) == pytest.approx((1 - p) ** 4 + 4 * p * (1 - p) ** 3) == pytest.approx(0.0096, abs=1e-4)
    )


# Training returns


def test_a_training_return_counts_for_the_stretch_its_episode_ended_in() -> None:
    # Stretches of 10 steps, by hand: episodes end at steps 4 (return 1), 10 (3: the last step of the first stretch), 12 (-2) and 31 (6), in
    # a run of 35 steps. First stretch (1 + 3) / 2 = 2, second -2, none in the third, the fourth is cut at 35.
    returns = TrainingReturns(window=10)
    for env_steps, ended in ((4, 1.0), (10, 3.0), (12, -2.0), (31, 6.0), (35, None)):
        run = SimpleNamespace(clock=SimpleNamespace(env_steps=env_steps))
        step = SimpleNamespace(episodes=() if ended is None else (Episode(0, ended, 5),))
        returns.on_step(run, step)  # type: ignore[arg-type]  # what it reads of them
    assert returns.rows() == [[10, 2.0, 2], [20, -2.0, 1], [35, 6.0, 1]]
