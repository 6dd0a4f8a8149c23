"""The explorer in a browser: what is seen is what the library says."""

import re

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import expect
from safetensors.torch import save_file

from logicdiag import Hierarchy
from logicdiag.data.dataset import Dataset, Photo
from logicdiag.engine.config import Config
from logicdiag.engine.run import create_run
from logicdiag.explore.images import Held
from logicdiag.explore.session import Explorer
from logicdiag.models.segmenter import ModelConfig, build_model
from logicdiag.report.look import Viewer, validation
from logicdiag.report.pixel import explain_pixel

from ..explore.served import TOKEN, served

NEVER = "forall x: ~background(x)"


@pytest.fixture
def page(explored, opened):
    page = opened(explored.address)
    ready(page)
    return page


def ready(page):
    """The repair was told, and all maps are there."""
    expect(page.locator("body:not([aria-busy])")).to_have_count(1)
    expect(page.locator("#repair dl")).to_be_visible()


def shown_size(page, ident):
    return page.locator(ident).evaluate("async (image) => { await image.decode(); return image.naturalWidth; }")


def hover(page, x, y, size=48):
    box = page.locator("#stage").bounding_box()
    page.mouse.move(box["x"] + (x + 0.5) / size * box["width"], box["y"] + (y + 0.5) / size * box["height"])
    expect(page.locator("#explanation")).to_have_attribute("data-at", f"{x},{y}")


def conflict_pixel(explored):
    """One of the first image that breaks a rule."""
    look = explored.explorer.see("g0", explored.explorer.own).look
    y, x = look.conflict.nonzero()[40].tolist()
    return x, y


SHOWN = ":not([hidden])"
LISTED = 12


def matches(page, pixel):
    """Everything that is drawn of a pixel is what `explain_pixel` found."""
    e = pixel.explanation
    expect(page.locator("#pixel-title")).to_have_text(f"Pixel {pixel.at[0]}, {pixel.at[1]}")
    for name, probability in zip(e.hierarchy.names, e.probabilities, strict=True):
        before, after = name in e.observed, name in e.revised
        row = page.locator(f'#tree li[data-name="{name}"] > .node')
        if not (before or after) and not row.is_visible():
            continue
        expect(row.locator(".number")).to_have_text(f"{probability:.2f}")
        words = {True: "true", False: "false"}
        state = ("true" if before else "") if before == after else f"{words[before]} → {words[after]}"
        expect(row.locator(".state")).to_have_text(state)
        expect(row.locator(".degree")).to_have_text(f"c {pixel.distrust[name]:.2f}")
    expect(page.locator(f"#broken li{SHOWN}")).to_have_text(list(e.broken[:LISTED]))
    rows = page.locator(f"#diagnoses tr{SHOWN}")
    expect(rows).to_have_text([told(diagnosis, e) for diagnosis in e.diagnoses[:LISTED]])
    expect(page.locator("#why")).to_have_text(f"Why: {pixel.why}")
    expect(page.locator("#revised")).to_have_text(f"Revised: {', '.join(e.revised) or 'nothing'}")


def told(diagnosis, e, most=10**9):
    """A diagnosis in a row of its own; of more classes than `most`, those and how many more there are."""
    wrong = [f"not {name}" for name in e.hierarchy.names if name in diagnosis.flips and name in e.observed]
    words = wrong + [f"also {name}" for name in e.hierarchy.names if name in diagnosis.flips - set(e.observed)]
    if len(words) > most + 1:
        words[most:] = [f"and {len(words) - most} more"]
    mark = f" taken ({e.strategy})" if diagnosis.flips == e.taken.flips else ""
    return f"{diagnosis.probability:.1%}{', '.join(words)}{mark}"


def test_the_page_opens_with_all_its_pictures(page, run):
    expect(page).to_have_title("small – logicdiag explore")
    expect(page.locator("#image option")).to_have_text([item.name for item in validation(run)])
    for what in ("photo", "prediction", "before", "repair", "conflict", "probability", "threshold", "changed"):
        expect(page.locator(f"#small-{what}")).to_have_attribute("src", re.compile("^blob:"))
        assert shown_size(page, f"#small-{what}") == 48
    assert shown_size(page, "#photo") == shown_size(page, "#map") == 48


