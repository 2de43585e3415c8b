"""Every flag of every command says what it is, in words of its own.

Help comes from the comments of dataclass fields. A formatter can move a comment away from its
field; then the flag has no help, or that of the field above.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tacit.cli.flags import _flags as all_flags
from tacit.cli.main import call
from tacit.cli.runs import PRESETS, _augment_flags, run_flags
from tacit.cli.tracking import TRACK
from tacit.core import BadInput
from tacit.experiment import start as starting
from tacit.experiment.config import Experiment
from tacit.experiment.plan import Plan
from tacit.methods import METHODS

FLAGS_OF = {
    **{f"run {name}": ("--rounds",) for name in METHODS if name != "moments"},
    "run moments": ("--epsilon",),
    "run fedavg --augment dafl": ("--gamma", "--gan.epochs"),
    "privacy fedavg": ("--paper", "--plot"),
    "privacy cuag": ("--paper", "--plot"),
    "privacy --z 1": ("--q", "--delta"),
    "compare fedavg": ("--repeats", "--sgd.lr"),
    "sweep fedavg": ("--over", "--sgd.lr"),
    "sweep fedavg fedprox": ("--over", "--repeats"),
    "synth": ("--classes", "--gan.epochs"),
    "split": ("--clients",),
    "encode": ("--data", "--public", "--epochs", "--out"),
    "reproduce dafl/table3": ("--only", "--scale", "--repeats"),
    "serve": ("--port",),
    "join": ("--server", "--budget"),
}


@cache  # tests look at the same pages, which take long to make
def printed_help(command: str) -> str:
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out:
        patch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as end:
            call([*command.split(), "--help"])
    assert end.value.code in (0, None)
    return out.getvalue()


def flags_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield each flag of a printed help and what is said of it, without its default."""
    for entry in re.split(r"^(?:│ |  )(?=--?\w)", text, flags=re.M)[1:]:  # with boxes or without
        how, _, rest = re.sub(r" {2,}", "\n", entry, count=1).partition("\n")
        said = " ".join(line for line in map(_words, rest.splitlines()) if line)
        yield how.split(",")[0].split()[0], re.sub(r" ?\((default|required|repeat).*", "", said)


def _words(line: str) -> str:
    """Return a line of help without its box; rules, titles and what follows are none."""
    return "" if set("─-╭╰") & set(line[:3]) else line.strip("│ ")


@pytest.mark.parametrize("command", FLAGS_OF)
def test_every_flag_says_what_it_is(command: str) -> None:
    found = list(flags_in(printed_help(command)))
    assert {flag for flag, _ in found} >= {"-h", *FLAGS_OF[command]}
    said = dict(found)
    empty = [flag for flag in said if len(said[flag].split()) < 2]
    assert not empty
    after = [here for (_, above), (here, text) in pairwise(found) if above == text]
    assert not after, "these have the help of the flag above"
    fragments = [
        f"{flag}: {text}" for flag, text in said.items() if re.match("(of|on|in|to) ", text)
    ]
    assert not fragments, "say what the value is, not only whose"


def test_help_that_was_moved_away_is_noticed() -> None:
    text = """
╭─ options ─────────╮
│ -h, --help   show this help message and exit │
│ --clip FLOAT       bound on each example's gradient      │
│                    (default: 1.0)      │
│ --adaptive, --no-adaptive                                                    │
│                    bound on each example's gradient (default: False)      │
│ --mode {certified,paper}                                                     │
│                    (default: certified)                                      │
╰──────────╯"""
    assert dict(flags_in(text)) == {
        "-h": "show this help message and exit",
        "--clip": "bound on each example's gradient",
        "--adaptive": "bound on each example's gradient",
        "--mode": "",
    }


@pytest.mark.parametrize("name", METHODS)
def test_help_of_a_method_ends_with_commands_that_work(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are about this method, and what the second would run can be planned."""
    planned = []

    def plan_only(experiment: Experiment, **_: Any) -> None:
        planned.append(Plan.of(experiment))
        raise BadInput("planned")

    monkeypatch.setattr(starting, "start", plan_only)
    *_, cost, run = printed_help(f"run {name}").split("examples:")[1].strip().splitlines()
    assert cost.split()[:3] == ["tacit", "privacy", name]
    assert run.split()[:3] == ["tacit", "run", name]
    assert call(run.split()[1:]) == 2
    *signs, said = capsys.readouterr().err.splitlines()
    assert said == "tacit: planned"
    begin = f"warning: {name}: noise will be"  # digits are few
    assert all(sign.startswith(begin) for sign in signs)
    assert type(planned[0].experiment.method) is METHODS[name]


@pytest.mark.parametrize("name", METHODS)
def test_help_has_exactly_the_flags_of_the_command(name: str) -> None:
    """Help is arranged in groups, by a class of its own: nothing gets lost, nothing is added."""
    method = METHODS[name]
    there = run_flags(Experiment(method()), TRACK, PRESETS, *_augment_flags(method, []))
    said = [flag for flag, _ in flags_in(printed_help(f"run {name}"))]
    assert sorted(said) == sorted(["-h", *all_flags(there)])


def test_help_shows_the_defaults_of_an_experiment_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('clients = 7\n[method]\nname = "fedprox"\nmu = 0.3\nsgd = { lr = 0.7 }\n')
    text = " ".join(printed_help(f"run {file}").split())
    shown = {"--clients INT": "7", "--mu FLOAT": "0.3", "--sgd.lr FLOAT|{auto}": "0.7"}
    for flag, value in shown.items():
        assert re.search(rf"{re.escape(flag)} [^()]*\(default: {re.escape(value)}\)", text)
    assert text.endswith("--out runs/mine")


def test_flags_stand_in_groups() -> None:
    boxes = re.split(r"(\w+) options", printed_help("run fedprox"))
    found = {
        title: dict(flags_in(box)) for title, box in zip(boxes[1::2], boxes[2::2], strict=True)
    }
    assert {"--rounds", "--mu"} <= set(found["method"])
    assert {"--sgd.lr", "--sgd.clip"} <= set(found["sgd"])
    assert {"--data", "--split", "--seed"} <= set(found["experiment"])
    assert set(found["privacy"]) == {"--delta", "--budget", "--noise"}
    flags = {"--engine", "--address", "--workers", "--device", "--precision", "--keep"}
    assert set(found["machine"]) == flags


BARE = """
from dataclasses import dataclass
from typing import Annotated
import tacit, tyro

@dataclass(frozen=True)
class Bare(tacit.Trains):
    bare: float = 0.5
    told: Annotated[int, tyro.conf.arg(help="told in the type")] = 3

    def init(self, x0): ...
    def run(self, cohort, s): ...
"""


def test_flags_of_a_method_without_comments_have_their_names(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(BARE)
    said = dict(flags_in(printed_help(f"run {tmp_path / 'bare.py'}:Bare")))
    assert said["--bare"] == ""
    assert said["--told"] == "told in the type"
    assert said["--rounds"] == "communication rounds"
