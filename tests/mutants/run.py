"""Plant errors in the code, one at a time, and see that tests notice: `make mutants`.

A mutant is an entry of a TOML file in this folder: a text that occurs exactly once in a file of
src/tacit, what stands there instead, and the tests that must fail then. They must fail by an
assertion: an error that merely crashes the code says nothing about the tests. First all these tests
run on the code as it is, where they must pass.

Each mutant gets a copy of the source and a fork of this process, which has imported what takes
long, but nothing of ours.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SLOW = ("pytest", "torch", "scipy.stats", "pydantic", "dp_accounting", "safetensors.torch")
MEANT = re.compile(r"^FAILED .*? - (assert|AssertionError|Failed: DID NOT RAISE)", re.MULTILINE)
PASSED, FAILED, BROKEN = 0, 1, 99  # exit codes; all others are pytest's, and no verdict


@dataclass(frozen=True)
class Mutant:
    """An error that is planted, and the tests that notice it."""

    name: str
    file: str  # below src/tacit
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, source: Path) -> str:
        """Return the file's text with the error in it."""
        text = (source / "tacit" / self.file).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} has its text {text.count(self.old)} times")
        mutated = text.replace(self.old, self.new)
        compile(mutated, self.file, "exec")
        return mutated


def known() -> list[Mutant]:
    """Return all mutants, by file and order."""
    tables = [tomllib.loads(f.read_text(encoding="utf-8")) for f in sorted(HERE.glob("*.toml"))]
    entries = [entry for table in tables for entry in table["mutant"]]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def stale(mutants: Iterable[Mutant], source: Path) -> list[str]:
    """Return what is wrong with mutants whose text is no longer there."""
    found = []
    for mutant in mutants:
        try:
            mutant.applied(source)
        except (ValueError, OSError, SyntaxError) as e:
            found.append(str(e))
    return found


@dataclass(frozen=True)
class Trial:
    """Tests at work on a source tree, in a process of their own."""

    mutant: Mutant | None  # None: the code as it is
    folder: Path
    pid: int
    start: float

    @classmethod
    def begin(cls, mutant: Mutant | None, tests: Sequence[str]) -> Trial:
        """Copy the source, plant the error and fork."""
        folder, start = Path(tempfile.mkdtemp(prefix="mutant")), time.monotonic()
        shutil.copytree(ROOT / "src", folder / "src")  # with what is compiled already
        if mutant is not None:
            file = folder / "src" / "tacit" / mutant.file
            file.write_text(mutant.applied(folder / "src"), encoding="utf-8")
        pid = os.fork()
        if pid == 0:
            code = BROKEN
            try:
                code = tested(folder, tests)
            finally:
                os._exit(code)
        return cls(mutant, folder, pid, start)

    def end(self, code: int) -> str:
        """Clean up; return what became of the mutant: killed, or something that must not be."""
        said = (self.folder / "said").read_text(encoding="utf-8", errors="replace").strip()
        shutil.rmtree(self.folder)
        if code == PASSED:
            return "survived"
        if code == FAILED and MEANT.search(said):
            return "killed"
        kind = "by accident" if code == FAILED else f"no verdict, exit code {code}"
        return f"{kind}: {said[-500:]}"


def tested(folder: Path, tests: Sequence[str]) -> int:
    """Run tests against a source tree, in this process; return pytest's exit code."""
    import pytest

    with (folder / "said").open("wb") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.chdir(ROOT)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder / "src"))
    os.environ.update(PYTHONPATH=str(folder / "src"), COLUMNS="200", TACIT_EXAMPLES="all")
    quiet = ["-q", "-x", "-p", "no:cacheprovider", "--tb=line", "-rf"]
    code = pytest.main([*quiet, "--hypothesis-seed=0", "-m", "", *tests])
    sys.stdout.flush()
    ours = str(sys.modules["tacit"].__file__).startswith(str(folder))
    return int(code) if ours else BROKEN


def fates(mutants: Sequence[Mutant], at_once: int) -> Iterator[tuple[Mutant, str, float]]:
    """Try mutants, some at a time; yield each with what became of it and the seconds it took."""
    todo = list(reversed(mutants))
    running: dict[int, Trial] = {}
    while todo or running:
        while todo and len(running) < at_once:
            trial = Trial.begin(todo[-1], todo.pop().tests)
            running[trial.pid] = trial
        pid, status = os.wait()
        trial = running.pop(pid)
        assert trial.mutant is not None
        what = trial.end(os.waitstatus_to_exitcode(status))
        yield trial.mutant, what, time.monotonic() - trial.start


def control(mutants: Sequence[Mutant]) -> bool:
    """Tell whether the code as it is passes all the tests that are meant to notice errors."""
    tests = list(dict.fromkeys(test for m in mutants for test in m.tests))
    trial = Trial.begin(None, tests)
    _, status = os.waitpid(trial.pid, 0)
    what = trial.end(os.waitstatus_to_exitcode(status))
    if what != "survived":
        say(f"The code as it is fails the tests: {what}")
    return what == "survived"


def say(text: str) -> None:
    """Print at once, also into a file."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def asked() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="only mutants whose name or file has one of these")
    parser.add_argument("--at-once", type=int, default=2, help="how many at a time")
    return parser.parse_args()


def main() -> int:
    """Run all mutants, or those that are asked for; return 1 if one survives."""
    given = asked()
    words = given.words or [""]
    chosen = [m for m in known() if any(word in f"{m.file}: {m.name}" for word in words)]
    if not chosen:  # without tests to run, pytest would run them all
        say(f"No mutant has {' or '.join(words)} in its name or file")
        return 1
    if old := stale(chosen, ROOT / "src"):
        say("\n".join(old))
        return 1
    os.environ["OMP_NUM_THREADS"] = "1"
    for module in SLOW:
        importlib.import_module(module)
    if not control(chosen):
        return 1
    dead = 0
    for mutant, what, seconds in fates(chosen, given.at_once):
        say(f"{seconds:5.0f} s  {what:8}  {mutant.file}: {mutant.name}")
        dead += what == "killed"
    say(f"{dead} of {len(chosen)} mutants killed")
    return int(dead < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