def test_hovering_a_pixel_shows_what_the_library_says(page, run, explored):
    viewer = Viewer(run, device="cpu")
    item = validation(run)[0]
    x, y = conflict_pixel(explored)
    hover(page, x, y)
    matches(page, explain_pixel(viewer, viewer.look(item.image()), (x, y), item.name))


@pytest.fixture(scope="module")
def unsure(tmp_path_factory):
    """An explorer of a network that was never trained: every pixel breaks many rules and has many diagnoses."""
    path = tmp_path_factory.mktemp("unsure") / "run"
    h = Hierarchy.load("coco")
    config = Config(model=ModelConfig(encoder="small", head_bias=0.0))
    run = create_run(path, config, path.parent, Dataset(h.title, h, (), (), (), {}, lambda _: ()), {})
    torch.manual_seed(0)
    save_file(build_model(config.model, h).state_dict(), path / "last.safetensors")
    noise = np.random.default_rng(0).integers(0, 256, (48, 48, 3), np.uint8)
    with served(Explorer(Viewer(run, device="cpu"), [Photo("noise", Held(noise))])) as found:
        yield found


@pytest.mark.parametrize("families", ["CDE", "E"])
def test_a_passed_pixel_shows_the_first_of_what_a_pinned_one_does(unsure, opened, families):
    page = opened(unsure.address)
    ready(page)
    for name in ("C composition", "D decomposition") if families == "E" else ():
        page.get_by_label(name).uncheck()
        ready(page)
    own = unsure.explorer.own
    pixel = unsure.explorer.pixel("g0", type(own)(own.rules, families, own.strategy, own.seed), (7, 9))
    e = pixel.explanation
    assert len(e.broken) > LISTED
    assert len(e.diagnoses) > LISTED
    hover(page, 7, 9)
    total = f"{e.diagnoses.total:,}" if e.diagnoses.total < 1e6 else "over a million"
    expect(page.locator("#explanation")).to_contain_text(f"Minimal diagnoses ({total})")
    expect(page.locator("#explanation")).to_contain_text(f"Broken rules ({len(e.broken)})")
    expect(page.locator(f"#broken li{SHOWN}")).to_have_text(list(e.broken[:LISTED]))
    expect(page.locator(f"#diagnoses tr{SHOWN}")).to_have_text([told(d, e, 6) for d in e.diagnoses[:LISTED]])
    expect(page.locator("#more-broken")).to_be_hidden()
    expect(page.locator("#more-diagnoses")).to_be_hidden()
    taken = page.locator(".pixel tr.taken:visible")
    expect(taken).to_have_text(told(e.taken, e, 6))
    drawn = page.locator("#tree li:visible").evaluate_all("(items) => items.map((item) => item.dataset.name)")
    assert set(e.revised) <= set(drawn)
    assert len(drawn) < len(e.hierarchy)

    page.mouse.down()
    page.mouse.up()
    expect(page.locator("#pinned")).to_be_visible()
    matches(page, pixel)
    expect(page.locator("#more-broken li")).to_have_text(list(e.broken[LISTED:]))
    expect(page.locator("#more-diagnoses tr")).to_have_text([told(d, e) for d in e.diagnoses[LISTED:]])
    page.keyboard.press("Escape")
    expect(page.locator("#pinned")).to_be_hidden()
    expect(page.locator("#more-diagnoses tr")).to_have_count(0)


def test_a_pixel_is_pinned_and_moved_by_keys(page):
    hover(page, 10, 10)
    expect(page.locator("#pinned")).to_be_hidden()
    page.mouse.down()
    page.mouse.up()
    expect(page.locator("#pinned")).to_be_visible()
    box = page.locator("#stage").bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    expect(page.locator("#explanation")).to_have_attribute("data-at", "10,10")
    for key, place in (("ArrowRight", "11,10"), ("Shift+ArrowDown", "11,20"), ("ArrowUp", "11,19")):
        page.keyboard.press(key)
        expect(page.locator("#explanation")).to_have_attribute("data-at", place)
    expect(page.locator("#spoken")).to_contain_text("Pixel 11, 19: ")
    for _ in range(6):
        page.keyboard.press("Shift+ArrowLeft")
    expect(page.locator("#explanation")).to_have_attribute("data-at", "0,19")  # the edge holds
    page.keyboard.press("Escape")
    hover(page, 3, 4)


