"""Cells side by side: skipped, gone on with, failed, stopped; with stand-ins, and once with real training."""

import io
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from logicdiag.cli import main
from logicdiag.engine.load import dump_config, plain
from logicdiag.engine.run import load_checkpoint, open_run
from logicdiag.engine.stop import Interrupted, stop_signals
from logicdiag.errors import ConfigError, DataError, RunError
from logicdiag.experiment.expect import Expectation
from logicdiag.experiment.runner import Runner, Running
from logicdiag.experiment.show import Show, line
from logicdiag.experiment.store import Store, last_step, last_words, read_result
from logicdiag.experiment.suite import load_suite
from logicdiag.experiment.worker import DONE, Job, Jobs, serve, snapshots, work

from ..engine.small import folder_dataset, on_disk, settings, started, stop_after
from .files import experiment, experiment_file, finish, tasks_of

FAKE = (sys.executable, str(Path(__file__).parent / "fake_worker.py"))


def runner(tasks, jobs=1, minutes=None):
    return Runner(tasks, Show(Console(file=io.StringIO(), width=200)), jobs, minutes=minutes, command=FAKE)


def begun(tasks):
    return (tasks[0].store.out / "begun.txt").read_text().splitlines()


def wait_for(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.02)


def test_everything_is_done_and_then_skipped(tmp_path):
    tasks = tasks_of(tmp_path, grid=[{"psi.q": [1]}, {"name": {"same": {"psi.q": 1}}}], seeds=[0, 1])
    made = runner(tasks, jobs=2)
    outcome = made.run()
    assert [task.name for task in outcome.done] == ["psi.q=1-seed0", "psi.q=1-seed1"]
    told = made.show.console.file.getvalue()
    for task in outcome.done:
        found = read_result(task.run)
        last, best = found.miou(None, "last"), found.miou(None, "best")
        assert f"{task.name}: done, mIoU {last:.2f} (best {best:.2f})\n" in told
    assert (outcome.failed, outcome.left, outcome.stopped) == ({}, [], "")
    assert sorted(begun(tasks)) == sorted({task.cell.run_name for task in tasks})
    again = runner(tasks).run()
    assert len(again.done) == 2
    assert len(begun(tasks)) == 2


def test_a_process_does_one_cell_after_the_other_until_one_fails(tmp_path):
    """The third fails, and the fourth gets a new process."""
    tasks = tasks_of(tmp_path, grid=[{"psi.q": [1]}, {"psi.q": [2]}, {"psi.q": [5]}], seeds=[0, 1], order="file")
    outcome = runner(tasks).run()
    assert (len(outcome.done), len(outcome.failed)) == (4, 2)
    first, second, third, fourth, fifth, sixth = (tasks[0].store.out / "processes.txt").read_text().split()
    assert first == second == third != fourth != fifth == sixth


def test_jobs_run_side_by_side(tmp_path):
    """Three that each wait until all three have begun."""
    tasks = tasks_of(tmp_path, grid=[{"psi.q": [5]}], seeds=[0, 1, 2])
    assert len(runner(tasks, jobs=3).run().done) == 3


def test_failing_cells_are_named_and_stop_no_other(tmp_path):
    tasks = tasks_of(tmp_path, grid=[{"psi.q": [2, 4, 1]}])
    outcome = runner(tasks).run()
    assert [task.name for task in outcome.done] == ["psi.q=1-seed0"]
    assert outcome.failed["psi.q=2-seed0"] == "the soup is cold"
    assert outcome.failed["psi.q=4-seed0"].startswith("killed by SIGKILL")
    assert "something before" in tasks[0].log.read_text()
    assert tasks[0].store.failure(tasks[0].cell) == "the soup is cold"
    assert tasks[0].state() == "failed"
    assert runner(tasks).run().failed.keys() == outcome.failed.keys()  # tried again
    assert len(begun(tasks)) == 5


def test_stopped_by_the_clock(tmp_path, monkeypatch):
    """Those that run are asked to save; the others are not begun. The clock jumps when two have come to step 2."""
    tasks = tasks_of(tmp_path, grid=[{"psi.q": [3]}], seeds=[0, 1, 2])
    runs = [task.run for task in tasks]

    def monotonic():
        far = sum(last_step(run) >= 2 for run in runs) == 2
        return time.monotonic() + 3600 * far

    clock = SimpleNamespace(monotonic=monotonic, sleep=time.sleep, strftime=time.strftime)
    monkeypatch.setattr("logicdiag.experiment.runner.time", clock)
    outcome = runner(tasks, jobs=2, minutes=10).run()
    assert outcome.stopped == "time"
    assert {task.name for task in outcome.left} == {task.name for task in tasks}
    assert sum((run / "saved.txt").is_file() for run in runs) == len(begun(tasks)) == 2
    assert outcome.failed == {}


