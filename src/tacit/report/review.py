"""The page for whoever has to approve: what is promised, to whom, what it rests on, what is not.

Fields after NIST SP 800-226 (evaluating differential privacy guarantees), a model card and an annex
for a data protection impact assessment. All figures are computed anew from the ledger. Each
statement names the lines of ledger.jsonl that it rests on.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

import tacit
from tacit import codec, privacy
from tacit.core import BadInput, Ledger, Nothing, Observer, Relation, Release, Unit
from tacit.core.ledger import FEDERATION
from tacit.privacy import show_epsilon
from tacit.privacy.accounting import visible
from tacit.report.conclusions import AGAINST
from tacit.report.figures import METRICS
from tacit.report.page import ASSETS, FILE, percent, template
from tacit.report.reading import (
    RunFacts,
    choice_in,
    flat,
    ledger_lines,
    read_run,
    runs_in,
)
from tacit.report.words import event_in_words, kinds, owners_of, people, spoken_rounds

REVIEW = "review.html"
UNCOUNTED = (".lock", FILE, REVIEW)  # what may change without the run being another one
KINDS = 16  # of releases that are spelled out
CHECK = (
    "find . -type f ! -name .lock ! -name report.html ! -name review.html -print0"
    " | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
)


@dataclass(frozen=True)
class Statement:
    """A field, what is stated, and what it rests on."""

    field: str
    text: str
    rests_on: str


@dataclass(frozen=True)
class Booked:
    """A ledger with the number of each line in its file."""

    lines: list[tuple[int, Release]]

    @property
    def ledger(self) -> Ledger:
        """The ledger itself."""
        return Ledger(line for _, line in self.lines)

    def cite(self, wanted: Iterable[Release] | None = None) -> str:
        """Name lines by their numbers; all of them by default."""
        chosen = None if wanted is None else set(wanted)
        numbers = [n for n, line in self.lines if chosen is None or line in chosen]
        return f"ledger.jsonl {spoken(numbers)}" if numbers else "no line of ledger.jsonl"

    def seen_by(self, observer: Observer) -> list[Release]:
        """Return the lines that an observer learns from."""
        covering = self.ledger.covering()
        return [line for _, line in self.lines if visible(line, observer, covering)]


def spoken(numbers: Sequence[int]) -> str:
    """Return numbers of lines as text.

    >>> spoken([1, 2, 3, 7]), spoken([4])
    ('lines 1-3, 7', 'line 4')
    """
    ranges: list[list[int]] = []
    for n in sorted(set(numbers)):
        if ranges and n == ranges[-1][1] + 1:
            ranges[-1][1] = n
        else:
            ranges.append([n, n])
    parts = [str(a) if a == b else f"{a}-{b}" for a, b in ranges]
    shown = [*parts[:8], f"and {len(numbers)} in all"] if len(parts) > 8 else parts
    return f"line{'s' * (len(numbers) > 1)} {', '.join(shown)}"


def write_review(folder: Path, out: Path | None = None) -> Path:
    """Write the review of one run; by default into its folder."""
    found = runs_in(folder)
    if len(found) != 1:
        raise BadInput(
            f"'{folder}': a review is of one run, and there are {len(found)}; "
            f"name one, such as {found[0]}"
        )
    file = out or found[0] / REVIEW
    text = review_page(found[0])
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        codec.write_atomically(file, text.encode("utf-8", "replace"))
    except OSError as e:
        raise BadInput(f"out = '{file}': cannot be written ({e.strerror})") from None
    return file


def review_page(folder: Path) -> str:
    """Return the review of one run."""
    run = read_run(folder)
    problems: list[str] = []
    booked = Booked(list(ledger_lines(folder / "ledger.jsonl", problems)))
    # what clients have written that the file does not have yet counts as well
    more = [line for line in run.ledger if line not in set(booked.ledger)]
    ledger = Ledger([*booked.ledger, *more])
    text: str = template("review.html").render(
        title=f"Privacy review of {folder.resolve().name}",
        style=Markup((ASSETS / "review.css").read_text(encoding="utf-8")),
        version=tacit.__version__,
        state=_state(run),
        headline=_headline(run, ledger),
        guarantee=list(_guarantee(run, booked, ledger)),
        observers=list(_observers(run, booked, ledger)),
        releases=_releases(run, booked),
        trust=_trust(run, booked),
        unprotected=_unprotected(run, booked),
        card=_card(run, booked),
        annex=_annex(run, booked, ledger),
        config=_config(run),
        problems=[_cut(said) for said in run.problems[:8]],
        checksum=checksum(folder),
        files=sum(1 for _ in _files(folder)),
        check=CHECK,
    )
    return text


def checksum(folder: Path) -> str:
    """Return one SHA-256 for all files of a run directory, which `sha256sum` gives as well."""
    lines = [f"{_sha256(folder / name)}  {name}\n" for name in _files(folder)]
    return hashlib.sha256(os.fsencode("".join(lines))).hexdigest()


def _files(folder: Path) -> Iterator[str]:
    found = (f for f in folder.rglob("*") if f.is_file() and not f.is_symlink())
    names = [f"./{f.relative_to(folder).as_posix()}" for f in found if f.name not in UNCOUNTED]
    yield from sorted(names, key=os.fsencode)


def _sha256(file: Path) -> str:
    with file.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _state(run: RunFacts) -> str:
    if run.problems:
        return "Parts of the run directory cannot be read. This page promises nothing."
    if run.open:
        return "The run goes on or was killed: figures are of what was released so far."
    rounds = f"round {run.done} of {run.rounds or 'a number that only its own code knows'}"
    return f"The run has ended after {rounds}."


def _spent(
    ledger: Ledger, unit: Unit, observer: Observer, run: RunFacts, relation: Relation
) -> float:
    # an upper bound where many clients, each with a bill of its own, would take minutes
    quick = relation == "replace" or len(ledger) > 2000
    return privacy.epsilon(
        ledger, unit=unit, observer=observer, delta=run.delta, relation=relation, quick=quick
    )


def _headline(run: RunFacts, ledger: Ledger) -> str:
    unit, observer = run.protects
    spent = _spent(ledger, unit, observer, run, "zero-out")
    if math.isinf(spent):
        return f"There is no guarantee for one {unit} against {AGAINST[observer]}."
    return (
        f"({show_epsilon(spent)}, {run.delta:g})-differential privacy for one {unit}, zeroed out, "
        f"against {AGAINST[observer]}."
    )


UNIT = {
    "example": "one record of one client. Somebody with k records has up to k times epsilon.",
    "client": "all records of one client together.",
}


def _guarantee(run: RunFacts, booked: Booked, ledger: Ledger) -> Iterator[Statement]:
    """Yield the fields of a guarantee, in the order of NIST SP 800-226."""
    unit, observer = run.protects
    seen = booked.cite(booked.seen_by(observer))
    zeroed = _spent(ledger, unit, observer, run, "zero-out")
    replaced = _spent(ledger, unit, observer, run, "replace")
    why = privacy.reason(ledger, unit=unit, observer=observer, delta=run.delta)
    yield Statement("Unit of privacy", UNIT[unit], seen)
    relation = (
        "zero-out: one unit is replaced by nothing while sizes stay, as sizes count as public. "
        f"If it is replaced by another one, epsilon is {show_epsilon(replaced)}."
    )
    yield Statement("Relation of neighbours", relation, seen)
    yield Statement("Observer", f"{AGAINST[observer]}: sees every release cited here.", seen)
    yield Statement("Epsilon", f"{show_epsilon(zeroed)} (rounded up). {_cut(why, 320)}", seen)
    yield Statement(
        "Delta", f"{run.delta:g}, of this figure alone; it is chosen, not measured.", "config.toml"
    )
    accounting = (
        "releases of a client are composed exactly or from above: closed forms for Gaussian and "
        "pure mechanisms, privacy loss distributions (dp-accounting) otherwise. "
        "The largest client counts."
    )
    yield Statement("Accounting", accounting, booked.cite())


def _observers(run: RunFacts, booked: Booked, ledger: Ledger) -> Iterator[dict[str, str]]:
    """Yield what each observer can learn at most."""
    for observer in privacy.OBSERVERS:
        of = {unit: _spent(ledger, unit, observer, run, "zero-out") for unit in privacy.UNITS}
        yield {
            "who": AGAINST[observer],
            "example": show_epsilon(of["example"]),
            "replaced": show_epsilon(_spent(ledger, "example", observer, run, "replace")),
            "client": show_epsilon(_spent(ledger, "client", observer, run, "replace")),
            "rests_on": booked.cite(booked.seen_by(observer)),
        }


def _releases(run: RunFacts, booked: Booked) -> list[Statement]:
    """Return what left a client, kind by kind."""
    found = kinds(line for _, line in booked.lines)
    said = [
        Statement(
            _cut(kind.what, 60),
            _cut(
                f"{event_in_words(kind)}; of {people(run, owners_of(alike))}, "
                f"to {AGAINST[kind.observer]}, {spoken_rounds(kind.rounds)}",
                420,
            ),
            booked.cite(alike),
        )
        for kind, alike in found[:KINDS]
    ]
    if len(found) > KINDS:
        left = [line for _, alike in found[KINDS:] for line in alike]
        said.append(Statement("more", f"{len(found) - KINDS} more kinds", booked.cite(left)))
    return said


def _trust(run: RunFacts, booked: Booked) -> list[Statement]:
    """Return what the figures rest on besides the ledger."""
    lines = [line for _, line in booked.lines]
    central = [line for line in lines if line.covers is not None or line.owner == FEDERATION]
    seeded = [line for line in lines if line.noise == "seeded"]
    sampled = [line for line in lines if line.sampling.law != "everyone"]
    noisy = [line for line in lines if line.noise == "os"]
    own = [line for line in lines if line.owner != FEDERATION]
    real = "Real sites" if run.sites else "A simulation on one machine, which holds all data"
    said = [
        Statement("Where it ran", f"{real}; {len(run.sites) or run.config.get('clients', '?')} "
                  "clients.", "sites.json" if run.sites else "config.toml"),
        Statement("Clients", "run this code unchanged: what they send is what the lines say.",
                  booked.cite(own)),
    ]  # fmt: skip
    if central:
        text = (
            "The server is trusted with raw replies and adds the noise itself. If it leaks them, "
            "the figures against others are infinite."
        )
        said.append(Statement("Server", text, booked.cite(central)))
    if sampled:
        text = "Who is in a sample stays secret; if it is known, epsilon is larger."
        said.append(Statement("Sampling", text, booked.cite(sampled)))
    if seeded:
        text = "Noise was derived from the seed: a simulation. Who knows the seed can take it off."
        said.append(Statement("Noise", text, booked.cite(seeded)))
    elif noisy:
        text = "Noise came from the operating system's generator, which is taken to be secret."
        said.append(Statement("Noise", text, booked.cite(noisy)))
    return said


def _others(run: RunFacts) -> str:
    """Return what other runs on the same data mean for this one."""
    alone = "Runs on the same data add up; this page is of one."
    chosen = choice_in(run.folder.resolve().parent)
    return f"{alone} It is one of a sweep: {_cut(chosen, 400)}." if chosen else alone


def _unprotected(run: RunFacts, booked: Booked) -> list[Statement]:
    """Return what no figure here covers."""
    lines = [line for _, line in booked.lines]
    bare = [line for line in lines if type(line.event).__name__ == "NonPrivate"]
    public = [line for line in lines if isinstance(line.event, Nothing)]
    said = []
    if bare:
        whys = "; ".join(dict.fromkeys(vars(line.event)["why"] for line in bare))
        said.append(Statement("Left without a guarantee", _cut(whys, 400), booked.cite(bare)))
    if public:
        text = "Numbers that count as public: sizes of data sets and what follows from them."
        said.append(Statement("Public by assumption", text, booked.cite(public)))
    not_booked = "no line: not part of the guarantee"
    return [
        *said,
        Statement("Evaluation", _evaluation(run, booked), _test_lines(booked)),
        Statement("Other runs", _others(run), not_booked),
        Statement(
            "Side channels",
            "Times, sizes of messages, failures, memory and power are not covered.",
            not_booked,
        ),
        Statement(
            "Choices",
            "Settings that were chosen by looking at private data are a release nobody counts.",
            not_booked,
        ),
    ]


def _test_lines(booked: Booked) -> str:
    tests = [line for _, line in booked.lines if line.owner.startswith("test:")]
    return booked.cite(tests) if tests else "metrics.jsonl; no line of ledger.jsonl"


def _evaluation(run: RunFacts, booked: Booked) -> str:
    if any(line.owner.startswith("test:") for _, line in booked.lines):
        return "Accuracies come from the sites' test data, by the releases that the lines say."
    return "Accuracies were measured on test data in the clear. Whoever sees them learns them."


def _card(run: RunFacts, booked: Booked) -> list[Statement]:
    """Return the model card."""
    c, final = run.config, run.final
    name = Path(str(c.get("data", "?"))).name  # not where it lies
    own = final.get("own_data") if isinstance(final.get("own_data"), dict) else {}
    worst = percent((own or {}).get("worst"))
    scores = ", ".join(
        f"{word} {percent(final[key])} %"
        for key, word in METRICS.items()
        if isinstance(final.get(key), int | float)
    )
    reached = scores or run.errors or "not evaluated"
    own_worst = "" if run.errors else f"; worst client {worst} % on its own test data"
    first = run.starts[0] if run.starts else {}
    made = ", ".join(
        f"{k} {first[k]}" for k in ("tacit", "python", "torch", "commit") if first.get(k)
    )
    return [
        Statement("Model", _cut(f"{c.get('model', '?')}{run.of_features}, trained by "
                  f"{run.method}"), "config.toml"),
        Statement("Training data", _cut(f"{name}, divided {c.get('split', '?')} over "
                  f"{c.get('clients', '?')} clients"), "config.toml"),
        Statement("Performance", _cut(reached + own_worst, 400),
                  f"metrics.jsonl, round {final.get('round', '?')}"),
        Statement("Made", _cut(f"{first.get('started', 'not known')}; {made}"), "about.json"),
        Statement("Privacy", "see the guarantee above", booked.cite()),
        Statement("Intended use, users, limits", TO_FILL, "the controller"),
        Statement("Ethical considerations", TO_FILL, "the controller"),
    ]  # fmt: skip


TO_FILL = "________________ (to be filled in)"


def _annex(run: RunFacts, booked: Booked, ledger: Ledger) -> list[Statement]:
    """Return the annex for an assessment after Article 35(7) GDPR."""
    unit, observer = run.protects
    left = [line for _, line in booked.lines if not isinstance(line.event, Nothing)]
    happened = (
        f"{run.method} trained a model in {run.done} rounds. Records stayed with the clients; "
        f"what left them is listed above ({len(left)} lines)."
    )
    spent = _spent(ledger, unit, observer, run, "zero-out")
    risk = (
        f"Against {AGAINST[observer]}, no test can tell whether one {unit} was used with odds that "
        f"change by more than a factor of e^{show_epsilon(spent)} (and delta)."
        if math.isfinite(spent)
        else f"Nothing bounds what {AGAINST[observer]} can learn about one {unit}."
    )
    return [
        Statement("(a) Processing", _cut(happened, 300), booked.cite(left)),
        Statement("(a) Purpose, lawful basis", TO_FILL, "the controller"),
        Statement("(b) Necessity, proportionality", TO_FILL, "the controller"),
        Statement("(c) Risk to persons", risk, booked.cite(booked.seen_by(observer))),
        Statement("(c) Risks that are not bounded", "see “What is not protected”", "above"),
        Statement("(d) Measures", "see “What left a client”: clipping and noise, line by line; "
                  "budget " + str(run.config.get("budget", "none")), booked.cite(left)),
    ]  # fmt: skip


def _config(run: RunFacts) -> list[tuple[str, str]]:
    found = [(_cut(k, 60), _cut(v, 40)) for k, v in flat(run.config).items() if k != "data"]
    return found[:60]


def _cut(text: object, most: int = 160) -> str:
    said = " ".join(str(text).split())
    return said if len(said) <= most else said[: most - 3] + "..."
