"""Every configuration that is shipped can be read, and says what its recipe says."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from logicdiag.cli import main
from logicdiag.data.layouts import LAYOUTS
from logicdiag.engine.load import load_config
from logicdiag.experiment.config import load_experiment
from logicdiag.experiment.grid import expand
from logicdiag.experiment.suite import load_suite
from logicdiag.experiment.task import unique
from logicdiag.methods.build import METHODS
from logicdiag.pseudo.build import PSI

CONFIGS = Path(__file__).parent.parent / "configs"
RECIPE = CONFIGS / "experiments" / "recipe.yaml"
SUITE = CONFIGS / "experiments" / "all.yaml"
WITNESS = CONFIGS / "experiments" / "witness.yaml"
TEACHER = CONFIGS / "experiments" / "teacher.yaml"
SURE = CONFIGS / "experiments" / "sure.yaml"
HEAD = CONFIGS / "experiments" / "head.yaml"
SAMPLING = CONFIGS / "experiments" / "sampling.yaml"
CHOOSING = [RECIPE, WITNESS, TEACHER, SURE, HEAD, SAMPLING]
"""On lists that no table reports."""
CHOICE = CONFIGS / "experiments" / "choosing.yaml"
"""The suite of those that a rule decides."""
HALF = CONFIGS / "experiments" / "half.yaml"
OPTIONS = CONFIGS / "experiments" / "options.yaml"
"""At half the size, and the table of it that decides on the same lists."""
FIRST = CONFIGS / "experiments" / "scenes.yaml"
GENERATED = CONFIGS / "experiments" / "generated.yaml"
PARTS, AVERAGING, CANDIDATES = (
    CONFIGS / "experiments" / f"{name}.yaml" for name in ("parts", "averaging", "candidates")
)
"""The tables of it."""
ELSEWHERE = {*CHOOSING, CHOICE, HALF, OPTIONS, SUITE, FIRST, GENERATED, PARTS, AVERAGING, CANDIDATES}
EXPERIMENTS = sorted({*(CONFIGS / "experiments").glob("*.yaml")} - ELSEWHERE)
FILES = sorted(file for file in CONFIGS.rglob("*.yaml") if CONFIGS / "experiments" not in file.parents)


def test_there_are_all():
    names = {str(file.relative_to(CONFIGS)) for file in FILES}
    assert {"camvid.yaml", "oxford_pets.yaml", "scenes.yaml"} <= names
    assert {f"paper/{name}.yaml" for name in ("voc2012", "cityscapes", "coco")} <= names


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(CONFIGS)))
def test_reads(file):
    config = load_config(file)
    assert config.data.layout in {*LAYOUTS, "scenes"}
    assert config.method.name in METHODS
    assert config.psi.name in PSI


@pytest.mark.parametrize(
    ("name", "crop", "lr", "encoder"),
    [("voc2012", 513, 0.0025, "resnet101"), ("cityscapes", 769, 0.01, "resnet101"), ("coco", 513, 0.01, "xception65")],
)
def test_the_paper(name, crop, lr, encoder):
    c = load_config(CONFIGS / "paper" / f"{name}.yaml")
    assert (c.data.crop, c.optimizer.lr, c.model.encoder) == (crop, lr, encoder)
    assert (c.train.steps, c.train.labeled_batch + c.train.unlabeled_batch) == (40000, 16)
    assert (c.method.name, c.psi.name, c.psi.strategy, c.psi.weight) == ("fixmatch", "diagnosis", "sampling", "one")
    assert (c.method.weight, c.psi.q, c.method.teacher_decay, c.method.ramp) == (5, 5, 0, (0, 0))
    assert (c.loss.leaf, c.loss.nodes, c.model.head_bias, c.psi.levels) == (0, "sum", 0, 0)
    assert (c.optimizer.power, c.optimizer.weight_decay, c.optimizer.clip) == (0.9, 5e-4, None)
    assert (c.optimizer.name, c.loss.balance) == ("sgd", 0)


COUNTS = {"voc-animals": [27, 55, 109, 218], "camvid": [12, 23, 46, 92]}


def test_there_are_all_tables():
    names = {file.stem for file in EXPERIMENTS}
    assert names == {"methods", "components", "rules", "strategy", "hierarchy", "sensitivity", "field"}


@pytest.mark.parametrize("dataset", list(COUNTS))
@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.stem)
def test_experiments(file, dataset):
    """Three seeds, table 1 with all numbers of labels, and one recipe that every table has in it."""
    e = load_experiment(file, [f"dataset={dataset}", "data.root=/somewhere"])
    cells = expand(e)
    assert {cell.seed for cell in cells} == {0, 1, 2}
    counts = {"methods": COUNTS[dataset], "field": COUNTS[dataset][::2]}.get(file.stem, COUNTS[dataset][:1])
    assert sorted({cell.labels for cell in cells}) == counts
    assert cells[0].config.data.labeled == f"splits/labeled_{counts[0]}_seed0.txt"
    assert {cell.config.model.encoder for cell in cells} == {"tf_efficientnet_lite0"}
    assert len({cell.config.train.steps for cell in cells}) == 1
    assert all(cell.config.model.head == "hierarchical" or cell.config.psi.name == "threshold" for cell in cells)
    methods = load_experiment(EXPERIMENTS[0].parent / "methods.yaml", [f"dataset={dataset}"])
    recipe = {cell.key for cell in expand(methods) if cell.options["name"] == "LogicDiag"}
    assert recipe & {cell.key for cell in cells}


def test_the_suite_has_every_table_of_both_data_sets():
    """The fewest labels of both come first; what tables share, wherever the data are, is one run."""
    suite = load_suite(SUITE, ["data.root=/where/{dataset}/is"])
    assert {e.name for e in suite.experiments} == {f"{name}/{file.stem}" for name in COUNTS for file in EXPERIMENTS}
    tasks = suite.tasks()
    assert {task.cell.config.data.root for task in tasks} == {f"/where/{name}/is" for name in COUNTS}
    assert {(task.cell.dataset, task.cell.labels) for task in tasks[:400]} == {("voc-animals", 27), ("camvid", 12)}
    alone = [cell.key for e in suite.experiments for cell in expand(e)]
    assert len(unique(tasks)) == len(set(alone)) < len(tasks) == len(alone)


def test_the_field_has_every_method_with_both_psi():
    cells = expand(load_experiment(EXPERIMENTS[0].parent / "field.yaml", []))
    found = {(cell.config.method.name, cell.config.psi.name) for cell in cells}
    assert found == {(method, psi) for method in METHODS.keys() - {"supervised", "algorithm1"} for psi in PSI}


@pytest.mark.parametrize(
    ("file", "dataset", "chosen_on"),
    [
        *[(f, name, f"{name}-dev") for f in CHOOSING for name in COUNTS if (f, name) != (WITNESS, "camvid")],
        *[(OPTIONS, name, f"{name}-half") for name in COUNTS],
    ],
    ids=str,
)
def test_the_recipe_is_chosen_on_nothing_that_is_reported(file, dataset, chosen_on):
    """Other counts and seeds; what tables are made of is neither validated nor evaluated on."""
    reported = load_experiment(EXPERIMENTS[0].parent / "methods.yaml", [f"dataset={dataset}"])
    e = load_experiment(file, [f"dataset={chosen_on}"])
    cells = expand(e)
    assert not {cell.labels for cell in cells} & set(COUNTS[dataset])
    assert not {cell.seed for cell in cells} & set(reported.seeds)
    of_tables = {reported.evaluate or expand(reported)[0].config.data.val}
    assert e.evaluate is None
    assert not {cell.config.data.val for cell in cells} & of_tables
    assert e.results_folder.resolve() != reported.results_folder.resolve()
    assert not reported.results_folder.is_relative_to(e.results_folder)
    steps = 1000 if file == OPTIONS else expand(reported)[0].config.train.steps
    assert {cell.config.train.steps for cell in cells} == {steps}


def test_generated_scenes():
    """Each seed has scenes of its own, the same for all rows; one thing differs from LogicDiag in a row of its name."""
    experiments = load_suite(GENERATED).experiments
    assert [Path(e.source) for e in experiments] == [PARTS, AVERAGING, CANDIDATES]
    recipe = load_config(
        CONFIGS / "scenes.yaml", ["data.scenes={seed: 0, val: 80}", "train.val_every=300", "train.seed=0"]
    )
    tables = {}
    for e in experiments:
        cells = expand(e)
        assert {cell.seed for cell in cells} == set(range(10))
        assert all(cell.config.data.scenes.seed == cell.config.train.seed == cell.seed for cell in cells)
        rows = {tuple(cell.options.values()) for cell in cells}
        assert len({cell.key for cell in cells}) == len(cells) == 10 * len(rows)
        tables[Path(e.source)] = {tuple(cell.options.values()): cell.config for cell in cells if cell.seed == 0}
    parts, averaging, candidates = tables.values()
    assert parts["+ sure levels (LogicDiag)",] == averaging["LogicDiag", "0.98"] == candidates["LogicDiag",] == recipe
    assert parts["FixMatch",] == averaging["FixMatch", "0.98"] == candidates["FixMatch",]
    assert replace(parts["LogicDiag, tree",], model=recipe.model) == recipe
    assert replace(parts["+ fuzzy likelihood",], psi=recipe.psi) == recipe
    assert replace(averaging["LogicDiag", "0.0"], method=recipe.method) == recipe
    assert replace(candidates["no cross entropy of leaves",], loss=recipe.loss) == recipe


def test_a_first_experiment(tmp_path, monkeypatch, capsys):
    """As its file says, but shorter, and in one process each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    said = [line.removeprefix("#   ") for line in FIRST.read_text("utf-8").splitlines() if "logicdiag exp" in line]
    assert len(said) == 3
    for line in said:
        program, *words = line.split()
        assert program == "logicdiag"
        words = [str(FIRST) if word.endswith(".yaml") else word for word in words]
        assert main([*words, "train.steps=4", "data.scenes.train=8", "data.scenes.labeled=4"]) == 0
    told = capsys.readouterr().out
    assert "| LogicDiag | " in told
    assert (tmp_path / "runs/scenes/tables/scenes.csv").is_file()


