"""The live view in a real browser: it follows a run while it goes on."""

from __future__ import annotations

import threading

import pytest
from rundirs import add_round, write_run

from tacit.report.viewer import Viewer

DRAWN = "document.documentElement.dataset.drawn > 0"
POINTS = (
    "document.querySelectorAll('.chart[data-name=accuracy] .mark-symbol.role-mark path').length"
)


@pytest.fixture
def server(tmp_path):
    write_run(tmp_path / "going", rounds=9, done=2)
    write_run(tmp_path / "done", method="scaffold")
    with Viewer(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_run_is_followed_while_it_goes_on(server, tmp_path, opened):
    page = opened(f"{server.address}report?run=going")
    page.until(f"{DRAWN} && {POINTS} === 2")
    page.js("document.querySelector('details').open = false")
    add_round(tmp_path / "going", 3)
    page.until(f"{POINTS} === 3")
    assert "round 3 of 9" in page.js("document.querySelector('.card').textContent")
    assert page.errors() == []
    assert all(url.startswith(server.address) for url in page.requests())


def test_runs_are_chosen_from_a_list_and_compared(server, opened):
    page = opened(server.address)
    assert page.js("document.querySelectorAll('tbody tr').length") == 2
    page.js("document.querySelectorAll('input').forEach(box => box.click())")
    assert page.js("document.querySelectorAll('input:checked').length") == 2
    page.js("setTimeout(() => document.querySelector('[type=submit]').click()) && 1")
    page.until(f"location.pathname === '/report' && {DRAWN} && {POINTS} === 2 + 3")
    assert page.errors() == []


def test_a_list_that_is_renewed_keeps_what_was_chosen(server, tmp_path, opened):
    page = opened(server.address)
    page.js("document.querySelector('input[value=going]').click()")
    add_round(tmp_path / "going", 3)
    page.until("document.querySelector('main').textContent.includes('3 of 9')")
    assert page.js("document.querySelector('input:checked').value") == "going"
    assert page.errors() == []
