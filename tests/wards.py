"""Tables as hospitals have them: words, gaps, dates, numbers of patients, columns in any order."""

import csv
import io

import numpy as np

COLUMNS = ("patient_id", "age", "weight [kg]", "sex", "admitted", "note", "ward", "outcome")

SCHEMA = """\
task = "classes"
label = "outcome"
gaps = ["", "NA"]

[[column]]
name = "patient_id"
kind = "id"

[[column]]
name = "age"
kind = "number"
low = 0
high = 120

[[column]]
name = "weight"
kind = "number"
low = 0
high = 300
unit = "kg"
missing = true

[[column]]
name = "sex"
kind = "category"
categories = ["f", "m", "x"]

[[column]]
name = "admitted"
kind = "date"
format = "%Y-%m-%d"
first = "2020-01-01"
last = "2029-12-31"
missing = true

[[column]]
name = "note"
kind = "text"
encoder = "hashed"
width = 8
missing = true

[[column]]
name = "ward"
kind = "category"
categories = ["north", "south", "west"]

[[column]]
name = "outcome"
kind = "category"
categories = ["well", "ill"]
"""
WIDTH = 1 + 2 + 3 + 2 + 9 + 3


def patients(n, seed=0):
    """Return rows in which the old and heavy are ill."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        ill = rng.random() < 0.5
        age = int(np.clip(rng.normal(70 if ill else 35, 8), 1, 110))
        weight = f"{rng.normal(95 if ill else 65, 9):.1f}"
        day = f"202{rng.integers(0, 10)}-0{rng.integers(1, 10)}-1{rng.integers(0, 10)}"
        note = "high fever, cough" if ill else "routine check"
        rows.append(
            {
                "patient_id": f"p{seed}-{i:05d}",
                "age": str(age),
                "weight [kg]": "NA" if i % 7 == 3 else weight,
                "sex": "fmx"[rng.integers(3)],
                "admitted": "" if i % 11 == 5 else day,
                "note": "" if i % 5 == 4 else note,
                "ward": ("north", "south", "west")[i % 3],
                "outcome": "ill" if ill else "well",
            }
        )
    return rows


def text(rows, columns=COLUMNS, separator=","):
    """Return rows as CSV."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=separator, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row[name] for name in columns] for row in rows)
    return out.getvalue()


def ward(folder, rows=None, columns=COLUMNS, separator=",", name="patients.csv"):
    """Write a table; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text(rows or patients(60), columns, separator), encoding="utf-8")
    return folder / name


def schema(folder, text=SCHEMA):
    """Write the schema; return its path."""
    (folder / "schema.toml").write_text(text, encoding="utf-8")
    return folder / "schema.toml"
