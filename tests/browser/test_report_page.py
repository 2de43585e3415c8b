"""The report in a real browser: offline, without errors, readable, sortable."""

from __future__ import annotations

import json
import re

import pytest
from rundirs import write_run

from tacit.core import NonPrivate, Release
from tacit.engines.store import to_text
from tacit.report.page import write_report
from tacit.report.review import write_review

HOSTILE = "<img src=x onerror=boom()></script><script>boom()</script>"
DRAWN = "document.documentElement.dataset.drawn > 0"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "study"
    for seed in (0, 1):
        write_run(folder / f"fedavg-s{seed}", seed=seed, rounds=5)
    write_run(folder / "dp-s0", method="dp_fedavg", z=2.0, rounds=5)
    return write_report([folder])


def test_it_opens_without_an_error_and_asks_for_nothing(page_file, opened):
    page = opened(page_file.as_uri())
    page.until(DRAWN)
    assert page.errors() == []
    assert page.requests() == [page_file.as_uri()]
    headings = page.js("[...document.querySelectorAll('figure h2')].map(h => h.textContent)")
    assert {"Test accuracy over rounds", "Who has what", "Uplink and downlink"} <= set(headings)


def test_figures_have_a_mark_for_each_number(page_file, opened):
    page = opened(page_file.as_uri())
    page.until(DRAWN)
    marks = "document.querySelectorAll('.chart[data-name={}] .mark-{} path').length"
    symbols = page.js(marks.format("accuracy", "symbol.role-mark"))
    assert symbols == 3 * 5  # three runs of five rounds
    assert page.js(marks.format("accuracy", "line.role-mark")) == 3
    assert page.js(marks.format("epsilon", "line.role-mark")) == 1  # the others' is infinite
    assert page.js(marks.format("split", "rect.role-mark")) == 4 * 10  # clients and classes
    assert page.js(marks.format("clients", "rect.role-mark")) == 3 * 4


def test_tables_are_sorted_by_what_numbers_mean(page_file, opened):
    page = opened(page_file.as_uri())
    column = """[...document.querySelectorAll('table.sortable tbody tr')].map(
        tr => tr.cells[5].textContent)"""
    press = "document.querySelectorAll('table.sortable th button')[5].click()"
    page.js(press)
    assert page.js(column) == ["0.5", "inf", "inf"]
    page.js(press)
    assert page.js(column) == ["inf", "inf", "0.5"]
    sort = "document.querySelectorAll('table.sortable th')[5].getAttribute('aria-sort')"
    assert page.js(sort) == "descending"


def test_every_figure_can_be_taken_away(page_file, opened):
    page = opened(page_file.as_uri())
    page.until(DRAWN)
    page.js("""window.saved = []; HTMLAnchorElement.prototype.click = function () {
        saved.push([this.download, this.href.slice(0, 14)]) }""")
    page.js("document.querySelectorAll('.csv, .png').forEach(button => button.click())")
    figures = page.js("document.querySelectorAll('figure').length")
    page.until(f"saved.length === {2 * figures}")
    kinds = {(name.rpartition(".")[2], start.partition(":")[0]) for name, start in page.js("saved")}
    assert kinds == {("png", "data"), ("csv", "blob")}
    assert page.errors() == []


@pytest.mark.parametrize("dark", [False, True])
def test_it_follows_the_colours_of_the_system(page_file, opened, dark):
    page = opened(page_file.as_uri(), dark=dark)
    page.until(DRAWN)
    back = page.js("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")
    label = page.js("""getComputedStyle(document.querySelector(
        '.chart .role-axis-label text')).fill""")
    assert label == ("rgb(232, 234, 237)" if dark else "rgb(26, 29, 33)")


def test_it_fits_a_phone(page_file, opened):
    page = opened(page_file.as_uri(), width=375, height=700)
    page.until(DRAWN)
    assert page.js("document.documentElement.scrollWidth") <= 375
    widest = page.js("""Math.max(...[...document.querySelectorAll('.chart svg')].map(
        svg => svg.getBoundingClientRect().right))""")
    assert widest <= 375


def test_words_with_html_in_them_are_words(tmp_path, opened):
    run = write_run(tmp_path / "run")
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('"digits"', f"'{HOSTILE}'"))
    (run / "sites.json").write_text(
        '{"sites": {"0": "<b onclick=boom()>ward</b>", "1": "</script><script>boom()</script>"}}'
    )
    ledger = (run / "ledger.jsonl").read_text()
    (run / "ledger.jsonl").write_text(ledger.replace("fedavg.train", "<i>train</i>"))
    page = opened(write_report([run]).as_uri())
    page.until(DRAWN)
    assert page.errors() == []
    assert page.js("document.querySelectorAll('main b, main i, main img, main script').length") == 0
    assert HOSTILE in page.js("document.querySelector('main').textContent")
    assert "<i>train</i>" in page.js("document.querySelector('main').textContent")


def test_the_review_of_a_large_run_prints_on_six_pages_at_most(tmp_path, opened):
    run = write_run(tmp_path / "run", clients=60, rounds=5)
    words = "a very long reason " * 30
    lines = [
        Release(f"release {i}", "example", str(i), "server", NonPrivate(f"{words}{i}"), ((i, i),))
        for i in range(60)
    ]
    (run / "ledger.jsonl").write_text(to_text(lines))
    sites = {"sites": {str(i): f"The General Hospital of Town {i}" for i in range(60)}}
    (run / "sites.json").write_text(json.dumps(sites))
    settings = "".join(f"{'k' * 500}{i} = 1\n" for i in range(99))  # of one word, and many
    (run / "config.toml").write_text(settings + (run / "config.toml").read_text())
    page = opened(write_review(run).as_uri())
    assert page.errors() == []
    assert page.requests() == [(run / "review.html").as_uri()]
    pages = re.findall(rb"/Type\s*/Page\b", page.pdf())
    assert 2 <= len(pages) <= 6
    page.resize(375)
    assert page.js("document.documentElement.scrollWidth") <= 375
