"""Write docs/reproduction: a page for each paper, from its file and from what was measured.

`python docs/reproduction.py [FOLDER]`; with the folder of a `tacit reproduce` its results are taken
over first.
"""

import sys
from pathlib import Path

from tacit.experiment.reproduce import is_of_today
from tacit.papers.measured import KEPT, merged, read_results, results_of, write_results
from tacit.papers.published import paper, papers
from tacit.report.reproduction import SCALES, found, page
from tacit.report.reproduction_figures import draw_item

DOCS = Path(__file__).parent


def take_over(folder: Path) -> None:
    """Keep the results of a folder, in place of older ones of the same cells.

    Those of a checkout with changes that nobody else has are left out.
    """
    for key in papers():
        files = sorted((folder / "results").glob(f"{key}-*.jsonl"))
        new = [r for file in files for r in read_results(file) if "dirty" not in r.commit]
        if new:
            write_results(KEPT / f"{key}.jsonl", merged(results_of(key), new))


def drop_what_was() -> None:
    """Drop records of cells whose settings are others now."""
    for key in papers():
        there = results_of(key)
        now = [r for r in there if is_of_today(paper(key), r)]
        if len(now) < len(there):
            sys.stderr.write(f"{key}: {len(there) - len(now)} records of other settings dropped\n")
            write_results(KEPT / f"{key}.jsonl", now)


def pictures(key: str) -> dict[str, str]:
    """Draw the figures that something was measured of; full before short."""
    drawn = {}
    for name, item in paper(key).items.items():
        each = [found(results_of(key), name, scale) for scale in SCALES]
        by = next((measured for measured in each if measured), {})
        place = DOCS / "pictures" / f"{key}-{name}"
        files = draw_item(item, by, place)
        if not files:
            place.with_suffix(".png").unlink(missing_ok=True)  # of records that were dropped
        for file in files:
            if file.suffix == ".png":
                drawn[name] = f"../pictures/{file.name}"
            else:
                file.unlink()
    return drawn


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        take_over(Path(folder))
    drop_what_was()
    (DOCS / "reproduction").mkdir(exist_ok=True)
    for key in papers():
        text = page(paper(key), results_of(key), pictures(key))
        (DOCS / "reproduction" / f"{key}.md").write_text(text, encoding="utf-8")
