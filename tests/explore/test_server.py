"""What the server answers is what the library says; what it must not answer, it refuses."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from logicdiag import Diagnoser, KnowledgeBase
from logicdiag.explore import images
from logicdiag.explore.server import PAGE
from logicdiag.palette import leaf_colours
from logicdiag.report.look import Viewer, validation
from logicdiag.report.pixel import explain_pixel

NEVER = "forall x: ~background(x)\n"


def asked(explored, image="g1", **changes):
    return {"image": image, "setting": vars(replace(explored.explorer.own, **changes))}


def picture(answer):
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "image/png"
    return np.asarray(Image.open(io.BytesIO(answer.body)))


def by_hand(run, number, rules="", families="CDE", strategy="sampling", seed=0):
    """The viewer and its look, without the explorer."""
    viewer = Viewer(run, device="cpu")
    psi = run.config.psi
    kb = KnowledgeBase(run.hierarchy, families, rules, psi.root)
    viewer.diagnoser = Diagnoser(kb, strategy, psi.q, psi.connectives, psi.quantifier, psi.budget)
    viewer.seed = seed
    item = validation(run)[number]
    return viewer, viewer.look(item.image()), item.name


SETTINGS = [
    {},
    {"families": "CE"},
    {"families": ""},
    {"strategy": "greedy"},
    {"strategy": "uniform", "seed": 3},
    {"rules": NEVER},
    {"rules": "r: forall x: cat(x) -> tiger(x)\n", "families": "CD", "seed": 1},
]


@pytest.mark.parametrize("changes", SETTINGS)
def test_a_pixel_is_what_explain_pixel_gives(run, explored, changes):
    viewer, look, name = by_hand(run, 1, **changes)
    places = [(0, 0), (47, 47)] + [(x, y) for y, x in look.conflict.nonzero()[::40].tolist()]
    for x, y in places:
        answer = explored.ask("/api/pixel", {**asked(explored, **changes), "x": x, "y": y})
        assert answer.json == json.loads(json.dumps(explain_pixel(viewer, look, (x, y), name).as_dict()))


def test_fewer_diagnoses_are_the_likeliest_of_all(explored):
    y, x = explored.explorer.see("g1", explored.explorer.own).look.conflict.nonzero()[7].tolist()
    whole = {**asked(explored), "x": x, "y": y}
    every, few = (explored.ask("/api/pixel", {**whole, **most}).json for most in ({}, {"most": 2}))
    assert len(every["diagnoses"]) > 2
    for one, other in zip(few["diagnoses"], every["diagnoses"][:2], strict=True):
        assert one["flips"] == other["flips"]
        assert one["probability"] == pytest.approx(other["probability"])
    assert (few["exhaustive"], every["exhaustive"]) == (False, True)
    assert few["total"] == every["total"] == len(every["diagnoses"])
    assert (few["broken"], few["breaks"]) == (every["broken"][:2], len(every["broken"]))
    assert few["taken"] == every["taken"]
    assert explored.ask("/api/pixel", {**whole, "most": 0}).error.startswith("most is 0, expected a whole number")


@pytest.mark.parametrize("changes", SETTINGS)
def test_the_numbers_of_a_repair(run, explored, changes):
    viewer, look, _ = by_hand(run, 1, **changes)
    _, own, _ = by_hand(run, 1)
    found = explored.ask("/api/repair", asked(explored, **changes)).json
    assert found["size"] == [48, 48]
    assert found["conflict"] == int(look.conflict.sum())
    assert found["unlike_prediction"] == int((look.after != look.chosen).sum())
    assert found["unlike_run"] == int((look.result.revised != own.result.revised).any(1).sum())
    labels = look.result.observed[0].flatten(1).T
    for broken in found["broken"]:
        assert viewer.diagnoser.kb.count_broken(labels)[broken["rule"]] == broken["pixels"]
    for part in found["parts"]:
        texts = [t for t in viewer.diagnoser.kb.count_broken(labels) if t.startswith(f"{part['name']}: ")]
        assert (part["pixels"] > 0) == bool(texts) or part["name"] not in "CDE"


def test_editing_a_rule_changes_the_repair(run, explored):
    assert explored.ask("/api/repair", asked(explored)).json["unlike_run"] == 0
    found = explored.ask("/api/repair", asked(explored, rules=NEVER)).json
    assert found["unlike_run"] > 0
    assert any("class 'background' can never be true" in note for note in found["notes"])
    before, after = (
        picture(explored.ask("/api/map", {**asked(explored, rules=rules), "what": "repair"})) for rules in ("", NEVER)
    )
    ground = leaf_colours(run.hierarchy)[run.hierarchy.leaves.index("background")]
    assert (before == ground).all(-1).any()
    assert not (after == ground).all(-1).any()


def test_maps_show_what_they_say(run, explored):
    _, look, _ = by_hand(run, 1)
    colours = np.vstack([leaf_colours(run.hierarchy), [[0, 0, 0]]])

    def drawn(what, of=""):
        return picture(explored.ask("/api/map", {**asked(explored), "what": what, "of": of}))

    assert np.array_equal(drawn("prediction"), colours[look.chosen])
    assert np.array_equal(drawn("repair"), colours[look.after])
    assert np.array_equal(drawn("threshold")[look.sure >= 0], colours[look.sure[look.sure >= 0]])
    assert np.array_equal(drawn("before")[~look.conflict], colours[look.before[~look.conflict]])
    assert np.array_equal(drawn("conflict")[..., 3] > 0, look.conflict)
    assert not drawn("changed")[..., 3].any()
    by_family = [drawn("conflict", family)[..., 3] > 0 for family in "CDE"]
    assert np.array_equal(np.logical_or.reduce(by_family), look.conflict)
    first = explored.ask("/api/repair", asked(explored)).json["broken"][0]
    assert (drawn("conflict", first["rule"])[..., 3] > 0).sum() == first["pixels"]
    probability = drawn("probability", "background").astype(int).sum(-1).ravel()
    order = torch.argsort(look.probs[0, run.hierarchy.index("background")].ravel())
    assert (np.diff(probability[order]) >= 0).all()  # the scale rises in lightness
    assert np.array_equal(picture(explored.ask("/api/image/g1")), look.image)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rules": "forall x: tigr(x) -> cat(x)"}, "rules:1:11: unknown class 'tigr' (did you mean 'tiger'?)\n"),
        ({"rules": "forall x: tiger(x) ->"}, "rules:1:22: the rule ends where"),
        ({"rules": "a: forall x: cat(x)\nb: forall x: ~cat(x)"}, "no label can satisfy the rules; these contradict"),
        ({"rules": "#" * 20_001}, "the rules have 20001 characters, at most 20000 are read"),
        ({"families": "CX"}, "families is 'CX': 'X' is not one of"),
        ({"strategy": "greed"}, "strategy is 'greed', expected one of"),
        ({"seed": -1}, "seed is -1, expected a whole number from 0"),
        ({"seed": "many"}, "seed: Input should be a valid integer"),
    ],
)
def test_settings_that_cannot_be_used(explored, changes, says):
    question = asked(explored)
    question["setting"] = question["setting"] | changes
    answer = explored.ask("/api/repair", question)
    assert answer.status == 422
    assert answer.error.startswith(says)


def test_the_caret_stands_under_the_mistake(explored):
    error = explored.ask("/api/repair", asked(explored, rules="\nforall x: tigr(x) -> cat(x)")).error
    _, shown, caret = error.splitlines()
    assert shown[caret.index("^") :].startswith("tigr")


@pytest.mark.parametrize(
    ("path", "body"),
    [("/", None), ("/api/run", None), ("/api/image/g0", None), ("/api/image", b"x"), ("/api/nowhere", None)],
)
@pytest.mark.parametrize("token", [None, "", "wrong", "é"])
def test_without_the_token_nothing_is_told(explored, path, body, token):
    if path == "/":
        path, token = f"/?token={token or ''}" if token is None or token.isascii() else "/?token=%C3%A9", None
    answer = explored.ask(path, body, None if token is None else token.encode("latin-1"))
    assert answer.status == 403
    told = answer.body.decode() if path.startswith("/?") else answer.error
    assert told.startswith("the token is missing or wrong")


def test_the_page_opens_with_the_token_and_loads_nothing_from_elsewhere(explored):
    page = explored.ask(explored.address.partition(str(explored.port))[2], token=None)
    assert page.status == 200
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    assert page.headers["referrer-policy"] == "no-referrer"
    sources = [page.body, *(explored.ask(f"/page/{name}", token=None).body for name in PAGE)]
    assert not any(b"http:" in source or b"https:" in source or b"url(" in source for source in sources)
    assert explored.ask("/page/nowhere.js").status == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "localhost.evil.example", "", "127.0.0.1.evil.example"]
)
def test_another_name_is_refused(explored, host):
    answer = explored.ask("/api/run", Host=host)
    assert answer.status == 403
    assert answer.error.startswith("this server goes by another name")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:9", "[::1]:8765", "192.168.0.7:8765"])
def test_own_names_are_not(explored, host):
    assert explored.ask("/api/run", Host=host).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/api/image/../../etc/passwd",
        "/api/image/..%2f..%2fetc%2fpasswd",
        "/api/image//etc/passwd",
        "/api/image/%2fetc%2fpasswd",
        "/api/image/g99",
        "/api/image/val_0001",
        "/page/../server.py",
        "/page/..%2fserver.py",
        "/page/%2fetc%2fpasswd",
        "/etc/passwd",
        "/docs",
        "/openapi.json",
    ],
)
def test_paths_outside_are_refused(explored, path):
    answer = explored.ask(path)
    assert answer.status == 404
    assert answer.error.startswith("there is n")


def test_an_image_that_is_not_there_and_a_pixel_outside(explored):
    assert explored.ask("/api/repair", asked(explored, image="../g0")).status == 404
    answer = explored.ask("/api/pixel", {**asked(explored), "x": 48, "y": 0})
    assert answer.status == 422
    assert "48 x 48 pixels" in answer.error


def test_an_image_dropped_in(run, explored):
    _, look, _ = by_hand(run, 1)
    memory = io.BytesIO()
    Image.fromarray(look.image).save(memory, format="PNG")
    answer = explored.ask("/api/image", memory.getvalue(), **{"X-Name": "..%2F..%2Fholiday%20photo.png"})
    assert answer.json["name"] == "holiday photo.png"
    key = answer.json["id"]
    one, other = (explored.ask("/api/pixel", {**asked(explored, image=i), "x": 7, "y": 9}).json for i in (key, "g1"))
    assert one.pop("image") == "holiday photo.png"
    assert other.pop("image") == "val_0001"
    assert one == other


def test_what_is_no_image(explored):
    memory = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(memory, format="PNG")
    files = {
        "notes.txt": (b"this is no image", "notes.txt: is not an image; expected one of JPEG, PNG, BMP, TIFF, WEBP"),
        "a.eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "a.eps: is not an image"),
        "cut.png": (memory.getvalue()[:900], "cut.png: cannot be read as an image: "),
    }
    for name, (data, says) in files.items():
        answer = explored.ask("/api/image", data, **{"X-Name": name})
        assert answer.status == 415
        assert answer.error.startswith(says)


def test_large_images_are_bounded(explored, monkeypatch):
    memory = io.BytesIO()
    Image.new("L", (3000, 20)).save(memory, format="PNG")
    key = explored.ask("/api/image", memory.getvalue()).json["id"]
    assert picture(explored.ask(f"/api/image/{key}")).shape == (7, 1024, 3)
    monkeypatch.setattr(images, "MOST_PIXELS", 59_999)
    assert "3000 x 20 pixels" in explored.ask("/api/image", memory.getvalue()).error
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20_000)
    assert "cannot be read" in explored.ask("/api/image", memory.getvalue()).error


def test_a_file_that_is_too_long(explored, monkeypatch):
    monkeypatch.setattr("logicdiag.explore.server.MOST_BYTES", 1000)
    assert explored.ask("/api/image", b"x" * 2000).status == 413


def test_the_oldest_dropped_image_goes_first(run):
    memory = io.BytesIO()
    Image.new("RGB", (8, 8)).save(memory, format="PNG")
    shelf = images.Shelf([])
    keys = [shelf.drop(f"{n}.png", memory.getvalue()) for n in range(images.DROPPED + 2)]
    assert list(shelf.names()) == keys[2:]
    with pytest.raises(images.UnknownImage):
        shelf.photo(keys[0])


def test_a_fault_of_the_server_is_told_without_its_inside(explored, monkeypatch, capsys):
    def broken():
        raise RuntimeError("secret")

    monkeypatch.setattr(explored.explorer, "facts", broken)
    answer = explored.ask("/api/run")
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert "RuntimeError: secret" in capsys.readouterr().err
