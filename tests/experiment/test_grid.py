"""From a file to cells: what varies, what it is called, and which cells are one run."""

import re

import pytest
import yaml

from logicdiag.cli import main
from logicdiag.errors import LogicDiagError
from logicdiag.experiment import grid
from logicdiag.experiment.config import load_experiment
from logicdiag.experiment.grid import expand, key_of
from logicdiag.experiment.task import select, unique

from ..engine.small import settings
from .files import experiment, experiment_file, tasks_of

TWO = {"name": {"FixMatch, flat": {"psi.name": "threshold", "model.head": "flat"}, "LogicDiag": None}}
LABELS = {"labels": [4, 2], "data": {"scenes": {"labeled": "{labels}", "seed": "{seed}"}}}


def test_the_whole_grid(tmp_path):
    _, cells = experiment(tmp_path, grid=[TWO, {"psi.q": [1, 5]}], seeds=[0, 1], **LABELS)
    assert [cell.name for cell in cells][:5] == [
        "fixmatch-flat-labels2-seed0",
        "logicdiag-labels2-seed0",
        "psi.q=1-labels2-seed0",
        "psi.q=5-labels2-seed0",
        "fixmatch-flat-labels2-seed1",
    ]
    assert len(cells) == 4 * 2 * 2
    first, last = cells[0], cells[-1]
    assert (first.config.model.head, first.config.psi.name, first.config.train.seed) == ("flat", "threshold", 0)
    assert (last.config.psi.q, last.labels, last.config.data.scenes.labeled) == (5, 4, 4)
    assert (last.config.train.seed, last.config.data.scenes.seed) == (1, 1)
    assert all(re.fullmatch(r"[a-z0-9._=+-]+", cell.name + cell.run_name) for cell in cells)
    assert first.columns() == {
        "dataset": "scenes", "method": "fixmatch", "psi": "threshold", "head": "flat", "labels": 2, "seed": 0,
        "name": "FixMatch, flat", "cell": first.name, "key": first.key,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("labels", ["a-labels2-seed0", "b-labels2-seed0", "a-labels2-seed1", "b-labels2-seed1", "a-labels4-seed0"]),
        ("seeds", ["a-labels2-seed0", "b-labels2-seed0", "a-labels4-seed0", "b-labels4-seed0", "a-labels2-seed1"]),
        ("file", ["a-labels2-seed0", "a-labels2-seed1", "a-labels4-seed0", "a-labels4-seed1", "b-labels2-seed0"]),
    ],
)
def test_orders(tmp_path, order, names):
    grid = [{"name": {"a": None, "b": {"psi.q": 1}}}]
    _, cells = experiment(tmp_path, grid=grid, seeds=[0, 1], order=order, **LABELS)
    assert [cell.name for cell in cells][:5] == names


def test_axes_of_a_block_are_combined(tmp_path):
    block = {"name": {"a": None, "b": {"psi": {"q": 1}}}, "method.weight": [1, 2.5]}
    _, cells = experiment(tmp_path, grid=[block])
    found = {cell.name: (cell.config.psi.q, cell.config.method.weight) for cell in cells}
    assert found == {
        "a-method.weight=1-seed0": (5, 1),
        "a-method.weight=2.5-seed0": (5, 2.5),
        "b-method.weight=1-seed0": (1, 1),
        "b-method.weight=2.5-seed0": (1, 2.5),
    }


def test_a_block_for_some_data_sets(tmp_path):
    """Rows keep the place that they have in the file, so that data sets are run by turns."""
    grid = [{"datasets": ["other"], "psi.q": [1, 2]}, {"datasets": ["other", "scenes"], "psi.q": [3]}, {"psi.q": [4]}]
    _, here = experiment(tmp_path, grid=grid)
    assert [(cell.place, cell.config.psi.q) for cell in here] == [(2, 3), (3, 4)]
    assert here[0].options == {"psi.q": "3"}
    _, there = experiment(tmp_path, "dataset=other", grid=grid)
    assert [(cell.place, cell.config.psi.q) for cell in there] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert not {cell.key for cell in here} & {cell.key for cell in there}


