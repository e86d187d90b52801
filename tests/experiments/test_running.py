"""What is missing is run, in order, resumably; runs live outside of work trees; none takes longer than its hours."""

import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from test_declared import TINY, tiny

from supple.errors import CheckpointError, DataError, RecipeError, TrainError
from supple.experiments import jobs, processes
from supple.experiments.declared import Weights
from supple.experiments.jobs import Job, jobs_for, runs_folder
from supple.experiments.processes import Processes, last_words, run_jobs
from supple.experiments.results import EVALUATION, pack, read_results, write_result
from supple.experiments.running import OverLimit, find_weights, limited, run_one, spent


class Trainer:
    """Writes what a run leaves behind, without any training; may fail once at a label."""

    def __init__(self, fails: str = "", over: str = "") -> None:
        self.fails, self.over, self.ran, self.lock = fails, over, [], threading.Lock()

    def __call__(self, job: Job) -> None:
        assert all(other.trained for other in job.needs())
        if job.label == self.fails:
            raise TrainError("it broke.", "Mend it.")
        if job.label == self.over:
            raise OverLimit(job)
        with self.lock:
            self.ran.append(job.label)
        if job.experiment.arms[job.arm].pool is None:
            job.folder.mkdir(parents=True)
            (job.folder / "manifest.json").write_text("{}")
        each = {name: pack(np.ones(4, bool)) for name in job.experiment.evaluated(job.arm)}
        facts = {"recipe": job.hash, "evaluation": EVALUATION, "minutes": 1.0, "machine": jobs.machine(), "test": "t"}
        write_result(job.result, {**facts, "points": each})


def missing(folder: Path, experiment=None, claims=("C16",)) -> list[Job]:
    experiment = experiment or tiny()
    there, _ = read_results(folder / "results", "tiny", experiment)
    return jobs_for("tiny", experiment, claims, there, folder / "runs", folder / "results")


def labels(found: list[Job]) -> list[str]:
    return [job.label for job in found]


def test_a_claim_runs_its_arms_on_all_seeds_what_others_start_from_first(tmp_path):
    found = labels(missing(tmp_path))
    assert sorted(found) == [f"{arm}-{seed}" for arm in ("base", "plain", "shuffle") for seed in range(3)]
    assert all(found.index(f"base-{seed}") < found.index(f"shuffle-{seed}") for seed in range(3))


def test_one_seed_is_finished_before_the_next_begins(tmp_path):
    claims = {"C16": TINY["claims"]["C16"], "C20": {**TINY["claims"]["C16"], "of": {"arm": "both"}}}
    found = labels(missing(tmp_path, tiny(claims=claims), claims))
    seeds = [["base-0", "shuffle-0", "plain-0"], ["base-1", "shuffle-1", "both-0", "plain-1"]]
    assert [sorted(part) for part in (found[:3], found[3:7])] == [sorted(part) for part in seeds]
    assert all(found.index(f"base-{seed}") < found.index(f"plain-{seed}") for seed in range(3))
    assert sorted(found[7:]) == ["base-2", "both-2", "plain-2", "shuffle-2"]


def on(monkeypatch, name: str) -> None:
    """From now on this is another kind of processor."""
    monkeypatch.setattr(jobs, "machine", lambda: name)


def test_a_seed_that_is_completed_on_another_processor_is_run_there_as_a_whole(tmp_path, monkeypatch):
    on(monkeypatch, "a")
    run_jobs(missing(tmp_path), Trainer())
    on(monkeypatch, "b")
    assert missing(tmp_path) == []  # all seeds are complete: they were made on one kind
    (tmp_path / "results" / "tiny" / "plain-1.json").unlink()
    assert labels(missing(tmp_path)) == ["base-1", "shuffle-1", "plain-1"]
    on(monkeypatch, "a")
    assert labels(missing(tmp_path)) == ["plain-1"]


def test_a_seed_whose_results_come_from_two_kinds_of_processors_is_not_complete(tmp_path, monkeypatch):
    on(monkeypatch, "a")
    run_jobs(missing(tmp_path), Trainer())
    path = tmp_path / "results" / "tiny" / "plain-1.json"
    path.write_text(path.read_text().replace('"machine": "a"', '"machine": "b"'))
    assert labels(missing(tmp_path)) == ["plain-1"]
    on(monkeypatch, "b")
    assert labels(missing(tmp_path)) == ["base-1", "shuffle-1"]


