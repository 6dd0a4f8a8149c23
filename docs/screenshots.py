"""The pictures of the report and of the explorer that the documentation shows.

    python docs/screenshots.py                   # trains on generated scenes first: two minutes (make screenshots)
    python docs/screenshots.py --run runs/mine   # of a run that is there

Needs Chromium and the packages of `pip install -e ".[dev]"`. Run it from the repository's folder.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser.chromium import started  # noqa: E402

from logicdiag.engine.demo import demo_config  # noqa: E402
from logicdiag.engine.run import Run, open_run  # noqa: E402
from logicdiag.engine.train import train  # noqa: E402
from logicdiag.experiment.worker import Snapshots  # noqa: E402
from logicdiag.explore.images import given_images  # noqa: E402
from logicdiag.explore.serve import LOOPBACK, listen, server  # noqa: E402
from logicdiag.explore.session import Explorer  # noqa: E402
from logicdiag.report.look import Viewer  # noqa: E402
from logicdiag.report.page import write_report  # noqa: E402

STEPS = 600
IMAGE = 3
"""Which validation image is looked at."""
TOKEN = "screenshot"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, started() as browser:
        run = open_run(args.run) if args.run else trained(Path(folder) / "scenes")
        shoot_report(browser, run, Path(folder) / "report.html", args.out / "report.png")
        shoot_explorer(browser, run, args.out / "explore.png")


def trained(path: Path) -> Run:
    return train(demo_config("logicdiag", STEPS, 0), path, observe=Snapshots(path, [STEPS // 10, STEPS // 2]))


def shoot_report(browser: Browser, run: Run, page_file: Path, out: Path) -> None:
    """What a reader sees first, and pseudo labels from further below."""
    write_report([run.path], page_file, shown=1)
    page = browser.new_page(viewport={"width": 1240, "height": 900})
    page.goto(page_file.as_uri())
    parts = []
    for title, below in (("Curves", 335), ("Pseudo labels", 915)):
        section = page.locator("section", has=page.locator(f"h2:text-is('{title}')"))
        box = section.bounding_box()
        assert box is not None
        top = box["y"] if parts else 0  # the first part begins with the page
        shot = out.with_suffix(".part.png")
        clip = {"x": 0, "y": top, "width": 1240, "height": box["y"] + below - top}
        page.screenshot(path=shot, clip=clip, full_page=True)
        with Image.open(shot) as image:
            parts.append(image.convert("RGB"))
        shot.unlink()
    sheet = Image.new("RGB", (1240, sum(part.height for part in parts)))
    height = 0
    for part in parts:
        sheet.paste(part, (0, height))
        height += part.height
    save(sheet, out)


def shoot_explorer(browser: Browser, run: Run, out: Path) -> None:
    """A pixel in conflict, pinned."""
    explorer = Explorer(Viewer(run), given_images(run, []))
    socket = listen(LOOPBACK, 0)
    answering = server(explorer, TOKEN)
    thread = threading.Thread(target=answering.run, args=([socket],))
    thread.start()
    try:
        page = browser.new_page(viewport={"width": 1440, "height": 980})
        page.goto(f"http://{LOOPBACK}:{socket.getsockname()[1]}/?token={TOKEN}")
        ready(page)
        page.locator("#image").select_option(index=IMAGE)
        ready(page)
        width, height = explorer.see(f"g{IMAGE}", explorer.own).look.chosen.shape[::-1]
        x, y = telling(explorer)
        box = page.locator("#stage").bounding_box()
        assert box is not None
        place = {"x": (x + 0.5) / width * box["width"], "y": (y + 0.5) / height * box["height"]}
        page.locator("#stage").click(position=place)
        page.locator(f'#explanation[data-at="{x},{y}"]').wait_for()
        shot = out.with_suffix(".part.png")
        page.screenshot(path=shot)
        with Image.open(shot) as image:
            save(image.convert("RGB"), out)
        shot.unlink()
        page.close()
    finally:
        answering.should_exit = True
        thread.join()
        socket.close()


def ready(page: Page) -> None:
    page.locator("body:not([aria-busy]) #small-changed[src]").wait_for()


def telling(explorer: Explorer) -> tuple[int, int]:
    """The pixel whose broken rules are most, and of those the one with most that is likely."""
    look = explorer.see(f"g{IMAGE}", explorer.own).look
    places = [(x, y) for y, x in look.conflict.nonzero()[::5].tolist()]

    def told(at: tuple[int, int]) -> tuple[int, int]:
        found = explorer.pixel(f"g{IMAGE}", explorer.own, at).explanation
        return min(3, len(found.broken)), sum(p >= 0.2 for p in found.probabilities)

    return max(places, key=told)


def save(picture: Image.Image, out: Path) -> None:
    picture.save(out, optimize=True)
    sys.stdout.write(f"written: {out} ({out.stat().st_size / 1000:.0f} kB)\n")


if __name__ == "__main__":
    main()
