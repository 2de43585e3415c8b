"""The headline is the mean of repeats, never the best of them."""

import json

from rundirs import write_run

from tacit.report.page import cards
from tacit.report.reading import read_all, read_run


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
