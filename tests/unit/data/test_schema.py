"""A table becomes numbers by its schema alone; whatever does not fit is refused by name."""

import tomllib
from datetime import date

import numpy as np
import pytest
import torch
import wards
from hypothesis import given
from hypothesis import strategies as st

import tacit
from tacit.cli.main import call
from tacit.core import BadInput
from tacit.data import Reading, Schema, Table, load, read_schema, read_table
from tacit.data.columns import Column, hashed
from tacit.data.federated import federate, per_client
from tacit.data.schema_draft import draft
from tacit.engines.facts import Facts, schema_parts
from tacit.experiment.rundir import RunDir
from tacit.experiment.sites import agreed

SCHEMA = Schema.from_dict(tomllib.loads(wards.SCHEMA))


def table(rows, columns=wards.COLUMNS, where="p.csv"):
    return Table(where, {name: [row[name] for row in rows] for name in columns}, range(2, 9999))


def row(**cells):
    return wards.patients(1)[0] | {name.replace("_kg", " [kg]"): v for name, v in cells.items()}


# ---- by hand


def test_a_row_by_hand():
    one = row(age="30", weight_kg="NA", sex="m", admitted="2020-01-01", note="", ward="west")
    made = SCHEMA.encode(table([one | {"outcome": "ill"}]))
    age, weight, sex, admitted, ward = [-0.5], [0, 1], [0, 1, 0], [-1, 0], [0, 0, 1]
    note = [0] * 8 + [1]
    assert made.x.tolist() == [[*age, *weight, *sex, *admitted, *note, *ward]]
    assert made.x.dtype == np.float32
    assert made.y.tolist() == [1]
    assert len(SCHEMA.features) == wards.WIDTH
    assert SCHEMA.features[:4] == ("age", "weight", "weight missing", "sex=f")


def test_columns_are_found_by_name_in_any_order():
    rows = wards.patients(20)
    here, there = (table(rows, order) for order in (wards.COLUMNS, wards.COLUMNS[::-1]))
    assert np.array_equal(SCHEMA.encode(here).x, SCHEMA.encode(there).x)
    assert np.array_equal(SCHEMA.encode(here).y, SCHEMA.encode(there).y)


def test_without_labels_they_are_not_looked_at():
    rows = wards.patients(5)
    whole = SCHEMA.encode(table(rows))
    bare = SCHEMA.encode(table(rows, wards.COLUMNS[:-1]), labelled=False)
    assert bare.y is None
    assert np.array_equal(bare.x, whole.x)


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=6, unique=True), st.data())
def test_what_a_row_becomes_does_not_depend_on_others(seeds, data):
    rows = [wards.patients(1, seed)[0] for seed in seeds]
    at = data.draw(st.integers(0, len(rows) - 1))
    together, alone = SCHEMA.encode(table(rows)), SCHEMA.encode(table([rows[at]]))
    assert np.array_equal(together.x[at], alone.x[0])
    assert np.abs(together.x).max() <= 1


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.floats(0, 1))
def test_scaled_numbers_come_back(low, span, share):
    column = Column("a", "number", low=low, high=low + span)
    value = min(max(low + share * span, low), low + span)
    scaled = column.scaled(Table("t", {"a": [repr(value)]}), [repr(value)], np.array([0]))
    assert -1 <= scaled[0] <= 1
    assert column.unscaled(scaled)[0] == pytest.approx(value, rel=1e-6, abs=1e-9 * span + 1e-9)


def test_values_outside_are_clipped_only_where_the_schema_says_so():
    column = Column("a", "number", low=0, high=10, outside="clip")
    made = column.encode(Table("t", {"a": ["-5", "5", "99"]}), frozenset({""}))
    assert made[:, 0].tolist() == [-1, 0, 1]


def test_hashed_words_are_the_same_in_any_order_and_every_process():
    made = hashed(["Cough, fever!", "fever cough", "", "cough"], 16)
    assert np.array_equal(made[0], made[1])
    assert np.linalg.norm(made, axis=1).tolist() == pytest.approx([1, 1, 0, 1])
    assert np.flatnonzero(hashed(["cough"], 16)[0]).tolist() == [6]  # a constant of the encoder


def test_a_schema_is_the_same_after_it_was_written():
    assert Schema.from_dict(tomllib.loads(SCHEMA.to_toml())) == SCHEMA
    assert Schema.from_dict(SCHEMA.to_dict()) == SCHEMA


# ---- ways in which a site's table can disagree


