"""Tables of results that are written by hand: means, files that grow, what is not done."""

import csv
import json
import math
import shutil
import sys

import numpy as np
import pytest
from PIL import Image

from logicdiag.cli import main
from logicdiag.errors import ConfigError, DataError
from logicdiag.experiment import plots
from logicdiag.experiment.rows import read
from logicdiag.experiment.store import Store
from logicdiag.experiment.table import SAME, Mean, class_rows, make, pseudo_rows

from .files import experiment, experiment_file, finish
from .test_grid import LABELS, TWO

MIOU = {0: 40.0, 1: 42.0, 2: 47.0}
"""Mean 43; the squares of the deviations are 9 + 1 + 16 = 26, so the sample standard deviation is sqrt(13)."""


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_mean_and_standard_deviation(tmp_path):
    e, cells = experiment(tmp_path, grid=[TWO], seeds=[0, 1, 2], evaluate="test", **LABELS)
    for cell in cells:
        if cell.labels == 2 and cell.options["name"] == "LogicDiag":
            finish(e, cell, MIOU[cell.seed], MIOU[cell.seed] + 1)
    finish(e, cells[0], 30.25)
    table = make(e, cells)
    found = table.means["LogicDiag", 2, "last"]
    assert (found.mean, found.n, found.planned) == (pytest.approx(43), 3, 3)
    assert found.deviation == pytest.approx(math.sqrt(13))
    assert table.means["LogicDiag", 2, "best"].mean == pytest.approx(44)
    assert table.means["LogicDiag", 4, "last"].n == 0
    lines = table.markdown.splitlines()
    assert lines[0] == "# small"
    assert "mIoU in per cent on `test` (7 images)" in table.markdown
    assert "| LogicDiag | 43.00 ± 3.61 (3) | – |" in lines
    assert "| FixMatch, flat | 30.25 (1 of 3) | – |" in lines
    assert "| LogicDiag | 44.00 ± 3.61 (3) | – |" in lines
    assert "chosen on `val`, which is another list" in table.markdown
    assert "8 of the cells are not done:" in lines
    assert "- FixMatch, flat, 2 labels: 2 of 3 not begun (seed 1, 2)" in lines
    assert "- all rows, 4 labels: not begun" in lines
    rows = rows_of(table.csv)
    assert len(rows) == 4
    assert list(rows[0])[:9] == [
        "dataset", "method", "psi", "head", "labels", "seed", "miou_last", "miou_best", "name"
    ]  # fmt: skip
    assert (rows[1]["method"], rows[1]["psi"], rows[1]["head"]) == ("fixmatch", "diagnosis", "hierarchical")
    assert (rows[1]["labels"], rows[1]["seed"], rows[1]["miou_last"], rows[1]["miou_best"]) == (
        "2", "0", "40.0000", "41.0000"
    )  # fmt: skip
    assert rows[1]["minutes"] == "1.50"


def test_differences_are_seed_by_seed(tmp_path):
    """40, 42, 47 less 39, 40, 41 are 1, 2, 6: mean 3, and (4 + 1 + 9) / 2 = 7 is the variance."""
    e, cells = experiment(tmp_path, grid=[TWO], seeds=[0, 1, 2], reference="FixMatch, flat")
    for cell in cells:
        finish(e, cell, MIOU[cell.seed] if cell.options["name"] == "LogicDiag" else 39 + cell.seed)
    text = make(e, cells).markdown
    assert "less FixMatch, flat with the same labels and seed" in text
    assert "| LogicDiag | +3.00 ± 2.65 (3) |" in text.splitlines()
    e.reference = "FixMatch"
    with pytest.raises(ConfigError, match="reference is 'FixMatch', which is no row .did you mean 'FixMatch, flat'"):
        make(e, cells)


