"""Planted errors still fit the code, and the runner tells a kill from a survival and an accident.

Whether tests notice them takes minutes: `make mutants`.
"""

import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from mutants import run

MUTANTS = run.known()
SOURCE = run.ROOT / "src"


def test_every_mutant_fits_the_code():
    assert run.stale(MUTANTS, SOURCE) == []
    assert len({m.name for m in MUTANTS}) == len(MUTANTS) >= 46
    assert all(m.old != m.new for m in MUTANTS)


@pytest.mark.parametrize("test", sorted({test for m in MUTANTS for test in m.tests}))
def test_the_tests_that_notice_are_there(test):
    file, name, *_ = re.split(r"::|\[", test)
    assert f"def {name}(" in (run.ROOT / file).read_text(encoding="utf-8")


def test_a_text_that_is_gone_or_there_twice_is_told():
    gone = replace(MUTANTS[0], old="no such text")
    twice = replace(MUTANTS[0], old="return")
    no_code = replace(MUTANTS[0], new="this is no code (")
    told = run.stale([gone, twice, no_code], SOURCE)
    assert "has its text 0 times" in told[0]
    assert re.search(r"has its text \d+ times", told[1])
    assert len(told) == 3


def test_a_word_that_no_mutant_has_is_said_to_be_none(monkeypatch, capsys):
    """It would run all tests otherwise."""
    monkeypatch.setattr(sys, "argv", ["run.py", "no such word"])
    monkeypatch.setattr(run, "control", lambda mutants: True)
    assert run.main() == 1
    assert capsys.readouterr().out == "No mutant has no such word in its name or file\n"


TRY = """
import sys
from mutants import run

mutant = run.Mutant(*sys.argv[1:5], tuple(sys.argv[5:]))
((_, what, _),) = run.fates([mutant], at_once=1)
print(what)
"""


def fate(mutant):
    """Return what became of a mutant, in a process that knows nothing of ours."""
    words = [mutant.name, mutant.file, mutant.old, mutant.new, *mutant.tests]
    environment = {**os.environ, "PYTHONPATH": str(run.ROOT / "tests")}
    command = [sys.executable, "-c", TRY, *words]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.slow
def test_a_kill_is_told_from_a_survival_and_an_accident():
    mutant = run.Mutant(
        "rounds of a line",
        "core/ledger.py",
        "return self.steps * sum(last - first + 1 for first, last in self.rounds)",
        "return self.steps * len(self.rounds)",
        ("tests/unit/privacy/test_ledger.py::test_steps_count_in_every_round",),
    )
    assert fate(mutant) == "killed"
    assert fate(replace(mutant, new=f"{mutant.old}  # as it was")) == "survived"
    assert fate(replace(mutant, new="return 1 // 0")).startswith("by accident")
    assert fate(replace(mutant, tests=("tests/no_such.py",))).startswith("no verdict")