def cells(**of):
    return lambda: wards.text([*wards.patients(3), row(**of)])


def renamed(old, new):
    return lambda: wards.text(wards.patients(3)).replace(old, new, 1)


DISAGREE = {
    "a column is missing": (
        lambda: wards.text(wards.patients(3), [c for c in wards.COLUMNS if c != "sex"]),
        "column 'sex' is missing",
    ),
    "a column too many": (renamed("patient_id", "insurance"), "column 'insurance' is not in the"),
    "a column twice": (renamed("sex", "age"), "column 'age' is there more than once"),
    "an unknown category": (cells(sex="female"), "line 5: sex = 'female': must be one of f, m, x"),
    "a word for a number": (cells(age="old"), "line 5: age = 'old': must be a finite number"),
    "a decimal comma": (cells(age="30,5"), "line 5: age = '30,5': must be a finite number"),
    "an infinite number": (cells(age="inf"), "line 5: age = 'inf': must be a finite number"),
    "outside of the public range": (
        cells(weight_kg="60000"),
        "line 5: weight = '60000': must be from 0 to 300 kg; is it in another unit?",
    ),
    "another unit": (renamed("[kg]", "[lb]"), "column 'weight': unit 'lb': must be 'kg'"),
    "a gap where none may be": (cells(age="NA"), "line 5: age is missing: the schema allows no"),
    "another format of dates": (
        cells(admitted="01.02.2024"),
        "line 5: admitted = '01.02.2024': must be a date as %Y-%m-%d",
    ),
    "a day outside": (cells(admitted="1999-01-01"), "must be from 2020-01-01 to 2029-12-31"),
    "an unknown label": (cells(outcome="dead"), "line 5: outcome = 'dead': must be one of well"),
    "a missing label": (cells(outcome=""), "line 5: outcome is missing"),
    "another separator": (
        lambda: wards.text(wards.patients(3), separator=":"),
        "what stands between columns must be a comma, a semicolon, a tab or |",
    ),
    "another encoding": (
        lambda: wards.text(wards.patients(3)).replace("routine", "für").encode("latin-1"),
        "cannot be read as CSV in UTF-8",
    ),
    "a ragged row": (lambda: wards.text(wards.patients(3)) + "p9,5\n", "line 5: 2 values: must be"),
    "no rows": (lambda: wards.text([]), "no rows below the header"),
    "nothing": (lambda: "", "empty: must have a header"),
}


@pytest.fixture
def with_schema(offline, tmp_path):
    """A folder with the schema that all sites share, and no coordinator to reach."""
    wards.schema(tmp_path)


def join(*more, data="patients.csv"):
    network = ["--server", "127.0.0.1:9", "--name", "hospital-b", "--insecure"]
    flags = ["--accept", "anything", "--schema", "schema.toml", "--data", data]
    return call(["join", *network, *flags, *more])


@pytest.mark.usefixtures("with_schema")
@pytest.mark.parametrize("how", DISAGREE)
def test_a_table_that_disagrees_is_refused_at_join_by_site_and_column(how, tmp_path, capsys):
    written, words = DISAGREE[how]
    made = written()
    blob = made if isinstance(made, bytes) else made.encode()
    (tmp_path / "patients.csv").write_bytes(blob)
    assert join() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tacit: site hospital-b: patients.csv")
    assert words in line
    assert not (tmp_path / "sites").exists()


@pytest.mark.usefixtures("with_schema")
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_a_table_that_agrees_goes_on_to_connect(tmp_path, separator):
    wards.ward(tmp_path, columns=wards.COLUMNS[::-1], separator=separator)
    with pytest.raises(AssertionError, match="tried to connect"):
        join()


@pytest.mark.usefixtures("with_schema")
def test_a_column_that_others_do_not_have_can_be_left_out(tmp_path):
    rows = [r | {"insurance": "x"} for r in wards.patients(60)]
    wards.ward(tmp_path, rows, [*wards.COLUMNS, "insurance"])
    assert join() == 2
    with pytest.raises(AssertionError, match="tried to connect"):
        join("--drop", "insurance")


def facts(name, schema):
    features = (len(schema.features),)
    sizes = (10, 2, schema_parts(schema))
    return Facts(name, "1", features, schema.classes, (0.5,), (0.5,), *sizes)