def test_pooled_axes(tmp_path):
    grid = [{"name": {"none": {"psi.q": 1}}}, {"name": {"random": None}, "data.hierarchy_seed": [1, 2]}]
    e, cells = experiment(tmp_path, grid=grid, seeds=[0, 1], pool=["data.hierarchy_seed"])
    for number, cell in enumerate(cell for cell in cells if cell.options["name"] == "random"):
        finish(e, cell, 10.0 * number)
    table = make(e, cells)
    assert [group.name for group in table.groups] == ["none", "random"]
    assert table.means["random", None, "last"].mean == pytest.approx(15)
    assert table.means["random", None, "last"].planned == 4
    assert "over seeds and data.hierarchy_seed" in table.markdown
    assert [row["data.hierarchy_seed"] for row in rows_of(table.csv)] == ["1", "2", "1", "2"]


def test_supervised_has_no_psi(tmp_path):
    e, [cell] = experiment(tmp_path, "method.name=supervised")
    finish(e, cell, 40, labels=4)
    [row] = rows_of(make(e, [cell]).csv)
    assert (row["psi"], row["labels"]) == ("none", "4")


def test_results_add_up(tmp_path):
    """Runs that are not on disk any more, and other data sets, stay; other settings are said, and pruned if asked."""
    e, cells = experiment(tmp_path, seeds=[0, 1, 2])
    first = finish(e, cells[0], 40)
    make(e, cells)
    (first / "result.json").unlink()
    finish(e, cells[1], 50)
    other, [foreign] = experiment(tmp_path, "dataset=others", f"out={tmp_path / 'o'}", f"results={e.results_folder}")
    finish(other, foreign, 99)
    make(other, [foreign])
    table = make(e, cells)
    assert [(row["dataset"], row["miou_last"]) for row in rows_of(table.csv)] == [
        ("others", "99.0000"),
        ("scenes", "40.0000"),
        ("scenes", "50.0000"),
    ]
    assert table.means["all", None, "last"].mean == pytest.approx(45)
    finish(e, cells[1], 60)  # done anew: the new row counts
    assert make(e, cells).means["all", None, "last"].mean == pytest.approx(50)

    changed, now = experiment(tmp_path, "train.steps=7", seeds=[0])
    finish(changed, now[0], 10)
    table = make(changed, now)
    assert table.means["all", None, "last"].mean == pytest.approx(10)
    assert "2 rows of the CSV file are of other settings" in table.markdown
    make(changed, now, prune=True)
    assert [row["dataset"] for row in rows_of(table.csv)] == ["others", "scenes"]


def test_rows_have_the_names_that_cells_have_now(tmp_path):
    """A run that is not on disk any more, in a table whose rows were renamed."""
    e, cells = experiment(tmp_path, grid=[{"rules": {"all": None}}])
    run = finish(e, cells[0], 40)
    measured(run, 0.6, 0.7)
    make(e, cells)
    pseudo_rows(e, cells)
    shutil.rmtree(run)
    some = {"psi.q": 3}
    renamed, now = experiment(tmp_path, grid=[{"families": {"all": some, "all, as before": None, "again": None}}])
    finish(renamed, now[0], 50)
    table = make(renamed, now)
    rows = [(row["families"], row["miou_last"], row["cell"], row["key"]) for row in rows_of(table.csv)]
    assert rows == [
        ("all", "50.0000", now[0].name, now[0].key),
        ("all, as before", "40.0000", now[1].name, cells[0].key),
        ("again", "40.0000", now[2].name, cells[0].key),
    ]
    assert "rules" not in rows_of(table.csv)[0]
    assert "other settings" not in table.markdown
    found = pseudo_rows(renamed, now)
    assert [(row["cell"], row["step"], row["after"]) for row in found.rows] == [
        (cell.name, step, after) for cell in now[1:] for step, after in (("3", "60.0000"), ("6", "70.0000"))
    ]
    assert found.rows == rows_of(found.csv)


