"""From the ledger to epsilon. A certificate is computed from the lines and from nothing else.

Silence is infinity.

Without subsampling, Gaussian releases are accounted exactly (GDP). Otherwise the certificate is the
least of several upper bounds: the privacy loss distribution of dp-accounting, rounded up, on a grid
that is refined until epsilon moves by less than 0.01%, and figures in closed form for numbers that
are too extreme for a grid.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tacit.core import (
    FEDERATION,
    BudgetReached,
    Gaussian,
    Ledger,
    NonPrivate,
    Nothing,
    Observer,
    Relation,
    Release,
    Unit,
    check,
)
from tacit.privacy.bill import Bill, Costs, Part, countable, finite, twice
from tacit.privacy.bounds import rdp_epsilon, renyi_epsilon, unsampled_epsilon
from tacit.privacy.pld import grids
from tacit.privacy.rounding import show_epsilon

UNITS: tuple[Unit, ...] = ("example", "client")
OBSERVERS: tuple[Observer, ...] = ("server", "clients", "public")
RELATIONS: tuple[Relation, ...] = ("zero-out", "replace")
# The relation that a unit's figure is for where several stand side by side. One example can turn
# its client's contribution round, which is what replacing the client does and more than zeroing it
# out: only so does an example never cost more than its whole client.
SIDE_BY_SIDE: dict[Unit, Relation] = {"example": "zero-out", "client": "replace"}
NO_GUARANTEE = "none"
EXACT_GDP = "exact (GDP)"
EXACT = (NO_GUARANTEE, EXACT_GDP)
UNCOUNTABLE = 10**100  # releases: a ledger that says so is no guarantee


def epsilon(
    ledger: Ledger,
    *,
    unit: Unit,
    observer: Observer,
    delta: float,
    relation: Relation = "zero-out",
    quick: bool = False,
) -> float:
    """Return epsilon for one ``unit`` as ``observer`` sees it, for the owner who spent most.

    ``quick`` uses a coarse grid: an upper bound still, a little higher, for showing on the way.
    """
    covering = ledger.covering()
    if any(ruins(line, unit) and visible(line, observer, covering) for line in ledger):
        return math.inf  # at once: most ledgers of many clients end here
    each = bills(ledger, unit=unit, observer=observer)
    return most_spent(each, relation, delta, quick=quick)[1] if each else math.inf


def most_spent(
    each: Mapping[str, Bill], relation: Relation, delta: float, *, quick: bool = False
) -> tuple[str, float]:
    """Return the owner who spent most, the first by name of those who did, and how much.

    Bounds in closed form tell who cannot be it: of many clients few are looked at closely.
    """
    bound = {
        b: min(form.epsilon for form in closed_forms(b, relation, delta))
        for b in set(each.values())
    }
    found: dict[Bill, float] = {}
    for b in sorted(bound, key=lambda b: -bound[b]):
        if found and max(found.values()) >= bound[b]:
            break
        found[b] = bill_epsilon(b, relation, delta, quick=quick)
    most = max(found.values())
    return min(owner for owner, b in each.items() if found.get(b) == most), most


def overview(ledger: Ledger, *, delta: float, quick: bool = False) -> dict[str, float]:
    """Return epsilon by unit and observer, such as ``example/server``, to be shown side by side.

    An example is zeroed out, a client is replaced.
    """
    return {
        f"{unit}/{observer}": epsilon(
            ledger, unit=unit, observer=observer, delta=delta, relation=relation, quick=quick
        )
        for unit, relation in SIDE_BY_SIDE.items()
        for observer in OBSERVERS
    }


def by_owner(
    ledger: Ledger,
    *,
    unit: Unit,
    observer: Observer,
    delta: float,
    relation: Relation = "zero-out",
    quick: bool = False,
) -> dict[str, float]:
    """Return epsilon for each owner.

    What it released itself, and what the federation released of everybody.
    """
    each = bills(ledger, unit=unit, observer=observer)
    return {owner: bill_epsilon(b, relation, delta, quick=quick) for owner, b in each.items()}


def bills(ledger: Ledger, *, unit: Unit, observer: Observer) -> dict[str, Bill]:
    """Return what each owner is charged for, as ``observer`` sees it."""
    covering = ledger.covering()
    lines = [line for line in ledger if visible(line, observer, covering)]
    owners = {line.owner for line in ledger} - {FEDERATION} or {line.owner for line in ledger}
    shared = [line for line in lines if line.owner == FEDERATION]
    own: dict[str, list[Release]] = {owner: [] for owner in owners}
    for line in lines:
        if line.owner != FEDERATION:
            own[line.owner].append(line)
    return {owner: bill(mine + shared, unit) for owner, mine in own.items()}


def visible(line: Release, observer: Observer, covering: Sequence[Release]) -> bool:
    """Tell whether an observer learns from a line.

    The server sees what is sent to it, and nothing is hidden from it.

    Others see what the server passes on: everything, but for replies that a mechanism of the
    server's consumed.
    """
    if observer == "server":
        return line.observer == "server"
    return not any(line.what == other.covers and _within(line, other) for other in covering)


def _within(line: Release, other: Release) -> bool:
    return all(
        any(a <= first and last <= b for a, b in other.rounds) for first, last in line.rounds
    )


def ruins(line: Release, unit: Unit) -> bool:
    """Tell whether a line alone makes epsilon infinite for a unit."""
    if not countable(line):
        return True
    too_small = unit == "client" and line.unit == "example" and not isinstance(line.event, Nothing)
    return too_small or isinstance(line.event, NonPrivate)


def _stated(line: Release, unit: Unit) -> str:
    """Return the relation that a line's event is stated for, as a unit sees it.

    One example of a client that is protected as a whole can turn the client's contribution round,
    which moves a sum twice as far as zeroing the client out: a "swap". What is stated for replacing
    a client covers that "as is".
    """
    if unit == line.unit:
        return line.relation
    seen: dict[str, str] = {"zero-out": "swap", "replace": "as is", "either": "as is"}
    return seen.get(line.relation, line.relation)


def bill(lines: list[Release], unit: Unit) -> Bill:
    """Return what some lines cost a unit.

    Protecting an example does not protect a client, the reverse does.
    """
    parts: Counter[Part] = Counter()
    for line in lines:
        if ruins(line, unit):
            parts[NonPrivate("it protects no such unit"), line.sampling, "either"] += 1
        else:
            parts[line.event, line.sampling, _stated(line, unit)] += line.total()
    return frozenset(parts.items())


@dataclass(frozen=True)
class Certificate:
    """An upper bound on epsilon, and the accountant that it is from."""

    epsilon: float
    accountant: str


def bounds(bill: Bill, relation: Relation, delta: float) -> Iterator[Certificate]:
    """Yield upper bounds on the epsilon of a bill, the cheapest first; the least certifies."""
    first = closed_forms(bill, relation, delta)
    yield from first
    if first[0].accountant in EXACT or first[0].epsilon == 0:
        return
    paid = _paid(bill)
    found = math.inf
    for found in grids(paid, relation, delta):
        yield Certificate(found, "PLD, refined")
    if found == math.inf and len(paid) == 1 and not twice(paid[0][0][2], relation):
        # more orders than before: tighter, but slow
        yield Certificate(rdp_epsilon(paid, delta), "RDP, an upper bound")


@lru_cache(maxsize=4096)
def closed_forms(bill: Bill, relation: Relation, delta: float) -> tuple[Certificate, ...]:
    """Return the upper bounds that need no grid; where nothing is sampled, the exact one alone."""
    check.number("delta", delta, above=0, below=1)
    paid = _paid(bill)
    if not bill or any(not finite(part, relation) or n > UNCOUNTABLE for part, n in paid):
        return (Certificate(math.inf, NO_GUARANTEE),)
    _check_known(paid)
    unsampled = unsampled_epsilon(paid, relation, delta)
    if all(_exact(part) for part, _ in paid):
        return (Certificate(unsampled, EXACT_GDP),)
    loose = Certificate(unsampled, "GDP without sampling, an upper bound")
    if unsampled == 0:
        return (loose,)
    return loose, Certificate(renyi_epsilon(paid, relation, delta), "RDP, an upper bound")


def _paid(bill: Bill) -> Costs:
    """Return what costs something, always in the same order."""
    costly = ((part, n) for part, n in bill if n and not isinstance(part[0], Nothing))
    return sorted(costly, key=repr)


def _exact(part: Part) -> bool:
    return isinstance(part[0], Gaussian) and part[1].law == "everyone"


def _check_known(paid: Costs) -> None:
    """Refuse to give a number to what no accountant knows."""
    for (event, sampling, _), _ in paid:
        if sampling.law != "everyone" and not isinstance(event, Gaussian):
            raise TypeError(f"no accountant for a subsampled {type(event).__name__}")


@lru_cache(maxsize=4096)
def certificate(bill: Bill, relation: Relation, delta: float) -> Certificate:
    """Return the least upper bound on the epsilon of a bill, and the accountant that it is from."""
    return min(bounds(bill, relation, delta), key=lambda found: found.epsilon)


@lru_cache(maxsize=4096)
def quick_certificate(bill: Bill, relation: Relation, delta: float) -> Certificate:
    """Return an upper bound that is not refined: PLD's first, where there is one."""
    found = []
    for bound in bounds(bill, relation, delta):
        found.append(bound)
        if bound.accountant.startswith("PLD"):
            break
    return min(found, key=lambda bound: bound.epsilon)


@lru_cache(maxsize=4096)
def affordable(bill: Bill, relation: Relation, delta: float, budget: float) -> bool:
    """Tell whether the certificate of a bill is at most ``budget``.

    The first bound that shows it is enough; only near the budget are finer ones looked at.
    """
    return any(found.epsilon <= budget for found in bounds(bill, relation, delta))


def bill_epsilon(bill: Bill, relation: Relation, delta: float, *, quick: bool = False) -> float:
    """Return the certified epsilon of a bill.

    ``quick``: an upper bound that is not refined.
    """
    return (quick_certificate if quick else certificate)(bill, relation, delta).epsilon


def approve(ledger: Ledger, *, budget: float, unit: Unit, observer: Observer, delta: float) -> None:
    """Refuse a ledger whose certificate is above its budget."""
    if budget == math.inf:
        return
    each = set(bills(ledger, unit=unit, observer=observer).values())
    if each and all(affordable(b, "zero-out", delta, budget) for b in each):
        return
    spent = epsilon(ledger, unit=unit, observer=observer, delta=delta)
    raise BudgetReached(
        f"budget = {budget:g}: with this step epsilon is {show_epsilon(spent, 4)} "
        f"({unit} level, against the {observer}, delta {delta:g}); stopped"
    )