def test_half_the_size():
    """The recipe and the lists are those of the others; what differs is size, length and the averaged teacher."""
    for dataset in COUNTS:
        half, whole = (
            expand(load_experiment(file, [f"dataset={dataset}-{kind}"]))
            for file, kind in ((OPTIONS, "half"), (SURE, "dev"))
        )
        rows = [{cell.options["name"]: cell.config for cell in cells} for cells in (half, whole)]
        for name in ("FixMatch", "LogicDiag"):
            small, large = (found[name] for found in rows)
            assert (small.data.crop, small.data.scale, small.inference.mode) == (96, (0.25, 1.0), "short_side")
            assert small.method.teacher_decay is None
            assert (small.data.labeled, small.data.val) == (large.data.labeled, large.data.val)
            for part in ("psi", "loss", "optimizer"):
                assert getattr(small, part) == getattr(large, part)
            assert replace(small.model, decoder_channels=None) == large.model
            assert replace(small.method, teacher_decay=large.method.teacher_decay) == large.method


@pytest.mark.parametrize(
    "file", [*EXPERIMENTS, *CHOOSING, CHOICE, SUITE, GENERATED, OPTIONS, HALF], ids=lambda file: file.stem
)
def test_tables_can_be_made_beside_what_is_there(file, tmp_path, monkeypatch, capsys):
    """Without any run, and without data; files that are made by hand have names of their own."""
    root = CONFIGS.parent
    shutil.copytree(CONFIGS, tmp_path / "configs")
    shutil.copytree(root / "docs", tmp_path / "docs")
    monkeypatch.chdir(tmp_path)
    assert main(["experiment", "table", str(file.relative_to(root)), "--no-plots"]) == 0
    assert capsys.readouterr().err == ""