def test_tables_share_the_rows_of_runs(tmp_path):
    """What another table has of the same run counts here, under this table's name, where this one has nothing."""
    first, cells = experiment(tmp_path, "table=first", grid=[{"name": {"LogicDiag": None}}])
    run = finish(first, cells[0], 40)
    measured(run, 0.6)
    make(first, cells)
    pseudo_rows(first, cells)
    shutil.rmtree(run)
    second, ours = experiment(tmp_path, "table=second", grid=[{"psi.q": [5, 3]}])
    foreign, _ = experiment(tmp_path, "table=first", "evaluate=test", grid=[{"name": {"LogicDiag": None}}])
    assert ours[0].key == cells[0].key
    for others in ([], [second], [foreign]):
        assert make(second, ours, others=others).is_empty
        assert pseudo_rows(second, ours, others=others).rows == []
    table = make(second, ours, others=[first, second])
    assert [(row["psi.q"], row["miou_last"], row["cell"]) for row in rows_of(table.csv)] == [
        ("5", "40.0000", ours[0].name)
    ]
    assert "name" not in rows_of(table.csv)[0]
    [row] = pseudo_rows(second, ours, others=[first, second]).rows
    assert (row["cell"], row["after"]) == (ours[0].name, "60.0000")
    finish(second, ours[0], 50)
    assert make(second, ours, others=[first]).means["psi.q = 5", None, "last"].mean == pytest.approx(50)


def test_one_run_in_two_rows(tmp_path):
    e, cells = experiment(tmp_path, grid=[{"psi.q": [5]}, {"name": {"LogicDiag": None}}])
    finish(e, cells[0], 40)
    table = make(e, cells)
    assert [row["miou_last"] for row in rows_of(table.csv)] == ["40.0000"] * 2
    assert "1 run took 1 min.\n" in table.markdown


def test_one_is_not_done(tmp_path):
    e, cells = experiment(tmp_path, grid=[{"psi.q": [1, 2]}])
    finish(e, cells[0], 40)
    assert "1 of the cells is not done:" in make(e, cells).markdown.splitlines()


def test_what_is_said_below(tmp_path):
    e, cells = experiment(tmp_path, grid=[{"psi.q": [1, 2, 5]}], **LABELS)
    store = Store(e.out_folder)
    same = {"last": 0.4, "best": 0.4, "best_step": 3, "fingerprint": "reported"}
    finish(e, cells[0], 40, val=same, labels=3)
    store.fail(cells[1], "the soup is cold")
    half = store.run(cells[2])
    half.mkdir()
    (half / "metrics.jsonl").write_text('{"step": 4}\n')
    text = make(e, cells).markdown
    assert "chosen on the very list that is reported: read *last*" in text
    assert "psi.q=1-labels2-seed0 was trained on 3 labelled images, not 2." in text
    assert "- psi.q=2-labels2-seed0: failed: the soup is cold" in text
    assert "- psi.q=5-labels2-seed0: at step 4 of 6" in text
    assert rows_of(e.results_folder / "small.csv")[0]["chosen_on"] == SAME


def test_a_file_that_is_no_table(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="the column 'cell' is missing"):
        read(tmp_path / "x.csv", ["cell"])


# ---- pseudo labels and plots ----------------------------------------------------------------------------------------


def measured(run, *after):
    moments = [
        {"step": 3 * i, "pixels": 10, "before": 0.5, "after": value, "counted": 0.75, "learned": 0.9, "conflict": 0.1}
        for i, value in enumerate(after, 1)
    ]
    (run / "pseudo.json").write_text(json.dumps({"images": 2, "of": 2, "moments": moments}))