def test_sites_with_other_schemas_are_refused_by_site_and_column():
    other = Schema.from_dict(tomllib.loads(wards.SCHEMA.replace("high = 300", "high = 660")))
    assert agreed({"0": facts("a", SCHEMA), "1": facts("b", SCHEMA)})[0] == (wards.WIDTH,)
    with pytest.raises(BadInput, match="schema: column 'weight' of b is not as that of a"):
        agreed({"0": facts("a", SCHEMA), "1": facts("b", other)})
    nothing = Facts("c", "1", (wards.WIDTH,), SCHEMA.classes, (0.5,), (0.5,), 10, 2)
    with pytest.raises(BadInput, match="schema: c has none, a has one"):
        agreed({"0": facts("a", SCHEMA), "1": nothing})


# ---- schema files


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('kind = "id"', 'kind = "name"', "column 'patient_id': kind"),
        ("high = 120", "high = 0", "column 'age': low and high must be a range"),
        ("high = 120\n", "", "column 'age': high: missing"),
        ("high = 120", "hihg = 120", "column 'age': key"),
        ("high = 120", 'high = "old"', "column 'age': high"),
        ('unit = "kg"', 'format = "%Y"', "column 'weight': format is not for a number"),
        ('"f", "m", "x"', '"f", "f"', "column 'sex': categories must be"),
        ('first = "2020-01-01"', 'first = "1.1.2020"', "column 'admitted': first = '1.1.2020'"),
        ('label = "outcome"', 'label = "age"', "label 'age' is a number"),
        ('label = "outcome"', 'label = "outcom"', "did you mean 'outcome'"),
        ('name = "sex"', 'name = "age"', "column 'age' is there twice"),
        ("[[column]]", "[[columns]]", "must have [[column]] tables"),
        ("task =", "task", "not TOML"),
    ],
)
def test_a_schema_that_cannot_be_is_refused_by_name(tmp_path, old, new, words):
    file = wards.schema(tmp_path, wards.SCHEMA.replace(old, new))
    with pytest.raises(BadInput) as refused:
        read_schema(file)
    assert words in str(refused.value)
    assert "schema.toml" in str(refused.value)


def test_a_schema_that_is_not_there(tmp_path):
    with pytest.raises(BadInput, match=r"schema = 'none.toml': cannot be read"):
        load(str(wards.ward(tmp_path)), reading=Reading(schema="none.toml"))


# ---- drafts


def test_a_draft_says_what_is_there_and_that_it_is_private(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    wards.ward(tmp_path)
    assert call(["data", "schema", "patients.csv", "--label", "outcome"]) == 0
    printed = capsys.readouterr()
    assert "taken from private data" in printed.err
    assert printed.out.startswith("# A draft: ")
    made = Schema.from_dict(tomllib.loads(printed.out))
    kinds = {c.name: c.kind for c in made.columns}
    assert made.draft
    assert kinds == {c.name: c.kind for c in SCHEMA.columns} | {"note": "category"}
    assert made["weight"].unit == "kg"
    assert made["weight"].missing
    assert made["admitted"].first >= "2020-01-01"
    assert made.encode(read_table(tmp_path / "patients.csv")).x.shape[0] == 60


@pytest.mark.usefixtures("with_schema")
def test_no_site_takes_a_draft(tmp_path, capsys):
    wards.ward(tmp_path)
    wards.schema(tmp_path, "draft = true\n" + wards.SCHEMA)
    assert join() == 2
    assert "is a draft: its ranges and categories are of private data" in capsys.readouterr().err


def test_a_simulation_takes_a_draft_and_warns(tmp_path, capsys):
    wards.ward(tmp_path)
    wards.schema(tmp_path, "draft = true\n" + wards.SCHEMA)
    data = load(
        str(tmp_path / "patients.csv"), reading=Reading(schema=str(tmp_path / "schema.toml"))
    )
    assert data.inferred
    assert data.schema.draft


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "2.5", "-3e2"], "number"),
        (["01.02.2024", "28.02.2023"], "date"),
        (["a", "b", "a"], "category"),
        ([f"a{i}" for i in range(30)], "id"),
        ([f"some words {i}" for i in range(60)], "text"),
        (["", ""], "id"),
    ],
)
def test_kinds_that_are_guessed(cells, kind):
    label = ["x", "y"] * len(cells)
    columns = {"a": cells, "b": ["1"] * len(cells), "label": label[: len(cells)]}
    assert draft(Table("t", columns), "label")["a"].kind == kind


# ---- Parquet, and words of the user's own


