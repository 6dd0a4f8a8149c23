"""Many tables at once: what a suite has in it, in what order it is done, and one pool that does it."""

import csv
import functools
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
import yaml

from logicdiag.cli import main
from logicdiag.errors import ConfigError
from logicdiag.experiment.accuracy import measure_run
from logicdiag.experiment.config import load_experiment
from logicdiag.experiment.expect import Expectation
from logicdiag.experiment.runner import Runner, Running
from logicdiag.experiment.store import Store, last_step, read_result
from logicdiag.experiment.suite import load_suite
from logicdiag.experiment.task import unique
from logicdiag.experiment.worker import Job

from ..engine.small import folder_dataset, on_disk, settings
from .files import experiment_file, finish, suite_file

FAKE = (sys.executable, str(Path(__file__).parent / "fake_worker.py"))
BOTH = ["left", "right"]


@pytest.fixture
def _no_training(monkeypatch):
    """Stand-ins work in place of processes that train."""
    monkeypatch.setattr("logicdiag.experiment.commands.Runner", functools.partial(Runner, command=FAKE))


def names(path, *changes):
    return [task.name for task in load_suite(path, changes).tasks()]


def begun(folder):
    file = folder / "begun.txt"
    return file.read_text().splitlines() if file.is_file() else []


# ---- files -----------------------------------------------------------------------------------------------------------


def test_every_table_for_every_data_set(tmp_path):
    tables = {"one.yaml": {"title": "One on {dataset}"}, "two.yaml": {"table": "second", "psi": {"q": 1}}}
    suite = load_suite(suite_file(tmp_path, tables, datasets=BOTH, title="Both"), ["train.steps=3"])
    assert (suite.title, suite.alone) == ("Both", False)
    assert [e.name for e in suite.experiments] == ["left/one", "right/one", "left/second", "right/second"]
    assert [e.title for e in suite.experiments[:2]] == ["One on left", "One on right"]
    assert [e.out for e in suite.experiments[:2]] == [str(tmp_path / name) for name in BOTH]
    assert {e.train["steps"] for e in suite.experiments} == {3}
    assert load_suite(suite_file(tmp_path, tables)).title == "all"


def test_each_table_has_its_own_data_set(tmp_path):
    path = suite_file(tmp_path, {"one.yaml": {"dataset": "left"}, "two.yaml": {"dataset": "right"}})
    assert names(path) == ["left/one/seed0", "right/two/seed0"]
    assert names(path, "dataset=other") == ["other/one/seed0", "other/two/seed0"]


def test_a_part_of_a_suite(tmp_path):
    path = suite_file(tmp_path, {"one.yaml": {}, "two.yaml": {}}, datasets=BOTH)
    assert names(path, "datasets=[right]") == ["right/one/seed0", "right/two/seed0"]
    assert names(path, "tables=[two.yaml]", "datasets=[left]") == ["left/two/seed0"]


def test_one_pool(tmp_path):
    """Its own number of processes, or that of the table that has most; what is said behind the file counts."""
    tables = {"one.yaml": {"jobs": 3, "devices": ["cuda:1", "cuda:0"]}, "two.yaml": {"devices": ["cuda:0", "cuda:2"]}}
    path = suite_file(tmp_path, tables)
    suite = load_suite(path)
    assert (suite.jobs, suite.devices) == (3, ["cuda:1", "cuda:0", "cuda:2"])
    path = suite_file(tmp_path, tables, jobs=2, devices=["cpu"])
    suite = load_suite(path)
    assert (suite.jobs, suite.devices) == (2, ["cpu"])
    suite = load_suite(path, ["jobs=5", "devices=[cuda]"])
    assert (suite.jobs, suite.devices) == (5, ["cuda"])


def test_a_single_experiment_is_a_suite_of_one(tmp_path):
    path = experiment_file(tmp_path, jobs=3, devices=["cpu"], title="T", grid=[{"psi.q": [2, 1]}], seeds=[1, 0])
    suite = load_suite(path, ["order=file"])
    assert (suite.title, suite.jobs, suite.devices, suite.alone) == ("T", 3, ["cpu"], True)
    assert [task.name for task in suite.tasks()] == ["psi.q=2-seed1", "psi.q=2-seed0", "psi.q=1-seed1", "psi.q=1-seed0"]


