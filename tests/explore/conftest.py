"""The runs of the report's tests, and an explorer that answers."""

import pytest

from logicdiag.report.look import Viewer

from ..report.conftest import flat_run, run

__all__ = ["flat_run", "run"]


@pytest.fixture(scope="session")
def explored(run):
    from logicdiag.explore.images import given_images
    from logicdiag.explore.session import Explorer

    from .served import served

    with served(Explorer(Viewer(run, device="cpu"), given_images(run, []))) as found:
        yield found
