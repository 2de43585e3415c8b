"""Every flag of every command says what it is, in words of its own.

Help comes from the comments of dataclass fields. A formatter can move a comment away from its
field; then the flag has no help, or that of the field above.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tacit.cli.main import call
from tacit.core import BadInput
from tacit.methods import METHODS
from tacit.run import conduct
from tacit.run.conduct import Plan
from tacit.run.experiment import Experiment

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
    "serve": ("--port",),
    "join": ("--server", "--budget"),
}


def printed_help(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        call([*command.split(), "--help"])
    assert end.value.code in (0, None)
    return capsys.readouterr().out


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
def test_every_flag_says_what_it_is(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = list(flags_in(printed_help(command, capsys)))
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

    monkeypatch.setattr(conduct, "start", plan_only)
    *_, cost, run = printed_help(f"run {name}", capsys).split("examples:")[1].strip().splitlines()
    assert cost.split()[:3] == ["tacit", "privacy", name]
    assert run.split()[:3] == ["tacit", "run", name]
    assert call(run.split()[1:]) == 2
    assert capsys.readouterr().err == "tacit: planned\n"
    assert type(planned[0].experiment.method) is METHODS[name]
