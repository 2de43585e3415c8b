"""The review says what the ledger says, and names the lines that it rests on."""

from __future__ import annotations

import html
import json
import shutil
import subprocess

import pytest
from rundirs import write_run

from tacit import privacy
from tacit.core import BadInput, Gaussian, Nothing, Release, Sampling
from tacit.engines.store import to_text
from tacit.report.reading import read_run
from tacit.report.review import CHECK, checksum, review_page, write_review


def row(page: str, field: str) -> list[str]:
    """Return what is stated in a field, and what it rests on."""
    found = page.partition(f'<th scope="row">{field}</th>')[2].partition("</tr>")[0]
    return [html.unescape(cell.partition("</td>")[0]) for cell in found.split("<td>")[1:]]


def central(folder):
    """Give a run raw replies in lines 1 and 2 and the server's noise in line 3."""
    raw = json.loads((folder / "ledger.jsonl").read_text().splitlines()[0])
    lines = [json.dumps(raw | {"owner": str(i), "rounds": "0-2"}) + "\n" for i in range(2)]
    mean = Release(
        "mean", "client", "federation", "clients", Gaussian(2.0), ((0, 2),),
        sampling=Sampling("poisson", 0.5), covers="fedavg.train", noise="os",
    )  # fmt: skip
    (folder / "ledger.jsonl").write_text("".join(lines) + to_text([mean]))
    text = (folder / "metrics.jsonl").read_text().replace("example/server", "client/public")
    (folder / "metrics.jsonl").write_text(text)


def test_figures_are_those_of_the_ledger_not_of_what_the_run_has_printed(tmp_path):
    run = write_run(tmp_path / "run", z=1.0)
    facts = read_run(run)
    true = privacy.epsilon(facts.ledger, unit="example", observer="server", delta=1e-5)
    assert true > facts.spent  # the file's own word, which this test has made up
    page = review_page(run)
    assert f"({privacy.show_epsilon(true)}, 1e-05)-differential privacy for one example" in page
    assert row(page, "Epsilon")[0].startswith(f"{privacy.show_epsilon(true)} (rounded up)")
    assert row(page, "Epsilon")[1] == "ledger.jsonl lines 1-4"


def test_each_statement_names_the_lines_that_its_observer_sees(tmp_path):
    run = write_run(tmp_path / "run")
    central(run)
    page = review_page(run)
    assert row(page, "Unit of privacy") == [
        "all records of one client together.", "ledger.jsonl line 3"]  # fmt: skip
    assert row(page, "the server")[0] == "eps inf"
    assert row(page, "the server")[-1] == "ledger.jsonl lines 1-2"
    assert row(page, "the public")[-1] == "ledger.jsonl line 3"
    assert row(page, "fedavg.train")[1] == "ledger.jsonl lines 1-2"
    assert row(page, "Server")[1] == row(page, "Sampling")[1] == "ledger.jsonl line 3"
    assert row(page, "Left without a guarantee")[1] == "ledger.jsonl lines 1-2"


def test_public_numbers_are_named_as_such(tmp_path):
    run = write_run(tmp_path / "run", z=1.0)
    size = Release("size", "example", "0", "server", Nothing(), ((0, 0),))
    with (run / "ledger.jsonl").open("a") as f:
        f.write(to_text([size]))
    assert row(review_page(run), "Public by assumption")[1] == "ledger.jsonl line 5"


@pytest.mark.parametrize("how", ["empty", "damaged"])
def test_without_a_ledger_it_promises_nothing(tmp_path, how):
    run = write_run(tmp_path / "run", z=1.0)
    (run / "ledger.jsonl").write_text({"empty": "", "damaged": "{}\n"}[how])
    page = review_page(run)
    assert "There is no guarantee for one example against the server." in page
    assert "differential privacy for one" not in page


def test_a_run_that_goes_on_says_so(tmp_path):
    run = write_run(tmp_path / "run", rounds=9, done=2)
    (run / "checkpoint").mkdir()
    (run / "checkpoint" / "open").touch()
    assert "figures are of what was released so far" in review_page(run)


def test_the_checksum_is_what_sha256sum_says(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "checkpoint").mkdir()
    (run / "checkpoint" / "a b").write_text("x")
    first = checksum(run)
    write_review(run)
    (run / ".lock").touch()
    assert checksum(run) == first  # the page itself is not part of the run
    if shutil.which("sha256sum"):
        said = subprocess.run(["sh", "-c", CHECK], cwd=run, capture_output=True, text=True).stdout
        assert said.split()[0] == first
    (run / "metrics.jsonl").write_text("")
    assert checksum(run) != first


def test_it_is_of_one_run_and_where_data_lie_is_not_told(tmp_path):
    write_run(tmp_path / "all" / "a", data="/home/somebody/patients.csv")
    write_run(tmp_path / "all" / "b")
    with pytest.raises(BadInput, match="a review is of one run, and there are 2"):
        write_review(tmp_path / "all")
    page = review_page(tmp_path / "all" / "a")
    assert "patients.csv" in page
    assert "somebody" not in page


def test_words_with_html_in_them_are_words(tmp_path):
    run = write_run(tmp_path / "run", method="<script>boom</script>")
    assert "<script" not in review_page(run)