def test_rows_of_pseudo_labels_add_up(tmp_path):
    e, cells = experiment(tmp_path, seeds=[0, 1])
    first, second = (finish(e, cell, 40) for cell in cells)
    measured(first, 0.6, 0.7)
    assert len(pseudo_rows(e, cells).rows) == 2
    (first / "pseudo.json").unlink()
    measured(second, 0.8)
    found = pseudo_rows(e, cells)
    assert [(row["seed"], row["step"], row["after"]) for row in found.rows] == [
        ("0", "3", "60.0000"),
        ("0", "6", "70.0000"),
        ("1", "3", "80.0000"),
    ]
    changed, now = experiment(tmp_path, "train.steps=7")
    assert pseudo_rows(changed, now, prune=True).rows == []
    assert rows_of(found.csv) == []
    found = pseudo_rows(e, cells)
    assert list(rows_of(found.csv)[0])[:8] == ["dataset", "method", "psi", "head", "labels", "seed", "step", "steps"]


def test_rows_by_class_are_of_the_last_snapshot(tmp_path):
    e, cells = experiment(tmp_path, seeds=[0, 1])
    run = finish(e, cells[0], 40)
    assert class_rows(e, cells).rows == []
    assert not class_rows(e, cells).csv.exists()
    early, late = ({"pixels": 7, "after": share, "precision": None} for share in (0.1, 0.6))
    moments = [{"step": step, "pixels": 9, "classes": {"owl": s}} for step, s in ((3, early), (6, late))]
    (run / "pseudo.json").write_text(json.dumps({"images": 2, "of": 2, "moments": moments}))
    class_rows(e, cells)
    found = class_rows(e, cells)  # again: nothing is there twice
    assert rows_of(found.csv) == found.rows
    [row] = found.rows
    assert (row["class"], row["step"], row["seed"], row["pixels"]) == ("owl", "6", "0", "7")
    assert (row["after"], row["before"], row["precision"]) == ("60.0000", "", "")


