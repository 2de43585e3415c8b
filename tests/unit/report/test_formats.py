"""The same table in every form, whatever is in its cells."""

import csv
import io

from tacit.report.tables import formatted

TABLE = [["method", "accuracy %", "eps"], ["fed_avg|x", "84.3 ± 1.3", "inf"], ["a,b", "9", "3"]]


def test_markdown():
    assert formatted(TABLE, "md").splitlines() == [
        "| method | accuracy % | eps |",
        "| --- | ---: | ---: |",
        r"| fed_avg\|x | 84.3 ± 1.3 | inf |",
        "| a,b | 9 | 3 |",
    ]


def test_latex():
    lines = formatted(TABLE, "latex").splitlines()
    assert lines[0] == r"\begin{tabular}{lrr}"
    assert lines[2] == r"method & accuracy \% & eps \\"
    assert lines[4] == r"fed\_avg|x & 84.3 $\pm$ 1.3 & $\infty$ \\"
    assert formatted([["h"], ["\\x{}^"]], "latex").splitlines()[4] == (
        r"\textbackslash{}x\{\}\textasciicircum{} \\"
    )


def test_csv_can_be_read_back():
    assert list(csv.reader(io.StringIO(formatted(TABLE, "csv")))) == TABLE


def test_remarks_are_a_column_where_there_are_any():
    with_remarks = formatted(TABLE, "csv", ["", "stopped", ""])
    rows = list(csv.reader(io.StringIO(with_remarks)))
    assert [row[-1] for row in rows] == ["remark", "stopped", ""]
    assert formatted(TABLE, "csv", ["", "", ""]) == formatted(TABLE, "csv")
