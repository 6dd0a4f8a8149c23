"""A browser, and pages in it that complain about everything. Where there is no browser, the tests say so.

With LOGICDIAG_BROWSER=required, as in CI, a browser that is missing is a failure.
"""

import os
from urllib.parse import urlsplit

import pytest

from ..explore.conftest import explored
from ..report.conftest import run
from . import chromium

__all__ = ["explored", "run"]

REQUIRED = os.environ.get("LOGICDIAG_BROWSER") == "required"
PATIENCE = 60_000
"""Milliseconds: of a machine that is busy nothing is said here."""


@pytest.fixture(scope="session")
def browser():
    if chromium.find() is None:
        say = pytest.fail if REQUIRED else pytest.skip
        say("there is no Chromium: apt-get install chromium, or name one in $CHROMIUM")
    from playwright.sync_api import expect

    expect.set_options(timeout=PATIENCE)
    with chromium.started() as found:
        yield found


@pytest.fixture
def opened(browser):
    """Opens pages; what they ask for elsewhere, and their errors, fail the test."""
    contexts, problems = [], []

    def open_page(address, errors=True, **options):
        context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: _elsewhere(request.url, address) and problems.append(request.url))
        if errors:
            page.on("console", lambda message: message.type == "error" and problems.append(message.text))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not problems


def _elsewhere(url, address):
    return not url.startswith(("{0.scheme}://{0.netloc}".format(urlsplit(address)), "data:", "blob:"))