def test_interrupted_by_a_signal(tmp_path):
    tasks = tasks_of(tmp_path, grid=[{"psi.q": [3, 1]}])
    run = tasks[0].run

    def interrupt():
        wait_for(lambda: last_step(run) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    outcome = runner(tasks).run()
    thread.join()
    assert (outcome.stopped, [task.name for task in outcome.left]) == (
        "interrupted",
        ["psi.q=3-seed0", "psi.q=1-seed0"],
    )
    assert (run / "saved.txt").is_file()
    assert tasks[0].state() == "begun"


def test_two_runners_do_not_meet(tmp_path):
    tasks = tasks_of(tmp_path, grid=[{"psi.q": [1]}])
    with tasks[0].store.locked(), pytest.raises(RunError, match="is in use: another `logicdiag experiment`"):
        runner(tasks).run()
    assert len(runner(tasks).run().done) == 1


def test_data_that_no_cell_can_open(tmp_path):
    tasks = tasks_of(tmp_path, "data.layout=folder", "data.root=nowhere", grid=[{"psi.q": [1, 2]}])
    with pytest.raises(DataError, match="data.root is 'nowhere'"):
        runner(tasks).run()
    assert not (tasks[0].store.out / "begun.txt").exists()


def test_cells_that_cannot_open_their_data_are_tried_again(tmp_path):
    """As long as others could."""
    gone = {"data.layout": "folder", "data.root": "nowhere", "psi.q": 2}
    tasks = tasks_of(tmp_path, grid=[{"a": {"there": {}, "gone": gone}}])
    finish(tasks[0].experiment, tasks[0].cell, 50)
    assert [task.state() for task in tasks] == ["done", "to do"]
    assert list(runner(tasks).run().failed) == [tasks[1].name]  # by processes that open no data
    assert len(begun(tasks)) == 1


def test_what_is_evaluated_on_must_be_there_before(tmp_path):
    tasks = tasks_of(tmp_path, evaluate="tset", grid=[{"psi.q": [1]}])
    with pytest.raises(ConfigError, match=r"small\.yaml: evaluate is 'tset': .*expected"):
        runner(tasks).run()
    assert not (tasks[0].store.out / "begun.txt").exists()


@pytest.mark.parametrize("order", [("there", "gone"), ("gone", "there")])
def test_one_row_that_can_be_evaluated_will_do(tmp_path, order):
    """In whatever order they stand; the others say why when it is their turn."""
    rows = {"there": {"psi.q": 1}, "gone": {"data.layout": "folder", "data.root": "nowhere", "psi.q": 2}}
    tasks = tasks_of(tmp_path, evaluate="train", grid=[{"a": {name: rows[name] for name in order}}])
    runner(tasks).run()
    assert len(begun(tasks)) == 2


def test_the_folder_of_a_run_is_not_taken(tmp_path):
    tasks = tasks_of(tmp_path, grid=[{"psi.q": [1]}])
    tasks[0].store.out.mkdir(parents=True)
    (tasks[0].store.out / "config.yaml").write_text("data: {}\n")
    with pytest.raises(RunError, match="holds a run of `logicdiag train`; give the experiment another folder"):
        runner(tasks).run()
    assert [path.name for path in tasks[0].store.out.iterdir()] == ["config.yaml"]


# ---- how long it takes ----------------------------------------------------------------------------------------------


def running(task, *seen, start=0):
    """Begun at time 0, and seen at steps and times."""
    one = Running(task, SimpleNamespace(), 0, 0.0, start, step=start)  # type: ignore[arg-type]
    for step, now in seen:
        one.see(step, now)
    return one


def test_expectations(tmp_path):
    """A kind that is not known takes as long as the slowest that is."""
    grid = [{"name": {"a": None, "b": {"method.name": "supervised"}}}]
    a, b = tasks_of(tmp_path, "train.steps=100", grid=grid)
    expect = Expectation(jobs=2)
    assert expect.seconds(a) is None
    assert expect.left([], [a, b]) is None
    early = running(a, (20, 15.0), start=10)
    assert early.per_step() is None
    assert expect.seconds(b, [early]) is None
    assert line(early) == ("a-seed0", "20/100", "", "")
    one = running(a, (20, 15.0), (20, 17.0), (30, 20.0), start=10)  # 0.5 s a step, 10 s to start
    assert expect.seconds(b, [one]) == pytest.approx(10 + 50)
    assert expect.seconds(b, [one], new=False) == pytest.approx(50)
    assert expect.left([one], [b]) == pytest.approx((35 + 50) / 2)
    assert line(one) == ("a-seed0", "30/100", "2.0/s", "35 s left")
    expect.learn(running(b, (10, 5.0), (100, 23.0)), 30.0)  # 0.2 s a step, 3 s to start, 7 s at the end
    expect.learn(running(b, (10, 2.0), (100, 20.0)), 27.0)  # in a process that was there
    assert expect.seconds(b, [one]) == pytest.approx(3 + 20 + 7)
    assert expect.seconds(b, [one], new=False) == pytest.approx(20 + 7)
    b.run.mkdir(parents=True)
    (b.run / "metrics.jsonl").write_text('{"step": 60}\n{"step": 7')
    assert expect.seconds(b) == pytest.approx(10 + 8)
    expect.learn(running(a), 50.0)  # too quick to be seen
    assert expect.seconds(a) == pytest.approx(50)


def test_what_should_end_too_late_is_not_begun(tmp_path):
    """But what takes longer than any budget goes on piece by piece."""
    [task] = tasks_of(tmp_path, "train.steps=100")
    made = runner([task], minutes=2)
    assert made._fits(task, left=1)  # nothing is known
    made.expect.learn(running(task), 90.0)
    assert made._fits(task, left=91)
    assert not made._fits(task, left=89)
    made.expect.known.clear()
    made.expect.learn(running(task), 121.0)
    assert made._fits(task, left=1)


# ---- files ----------------------------------------------------------------------------------------------------------


def test_last_lines(tmp_path):
    assert last_step(tmp_path) == 0
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"step": {i}, "x": "{"y" * 50}"}}\n' for i in range(500)))
    assert last_step(tmp_path) == 499
    (tmp_path / "log").write_text("Traceback\n  x\nRuntimeError: boom\n\n")
    assert last_words(tmp_path / "log") == "RuntimeError: boom"
    assert last_words(tmp_path / "none") == "it ended without a word"


