"""The headline is the mean of repeats, never the best of them."""

import json

from rundirs import write_run

from tacit.report.figures import figures
from tacit.report.page import cards, results, whole_page
from tacit.report.reading import read_all, read_run
from tacit.report.review import review_page


def with_accuracy(folder, accuracy, **how):
    run = write_run(folder, rounds=1, **how)
    line = json.loads((run / "metrics.jsonl").read_text()) | {"accuracy": accuracy}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")


def test_the_mean_of_repeats_counts(tmp_path):
    for seed, accuracy in enumerate((0.9, 0.5)):
        with_accuracy(tmp_path / f"lucky{seed}", accuracy, seed=seed)
        with_accuracy(tmp_path / f"even{seed}", 0.8, seed=seed, method="scaffold")
        with_accuracy(tmp_path / f"dp{seed}", 0.6, seed=seed, method="dp_fedavg", z=9.0)
    best, private = cards(read_all([tmp_path]), "accuracy")
    assert best["what"] == "best shared model: scaffold"
    assert best["value"] == "80.0 \u00b1 0.0 %"
    assert private["what"] == "best with a guarantee: dp_fedavg"
    assert "mean of 2 seeds" in private["metric"]


def test_a_figure_of_an_earlier_round_says_so(tmp_path):
    run = write_run(tmp_path / "run", rounds=4)
    assert "after round" not in cards([read_run(run)], "accuracy")[0]["metric"]
    lines = (run / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1]) | {"accuracy": None, "loss": None}  # nobody answered
    (run / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    assert cards([read_run(run)], "accuracy")[0]["metric"] == "test accuracy, after round 3"


def with_line(folder, line, **how):
    """Write a run whose last line says what a goal other than classes leaves there."""
    run = write_run(folder, rounds=1, **how)
    last = json.loads((run / "metrics.jsonl").read_text())
    kept = {k: last[k] for k in ("round", "epsilon", "spent", "protects", "loss")}
    (run / "metrics.jsonl").write_text(json.dumps(kept | line) + "\n")
    return run


def of_numbers(error):
    return {"accuracy": None, "loss": error, "mse": error, "mae": {"<b>age": 12.25}}


def test_of_numbers_the_errors_are_shown_and_the_least_is_best(tmp_path):
    with_line(tmp_path / "far", of_numbers(2.5))
    near = with_line(tmp_path / "near", of_numbers(0.5), method="scaffold")
    runs = read_all([tmp_path])
    (best,) = cards(runs, "accuracy")
    assert (best["what"], best["value"]) == ("best shared model: scaffold", "0.5")
    assert "mean squared error" in best["metric"]
    (alone,) = cards(read_all([near]), "accuracy")
    assert alone["value"] == "0.5"
    table = results(runs, "accuracy")
    assert table.head[-1] == "errors"
    assert {row[-1].key for row in table.rows} == {0.5, 2.5}
    (loss,) = [figure for figure in figures(runs) if figure.name == "loss"]
    assert "mean squared error" in loss.note
    for page in (whole_page("t", runs), review_page(near)):
        assert "mean absolute error: &lt;b&gt;age 12.25" in page
        assert "<b>age" not in page
    assert "nan" not in review_page(near)


def test_of_several_labels_each_ones_accuracy_is_shown(tmp_path):
    labels = {"ill": 0.75, "old": 0.5}
    run = with_line(tmp_path / "run", {"accuracy": 0.625, "per_label": labels, "own_data": {}})
    (each,) = [figure for figure in figures(read_all([run])) if figure.name == "classes"]
    assert [row[1:] for row in each.rows] == [["ill", 0.75], ["old", 0.5]]
    assert "errors" not in results(read_all([run]), "accuracy").head
