"""A choice by a rule: what counts, what is missing, and who wins by how much."""

import pytest

from logicdiag.experiment.grid import expand
from logicdiag.experiment.store import split_name
from logicdiag.experiment.suite import load_suite

from .files import finish
from .test_page import made, page_of, tables

GRID = [
    {"name": {"A": {"psi.q": 1}, "B": {"psi.q": 2}}, "method.weight": [0.5, 1.0, 2.0]},
    {"datasets": ["left"], "name": {"C": {"psi.q": 3}}, "method.weight": [0.5, 1.0, 2.0]},
]
MARKER = "<!-- choice one\naxis: method.weight\nstays: {}\n{}-->\n<!-- end -->\n"


def choosing(folder, stays=1.0, more="", **keys):
    """Two data sets, two lists each; `left` has a row that `right` has not."""
    keys = {"grid": GRID, "reference": None, "seeds": [4, 5], **keys}
    return page_of(folder, MARKER.format(stays, more), ((2,), (3,)), **keys)


def done(path, values):
    """(data set, row, weight) -> mIoU of list 4 and 5, or less."""
    for e in load_suite(path).experiments:
        for cell in expand(e):
            found = values.get((e.dataset, cell.options["name"], cell.options["method.weight"]), ())
            if cell.seed - 4 < len(found):
                finish(e, cell, found[cell.seed - 4])


ALL = {
    ("left", "A", "0.5"): (30, 31), ("left", "A", "1.0"): (32, 33), ("left", "A", "2.0"): (30, 30),
    ("left", "B", "0.5"): (40, 41), ("left", "B", "1.0"): (40, 41), ("left", "B", "2.0"): (44, 44),
    ("left", "C", "0.5"): (50, 50), ("left", "C", "1.0"): (50, 50), ("left", "C", "2.0"): (53, 56),
    ("right", "A", "0.5"): (20, 20), ("right", "A", "1.0"): (20, 22), ("right", "A", "2.0"): (20, 20),
    ("right", "B", "0.5"): (20, 20), ("right", "B", "1.0"): (20, 22), ("right", "B", "2.0"): (20, 22),
}  # fmt: skip


def test_the_best_mean_of_the_data_sets(tmp_path):
    """Each data set counts alike, however many rows it has."""
    path = choosing(tmp_path)
    done(path, ALL)
    text = made(path)
    assert tables(text) == [
        [
            ["", "0.5", "1.0", "2.0"],
            ["**left, 2 labels**, lists 4, 5", "", "", ""],
            ["A", "30.0, 31.0", "32.0, 33.0", "30.0, 30.0"],
            ["B", "40.0, 41.0", "40.0, 41.0", "44.0, 44.0"],
            ["C", "50.0, 50.0", "50.0, 50.0", "53.0, 56.0"],
            ["mean of the 6 that all have", "40.33", "41.00", "42.83"],
            ["**Right, 3 labels**, lists 4, 5", "", "", ""],
            ["A", "20.0, 20.0", "20.0, 22.0", "20.0, 20.0"],
            ["B", "20.0, 20.0", "20.0, 22.0", "20.0, 22.0"],
            ["mean of the 4 that all have", "20.00", "21.00", "20.50"],
            ["**mean of the data sets**", "30.17", "31.00", "31.67"],
        ]
    ]
    assert "\nDecided: **2.0** takes the place of 1.0: it is 0.67 above it in the mean of the data sets.\n" in text


@pytest.mark.parametrize(
    ("stays", "margin", "says"),
    [
        (1.0, 0.66, "Decided: **2.0** takes the place of 1.0: it is 0.67 above it"),
        (1.0, 0.67, "Decided: **1.0** stays: in the mean of the data sets none is 0.67 above it."),
        (2.0, 0, "Decided: **2.0** stays: in the mean of the data sets none is 0 above it."),
        (2.0, 0.5, "Decided: **2.0** stays: in the mean of the data sets none is 0.5 above it."),
        (0.5, 1.5, "Decided: **2.0** takes the place of 0.5: it is 1.50 above it"),
    ],
)
def test_the_margin(tmp_path, stays, margin, says):
    path = choosing(tmp_path, stays, f"margin: {margin}\n")
    done(path, ALL)
    assert says in made(path)


