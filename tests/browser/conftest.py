"""One browser for all tests of this folder; without one they are skipped."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from chromium import FOUND, Chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    if FOUND is None:
        pytest.skip("there is no chromium on this machine (Debian: apt-get install chromium)")
    browser = Chromium(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def opened(browser):
    """Open pages that are closed with the test."""
    pages = []

    def open_page(address, **how):
        pages.append(browser.open(address, **how))
        return pages[-1]

    yield open_page
    for page in pages:
        page.close()