def test_seeds_that_a_merge_ties_share_one_kind_of_processor(tmp_path, monkeypatch):
    """both-0 comes from the runs of seeds 0 and 1 and is compared with them."""
    pool = {"arms.both.merge.pools": {0: [0, 1]}}
    claim = {**TINY["claims"]["C16"], "minus": {"arm": "both"}}
    experiment = tiny(**pool, claims={"C20": claim})
    on(monkeypatch, "a")
    run_jobs(missing(tmp_path, experiment, ["C20"]), Trainer())
    assert missing(tmp_path, experiment, ["C20"]) == []
    path = tmp_path / "results" / "tiny" / "shuffle-0.json"
    path.write_text(path.read_text().replace('"machine": "a"', '"machine": "b"'))
    assert labels(missing(tmp_path, experiment, ["C20"])) == ["shuffle-0"]
    on(monkeypatch, "b")
    again = labels(missing(tmp_path, experiment, ["C20"]))
    assert sorted(again) == ["base-0", "base-1", "both-0", "shuffle-0", "shuffle-1"]


def test_a_run_starts_from_none_of_another_kind_of_processor(tmp_path, monkeypatch):
    on(monkeypatch, "a")
    run_jobs(missing(tmp_path), Trainer())
    job = Job("tiny", tiny(), "base", 0, tmp_path / "runs", tmp_path / "results")
    assert job.trained
    on(monkeypatch, "b")
    assert not job.trained


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_a_killed_reproduction_goes_on_and_trains_nothing_twice(tmp_path, at_once):
    first = Trainer(fails="shuffle-1")
    with pytest.raises(TrainError, match="it broke"):
        run_jobs(missing(tmp_path), first, at_once)
    assert "shuffle-1" not in first.ran
    then = Trainer()
    run_jobs(missing(tmp_path), then, at_once)
    assert not set(first.ran) & set(then.ran)
    assert len(first.ran) + len(then.ran) == 9
    assert missing(tmp_path) == []


def test_after_a_failure_nothing_new_is_started(tmp_path):
    trainer = Trainer(fails="base-0")
    with pytest.raises(TrainError):
        run_jobs(missing(tmp_path), trainer)
    assert trainer.ran == []


def test_a_run_over_its_limit_is_said_and_the_others_go_on(tmp_path):
    trainer = Trainer(over="base-0")
    done, over = run_jobs(missing(tmp_path), trainer)
    assert (
        sorted(trainer.ran)
        == sorted(labels(done))
        == sorted(f"{arm}-{seed}" for arm in ("base", "plain", "shuffle") for seed in (1, 2))
    )
    assert ["base-0 was stopped after 2 h 00 min" in error.cause for error in over] == [True]


def test_what_is_stopped_stops_its_runs(tmp_path, monkeypatch):
    stopped = threading.Event()

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_jobs(missing(tmp_path), lambda job: stopped.wait(60), 1, stopped.set)
    assert stopped.is_set()


def test_results_are_enough_a_run_is_trained_again_only_where_something_starts_from_it(tmp_path):
    run_jobs(missing(tmp_path), Trainer())
    for folder in (tmp_path / "runs" / "tiny").iterdir():
        folder.rename(tmp_path / folder.name)  # another machine
    assert missing(tmp_path) == []
    (tmp_path / "results" / "tiny" / "shuffle-1.json").unlink()
    assert labels(missing(tmp_path)) == ["base-1", "shuffle-1"]


def test_another_recipe_is_another_run_in_another_folder(tmp_path):
    run_jobs(missing(tmp_path), Trainer())
    other = tiny(**{"arms.plain.changes": ["train.lr=0.01"]})
    again = missing(tmp_path, other)
    assert labels(again) == ["plain-0", "plain-1", "plain-2"]
    assert not any(job.folder.exists() for job in again)


def test_what_is_merged_needs_the_runs_of_its_pool(tmp_path):
    claim = {**TINY["claims"]["C16"], "of": {"arm": "both", "at": "arbitrary"}}
    experiment = tiny(claims={"C20": claim})
    trainer = Trainer()
    run_jobs(missing(tmp_path, experiment, ["C20"]), trainer, 2)
    assert trainer.ran.index("both-2") > max(trainer.ran.index("shuffle-1"), trainer.ran.index("shuffle-2"))
    assert missing(tmp_path, experiment, ["C20"]) == []


# --- where ---


def test_runs_in_a_git_work_tree_are_refused(tmp_path, monkeypatch):
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    with pytest.raises(RecipeError, match="lies in the git work tree") as caught:
        runs_folder(tmp_path / "tree" / "some" / "runs")
    assert "--runs" in caught.value.cure
    monkeypatch.setenv("SUPPLE_RUNS", str(tmp_path / "tree"))
    with pytest.raises(RecipeError, match="work tree"):
        runs_folder(None)
    assert runs_folder(tmp_path / "runs") == tmp_path / "runs"
    monkeypatch.delenv("SUPPLE_RUNS")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert runs_folder(None) == tmp_path / ".cache" / "supple" / "runs"


# --- hours ---


def job_of(folder: Path, **changes) -> Job:
    (folder / "mine.yaml").write_text(yaml.safe_dump({**TINY, **changes}, sort_keys=False))
    return Job(str(folder / "mine.yaml"), tiny(**changes), "base", 0, folder / "runs", folder / "results")