def test_trials_that_an_option_lacks_count_for_none(tmp_path):
    """And nothing is decided before all of them are there."""
    path = choosing(tmp_path)
    done(path, {**ALL, ("left", "C", "2.0"): (53,), ("right", "B", "0.5"): ()})
    text = made(path)
    [rows] = tables(text)
    assert rows[4:6] == [
        ["C", "50.0, 50.0", "50.0, 50.0", "53.0, –"],
        ["mean of the 5 that all have", "38.40", "39.20", "40.20"],
    ]
    assert rows[8:] == [
        ["B", "–, –", "20.0, 22.0", "20.0, 22.0"],
        ["mean of the 2 that all have", "20.00", "21.00", "20.00"],
        ["**mean of the data sets**", "29.20", "30.10", "30.10"],
    ]
    assert "\nNot decided: 3 runs are missing. By what there is, **1.0** stays: in the mean" in text


def test_rows_that_a_data_set_leaves_out(tmp_path):
    """They have the runs of another row, which counts twice then; what is missing of these is one run."""
    path = choosing(tmp_path, more="same: {C: B, A: B}\n")
    done(path, {**ALL, ("right", "B", "2.0"): (20,)})
    text = made(path)
    [rows] = tables(text)
    assert [row[0] for row in rows[6:10]] == ["**Right, 3 labels**, lists 4, 5", "A", "B", "C (as B)"]
    assert rows[8][1:] == rows[9][1:] == ["20.0, 20.0", "20.0, 22.0", "20.0, –"]
    assert rows[10] == ["mean of the 4 that all have", "20.00", "20.50", "20.00"]
    assert "\nNot decided: 1 run is missing." in text


def test_a_data_set_without_a_trial_that_all_have(tmp_path):
    path = choosing(tmp_path)
    done(path, {**ALL, ("right", "A", "0.5"): (), ("right", "B", "0.5"): ()})
    text = made(path)
    [rows] = tables(text)
    assert rows[-1] == ["**mean of the data sets**", "–", "–", "–"]
    assert rows[-2][0] == "B"
    assert "Nothing can be compared yet." in text


def test_some_options_of_named_rows(tmp_path):
    """The axis is `name` by default; rows that are no option do not count."""
    grid = [{"name": {"A": {"psi.q": 1}, "B": {"psi.q": 2}, "C": {"psi.q": 3}}}]
    path = choosing(tmp_path, grid=grid)
    (tmp_path / "page.md").write_text("<!-- choice one\nstays: A\noptions: [A, C]\n-->\n<!-- end -->\n")
    for e in load_suite(path).experiments:
        for cell in expand(e):
            if cell.options["name"] != "B":
                finish(e, cell, 40 + cell.seed + 0.6 * (cell.options["name"] == "C"))
    text = made(path)
    assert tables(text)[0][:4] == [
        ["", "A", "C"],
        ["**left, 2 labels**, lists 4, 5", "", ""],
        ["mIoU", "44.0, 45.0", "44.6, 45.6"],
        ["mean of the 2 that all have", "44.50", "45.10"],
    ]
    assert "Decided: **C** takes the place of A: it is 0.60 above it" in text


def test_a_run_without_a_figure_is_missing(tmp_path):
    path = choosing(tmp_path)
    done(path, ALL)
    e = load_suite(path).experiments[0]
    cell = next(cell for cell in expand(e) if cell.options == {"name": "A", "method.weight": "2.0"})
    nothing = {"miou": None, "images": 7, "list": {"fingerprint": "reported"}}
    finish(e, cell, 50, evaluated={split_name(e.evaluate): {"last": nothing, "best": nothing}})
    assert "Not decided: 1 run is missing." in made(path)


def test_a_tie_is_no_reason_to_change(tmp_path):
    path = choosing(tmp_path, more="margin: 0\n")
    done(path, dict.fromkeys(ALL, (30, 30)))
    assert "Decided: **1.0** stays" in made(path)
