"""Twins: does the ledger cover everything that one record, or one client, changes?

A method runs in a world, and again in a twin of it that differs in one record or in one client,
with the same seeds. Wherever a mechanism releases something, the twin is made to release what the
world did. That is no trick: noise has full support, so the twin's noise has only to be shifted, by
the difference of what the two would release with the same noise. (Such an alignment of randomness
is a proof of differential privacy, release by release, however adaptive the method is.) So

- each shift, in units of the noise as it was measured, must be one that the ledger line of the
  release allows: 1/z for a Gaussian line with noise multiplier z, and so on;
- whatever else server or clients see (replies, states, calls, the ledger) is the same to the bit,
  as it can follow from nothing but what was released. A difference is a leak without a line.

Nothing is believed of a mechanism but where it hands over its result. The size of its noise is
measured: "quiet", with all numbers that make noise 0, against "loud", with all of them 1.
"""

from __future__ import annotations

import copy
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from tacit import privacy
from tacit.codec import pack
from tacit.core import (
    FEDERATION,
    Client,
    ClientId,
    Gaussian,
    Laplace,
    Ledger,
    Params,
    Pure,
    Relation,
    Release,
    Unit,
)
from tacit.data.federated import Federation
from tacit.engines.client_host import World
from tacit.engines.config import Fault, no_fault
from tacit.engines.serial import Serial
from tacit.engines.server import Engine
from tacit.experiment.drive import drive
from tacit.privacy import mechanisms, noise
from tacit.privacy.noise import FromSeed, Source

Array = np.ndarray[Any, Any]
HAIR = 2e-3  # by which a shift may pass its bound: rounding, and noise scales that are estimated


# -----------------------------------------------------------------------------------------------
# what is looked at


@dataclass(frozen=True)
class Twin:
    """Another world: what differs, whose it is, and by which relation."""

    name: str
    client: ClientId
    unit: Unit
    relation: Relation
    change: Callable[[Federation], Federation] = lambda federation: federation
    fault: Fault = no_fault


@dataclass(frozen=True)
class Seen:
    """One thing that somebody sees, as bytes."""

    kind: str  # call, reply or state
    task: str
    round: int
    client: str
    field: str
    blob: bytes

    def __str__(self) -> str:
        whose = f" of client {self.client}" if self.client else ""
        return f"{self.task}, round {self.round}: {self.kind} field '{self.field}'{whose}"


@dataclass(frozen=True)
class Drawn:
    """One release: what came out, and the same as vectors, one for each step it stands for."""

    name: str
    lines: list[Release]  # that were written since the release before
    out: Any
    parts: list[Array]
    spread: Callable[[], float] | None = None  # of noise that quiet and loud do not show
    norm: int = 2  # by which the noise hides differences


@dataclass
class Tape:
    """What a run released and what was seen of it; it may follow the releases of another run."""

    normals: str = "seeded"  # quiet: all 0; loud: all 1
    follow: Tape | None = None
    drawn: list[Drawn] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    fresh: list[Release] = field(default_factory=list)  # lines since the last release
    written: list[Release] = field(default_factory=list)  # all lines
    randomness: Counter[bytes] = field(default_factory=Counter)
    ledger: Ledger = field(default_factory=Ledger)

    def write(self, line: Release) -> None:
        """Note a line that a mechanism writes."""
        self.fresh.append(line)
        self.written.append(line)

    def release(self, drawn: Drawn) -> Any:
        """Note a release; return what comes out instead, if another run is to be followed."""
        self.drawn.append(replace(drawn, lines=self.fresh, out=copy.deepcopy(drawn.out)))
        self.fresh = []
        if self.follow is None:
            return drawn.out
        led = self.follow.drawn[len(self.drawn) - 1 :][:1]
        if not led or led[0].name != drawn.name:
            raise Astray(f"release {len(self.drawn)}, {drawn.name}: the other run has another")
        return copy.deepcopy(led[0].out)

    def see(self, kind: str, task: str, round: int, client: str, values: dict[str, Any]) -> None:
        """Note fields that somebody sees."""
        blobs = {name: pack(value) for name, value in values.items()}
        self.seen += [Seen(kind, task, round, client, *item) for item in blobs.items()]

    def step(self, state: Any) -> None:
        """Note a method's state."""
        self.see("state", "server", state.round, "", values_of(state))


class Astray(Exception):
    """Two runs do not release the same things in the same order."""


def values_of(obj: Any) -> dict[str, Any]:
    """Return a dataclass's fields."""
    return {f.name: getattr(obj, f.name) for f in fields(obj)}


