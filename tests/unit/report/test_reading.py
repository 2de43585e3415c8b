"""Reports read run directories of any age and in any state, change nothing, and never flatter."""

from __future__ import annotations

import json
import math

import pytest
from rundirs import line, write_run

from tacit.core import BadInput
from tacit.report import reading
from tacit.report.figures import figures
from tacit.report.page import results, whole_page, write_report
from tacit.report.reading import read_all, read_run
from tacit.report.review import review_page


def files_of(folder):
    return {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_a_run_is_read_as_it_is_and_nothing_is_written(tmp_path):
    run = write_run(tmp_path / "run", z=1.0)
    before = files_of(run)
    facts = read_run(run)
    assert (facts.method, facts.done, facts.rounds, facts.complete) == ("fedavg", 3, 3, True)
    assert facts.final["accuracy"] == 0.75
    assert facts.spent == 0.3  # what the finished run has written
    assert facts.problems == ()
    assert files_of(run) == before


def test_what_a_kill_has_cut_short_is_left_out_and_left_there(tmp_path):
    run = write_run(tmp_path / "run")
    for name in ("metrics.jsonl", "ledger.jsonl"):
        with (run / name).open("a") as f:
            f.write('{"round": 4, "accu')
    before = files_of(run)
    facts = read_run(run)
    assert facts.done == 3
    assert facts.problems == ()
    assert files_of(run) == before


def test_an_unfinished_run_is_charged_for_what_its_clients_have_written(tmp_path):
    run = write_run(tmp_path / "run", rounds=9, done=3, z=1.0)
    own = run / "checkpoint" / "clients" / "0"
    own.mkdir(parents=True)
    (run / "checkpoint" / "open").touch()
    line = json.loads((run / "ledger.jsonl").read_text().splitlines()[0])
    (own / "ledger.jsonl").write_text(json.dumps(line | {"rounds": "0-5"}) + "\n")
    three = read_run(write_run(tmp_path / "three", rounds=9, done=3, z=1.0)).spent
    six = read_run(write_run(tmp_path / "six", rounds=9, done=6, z=1.0)).spent
    assert read_run(run).spent == six > three


def test_a_ledger_that_cannot_be_read_promises_nothing(tmp_path):
    run = write_run(tmp_path / "run", z=5.0)
    with (run / "ledger.jsonl").open("a") as f:
        f.write('{"what": "?"}\n')
    facts = read_run(run)
    assert math.isinf(facts.spent)
    assert all(math.isinf(e) for e in facts.epsilon.values())
    assert "ledger.jsonl, line 5" in facts.problems[0]
    assert "What could not be read" in whole_page("t", [facts])


def test_silence_is_no_guarantee(tmp_path):
    run = write_run(tmp_path / "run", rounds=9, done=3, z=5.0)
    (run / "ledger.jsonl").write_text("")
    assert math.isinf(read_run(run).spent)
    assert "silence is no guarantee" in whole_page("t", [read_run(run)])


def test_an_older_format_is_shown_with_what_it_has(tmp_path):
    run = write_run(tmp_path / "run")
    old = {"round": 1, "accuracy": 0.5, "epsilon": {"example/server": "inf"}}
    (run / "metrics.jsonl").write_text(json.dumps(old) + "\n")
    (run / "about.json").unlink()
    (run / "config.toml").write_text('[method]\nname = "forgotten"\nrounds = 1\nold_word = 3\n')
    page = whole_page("t", read_all([run]))
    assert "forgotten" in page
    assert "old_word" in page


@pytest.mark.parametrize(
    "wrong",
    ["[1, 2]", "7", '{"round": "1", "accuracy": 0, "epsilon": {}}', "{", '{"round": 1}',
     '{"round": 1, "accuracy": "x", "epsilon": {}}', '{"round": 1, "accuracy": 0, "epsilon": 3}'],
)  # fmt: skip
def test_lines_that_are_none_are_named_and_left_out(tmp_path, wrong):
    run = write_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as f:
        f.write(wrong + "\n")
    facts = read_run(run)
    assert len(facts.lines) == 3
    assert facts.problems == ("metrics.jsonl, line 4: not the line of a round",)
    whole_page("t", [facts])


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "ledger.jsonl"])
def test_what_is_not_text_is_named(tmp_path, name):
    run = write_run(tmp_path / "run")
    (run / name).write_bytes(b"\xff\xfe\x00")
    assert name in " ".join(read_run(run).problems)
    whole_page("t", read_all([run]))