def test_equal_settings_are_one_run(tmp_path):
    """However they are written, in whatever experiment, and wherever the data are."""
    tasks = tasks_of(tmp_path, grid=[{"psi.q": [5.0, 1]}, {"method.weight": [5]}, {"name": {"as it is": None}}])
    five, one, weight, plain = (task.cell for task in tasks)
    assert five.key == weight.key == plain.key != one.key
    assert five.run_name == weight.run_name
    assert [task.name for task in unique(tasks)] == [five.name, one.name]
    _, other = experiment(tmp_path, "data.root=/elsewhere", "data.workers=3", "train.device=cpu")
    assert other[0].key == plain.key
    _, more = experiment(tmp_path, "train.steps=7")
    assert more[0].key != plain.key
    assert key_of(plain.config, "other data") != plain.key


def test_names_keep_their_plus_at_the_end(tmp_path):
    """One at the beginning says that something is added, and is left out."""
    rows = {"ST": {"method.name": "fixmatch"}, "ST++": {"method.name": "st++"}, "+ rules": {"method.weight": 2}}
    _, cells = experiment(tmp_path, grid=[{"name": rows}])
    assert [cell.name for cell in cells] == ["st-seed0", "st++-seed0", "rules-seed0"]
    assert cells[1].run_name.startswith("st++-diagnosis-")


def test_settings_that_came_later_change_a_key_where_they_are_set(tmp_path, monkeypatch):
    _, (before,) = experiment(tmp_path, "psi.levels=0")
    for change in ("psi.target=concepts", "data.witness=labels", "data.sampling=classes"):
        _, (changed,) = experiment(tmp_path, "psi.levels=0", change)
        assert changed.key != before.key, change
    monkeypatch.setattr(grid, "ADDED", {})
    assert key_of(before.config, before.dataset) != before.key  # left out, where they are as they were


def test_a_decay_that_a_run_has_by_its_length_is_in_its_key(tmp_path):
    """As if it were said; in a long run it is what it always was."""
    keys = {}
    for steps in (1500, 40000):
        for decay in ("null", 0.99, 0.996):
            _, (cell,) = experiment(tmp_path, f"train.steps={steps}", f"method.teacher_decay={decay}")
            keys[steps, decay] = cell.key
    assert keys[1500, "null"] == keys[1500, 0.99]
    assert len(set(keys.values())) == 5


def test_options_of_another_method_are_not_in_a_key(tmp_path):
    options = {"method.u2pl.anchors": 7, "method.ael.beta": 0.5, "method.stages.snapshots": 4}
    changes = [f"{key}={value}" for key, value in options.items()]
    for name in ("fixmatch", "u2pl", "ael", "st++"):
        _, (plain,) = experiment(tmp_path, f"method.name={name}")
        for change in changes:
            _, (changed,) = experiment(tmp_path, f"method.name={name}", change)
            own = change.split(".")[1] == {"st++": "stages"}.get(name, name)
            assert (changed.key != plain.key) == own, (name, change)


def test_seeds_do_not_share(tmp_path):
    _, cells = experiment(tmp_path, seeds=[0, 1])
    assert len({cell.key for cell in cells}) == 2


def test_a_base_on_a_base(tmp_path):
    """The nearest has the last word; a circle is refused."""
    (tmp_path / "low.yaml").write_text(yaml.safe_dump({**settings(), "seeds": [1, 2], "jobs": 3}))
    (tmp_path / "d.yaml").write_text("base: low.yaml\nseeds: [5]\ntrain: {steps: 7}\n")
    top = tmp_path / "top.yaml"
    top.write_text("base: '{dataset}.yaml'\ndataset: d\njobs: 4\n")
    e = load_experiment(top)
    assert (e.seeds, e.jobs, e.train["steps"], e.data) == ([5], 4, 7, settings()["data"])
    (tmp_path / "low.yaml").write_text("base: d.yaml\n")
    with pytest.raises(LogicDiagError, match="low.yaml: base is 'd.yaml', of which this file is a base itself"):
        load_experiment(top)


