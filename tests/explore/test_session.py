"""Which images may be seen, what is kept, and many who ask at once."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from logicdiag.errors import DataError, RunError
from logicdiag.explore.images import given_images
from logicdiag.explore.kept import Kept
from logicdiag.explore.session import Explorer, own_setting
from logicdiag.logic import compile
from logicdiag.logic.automaton import TooLarge
from logicdiag.report.look import Viewer, validation


@pytest.fixture
def photos(tmp_path):
    """A folder with a photo in it and one below it, beside a secret one."""
    for path in ("photos/a.png", "photos/below/b.jpg", "secret.png"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), "red").save(tmp_path / path)
    return tmp_path / "photos"


def names(run, *given):
    return [photo.name for photo in given_images(run, [str(one) for one in given])]


def test_without_images_those_of_the_validation(run):
    found = given_images(run, [])
    assert [photo.name for photo in found] == [item.name for item in validation(run)]
    assert not any(hasattr(photo, "labels") for photo in found)  # no mask can be opened


def test_files_folders_and_names(run, photos):
    assert names(run, photos) == ["a.png", "below/b.jpg"]
    assert names(run, photos / "a.png", "val_0002", photos) == ["a.png", "val_0002", "below/b.jpg"]
    with pytest.raises(DataError, match=r"neither a file nor an image .*did you mean 'val_0002'"):
        names(run, "val_002")


def test_links_that_lead_out_of_a_folder(run, photos):
    (photos / "link.png").symlink_to("../secret.png")
    (photos / "alike.png").symlink_to("a.png")
    (photos / "folder").symlink_to("..")
    assert names(run, photos) == ["a.png", "below/b.jpg"]  # each once
    explorer = Explorer(Viewer(run, device="cpu"), given_images(run, [str(photos)]))
    assert explorer.shelf.photo("g0").image().shape == (40, 40, 3)
    os.remove(photos / "a.png")
    (photos / "a.png").symlink_to("../secret.png")  # after it was listed
    with pytest.raises(DataError, match=r"a\.png: leads out of the folder"):
        explorer.shelf.photo("g0").image()


def test_an_empty_folder(run, tmp_path):
    with pytest.raises(DataError, match="there is no image in the folder"):
        names(run, tmp_path)


def test_the_run_s_own_rules_as_text(run, tmp_path):
    psi = replace(run.config.psi, rules=["forall x: ~cat(x)", "  r: forall x:\n    ~bird(x)\n"], families="ce")
    changed = replace(run, config=replace(run.config, psi=psi))
    own = own_setting(changed, 5)
    assert (own.families, own.strategy, own.seed) == ("CE", psi.strategy, 5)
    viewer = Viewer(changed, seed=5, device="cpu")
    explorer = Explorer(viewer, given_images(run, []))
    seen = explorer.see("g0", own)
    assert [str(rule.formula) for rule in seen.knowledge.rules] == [str(r.formula) for r in changed.knowledge.rules]
    assert seen.look.result.revised.equal(seen.own.result.revised)
    (tmp_path / "rules.txt").write_text("# mine\nforall x: ~cat(x)\n")
    filed = replace(changed, path=tmp_path, config=replace(run.config, psi=replace(psi, rules="mine.rules")))
    assert own_setting(filed, 0).rules == "# mine\nforall x: ~cat(x)\n"


def test_a_flat_head_has_nothing_to_explain(flat_run):
    with pytest.raises(RunError, match="model.head flat, which predicts leaves alone"):
        Explorer(Viewer(flat_run, device="cpu"), [])


def test_the_network_is_asked_once_for_many_rules_and_threads(run, monkeypatch):
    viewer = Viewer(run, device="cpu")
    explorer = Explorer(viewer, given_images(run, []))
    predicted, inside = [], [0]
    look = viewer.look

    def counted(image):
        inside[0] += 1
        assert inside[0] == 1  # no two at once
        predicted.append(image)
        try:
            return look(image)
        finally:
            inside[0] -= 1

    monkeypatch.setattr(viewer, "look", counted)
    settings = [replace(explorer.own, families=families) for families in ("CDE", "CD", "E")] * 3
    questions = [(image, setting) for setting in settings for image in ("g0", "g1", "g2")]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda question: explorer.see(*question), questions))
    assert len(predicted) == 3
    for (image, setting), seen in zip(questions, found, strict=True):
        assert seen is explorer.see(image, setting)
        assert seen.knowledge.families == setting.families
        assert np.array_equal(seen.look.image, explorer.shelf.photo(image).image())


def test_what_is_kept_is_bounded():
    kept = Kept[str](100)
    for number in range(10):
        kept.put(number, str(number), 30)
        kept.get(0)
    assert [number for number in range(10) if kept.get(number)] == [0, 8, 9]
    kept.put("large", "large", 1000)  # the newest stays in any case
    assert kept.get("large") == "large"
    assert kept.get(0) is None


def test_forgotten_looks_are_made_again(run):
    explorer = Explorer(Viewer(run, device="cpu"), given_images(run, []))
    first = explorer.pixel("g0", explorer.own, (3, 4)).as_dict()
    explorer._looks.most = explorer._seen.most = 1
    explorer.see("g1", explorer.own)
    assert explorer._seen.get(("g0", explorer.own)) is None
    assert explorer.pixel("g0", explorer.own, (3, 4)).as_dict() == first


def test_what_a_lint_finds_is_noted(run):
    explorer = Explorer(Viewer(run, device="cpu"), given_images(run, []))
    seen = explorer.see("g0", replace(explorer.own, rules="forall x: cat(x) | ~cat(x)\n"))
    assert any("follows" in note for note in seen.notes)


def test_tangled_rules_are_noted_and_used(run, monkeypatch):
    def too_large(*_):
        raise TooLarge

    monkeypatch.setattr(compile, "build", too_large)
    explorer = Explorer(Viewer(run, device="cpu"), given_images(run, []))
    seen = explorer.see("g0", replace(explorer.own, rules="forall x: ~taxi(x)\n", families="C"))
    assert any("too tightly for a sweep" in note for note in seen.notes)
    assert seen.knowledge.is_consistent(seen.look.result.revised[0].movedim(0, -1)).all()