@pytest.mark.parametrize(
    ("keys", "changes", "says"),
    [
        ({"dataset": "left"}, [], "all.yaml: unknown key dataset (did you mean 'datasets'?)"),
        ({"data": {}}, [], "all.yaml: unknown key data (did you mean 'datasets'?)"),
        ({"tables": []}, [], "all.yaml: tables is [], expected different experiment files"),
        ({"tables": None}, [], "all.yaml: tables is null, expected a list of text"),
        ({"tables": ["one.yaml", "one.yaml"]}, [], "expected different experiment files"),
        ({"tables": ["on.yaml"]}, [], "tables has 'on.yaml', but there is no file on.yaml (did you mean 'one.yaml'?)"),
        ({"tables": ["one.yaml", "all.yaml"]}, [], "tables has 'all.yaml', which has tables itself"),
        ({"tables": ["one.yaml", "./one.yaml"]}, [], "two tables are called scenes/one, of one.yaml and one.yaml"),
        ({}, ["table=same"], "two tables are called scenes/same, of one.yaml and two.yaml"),
        ({"datasets": []}, [], "datasets is [], expected different names of data sets"),
        ({"datasets": ["left", "left"]}, [], "datasets is ['left', 'left'], expected different names"),
        ({"datasets": "left"}, [], "datasets is 'left', expected a list of text or null"),
        ({"datasets": ["a/b"]}, [], "one.yaml: dataset is 'a/b', expected a name for files"),
        ({"datasets": BOTH}, ["dataset=left"], "dataset=left has no effect: all.yaml lists datasets itself; say"),
        ({"jobs": 0}, [], "all.yaml: jobs is 0, expected a whole number of at least 1"),
        ({}, ["jobs=many"], "all.yaml: jobs is 'many', expected a whole number or null"),
        ({}, ["psi.q=3"], "psi.q=3 has no effect: two.yaml varies psi.q itself"),
        ({}, ["steps=3"], "one.yaml: unknown key steps"),
        ({}, ["jobs"], "'jobs' is no change of a setting"),
    ],
)
@pytest.mark.parametrize("command", ["run", "table", "accuracy"])
def test_mistakes(tmp_path, monkeypatch, capsys, command, keys, changes, says):
    """One sentence, and nothing is written, whatever was asked for."""
    monkeypatch.chdir(tmp_path)
    suite_file(tmp_path, {"one.yaml": {}, "two.yaml": {"grid": [{"psi.q": [1]}]}})
    (tmp_path / "all.yaml").write_text(yaml.safe_dump({"tables": ["one.yaml", "two.yaml"], **keys}))
    before = sorted(path.name for path in tmp_path.iterdir())
    assert main(["experiment", command, "all.yaml", *changes]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.startswith("logicdiag: ")
    assert len(captured.err.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_no_such_cell(tmp_path, capsys):
    path = suite_file(tmp_path, {"one.yaml": {}}, datasets=BOTH)
    assert main(["experiment", str(path), "--only", "middle"]) == 2
    assert "no cell is named middle; there are 2, such as left/one/seed0" in capsys.readouterr().err


def test_the_folder_of_each_data_set(tmp_path):
    """{dataset} is filled in, in a suite and in a single experiment."""
    change = "data.root=/where/{dataset}/is"
    path = suite_file(tmp_path, {"one.yaml": {}}, datasets=BOTH)
    found = [task.cell.config.data.root for task in load_suite(path, [change]).tasks()]
    assert found == ["/where/left/is", "/where/right/is"]
    assert load_experiment(tmp_path / "one.yaml", [change]).data["root"] == "/where/scenes/is"
    nameless = experiment_file(tmp_path, dataset="")
    with pytest.raises(ConfigError, match="data.root is '/where/{dataset}/is', so dataset must be given, such as"):
        load_experiment(nameless, [change])


# ---- order and sharing -----------------------------------------------------------------------------------------------


def counted(labels):
    """The base of a data set, with so many labels."""
    data = {**settings()["data"], "scenes": {**settings()["data"]["scenes"], "labeled": "{labels}"}}
    return yaml.safe_dump({**settings(), "data": data, "labels": labels})


def test_the_fewest_labels_of_all_tables_come_first(tmp_path):
    """Whatever the counts are in each data set; then table by table, seed by seed, row by row, data sets by turns."""
    (tmp_path / "left.yaml").write_text(counted([8, 2, 4]))
    (tmp_path / "right.yaml").write_text(counted([5, 3]))
    rows = {"grid": [{"name": {"a": {"psi.q": 1}, "b": None}}], "seeds": [7, 0], "order": "file"}
    tables = {"one.yaml": rows, "two.yaml": {"fewest": 1, "seeds": [0]}}
    path = suite_file(tmp_path, {name: {"base": "{dataset}.yaml", **keys} for name, keys in tables.items()})
    found = names(path, "datasets=[right, left]")
    of_ranks = [
        [f"{data}/one/{row}-labels{count}-seed{seed}" for seed in (7, 0) for row in "ab" for data, count in counts]
        for counts in ((("right", 3), ("left", 2)), (("right", 5), ("left", 4)), (("left", 8),))
    ]
    assert found == [
        *of_ranks[0],
        "right/two/labels3-seed0",
        "left/two/labels2-seed0",
        *of_ranks[1],
        *of_ranks[2],
    ]


def test_tables_share_runs(tmp_path):
    """Within a data set; with another folder they do not."""
    grid = [{"psi.q": [1, 5]}]
    path = suite_file(tmp_path, {"one.yaml": {"grid": grid}, "two.yaml": {}}, datasets=BOTH)
    tasks = load_suite(path).tasks()
    assert len(tasks) == 6
    assert [task.name for task in unique(tasks)] == [f"{d}/one/psi.q={q}-seed0" for q in (1, 5) for d in BOTH]
    assert len({id(task.store) for task in tasks}) == 2
    elsewhere = {"out": str(tmp_path / "elsewhere")}
    path = suite_file(tmp_path, {"one.yaml": {"grid": grid}, "two.yaml": elsewhere}, datasets=BOTH)
    assert len(unique(load_suite(path).tasks())) == 6


def test_one_folder_by_two_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = suite_file(tmp_path, {"one.yaml": {"out": "out"}, "two.yaml": {"out": str(tmp_path / "out")}})
    assert len(unique(load_suite(path).tasks())) == 1


# ---- stand-ins -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_no_training")
def test_a_failing_cell_stops_no_other_table(tmp_path, capsys):
    """All else is done by one process and each run once; next time only the failed one is tried again."""
    tables = {"one.yaml": {"grid": [{"psi.q": [1, 2]}]}, "two.yaml": {"grid": [{"psi.q": [1]}], "seeds": [0, 1]}}
    path = str(suite_file(tmp_path, tables, datasets=BOTH))
    assert main(["experiment", path, "--only", "q=1-"]) == 0
    assert "4 of 4 runs done" in capsys.readouterr().err
    processes = [(tmp_path / name / "processes.txt").read_text().split() for name in BOTH]
    assert processes == [processes[0][:1] * 2] * 2
    assert main(["experiment", path]) == 1
    err = capsys.readouterr().err
    log = Store(tmp_path / "left").out / "logs"
    assert re.search(rf"^failed: left/one/psi.q=2-seed0: the soup is cold .log: {log}/.*\.log.$", err, re.MULTILINE)
    assert "failed: right/one/psi.q=2-seed0: the soup is cold" in err
    assert "4 of 6 runs done, 2 failed" in err
    assert main(["experiment", path, "--only", "right/one/*"]) == 1
    assert "1 of 2 runs done, 1 failed" in capsys.readouterr().err
    assert [len(begun(tmp_path / name)) for name in BOTH] == [3, 4]


@pytest.mark.usefixtures("_no_training")
def test_a_failing_cell_is_first_and_the_rest_is_done(tmp_path, capsys):
    tables = {"one.yaml": {"grid": [{"psi.q": [4, 1]}]}, "two.yaml": {"seeds": [1], "psi": {"q": 1}}}
    assert main(["experiment", str(suite_file(tmp_path, tables, datasets=BOTH)), "jobs=2"]) == 1
    assert "4 of 6 runs done, 2 failed" in capsys.readouterr().err


@pytest.mark.usefixtures("_no_training")
def test_what_a_table_says_holds_for_its_cells(tmp_path, monkeypatch):
    """Of a run that two share, what the first in order says."""
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "right.yaml").write_text(yaml.safe_dump({**settings(), "psi": {"q": 1}}))
    (tmp_path / "below" / "left.yaml").write_text(yaml.safe_dump({**settings(), "psi": {"q": 1}, "evaluate": "train"}))
    base = {"base": "below/{dataset}.yaml", "keep": "networks"}
    tables = {"one.yaml": {**base, "snapshots": 2}, "two.yaml": {**base, "seeds": [0, 1], "keep": "results"}}
    given = {}

    def noted(**keys):
        given[Path(keys["run"]).name] = keys
        return Job(**keys)

    monkeypatch.setattr("logicdiag.experiment.runner.Job", noted)
    path = suite_file(tmp_path, tables, datasets=BOTH)
    assert main(["experiment", str(path), "jobs=2"]) == 0
    tasks = {task.name: task for task in load_suite(path).tasks()}
    found = {name: given[task.cell.run_name] for name, task in tasks.items()}
    assert len(given) == 4
    assert found["left/two/seed0"] is found["left/one/seed0"]
    told = {name: (job["split"], job["keep"], job["moments"]) for name, job in found.items()}
    assert told["left/one/seed0"] == ("train", "networks", (3, 6))
    assert told["left/two/seed1"] == ("train", "results", ())
    assert told["right/two/seed0"] == (None, "networks", (3, 6))
    assert {job["base"] for job in given.values()} == {str(tmp_path / "below")}
    assert {name: found[f"{name}/one/seed0"]["dataset"] for name in BOTH} == {name: name for name in BOTH}


@pytest.mark.usefixtures("_no_training")
def test_one_run_on_two_lists(tmp_path):
    """It is trained once, by one process at a time, and evaluated on both."""
    tables = {"one.yaml": {}, "two.yaml": {"evaluate": "train"}}
    path = suite_file(tmp_path, tables)
    assert main(["experiment", str(path), "psi.q=6", "jobs=2"]) == 0
    one, two = load_suite(path, ["psi.q=6"]).tasks()
    assert one.run == two.run
    assert read_result(one.run).evaluated.keys() == {"val", "train"}


@pytest.mark.usefixtures("_no_training")
def test_interrupted(tmp_path, capsys):
    """Runs of both data sets, side by side, save and stop."""
    tables = {"one.yaml": {"grid": [{"psi.q": [3]}]}, "two.yaml": {"psi": {"q": 1}}}
    path = suite_file(tmp_path, tables, datasets=BOTH)
    runs = [task.run for task in load_suite(path).tasks()[:2]]

    def interrupt():
        until = time.monotonic() + 60
        while not all(last_step(run) == 2 for run in runs) and time.monotonic() < until:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    changes = ["data.root=/where/{dataset}", "jobs=2"]
    assert main(["experiment", str(path), *changes]) == 130
    thread.join()
    assert [(run / "saved.txt").is_file() for run in runs] == [True, True]
    err = capsys.readouterr().err
    assert "left/one/psi.q=3-seed0: begins" in err
    assert "0 of 4 runs done" in err
    assert f"stopped with 4 to do; go on with: logicdiag experiment {path} 'data.root=/where/{{dataset}}' jobs=2" in err


@pytest.mark.usefixtures("_no_training")
def test_all_folders_are_locked(tmp_path, capsys):
    path = suite_file(tmp_path, {"one.yaml": {"psi": {"q": 1}}}, datasets=BOTH)
    with Store(tmp_path / "right").locked():
        assert main(["experiment", str(path)]) == 2
        assert f"{tmp_path / 'right'} is in use" in capsys.readouterr().err
        assert begun(tmp_path / "left") == []
        assert main(["experiment", str(path), "datasets=[left]"]) == 0
    assert main(["experiment", str(path)]) == 0


def test_a_data_set_has_its_own_pace(tmp_path):
    left, right = load_suite(suite_file(tmp_path, {"one.yaml": {}}, datasets=BOTH), ["train.steps=10"]).tasks()
    expect = Expectation(jobs=1)
    expect.learn(Running(left, SimpleNamespace(), 0, 0.0, 0), 5.0)
    assert expect.seconds(right) == 5.0  # as the slowest that is known
    expect.learn(Running(right, SimpleNamespace(), 0, 0.0, 0), 20.0)
    assert (expect.seconds(left), expect.seconds(right)) == (5.0, 20.0)
    assert expect.left([], [left, right]) == 25.0


@pytest.mark.usefixtures("_no_training")
def test_data_that_are_missing_are_named_before_anything_begins(tmp_path, capsys):
    root = folder_dataset(tmp_path / "data" / "left").parent / "{dataset}"
    path = suite_file(tmp_path, {"one.yaml": {"psi": {"q": 1}}}, datasets=BOTH)
    changes = [f"data.{key}={value}" for key, value in on_disk(root).items()]
    assert main(["experiment", str(path), *changes]) == 2
    assert f"data.root is '{tmp_path / 'data' / 'right'}'" in capsys.readouterr().err
    assert begun(tmp_path / "left") == []
    assert main(["experiment", str(path), *changes, "datasets=[left]"]) == 0


# ---- what there is ---------------------------------------------------------------------------------------------------


def test_dry_run(tmp_path, capsys):
    path = suite_file(tmp_path, {"one.yaml": {"psi": {"q": 5}}, "two.yaml": {}}, datasets=BOTH, title="Both")
    [first, *_] = load_suite(path).tasks()
    finish(first.experiment, first.cell, 40)
    assert main(["experiment", str(path), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["left/one/seed0", "done"], ["right/one/seed0", "to"]]
    assert lines[2].endswith("(as left/one/seed0)")
    assert lines[3].endswith("(as right/one/seed0)")
    assert lines[4:] == [f"Both: 4 cells, 2 runs in {tmp_path}/left/runs, {tmp_path}/right/runs"]


def test_tables_that_have_nothing_are_said(tmp_path, capsys):
    """The others are made; nothing is written of those, not even by an experiment alone."""
    results = {"results": str(tmp_path / "results")}
    tables = {"none.yaml": results, "one.yaml": {**results, "grid": [{"psi.q": [1, 2]}]}}
    path = suite_file(tmp_path, tables, datasets=BOTH)
    left, right = (task for task in load_suite(path).tasks() if task.name.endswith("one/psi.q=1-seed0"))
    finish(left.experiment, left.cell, 40)
    assert main(["experiment", "table", str(path), "--no-plots"]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"^.*nothing to show yet, no run is done$", out, re.MULTILINE) == [
        f"{name}: nothing to show yet, no run is done" for name in ("left/none", "right/none", "right/one")
    ]
    assert "| psi.q = 1 | 40.00 (1) |" in out
    assert {file.name for file in (tmp_path / "results").iterdir()} == {"one.csv", "one-left.md"}
    finish(right.experiment, right.cell, 50)
    assert main(["experiment", "table", str(path), "--no-plots"]) == 0
    with open(tmp_path / "results" / "one.csv") as file:
        assert [(row["dataset"], row["miou_last"]) for row in csv.DictReader(file)] == [
            ("left", "40.0000"),
            ("right", "50.0000"),
        ]
    assert main(["experiment", "table", str(tmp_path / "none.yaml")]) == 0
    assert "scenes/none: nothing to show yet" in capsys.readouterr().out


# ---- real training ---------------------------------------------------------------------------------------------------


def test_train_measure_and_show(tmp_path, capsys, monkeypatch):
    """Two tables of two data sets, which share a run; on from there with more; then accuracy and tables."""
    roots = {name: folder_dataset(tmp_path / "data" / name) for name in BOTH}
    base = settings(data=on_disk(tmp_path / "nowhere"), train={"steps": 2, "val_every": 2})
    grid = [{"name": {"FixMatch": {"psi.name": "threshold", "model.head": "flat"}, "LogicDiag": None}}]
    tables = {"one.yaml": {"base": base, "snapshots": 1}, "two.yaml": {"base": base, "grid": grid}}
    path = str(suite_file(tmp_path, tables, datasets=BOTH))
    where = f"data.root={tmp_path}/data/{{dataset}}"
    assert main(["experiment", path, where, "tables=[one.yaml]"]) == 0
    assert "2 of 2 runs done" in capsys.readouterr().err
    assert main(["experiment", "accuracy", path, where, "--device", "cpu"]) == 0
    assert "nothing to measure" not in capsys.readouterr().out  # two has a run of one
    assert main(["experiment", path, where]) == 0
    err = capsys.readouterr().err
    assert "4 of 4 runs done" in err
    assert re.findall(r"^(\S+): begins$", err, re.MULTILINE) == [f"{name}/two/fixmatch-seed0" for name in BOTH]
    for name in BOTH:
        runs = sorted((tmp_path / name / "runs").iterdir())
        assert [bool(list(run.glob("snapshots/*"))) for run in runs] == [True, False]
        told = yaml.safe_load((runs[0] / "config.yaml").read_text())
        assert told["data"]["root"] == str(roots[name])
        assert read_result(runs[0]).dataset == name

    measured = []

    def noted(run, *rest):
        measured.append(run)
        return measure_run(run, *rest)

    monkeypatch.setattr("logicdiag.experiment.accuracy.measure_run", noted)
    assert main(["experiment", "accuracy", path, where, "--device", "cpu", "--images", "1"]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"^\d/4 (\S+): step 2: right before", out, re.MULTILINE) == [
        *(f"{name}/one/seed0" for name in BOTH),
        *(f"{name}/two/fixmatch-seed0" for name in BOTH),
    ]
    assert len(measured) == len(set(measured)) == 4
    assert main(["experiment", "table", path, "--no-plots"]) == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"^written: ", out, re.MULTILINE)) == 4
    assert {file.name for file in (tmp_path / "left" / "tables").iterdir()} == {
        f"{table}{rest}"
        for table in ("one", "two")
        for rest in (".csv", "-left.md", "-pseudo.csv", "-pseudo-classes.csv")
    }
    assert main(["experiment", "accuracy", path, where, "tables=[one.yaml]", "train.steps=9"]) == 2
    assert "no run of it is done in" in capsys.readouterr().err