def test_a_huge_file_is_not_read(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run")
    monkeypatch.setattr(reading, "MOST_BYTES", 100)
    facts = read_run(run)
    assert len(facts.problems) == 3
    assert all("more than" in said for said in facts.problems)
    assert math.isinf(facts.spent)


def test_code_that_a_directory_names_is_not_run(tmp_path):
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    run = write_run(tmp_path / "run")
    text = (run / "config.toml").read_text()
    text = text.replace('"fedavg"', f'"{trap}:Method"').replace("rounds = 3", "rounds = []")
    (run / "config.toml").write_text(text.replace('"label:1"', f'"{trap}:split"'))
    whole_page("t", read_all([run]))
    assert not (tmp_path / "sprung").exists()


def test_repeats_have_one_label_and_what_differs_is_named(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", seed=seed)
        write_run(tmp_path / f"b{seed}", seed=seed, lr=0.5)
    write_run(tmp_path / "c", method="scaffold")
    labels = [run.label for run in read_all([tmp_path])]
    assert labels == [*["fedavg: sgd.lr=0.1"] * 2, *["fedavg: sgd.lr=0.5"] * 2, "scaffold"]


def test_folders_without_runs_are_refused_in_a_line(tmp_path):
    with pytest.raises(BadInput, match="not a run directory, and there is none in it"):
        read_all([tmp_path])
    with pytest.raises(BadInput, match="no such folder"):
        read_all([tmp_path / "nowhere"])


def test_sites_are_called_by_their_names(tmp_path):
    run = write_run(tmp_path / "run", z=1.0, data="sites")
    (run / "sites.json").write_text('{"sites": {"0": "St Mary", "1": "Charite"}}')
    page = whole_page("t", read_all([run]))
    assert "about one record of each of St Mary, Charite, client 2 and client 3" in page
    assert "Who has what" not in page  # nobody but the sites knows


def test_of_own_data_no_counts_are_shown(tmp_path):
    own = write_run(tmp_path / "own", data=str(tmp_path / "own.csv"))
    assert "Who has what" not in whole_page("t", read_all([own]))
    public = write_run(tmp_path / "public")
    assert "Who has what" in whole_page("t", read_all([public]))


def test_twenty_runs_of_five_hundred_rounds_are_a_small_page(tmp_path):
    for n in range(20):
        write_run(tmp_path / "all" / f"run{n}", rounds=500, lr=n + 1, clients=10, z=30.0)
    assert write_report([tmp_path / "all"]).stat().st_size < 5_000_000


WRONG = [None, True, "x", "nan", -1, 1e308, 10**400, [], [1], [["nan"]], [None], {}, {"0": "x"},
         {"0": [None]}, {"0": 10**400}]  # fmt: skip
COUNTED = [
    "accuracy", "loss", "personal", "per_class", "own_data", "per_client", "epsilon", "spent",
    "protects", "bytes_up", "seconds", "failed", "confusion", "macro_f1",
]  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("key", COUNTED)
def test_whatever_a_line_says_there_is_a_page_and_no_flattery(tmp_path, key):
    run = write_run(tmp_path / "run")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    for wrong in WRONG:
        last = json.loads(lines[-1]) | {key: wrong}
        (run / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
        facts = read_run(run)
        assert facts.spent >= 1e308  # nothing, or as much as the run has said
        whole_page("t", [facts])
        assert all(len(row) == 13 for row in results([facts], "accuracy").rows)


def test_a_value_that_makes_no_sense_is_left_out_and_named(tmp_path):
    run = write_run(tmp_path / "run", z=1.0)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1]) | {"spent": -5, "confusion": [[1], "x"]}
    (run / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    facts = read_run(run)
    assert facts.problems == (
        "metrics.jsonl, line 3: spent makes no sense",
        "metrics.jsonl, line 3: confusion makes no sense",
    )
    assert facts.spent > 5  # from the ledger, as the certificate is damaged


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "ledger.jsonl", "about.json", "sites.json", "certificate.json"]
)
def test_what_is_nested_without_end_is_wrong_and_no_more(tmp_path, name):
    run = write_run(tmp_path / "run")
    (run / name).write_text("[" * 100_000 + "\n")
    assert "eps inf" in whole_page("t", read_all([run]))


@pytest.mark.parametrize(
    "config",
    ['[method]\nname = ["a"]\n', "a = " + "[" * 9999 + "]" * 9999, "a" + ".b" * 3000 + " = 1",
     'metric = ["auroc"]\n', "metric = {a = 1}\n"],
)  # fmt: skip
def test_a_configuration_of_another_kind_is_shown_or_named(tmp_path, config):
    run = write_run(tmp_path / "run")
    (run / "config.toml").write_text(config)
    found = read_all([run])
    assert "eps inf" in whole_page("t", found, found[0].metric)
    assert "no guarantee" in review_page(run)


@pytest.mark.parametrize(
    ("data", "stated", "names"),
    [
        ("fashion-mnist", "", ["T-shirt/top", "Trouser"]),
        ("digits", "", ["0", "1"]),
        ("own.csv", "a,b,c,d,e,f,g,h,i,<b>", ["a", "b"]),
        ("own.csv", "benign,malignant", ["0", "1"]),  # there are ten
        ("own.csv", "folders", ["0", "1"]),
        ("own.csv", "", ["0", "1"]),
    ],
)
def test_classes_are_called_by_names_that_are_public_or_stated(tmp_path, data, stated, names):
    run = write_run(tmp_path / "run", data=data)
    text = (run / "config.toml").read_text().replace('classes = ""', f'classes = "{stated}"')
    (run / "config.toml").write_text(text)
    with (run / "metrics.jsonl").open("a") as f:
        table = [[int(a == b) for a in range(10)] for b in range(10)]
        f.write(json.dumps(line(4, 4, None, confusion=table)) + "\n")
    drawn = {figure.name: figure for figure in figures(read_all([run]))}
    assert [row[1] for row in drawn["classes"].rows[:2]] == names
    assert [row[1] for row in drawn["confusion-1"].rows[:2]] == names
