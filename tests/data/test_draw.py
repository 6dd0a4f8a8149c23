"""Random lists in which every common class occurs."""

import itertools

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from logicdiag.cli import main
from logicdiag.data.draw import COMMON, draw
from logicdiag.data.open import open_dataset
from logicdiag.engine.load import load_config

from ..engine.small import folder_dataset, on_disk


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.lists(st.frozensets(st.integers(0, 7)), min_size=30, max_size=120))
def test_common_classes_are_there_as_far_as_there_is_room(seed, count, classes):
    shown = {f"{i:03}": found for i, found in enumerate(classes)}
    names = draw(shown, count, seed)
    assert names == sorted(set(names))
    assert len(names) == count
    assert names == draw(dict(reversed(shown.items())), count, seed)[::-1]
    often = {leaf: sum(leaf in found for found in classes) for leaf in range(8)}
    common = {leaf for leaf, times in often.items() if times and times >= COMMON * len(shown)}
    if count >= len(common):
        assert common <= set().union(*(shown[name] for name in names))


def test_seeds_draw_other_lists():
    shown = {str(i): [0] for i in range(100)}
    one, two, again = (set(draw(shown, 50, seed)) for seed in (0, 1, 0))
    assert one == again
    assert 10 < len(one & two) < 40


@pytest.fixture
def config(tmp_path):
    root = folder_dataset(tmp_path / "data", labeled=6, unlabeled=6)
    path = tmp_path / "my.yaml"
    path.write_text(yaml.safe_dump({"data": on_disk(root)}))
    return path


def test_a_held_out_part_of_the_labelled_images(config, tmp_path, capsys):
    """Drawn, then the labelled ones without them; what is held out is no unlabelled image either."""
    assert main(["data", "draw", str(config), "--count", "2", "--out", str(tmp_path / "held.txt")]) == 0
    assert f"{tmp_path / 'held.txt'}: 2 of 6 images; every class is among them\n" == capsys.readouterr().out
    words = ["--count", "3", "--seed", "1", "--without", "held.txt", "--out", str(tmp_path / "mine.txt")]
    assert main(["data", "draw", str(config), *words]) == 0
    assert "3 of 4 images" in capsys.readouterr().out
    data = open_dataset(load_config(config, ["data.labeled=mine.txt", "data.val=held.txt"]).data, tmp_path)
    parts = [{item.name for item in part} for part in (data.labeled, data.unlabeled, data.val)]
    assert [len(part) for part in parts] == [3, 7, 2]
    assert all(not one & other for one, other in itertools.combinations(parts, 2))


def test_more_than_there_are(config, tmp_path, capsys):
    out = tmp_path / "no" / "list.txt"
    assert main(["data", "draw", str(config), "--count", "7", "--out", str(out)]) == 2
    assert "logicdiag: --count is 7, expected 1 to 6, the images that there are" in capsys.readouterr().err
    assert not out.parent.exists()