class Watched(Serial):
    """An engine that notes what goes up and down."""

    def __init__(self, world: World, fault: Fault, tape: Tape) -> None:
        super().__init__(world, world.config(fault=fault))
        self.tape = tape

    def ask(self, call: Any, of: Any, *, need: float = 0.5) -> Any:
        asked = {**call.args, "who is asked": list(of.ids)}
        self.tape.see("call", call.task, of.round, "", asked)
        replies = super().ask(call, of, need=need)
        for client, reply in zip(replies.clients, replies, strict=True):
            self.tape.see("reply", call.task, of.round, client, values_of(reply))
        return replies


# -----------------------------------------------------------------------------------------------
# where mechanisms hand over


def vector(tensors: Sequence[torch.Tensor]) -> Array:
    """Return tensors as one vector."""
    return np.concatenate([t.detach().double().numpy().ravel() for t in tensors])


def a_point(original: Any, out: Params, *args: Any, **kwargs: Any) -> Drawn:
    return Drawn(original.__name__, [], out, [vector(list(out.values()))])


def a_step(original: Any, out: list[torch.Tensor], *args: Any, **kwargs: Any) -> Drawn:
    return Drawn("noised", [], out, [vector(out)])


def a_clip(original: Any, out: float, *args: Any, **kwargs: Any) -> Drawn:
    """The next clip is the exponential of a noisy sum."""
    return Drawn("next clip", [], out, [np.array([math.log(out)])])


def numbers(original: Any, out: Any, me: Client, what: str, value: Array, **kwargs: Any) -> Drawn:
    """Discrete Laplace noise: it is measured on many zeros."""

    def spread() -> float:
        drawn = original(nobody(), what, np.zeros(4000, value.dtype), **kwargs).value
        mean = float(np.abs(drawn).mean()) * 1.1  # by chance it comes out up to 8% too small
        return 1 / math.asinh(1 / mean)

    return Drawn(original.__name__, [], out, [out.value.astype(np.float64)], spread, norm=1)


def counts(original: Any, out: Any, me: Client, what: str, value: Array, **kwargs: Any) -> Drawn:
    """Noisy counts of votes, query by query."""
    norm = 2 if kwargs["kind"] == "gaussian" else 1
    return Drawn(original.__name__, [], out, list(out.value), norm=norm)


def winners(original: Any, out: Any, draw: Any, value: Array, **kwargs: Any) -> Drawn:
    """Only the winners of noisy counts come out; the counts are what is noised."""
    norm = 2 if kwargs["kind"] == "gaussian" else 1
    return Drawn(original.__name__, [], out, list(value), lambda: kwargs["scale"], norm)


def nobody() -> Client:
    """A client without data."""
    net, rng = torch.nn.Identity(), np.random.default_rng(0)
    return Client("0", 0, None, None, net, {}, rng)


FUNCTIONS = {
    mechanisms.gaussian: a_point,
    mechanisms.gaussian_mean: a_point,
    mechanisms.discrete_laplace: numbers,
    mechanisms.noisy_counts: counts,
    mechanisms.noisy_max: winners,
}
METHODS = [(mechanisms.PrivateSteps, "noised", a_step), (mechanisms.AdaptiveClip, "next", a_clip)]