def test_hours_are_those_of_the_processor_and_add_up_over_processes(tmp_path):
    job = job_of(tmp_path, hours=0.5 / 3600)
    with limited(job, tick=0.02):
        time.sleep(0.6)  # stopped, or on a busy machine
    assert spent(job) < 0.4
    with pytest.raises(OverLimit, match="base-0 was stopped after 0.5 s") as caught, limited(job, tick=0.02):
        while True:
            sum(range(1000))
    assert "hours" in caught.value.cure
    assert spent(job) >= 0.5
    job.folder.with_suffix(".seconds").write_text("0.45")
    began = time.process_time()
    with pytest.raises(OverLimit), limited(job, tick=0.02):
        while True:
            sum(range(1000))
    assert time.process_time() - began < 0.4
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_over_its_limit_is_not_started_again(tmp_path):
    job = job_of(tmp_path, hours=1)
    job.folder.parent.mkdir(parents=True)
    job.folder.with_suffix(".seconds").write_text("3600")
    with pytest.raises(OverLimit):
        Processes(quiet=True).start(job)
    assert not job.folder.with_suffix(".log").exists()


@pytest.mark.system
def test_a_run_is_a_process_that_ends_with_its_hours_and_goes_on_afterwards(tmp_path):
    epochs = {"arms": {**TINY["arms"], "base": {"evaluate": [], "changes": ["train.epochs=250", "train.lr=1e-6"]}}}
    with pytest.raises(OverLimit, match="was stopped after"):
        Processes(quiet=True).start(job_of(tmp_path, hours=1 / 3600, **epochs))
    Processes(quiet=True).start(job_of(tmp_path, hours=1.0, **epochs))
    job = job_of(tmp_path, hours=1.0, **epochs)
    assert job.trained
    found, _ = read_results(tmp_path / "results", "mine", job.experiment)
    assert found["base", 0]["points"] == {}
    assert found["base", 0]["minutes"] == pytest.approx(spent(job) / 60, abs=0.1)


def test_a_run_hears_that_it_is_to_stop_whatever_its_shell_ignores(tmp_path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            with pytest.raises(KeyboardInterrupt), limited(job_of(tmp_path)):
                signal.raise_signal(number)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as it was
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.system
@pytest.mark.parametrize("when", ["while it starts", "while it trains"])
def test_runs_of_a_shells_background_process_are_stopped_at_once(tmp_path, when):
    """Such a process ignores Ctrl-C, and so do all that it starts."""
    job = job_of(
        tmp_path, arms={**TINY["arms"], "base": {"evaluate": [], "changes": ["train.epochs=100000", "train.lr=1e-6"]}}
    )
    sign = job.folder / "metrics.jsonl" if when == "while it trains" else job.folder.with_suffix(".log")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    started = Processes(quiet=True)
    worker = threading.Thread(target=started.start, args=(job,), daemon=True)
    try:
        worker.start()
        deadline = time.monotonic() + 120
        while not (sign.is_file() and started.alive) and time.monotonic() < deadline:
            time.sleep(0.05)
        started.stop()
        worker.join(20)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not worker.is_alive()
    assert started.alive[0].returncode not in (None, -signal.SIGKILL)
    assert when == "while it starts" or list((job.folder / "state").glob("*.json"))


# --- starts ---


def test_weights_that_are_not_there_are_named(tmp_path):
    weights = {"file": "no-such-file.safetensors", "sha256": 64 * "0"}
    job = Job("mine", tiny(weights=weights), "base", 0, tmp_path / "runs", tmp_path / "results")
    with pytest.raises(DataError, match="there are no weights no-such-file.safetensors") as caught:
        run_one(job)
    assert "$SUPPLE_DATA" in caught.value.cure


def test_weights_of_the_right_name_with_another_content_are_refused(tmp_path):
    (tmp_path / "w.safetensors").write_bytes(b"abc")
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert find_weights(Weights(file=str(tmp_path / "w.safetensors"), sha256=abc)) == tmp_path / "w.safetensors"
    (tmp_path / "w.safetensors").write_bytes(b"abcd")
    with pytest.raises(DataError, match="other weights"):
        find_weights(Weights(file=str(tmp_path / "w.safetensors"), sha256=abc))


def test_a_run_whose_start_is_missing_says_how_to_get_it(tmp_path):
    job = Job("mine", tiny(), "plain", 1, tmp_path / "runs", tmp_path / "results")
    with pytest.raises(CheckpointError, match="plain-1 is made from base-1") as caught:
        run_one(job)
    assert "supple reproduce mine --one base-1" in caught.value.cure


@pytest.mark.parametrize("log", ["epoch 1\nerror: it broke.\nMend it.\n", "epoch 1\nit broke.\n"])
def test_what_a_log_says_last(tmp_path, log):
    (tmp_path / "log").write_text(log)
    assert last_words(tmp_path / "log") == "it broke."