def test_accuracy_goes_on_where_a_table_has_nothing(tmp_path, capsys, monkeypatch):
    path = suite_file(tmp_path, {"none.yaml": {"psi": {"q": 1}}, "one.yaml": {}}, datasets=BOTH)
    tasks = {task.name: task for task in load_suite(path).tasks()}
    left = tasks["left/one/seed0"]
    finish(left.experiment, left.cell, 40)
    found = {"moments": [{"step": 6, "before": 0.5}]}
    monkeypatch.setattr("logicdiag.experiment.accuracy.measure_run", lambda *_: found)
    assert main(["experiment", "accuracy", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "left/none: nothing to measure yet, no run is done",
        "right/none: nothing to measure yet, no run is done",
        "right/one: nothing to measure yet, no run is done",
        "1/1 left/one/seed0: step 6: right before 50.0 %",
    ]


def test_what_the_tables_have_is_not_done_again(tmp_path, capsys):
    """On a machine without the runs: cells that are in a CSV file, of whichever table, are left out."""
    grid = [{"name": {"one": {}, "two": {"optimizer.lr": 0.02}}}]
    others = [{"name": {"two again": {"optimizer.lr": 0.02}, "three": {"optimizer.lr": 0.03}}}]
    tables = {
        name: {"grid": rows, "results": str(tmp_path / "tables")}
        for name, rows in (("a.yaml", grid), ("b.yaml", others))
    }
    path = suite_file(tmp_path, tables)
    for task in load_suite(path, []).tasks():
        if task.cell.options["name"] == "two":
            finish(task.experiment, task.cell, 50.0)
    assert main(["experiment", "table", str(path), "--no-plots"]) == 0
    shutil.rmtree(tmp_path / "scenes")
    capsys.readouterr()
    assert main(["experiment", str(path), "--missing", "--dry-run"]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines()[:-1]] == ["scenes/a/one-seed0", "scenes/b/three-seed0"]
    assert main(["experiment", str(path), "--missing", "--only", "two"]) == 0
    assert "nothing is missing" in capsys.readouterr().err
    assert main(["experiment", str(path), "--missing", "--only", "two", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("nothing is missing")
    assert not (tmp_path / "scenes").exists()


def test_a_block_for_a_data_set_that_there_is_not(tmp_path):
    """Its rows would be in no table, and nobody would know; part of a suite is no mistake."""
    grid = [{"psi.q": [1]}, {"datasets": ["lefft"], "psi.q": [2]}]
    wrong = suite_file(tmp_path, {"one.yaml": {"grid": grid}}, datasets=BOTH)
    with pytest.raises(ConfigError, match="datasets of a block has 'lefft', which is no data set .*mean 'left'"):
        load_suite(wrong)
    grid[1]["datasets"] = ["left"]
    right = suite_file(tmp_path, {"one.yaml": {"grid": grid}}, datasets=BOTH)
    assert len(load_suite(right).tasks()) == 3
    assert len(load_suite(right, ["datasets=[right]"]).tasks()) == 1