def test_the_command_writes_everything(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = experiment_file(tmp_path, grid=[TWO], seeds=[0, 1], results=str(tmp_path / "results"), **LABELS)
    e, cells = experiment(tmp_path, grid=[TWO], seeds=[0, 1], results=str(tmp_path / "results"), **LABELS)
    for cell in cells:
        run = finish(e, cell, 40 + cell.seed + cell.labels)
        measured(run, 0.6, 0.7 + 0.1 * cell.seed)
    assert main(["experiment", "table", str(path)]) == 0
    out = capsys.readouterr().out
    assert "| LogicDiag | 42.50 ± 0.71 (2) | 44.50 ± 0.71 (2) |" in out
    names = {file.name for file in (tmp_path / "results").iterdir()}
    pictures = {"small-scenes.png", "small-scenes-pseudo-2.png", "small-scenes-pseudo-4.png"}
    assert names == {"small.csv", "small-scenes.md", "small-pseudo.csv", *pictures}
    assert (tmp_path / "results" / "small-scenes.md").read_text("utf-8") in out
    for name in pictures:
        picture = np.asarray(Image.open(tmp_path / "results" / name).convert("RGB")).astype(int)
        assert picture.shape[1] >= 1000
        colours = [tuple(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in plots.COLOURS[:3]]
        pixels = [int((abs(picture - colour).sum(2) < 30).sum()) for colour in colours]
        assert pixels[0] > 100, name  # a line in the first colour, one in the second, none in the third
        assert pixels[1] > 100, name
        assert pixels[2] == 0, name


def test_a_plot_by_row(tmp_path):
    pytest.importorskip("matplotlib")
    e, cells = experiment(tmp_path, grid=[{"psi.q": [1, 2]}])
    finish(e, cells[0], 40, 45)
    finish(e, cells[1], 42, 43)
    [path] = plots.draw(tmp_path, "x", e, make(e, cells), [])
    picture = np.asarray(Image.open(path).convert("RGB")).astype(int)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 20


def test_a_mean_of_fewer_runs_is_not_drawn_beside_others(tmp_path):
    e, cells = experiment(tmp_path, grid=[TWO], seeds=[0, 1], **LABELS)
    here = {(cell.options["name"], cell.labels, cell.seed): cell for cell in cells}
    finish(e, here["LogicDiag", 2, 0], 40)
    assert plots._points(make(e, cells)) == {("LogicDiag", 2)}  # all there is
    finish(e, here["FixMatch, flat", 4, 0], 50)
    finish(e, here["FixMatch, flat", 4, 1], 51)
    assert plots._points(make(e, cells)) == {("FixMatch, flat", 4)}
    finish(e, here["LogicDiag", 2, 1], 41)
    assert plots._points(make(e, cells)) == {("LogicDiag", 2), ("FixMatch, flat", 4)}


def test_error_bars_end_where_shares_do():
    down, up = plots._reach(Mean(10.0, 18.0, 3, 3))
    assert (down, up) == (10.0, 18.0)
    assert plots._reach(Mean(95.0, 8.0, 3, 3)) == (8.0, 5.0)
    assert plots._reach(Mean(40.0, math.nan, 1, 3)) == (0.0, 0.0)


def test_rows_look_different():
    """In what is drawn, and not by dashes, which are before psi."""
    assert len({tuple(sorted(plots._look(row).items())) for row in range(64)}) == 64
    assert all(row["color"] in plots.COLOURS and "linestyle" not in row for row in map(plots._look, range(64)))


def test_panels_have_something_and_end_where_shares_do(tmp_path):
    pytest.importorskip("matplotlib")
    e, cells = experiment(tmp_path, grid=[TWO])
    table = make(e, cells)
    shares = {"step": "3", "before": "100.0", "after": "99.9", "counted": "0.0", "conflict": ""}
    rows = [{"cell": cell.name, **shares} for cell in cells]
    plt = plots._matplotlib()
    figure = plots._pseudo(plt, e, table.groups, rows, "")
    *panels, legend = figure.axes
    assert [axes.get_ylabel() for axes in panels] == ["right pseudo labels (%)", "counted pixels (%)"]
    assert panels[0].get_ylim()[1] == 100
    assert panels[1].get_ylim()[0] == 0
    assert [text.get_text() for text in legend.get_legend().get_texts()] == ["FixMatch, flat", "LogicDiag"]
    plt.close(figure)


def test_nothing_yet(tmp_path):
    pytest.importorskip("matplotlib")
    e, cells = experiment(tmp_path, grid=[{"psi.q": [1, 2]}])
    assert plots.draw(tmp_path, "x", e, make(e, cells), []) == []


def test_without_matplotlib(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = experiment_file(tmp_path)
    e, [cell] = experiment(tmp_path)
    finish(e, cell, 40)
    assert main(["experiment", "table", str(path)]) == 0
    out = capsys.readouterr().out
    assert 'no plots: plots need matplotlib; install it with: pip install "logicdiag[plots]"' in out
    assert (tmp_path / "out" / "tables" / "small-scenes.md").is_file()
    assert main(["experiment", "table", str(path), "--no-plots"]) == 0
    assert "no plots" not in capsys.readouterr().out


def test_more_of_the_last_checkpoint_has_columns(tmp_path):
    e, cells = experiment(tmp_path)
    run = finish(e, cells[0], 40.0)
    result = json.loads((run / "result.json").read_text("utf-8"))
    result["evaluated"]["val"]["last"] |= {
        "levels": [{"level": 1, "miou": 0.625}, {"level": 2, "miou": 0.4}],
        "miou_parents": 0.5,
        "violations": {"share": 0.125, "rules": {"D": 0.125}},
    }
    (run / "result.json").write_text(json.dumps(result), "utf-8")
    make(e, cells)
    [row] = read(e.results_folder / f"{e.table}.csv")
    told = [row[name] for name in ("miou_last", "miou_top", "miou_parents", "violations")]
    assert told == ["40.0000", "62.5000", "50.0000", "12.5000"]
    result["evaluated"]["val"]["last"]["violations"] = None  # a flat head has no outputs above the leaves
    (run / "result.json").write_text(json.dumps(result), "utf-8")
    make(e, cells)
    [row] = read(e.results_folder / f"{e.table}.csv")
    assert row["violations"] == ""