@pytest.mark.parametrize("text", ["\n  \na,b\n1,2\n", "a,b\n\n   \n1,2\n\n", "\ufeff\na,b\n1,2"])
def test_empty_lines_are_no_rows(tmp_path, text):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    assert read_table(tmp_path / "t.csv").columns == {"a": ["1"], "b": ["2"]}


def test_a_gap_in_the_only_column_is_a_row(tmp_path):
    (tmp_path / "t.csv").write_text("a\n1\n \n2\n")
    assert read_table(tmp_path / "t.csv").columns == {"a": ["1", "", "2"]}


def test_parquet_is_read_as_csv_is(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = wards.patients(30)
    wanted = SCHEMA.encode(table(rows))
    typed = {
        name: [r[name] or None for r in rows] for name in wards.COLUMNS if name != "weight [kg]"
    }
    typed["age"] = [float(v) for v in typed["age"]]
    typed["weight"] = [None if r["weight [kg]"] == "NA" else float(r["weight [kg]"]) for r in rows]
    typed["admitted"] = [v and date.fromisoformat(v) for v in typed["admitted"]]
    parquet.write_table(pyarrow.table(typed), tmp_path / "p.parquet")
    made = SCHEMA.encode(read_table(tmp_path / "p.parquet"))
    assert np.array_equal(made.x, wanted.x)
    assert np.array_equal(made.y, wanted.y)


OWN = """\
def lengths(texts):
    return [[len(text) / 100, 1.0] for text in texts]

def centred(texts):
    mean = sum(map(len, texts)) / len(texts)
    return [[len(text) - mean, 1.0] for text in texts]

def wide(texts):
    return [[0.0] * 3 for _ in texts]

def failing(texts):
    raise KeyError("no word")
"""


def with_own(folder, function):
    file = f"own_words_{function}.py"  # a name has one file in a process
    (folder / file).write_text(OWN)
    named = f'encoder = "{file}:{function}"\nwidth = 2'
    schema = wards.SCHEMA.replace('encoder = "hashed"\nwidth = 8', named)
    return f"{folder}/{file}:{function}", str(wards.schema(folder, schema)), str(wards.ward(folder))


def test_texts_by_a_function_of_the_users_own(tmp_path):
    word, schema, data = with_own(tmp_path, "lengths")
    made = load(data, reading=Reading(schema=schema, encoder=word))
    at = made.schema.features.index("note[0]")
    lengths = {0.0, np.float32(0.17).item(), np.float32(0.13).item()}
    assert set(made.train.x[:, at].tolist()) == lengths


def test_code_that_a_schema_names_runs_only_if_the_user_names_it(tmp_path):
    _, schema, data = with_own(tmp_path, "centred")
    with pytest.raises(BadInput, match=r"is code of somebody's: name it yourself, with --encoder"):
        load(data, reading=Reading(schema=schema))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("centred", "depends on the others"),
        ("wide", r"must be finite numbers of shape \(n, 2\)"),
        ("failing", "fails .KeyError: 'no word'"),
        ("absent", "cannot be loaded"),
    ],
)
def test_an_encoder_that_is_none_is_refused(tmp_path, function, words):
    word, schema, data = with_own(tmp_path, function)
    with pytest.raises(BadInput, match=words):
        load(data, reading=Reading(schema=schema, encoder=word))


# ---- tables without a schema


def test_columns_of_a_plain_table_can_be_chosen(tmp_path):
    rows = [f"{i},p{i},{i % 3},{i % 2}" for i in range(40)]
    (tmp_path / "t.csv").write_text("a,id,b,outcome\n" + "\n".join(rows))
    path = str(tmp_path / "t.csv")
    assert load(path, reading=Reading("outcome", drop="id")).shape == (2,)
    assert load(path, reading=Reading("outcome", columns="b")).shape == (1,)
    with pytest.raises(BadInput, match="no column 'idd': it has a, id, b"):
        load(path, reading=Reading("outcome", drop="idd"))
    with pytest.raises(BadInput, match=r"id = 'p0': must be a finite number.*tacit data schema"):
        load(path, reading=Reading("outcome"))
    with pytest.raises(BadInput, match="label: is for tables"):
        load("digits", reading=Reading("outcome"))


# ---- runs


def run(data, folder, **setting):
    method = "fedavg:rounds=2,sgd.lr=0.5,sgd.epochs=5"
    return tacit.run(method, data=str(data), out=folder, workers=0, **setting)