def test_runs_are_known_by_their_settings_too(tmp_path):
    """As when a setting was added since, and keys are others now."""
    e, [cell] = experiment(tmp_path)
    run = finish(e, cell, 40)
    (run / "config.yaml").write_text(dump_config(cell.config))
    old = run.rename(run.parent / "fixmatch-with-an-old-key")
    assert Store(e.out_folder).run(cell) == old
    assert Store(e.out_folder).state(cell, None) == "done"
    assert Store(e.out_folder).state(cell, "test") == "begun"


def test_damaged_results_are_named(tmp_path):
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(RunError, match="result.json cannot be read"):
        read_result(tmp_path)


def test_a_worker_stops_when_its_runner_is_gone():
    """In the middle of a job; between two of them it just ends."""
    job = Job("r", {}, ".", "d", None, (1,), "all")
    read, write = os.pipe()
    with stop_signals() as asked:
        jobs = iter(Jobs(read))
        os.write(write, 2 * job.line().encode())
        assert [next(jobs).run, next(jobs).run] == ["r", "r"]
        assert not asked()
        os.close(write)
        wait_for(asked)
    assert list(jobs) == []
    os.close(read)


def test_work_is_not_for_people():
    read, write = os.pipe()
    os.close(write)
    with pytest.raises(RunError, match="is for `logicdiag experiment`"):
        list(Jobs(read))
    os.close(read)


# ---- real training --------------------------------------------------------------------------------------------------