def test_editing_a_rule_changes_the_repair(page, explored):
    setting = explored.explorer.own
    x, y = conflict_pixel(explored)
    hover(page, x, y)
    unlike = page.locator('#repair dt:has-text("unlike the run\'s repair") + dd')
    expect(unlike).to_have_text("0.0 %")
    before = page.locator("#map").get_attribute("src")
    page.locator("#rules").fill(NEVER)
    expect(unlike).not_to_have_text("0.0 %")
    ready(page)
    assert page.locator("#map").get_attribute("src") != before
    expect(page.locator("#repair .note")).to_contain_text("class 'background' can never be true")
    changed = type(setting)(NEVER, setting.families, setting.strategy, setting.seed)
    matches(page, explored.explorer.pixel("g0", changed, (x, y)))
    page.locator("#reset").click()
    expect(unlike).to_have_text("0.0 %")
    expect(page.locator("#rules")).to_have_value("")
    matches(page, explored.explorer.pixel("g0", setting, (x, y)))


def test_a_family_switched_off_and_another_strategy(page, explored):
    own = explored.explorer.own
    x, y = conflict_pixel(explored)
    hover(page, x, y)
    page.get_by_label("D decomposition").uncheck()
    expect(page.locator("#repair button", has_text=re.compile("^D: "))).to_have_count(0)
    page.get_by_label("D decomposition").check()
    page.get_by_label("Strategy").select_option("greedy")
    expect(page.locator("#strategy-help")).to_have_text("greedy: the likeliest")
    expect(page.locator("#diagnoses tr.taken em")).to_have_text(" taken (greedy)")
    matches(page, explored.explorer.pixel("g0", type(own)("", "CDE", "greedy", 0), (x, y)))


def test_bad_rule_text_shows_the_caret(explored, opened):
    page = opened(explored.address, errors=False)  # a browser itself logs a refused request
    ready(page)
    numbers = page.locator("#repair").inner_text()
    page.locator("#rules").fill("forall x: cat(x)\n  -> tigr(x)")
    problem = page.locator("#problem")
    expect(problem).to_be_visible()
    assert problem.inner_text() == ("rules:2:6: unknown class 'tigr' (did you mean 'tiger'?)\n    -> tigr(x)\n       ^")
    assert problem.evaluate("(pre) => getComputedStyle(pre).whiteSpaceCollapse") == "preserve"
    expect(page.locator("#rules")).to_have_attribute("aria-invalid", "true")
    assert page.locator("#repair").inner_text() == numbers  # what is shown stays
    page.locator("#rules").fill("a: forall x: cat(x)\nb: forall x: ~cat(x)")
    expect(problem).to_contain_text("no label can satisfy the rules; these contradict each other: a; b")
    page.get_by_label("Next image").click()  # the last good rules go on
    expect(page.locator("#image")).to_have_value("g1")
    hover(page, 3, 4)
    expect(problem).to_be_visible()
    page.locator("#rules").fill("")
    expect(problem).to_be_hidden()


def test_maps_of_a_class_and_of_a_rule(page):
    page.locator("label.small", has_text="probability").click()
    before = page.locator("#map").get_attribute("src")
    page.locator("#of").select_option("vehicle")
    expect(page.locator("#map")).not_to_have_attribute("src", before)
    expect(page.locator("#scale")).to_be_visible()
    rule = page.locator("#repair button").first
    text = rule.inner_text()
    rule.click()
    expect(page.get_by_label("conflicts")).to_be_checked()
    expect(page.locator("#of")).to_have_value(text)
    page.locator("label.small", has_text="image").click()
    expect(page.locator("#map")).to_be_hidden()