def test_base_and_changes(tmp_path):
    """A file below, then the experiment, then the command line; mappings are merged."""
    (tmp_path / "parts").mkdir()
    below = {
        **settings(),
        "labels": [2, 4, 3],
        "seeds": [5],
        "jobs": 3,
        "data": {**settings()["data"], **LABELS["data"]},
    }
    (tmp_path / "parts" / "tiny.yaml").write_text(yaml.safe_dump(below), "utf-8")
    content = {
        "dataset": "tiny",
        "base": "parts/{dataset}.yaml",
        "fewest": 2,
        "train": {"steps": 4},
        "out": "x/{dataset}",
    }
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(content), "utf-8")
    e = load_experiment(tmp_path / "e.yaml", ["jobs=2", "train.log_every=1"])
    [first, _] = cells = expand(e)
    assert (e.jobs, e.out, e.table, [cell.labels for cell in cells]) == (2, "x/tiny", "e", [2, 3])
    assert (first.config.train.steps, first.config.train.log_every, first.config.train.val_every) == (4, 1, 3)
    assert (first.seed, e.folder) == (5, str(tmp_path / "parts"))


def test_select(tmp_path):
    tasks = tasks_of(tmp_path, grid=[TWO], seeds=[0, 1], **LABELS)
    assert select(tasks, []) == tasks
    assert {task.name for task in select(tasks, ["logicdiag"])} == {t.name for t in tasks if t.name[0] == "l"}
    assert len(select(tasks, ["*-seed1", "fixmatch*labels2-seed0"])) == 5
    with pytest.raises(LogicDiagError, match="no cell is named logicdiag-labels3-seed0 .did you mean 'logicdiag-lab"):
        select(tasks, ["logicdiag-labels3-seed0"])


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"gird": []}, "unknown key gird (did you mean 'grid'?)"),
        ({"source": "x"}, "unknown key source"),
        ({"grid": {"a": 1}}, "grid is a mapping, expected a list of a mapping"),
        ({"grid": [{"a": 1}]}, "the axis 'a' is 1, expected options with their settings, or values"),
        ({"grid": [{"a": [1, 2]}]}, "the axis 'a' has a list of values, so it must be a setting such as psi.q"),
        ({"grid": [{"psy.q": [1, 2]}]}, "(did you mean 'psi'?)"),
        ({"grid": [{"a": {"b": 1}}]}, "the option 'b' of 'a' is 1, expected settings such as psi.q: 1"),
        ({"grid": [{"method": {"b": None}}]}, "an axis is called 'method', which is a column of every table"),
        ({"grid": [{"a": {"b": {"psi.p": 1}}}]}, "cell b-seed0: unknown key psi.p"),
        ({"grid": [{"a": {"b": {"psi.q": "x"}}}]}, "psi.q is 'x', expected a number"),
        ({"grid": [{"a": {"b": {"psi.q": 1}}, "psi.q": [1]}]}, "two axes of one block set psi.q: a, psi.q"),
        ({"grid": [{"a": {"b": None, "B!": {"psi.q": 1}}}]}, "two cells are called b-seed0"),
        ({"grid": [{"psi.q": [1, 1]}]}, "the cell psi.q=1-seed0 stands twice"),
        (
            {"grid": [{"method.name": ["fixmatch", "fixmtch"]}]},
            "e.yaml, cell method.name=fixmtch-seed0: method.name is 'fixmtch', expected one of supervised, fixmatch, ",
        ),
        ({"grid": [{"a": {"b": {"method.name": "fixmtch"}}}]}, "cell b-seed0: method.name is 'fixmtch'"),
        ({"grid": [{"psi.name": ["diagnoses"]}]}, "psi.name is 'diagnoses', expected one of diagnosis, threshold (did"),
        ({"grid": [{"psi.strategy": ["soft", "sampled"]}]}, "(did you mean 'sampling'?)"),
        ({"grid": [{"model.head": ["flatt"]}]}, "expected one of hierarchical, flat (did you mean 'flat'?)"),
        ({"grid": [{"model.head": ["flat"]}]}, "cell model.head=flat-seed0: psi.name is diagnosis, which reasons"),
        (
            {"grid": [{"method.name": ["mean_teacher"]}], "method": {"teacher_decay": 0}},
            "cell method.name=mean_teacher-seed0: method.teacher_decay is 0.0, but mean_teacher needs an averaged",
        ),
        ({"method": {"ramp": [0.5, 0.1]}}, "cell seed0: method.ramp is [0.5, 0.1], expected two rising shares"),
        ({"optimizer": {"name": "adam"}}, "cell seed0: optimizer.name is 'adam', expected one of sgd, adamw (did you"),
        ({"loss": {"nodes": "means"}}, "loss.nodes is 'means', expected one of sum, mean (did you mean 'mean'?)"),
        ({"train": {"steps": 0}}, "cell seed0: train.steps is 0, expected a whole number of at least 1"),
        ({"labels": [2]}, "labels are [2], but no setting has {labels}"),
        ({"data": LABELS["data"]}, "a setting has {labels}, but labels are not given"),
        ({"labels": [0], "data": LABELS["data"]}, "labels is [0], expected different whole numbers of at least 1"),
        ({"seeds": []}, "seeds is [], expected different whole numbers of at least 0"),
        ({"seeds": [1, 1]}, "seeds is [1, 1], expected different whole numbers"),
        ({"seeds": "all"}, "seeds is 'all', expected a list of a whole number"),
        ({"jobs": 0}, "jobs is 0, expected a whole number of at least 1"),
        ({"fewest": 0}, "fewest is 0"),
        ({"order": "label"}, "order is 'label', expected one of labels, seeds, file (did you mean 'labels'?)"),
        ({"keep": "al"}, "keep is 'al', expected one of all, networks, results (did you mean 'all'?)"),
        ({"snapshots": [0.5, 2]}, "snapshots is [0.5, 2.0], expected how many, or shares of the run from 0 to 1"),
        ({"snapshots": -1}, "snapshots is -1"),
        ({"pool": ["seed"]}, "pool has 'seed', which is no axis of the grid"),
        ({"table": "a/b"}, "table is 'a/b', expected a name for files"),
        ({"base": "nowhere.yaml"}, "nowhere.yaml cannot be read"),
        ({"base": 7}, "base is 7, expected a file, or the settings themselves"),
        ({"base": "{dataset}.yaml", "dataset": None}, "so dataset must be given, such as dataset=NAME"),
    ],
)
def test_mistakes(tmp_path, monkeypatch, capsys, keys, says):
    """One sentence, that names the file; nothing is written."""
    monkeypatch.chdir(tmp_path)
    content = {"base": settings(), "dataset": "scenes", "out": "out", **keys}
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(content), "utf-8")
    for words in ([], ["--dry-run"]):
        assert main(["experiment", "e.yaml", *words]) == 2
        captured = capsys.readouterr()
        assert says in captured.err
        assert captured.err.startswith("logicdiag: ")
        assert len(captured.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["e.yaml"]


def test_what_the_grid_varies_cannot_be_changed(tmp_path):
    path = experiment_file(tmp_path, grid=[{"psi.q": [1, 5]}])
    for change in ("psi.q=3", "train.seed=1"):
        with pytest.raises(LogicDiagError, match=f"{change} has no effect"):
            load_experiment(path, [change])


def test_dry_run(tmp_path, capsys):
    path = experiment_file(tmp_path, grid=[{"psi.q": [5]}, {"name": {"LogicDiag": None}}])
    for words in (["experiment", str(path), "--dry-run"], ["experiment", "run", "--dry-run", str(path), "jobs=2"]):
        assert main(words) == 0
        out = capsys.readouterr().out.splitlines()
        assert out[0].startswith("psi.q=5-seed0    to do")
        assert out[1].endswith("(as psi.q=5-seed0)")
        assert out[2].startswith("2 cells, 1 run in")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "says"), [("", "FILE, or COMMAND FILE"), *((words, "FILE") for words in ("run", "table", "accuracy"))]
)
def test_a_file_is_required(words, says, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["experiment", *words.split()])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: the following arguments are required: {says}\n")


@pytest.mark.parametrize("words", ["", "run", "table", "accuracy"])
def test_help_needs_nothing(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["experiment", *words.split(), "--help"])
    assert stopped.value.code == 0
    assert "experiment" in capsys.readouterr().out