def test_train_interrupt_go_on(tmp_path, capsys):
    """Two real runs, one of which cannot be; Ctrl-C; on from there; all that a table needs."""
    base = settings(train={"steps": 20, "log_every": 1, "val_every": 10})
    grid = [{"name": {"good": None, "bad": {"psi.rules": "nowhere.rules"}}}]
    path = experiment_file(tmp_path, base=base, grid=grid, jobs=2, snapshots=2, keep="networks")
    process = started("experiment", path)
    out = tmp_path / "out"

    def far_enough():
        [*runs] = out.glob("runs/*hierarchical*")
        return bool(runs) and last_step(runs[0]) >= 2 and any(out.glob("failed/*"))

    wait_for(far_enough)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert re.search("^failed: bad-seed0: .*nowhere.rules", err, re.MULTILINE)
    assert f"logicdiag: stopped with 1 to do; go on with: logicdiag experiment {path}" in err
    [run] = out.glob("runs/*")
    step = load_checkpoint(run, "cpu")["done"]
    assert 2 <= step < 20
    assert not read_result(run).trained

    assert main(["experiment", str(path)]) == 1
    err = capsys.readouterr().err
    assert f"good-seed0: goes on from step {step}" in err
    assert "failed: bad-seed0:" in err
    assert "1 of 2 runs done, 1 failed" in err
    result = read_result(run)
    assert result.is_done(None)
    assert result.labels == 4
    assert result.evaluated["val"]["last"]["miou"] == pytest.approx(result.val["last"])
    assert sorted(file.name for file in (run / "snapshots").iterdir()) == [
        "step-000010.safetensors",
        "step-000020.safetensors",
    ]
    assert not (run / "checkpoint.pt").exists()
    last, snapshot = (open_run(run).model(name).state_dict() for name in ("last", "snapshots/step-000020"))
    assert all(tensor.equal(snapshot[name]) for name, tensor in last.items())
    assert json.loads((run / "evaluation-val.json").read_text())["checkpoints"].keys() == {"last", "best"}


def test_two_in_one_process_are_as_each_alone(tmp_path):
    """Whatever ran before in a process, a run comes out the same."""
    e, cells = experiment(tmp_path, base=settings(), grid=[{"psi.strategy": ["sampling", "greedy"]}])

    def job(cell, folder):
        log = tmp_path / f"{folder}-{cell.name}.log"
        return Job(str(tmp_path / folder / cell.run_name), plain(cell.config), e.folder, "d", None, (), "all", str(log))

    serve_here(job(cell, "both") for cell in cells)
    serve_here([job(cells[1], "alone")])
    runs = [Path(job(cells[1], folder).run) for folder in ("both", "alone")]
    one, other = (open_run(run).model("last").state_dict() for run in runs)
    assert all(tensor.equal(other[name]) for name, tensor in one.items())
    assert (runs[0] / "metrics.jsonl").read_text() == (runs[1] / "metrics.jsonl").read_text()


def serve_here(jobs):
    """In this process, whose output is put back."""
    read, write = os.pipe()
    kept = [os.dup(1), os.dup(2)]
    jobs = list(jobs)
    try:
        serve(jobs, write)
    finally:
        for number, old in enumerate(kept, 1):
            os.dup2(old, number)
            os.close(old)
    os.close(write)
    with open(read, "rb") as answers:
        assert answers.read() == DONE * len(jobs)


def test_a_half_done_run_goes_on_elsewhere(tmp_path, monkeypatch):
    """Data, lists beside the experiment's file, and the run itself have moved; the weights come out the same."""
    first = folder_dataset(tmp_path / "one" / "data")
    (tmp_path / "one" / "mine.txt").write_text("i0\ni1\n")
    data = {**on_disk(first), "root": "data", "labeled": "mine.txt"}
    path = experiment_file(tmp_path / "one", base=settings(data=data))

    def job(folder):
        [task] = load_suite(folder / path.name, [f"out={folder / 'out'}"]).tasks()
        e = task.experiment
        return Job(str(task.run), plain(task.config), e.folder, e.dataset, "val", (2, 6), "all")

    whole = shutil.copytree(tmp_path / "one", tmp_path / "whole")
    work(job(whole))
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Interrupted):
            work(job(tmp_path / "one"))
    there = (tmp_path / "one").rename(tmp_path / "two")
    work(job(there))
    one, other = (open_run(Path(job(folder).run)).model("last").state_dict() for folder in (whole, there))
    assert all(tensor.equal(other[name]) for name, tensor in one.items())
    assert len(snapshots(Path(job(there).run))) == 2
    assert read_result(Path(job(there).run)).is_done("val")
    assert read_result(Path(job(there).run)).labels == 2