def test_a_run_keeps_its_schema_and_goes_on_with_it(tmp_path):
    data, schema = wards.ward(tmp_path, wards.patients(120)), wards.schema(tmp_path)
    done = run(data, tmp_path / "run", schema=str(schema), clients=2)
    assert done.final["accuracy"] > 0.8
    directory = RunDir.open(tmp_path / "run")
    assert directory.schema() == SCHEMA
    schema.write_text(
        wards.SCHEMA.replace("high = 120", "high = 999")
    )  # of the user, not the run's
    longer = tacit.resume(tmp_path / "run", rounds=3)
    twice = tmp_path / "twice"
    again = run(data, twice, schema=str(wards.schema(tmp_path)), clients=2)
    more = tacit.resume(twice, rounds=3)
    assert again.rounds == 3
    assert longer.final["accuracy"] == more.final["accuracy"]


def test_a_column_says_whose_row_it_is(tmp_path):
    rows = wards.patients(120)
    data = wards.ward(tmp_path, rows)
    schema = str(wards.schema(tmp_path))
    loaded = load(str(data), reading=Reading(schema=schema, owner="ward"))
    assert loaded.shape == (wards.WIDTH - 3,)  # it is no feature
    assert loaded.owners.names == ("north", "south", "west")
    done = run(data, tmp_path / "run", schema=schema, split="by:ward")
    assert done.experiment.setting.clients == 3
    divided = federate(loaded, "by:ward", clients=3, seed=0).split
    for part, kept in ((divided.train, loaded.owners.train), (divided.test, loaded.owners.test)):
        assert [len(rows) for rows in part] == np.bincount(kept, minlength=3).tolist()
    assert sum(len(rows) for rows in divided.train + divided.test) == 120
    # every client holds its own rows: the first patient, by its age and weight, is of the north
    place = SCHEMA.without("ward").encode(table(rows)).x
    north = loaded.train.x[divided.train[0]].numpy()
    assert all(any(np.array_equal(row, mine) for mine in place[::3]) for row in north)


def test_a_column_of_a_plain_table_says_whose_row_it_is(tmp_path):
    rows = "".join(f"{i},{'ab'[i % 2]},{i % 3}\n" for i in range(60))
    (tmp_path / "t.csv").write_text("x,site,label\n" + rows)
    loaded = load(str(tmp_path / "t.csv"), classes=3, reading=Reading(owner="site"))
    assert loaded.shape == (1,)
    divided = federate(loaded, "by:site", clients=2, seed=0)
    assert {int(v) % 2 for v in loaded.train.x[divided.split.train[1], 0]} == {1}
    with pytest.raises(BadInput, match="split = 'by:site': digits has no such column"):
        federate(load("digits"), "by:site", clients=2, seed=0)
    with pytest.raises(BadInput, match="no column 'sit'"):
        load(str(tmp_path / "t.csv"), reading=Reading(owner="sit"))


def test_data_say_how_many_clients_there_are(tmp_path):
    data, schema = wards.ward(tmp_path), str(wards.schema(tmp_path))
    with pytest.raises(BadInput, match="clients = 4: must be 3, as the data say"):
        run(data, tmp_path / "run", schema=schema, split="by:ward", clients=4)


def test_one_data_set_per_client_from_python(tmp_path):
    schema = str(wards.schema(tmp_path))
    parts = {
        name: load(
            str(wards.ward(tmp_path / name, wards.patients(40, seed))),
            reading=Reading(schema=schema),
        )
        for seed, name in enumerate(("a", "b", "c"))
    }
    done = tacit.run("fedavg:rounds=1", data=parts, out=tmp_path / "run", workers=0)
    assert done.experiment.setting.clients == 3
    joined = per_client(parts)
    assert joined.owners.names == ("a", "b", "c")
    divided = federate(joined, "by:client", clients=3, seed=0)
    for i, part in enumerate(parts.values()):
        assert torch.equal(joined.train.x[divided.split.train[i]], part.train.x)
        assert torch.equal(joined.test.y[divided.split.test[i]], part.test.y)


def test_data_sets_of_clients_must_be_alike(tmp_path):
    wards.schema(tmp_path)
    a = load(str(wards.ward(tmp_path)), reading=Reading(schema=str(tmp_path / "schema.toml")))
    with pytest.raises(BadInput, match=r"data of 'b': shape .1, 8, 8.: must be .20,., as of 'a'"):
        per_client({"a": a, "b": load("digits")})
    with pytest.raises(BadInput, match="must have at least one"):
        per_client({})