def taped(tape: Tape, original: Any, look: Any) -> Any:
    """Return a mechanism whose results go to the tape."""

    def call(*args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        return tape.release(look(original, out, *args, **kwargs))

    return call


def announced(tape: Tape, original: Any) -> Any:
    """Return a writer of ledger lines that tells the tape."""

    def release(self: Any, line: Release) -> None:
        tape.write(line)
        original(self, line)

    return release


def noted(tape: Tape, original: Any) -> Any:
    """Return a source of random words that tells the tape."""

    def bits(self: Any, n: int) -> Array:
        got = original(self, n)
        if n:
            tape.randomness[got.tobytes()] += 1
        return got

    return bits


def numbers_of(tape: Tape, original: Any) -> Any:
    """Return what makes noise of size 1, or other numbers if the tape wants them."""

    def made(draw: Source, n: int) -> Array:
        got = original(draw, n)
        if tape.normals == "seeded":
            return got
        return np.zeros(n) if tape.normals == "quiet" else np.ones(n)

    return made


def hardly_rounded(original: Any) -> Any:
    """Return a grid so fine that a shift is what it was before rounding, a post-processing."""
    return lambda size: 2.0**-30 * original(size)


@contextmanager
def hooked(tape: Tape) -> Iterator[None]:
    """Put the tape wherever mechanisms hand over, lines are written and noise is drawn."""
    patches: list[tuple[Any, str, Any]] = [
        (FromSeed, "bits", noted(tape, FromSeed.bits)),
        (noise, "normal", numbers_of(tape, noise.normal)),
        (noise, "laplace", numbers_of(tape, noise.laplace)),
        (noise, "spacing", hardly_rounded(noise.spacing)),
    ]
    patches += [(cls, "release", announced(tape, cls.release)) for cls in (Client, Engine)]
    patches += [(cls, name, taped(tape, getattr(cls, name), look)) for cls, name, look in METHODS]
    ours = [m for name, m in sys.modules.items() if name.partition(".")[0] == "tacit"]
    for function, look in FUNCTIONS.items():
        wrapped = taped(tape, function, look)
        names = [(m, name) for m in ours for name, v in vars(m).items() if v is function]
        patches += [(m, name, wrapped) for m, name in names]
    with ExitStack() as stack:
        for where, name, what in patches:
            stack.enter_context(mock.patch.object(where, name, what))
        yield


def run(
    method: Any,
    world: World,
    x0: Params,
    *,
    fault: Fault = no_fault,
    normals: str = "seeded",
    follow: Tape | None = None,
) -> Tape:
    """Run a method to its end and return the tape."""
    tape = Tape(normals, follow)
    with tempfile.TemporaryDirectory() as folder, hooked(tape):
        engine = Watched(replace(world, folder=Path(folder)), fault, tape)
        drive(method, engine, method.init(x0), on_step=tape.step)
        tape.ledger = engine.ledger
    return tape


# -----------------------------------------------------------------------------------------------
# what the ledger allows


def sensitivity(line: Release) -> float:
    """Return the shift, in units of the noise, that a line's mechanism allows."""
    event = line.event
    if isinstance(event, Gaussian):
        return 1 / event.z
    if isinstance(event, Laplace):
        return 1 / event.b
    return event.epsilon if isinstance(event, Pure) else 0.0


def allowed(line: Release, twin: Twin) -> float:
    """Return the shift that a line allows between twins; 0 if it says nothing of such twins.

    What is stated for leaving a unit out covers its replacement at twice the distance, and so it
    does one example of a client that is protected as a whole.
    """
    if line.owner not in (FEDERATION, twin.client):
        return 0.0
    if line.unit == "example" and twin.unit == "client":
        return 0.0
    if line.relation == "replace" and twin.relation == "zero-out":
        return 0.0
    inside = line.unit == "client" and twin.unit == "example"
    twice = line.relation == "zero-out" and (twin.relation == "replace" or inside)
    return sensitivity(line) * (2 if twice else 1)


@dataclass(frozen=True)
class Measured:
    """A world's releases with their noise known."""

    tape: Tape
    quiet: Tape
    loud: Tape

    @classmethod
    def of(cls, method: Any, world: World, x0: Params) -> Measured:
        tape = run(method, world, x0)
        quiet, loud = (
            run(method, world, x0, normals=normals, follow=tape) for normals in ("quiet", "loud")
        )
        return cls(tape, quiet, loud)

    def shifts(self, k: int, differences: Sequence[Array]) -> list[float]:
        """Return the size of differences in units of release k's noise."""
        drawn = self.tape.drawn[k]
        if drawn.spread is not None and not any(d.any() for d in differences):
            return [0.0 for _ in differences]
        if drawn.spread is not None:
            noise = drawn.spread()
            return [float(np.linalg.norm(d.ravel(), drawn.norm)) / noise for d in differences]
        pairs = zip(self.loud.drawn[k].parts, self.quiet.drawn[k].parts, strict=True)
        return [
            in_units(d, np.abs(loud - quiet), drawn.norm)
            for d, (loud, quiet) in zip(differences, pairs, strict=True)
        ]

    def apart(self, k: int, other: Tape) -> list[float]:
        """Return how far another tape's release k is from this one; infinitely, if its shape is."""
        mine, theirs = self.tape.drawn[k].parts, other.drawn[k].parts
        if [p.shape for p in mine] != [p.shape for p in theirs]:
            return [math.inf]
        return self.shifts(k, [x - y for x, y in zip(mine, theirs, strict=True)])

    def groups(self) -> list[list[int]]:
        """Return the releases that belong to the same lines."""
        found: list[list[int]] = []
        for k, drawn in enumerate(self.tape.drawn):
            if drawn.lines or not found:
                found.append([])
            found[-1].append(k)
        return found

    def line(self, group: list[int], owner: str) -> Release | None:
        """Return the line of a group of releases that an owner pays for."""
        lines = self.tape.drawn[group[0]].lines
        return next((r for r in reversed(lines) if r.owner in (FEDERATION, owner)), None)


def in_units(difference: Array, sd: Array, norm: int) -> float:
    """Return the norm of a difference over the noise; without noise it is infinite."""
    moved = difference != 0
    if np.any(sd[moved] == 0):
        return math.inf
    return float(np.linalg.norm(difference[moved] / sd[moved], norm))


def together(shifts: list[float], line: Release) -> float:
    """Return the shift of one of the line's steps, or of all that are released as one."""
    if len(shifts) == line.steps:
        return max(shifts)
    if isinstance(line.event, Gaussian):
        return math.sqrt(sum(s * s for s in shifts) / line.steps)
    return sum(shifts) / line.steps


# -----------------------------------------------------------------------------------------------
# findings


@dataclass(frozen=True)
class Shift:
    """How far a release moves, in units of its noise, and how far it may."""

    what: str
    size: float
    bound: float

    @property
    def share(self) -> float:
        """How much of what is allowed is needed."""
        if self.size == 0:
            return 0.0
        return self.size / self.bound if self.bound else math.inf

    @property
    def finding(self) -> str:
        """What is wrong if that is too far."""
        allows = f"its line allows {self.bound:.4g}" if self.bound else "no line covers that"
        return f"{self.what}: moves by {self.size:.4g} of its noise, and {allows}"


@dataclass(frozen=True)
class Report:
    """What is wrong, in one line each, and how much of what each line allows was needed."""

    findings: list[str]
    needed: dict[str, float]

    def __bool__(self) -> bool:
        return not self.findings


def check(method: Any, world: World, x0: Params, twins: Sequence[Twin]) -> Report:
    """Compare a world with its twins."""
    known = Measured.of(method, world, x0)
    findings = of_the_ledger(method, known.tape)
    needed: dict[str, float] = {}
    for twin in twins:
        other = replace(world, federation=twin.change(world.federation))
        try:
            tape = run(method, other, x0, fault=twin.fault, follow=known.tape)
        except Astray as e:
            findings.append(f"{twin.name}: {e}")
            continue
        shifts = shifts_between(known, tape, twin)
        found = [s.finding for s in shifts if s.share > 1 + HAIR]
        findings += [f"{twin.name}: {f}" for f in found + of_sight(method, known.tape, tape)]
        for s in shifts:
            needed[s.what] = max(needed.get(s.what, 0.0), s.share)
    return Report([f"{type(method).__name__}: {f}" for f in findings], needed)


def of_the_ledger(method: Any, tape: Tape) -> list[str]:
    """Return what is wrong with a ledger by itself."""
    unit, observer = method.protects
    found = []
    if math.isinf(
        privacy.epsilon(tape.ledger, unit=unit, observer=observer, delta=1e-5, quick=True)
    ):
        found.append(f"promises nothing: {privacy.reason(tape.ledger, observer=observer)}")
    if any(times > 1 for times in tape.randomness.values()):
        found.append("the same randomness is used twice")
    counted = totals(tape.ledger)
    short = [line for line, n in totals(tape.written).items() if counted[line] < n]
    return found + [f"{line.what}: was released more often than the ledger says" for line in short]


def totals(lines: Any) -> Counter[Release]:
    """Return how many releases lines stand for, by what they say apart from when."""
    counted: Counter[Release] = Counter()
    for line in lines:
        counted[replace(line, rounds=(), attempt=0)] += line.total()
    return counted


def shifts_between(known: Measured, other: Tape, twin: Twin) -> list[Shift]:
    """Return how far the releases of a twin are from those of its world, line by line."""
    found = []
    if len(known.tape.drawn) != len(other.drawn):
        found.append(Shift("the number of releases", math.inf, 0.0))
    for group in known.groups():
        there = [k for k in group if k < len(other.drawn)]
        shifts = [s for k in there for s in known.apart(k, other)]
        line = known.line(group, twin.client)
        if line is not None:
            found.append(Shift(line.what, together(shifts, line), allowed(line, twin)))
        elif any(shifts):
            found.append(Shift(known.tape.drawn[group[0]].name, max(shifts), 0.0))
    return found


def of_sight(method: Any, a: Tape, b: Tape) -> list[str]:
    """Return what is seen to differ although nothing that was released does."""
    hidden = set() if method.protects[1] == "server" else covered(a.ledger)
    tasks = {task for task, _ in hidden}
    lines, others = ([r for r in tape.ledger if r.what not in tasks] for tape in (a, b))
    ledger = ["the ledger depends on the data"] if lines != others else []
    mine, theirs = (
        [s for s in tape.seen if not (s.kind == "reply" and (s.task, s.round) in hidden)]
        for tape in (a, b)
    )
    pairs = zip_longest(mine, theirs)
    return ledger + [f"{x or y} differs, and no line covers it" for x, y in pairs if x != y]


def covered(ledger: Ledger) -> set[tuple[str, int]]:
    """Return the replies, by task and round, that a mechanism of the server's hides from others."""
    return {
        (line.covers, t)
        for line in ledger.covering()
        for first, last in line.rounds
        for t in range(first, last + 1)
        if line.covers is not None
    }