def test_an_image_of_one_s_own(explored, opened, tmp_path):
    page = opened(explored.address, errors=False)
    ready(page)
    Image.new("RGB", (60, 30), "green").save(tmp_path / "meadow.png")
    (tmp_path / "notes.png").write_text("no image")
    page.locator("#file").set_input_files(tmp_path / "meadow.png")
    expect(page.locator("#image option:checked")).to_have_text("meadow.png (dropped in)")
    expect(page.locator("#stage")).to_have_attribute("aria-label", "The image, 60 by 30 pixels")
    ready(page)
    box = page.locator("#stage").bounding_box()
    assert box["width"] == pytest.approx(2 * box["height"], rel=0.01)
    page.locator("#stage").click(position={"x": box["width"] - 2, "y": box["height"] - 2})
    expect(page.locator("#pixel-title")).to_have_text("Pixel 59, 29")
    page.locator("#file").set_input_files(tmp_path / "notes.png")
    expect(page.locator("#notice")).to_contain_text("notes.png: is not an image")
    expect(page.locator("#pixel-title")).to_have_text("Pixel 59, 29")
    expect(page.locator("#notice")).to_be_in_viewport()
    page.keyboard.press("Escape")
    expect(page.locator("#notice")).to_be_hidden()


DROP = """async () => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 44, height: 36 });
    canvas.getContext("2d").fillRect(5, 5, 20, 20);
    const blob = await new Promise((done) => canvas.toBlob(done));
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File([blob], "<b>drawn & dropped.png"));
    for (const kind of ["dragover", "drop"]) document.body.dispatchEvent(
        new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true }));
}"""


def test_an_image_is_dropped(page):
    page.evaluate(DROP)
    expect(page.locator("#image option:checked")).to_have_text("<b>drawn & dropped.png (dropped in)")
    expect(page.locator("#stage")).to_have_attribute("aria-label", "The image, 44 by 36 pixels")


def test_an_image_that_is_gone_leaves_the_one_before(explored, opened):
    page = opened(explored.address, errors=False)
    ready(page)
    page.evaluate("document.getElementById('image').append(new Option('gone', 'd999'))")
    page.locator("#image").select_option("gone")
    expect(page.locator("#notice")).to_have_text("there is no image 'd999' here")
    expect(page.locator("#image")).to_have_value("g0")


def test_two_pages_do_not_disturb_each_other(page, explored, opened):
    other = opened(explored.address)
    ready(other)
    x, y = conflict_pixel(explored)
    page.locator("#rules").fill(NEVER)
    expect(page.locator("#repair .note")).to_be_visible()
    hover(other, x, y)
    matches(other, explored.explorer.pixel("g0", explored.explorer.own, (x, y)))


@pytest.mark.parametrize("address", ["/?token=wrong", "/", "/api/run", f"/api/image/../../etc/passwd?token={TOKEN}"])
def test_a_wrong_token_is_refused(explored, opened, address):
    page = opened(explored.address.partition("/?")[0] + address, errors=False)
    expect(page.locator("body")).to_contain_text("the token is missing or wrong")


def test_a_path_outside_is_refused(explored, opened):
    page = opened(explored.address, errors=False)
    ready(page)
    told = page.evaluate(
        """(token) => Promise.all(["api/image/..%2f..%2fetc%2fpasswd", "api/image/g99", "page/..%2fserver.py"].map(
            (path) => fetch(path, { headers: { "X-Token": token } }).then((answer) => answer.status)))""",
        TOKEN,
    )
    assert told == [404, 404, 404]


@pytest.mark.parametrize("width", [320, 390, 800, 1100, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_screen(explored, opened, width, scheme):
    page = opened(explored.address, viewport={"width": width, "height": 800}, color_scheme=scheme)
    ready(page)
    x, y = conflict_pixel(explored)
    page.locator("#stage").scroll_into_view_if_needed()
    hover(page, x, y)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    paper = page.locator("body").evaluate("(body) => getComputedStyle(body).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 23, 28)")


def test_everything_is_reached_by_tab(page):
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.value"))
    for ident in ("image", "file", "repair", "opacity", "stage", "whole", "reset", "C", "rules", "strategy", "seed"):
        assert ident in reached
