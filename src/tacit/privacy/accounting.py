"""From the ledger to epsilon. A certificate is computed from the lines and from nothing else.

Silence is infinity.

Without subsampling, Gaussian releases are accounted exactly (GDP). Otherwise the certificate is the
privacy loss distribution of dp-accounting, rounded up, on a grid that is refined until epsilon
moves by less than 0.1%.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from tacit.core import (
    FEDERATION,
    BudgetReached,
    Event,
    Gaussian,
    Laplace,
    Ledger,
    NonPrivate,
    Nothing,
    Observer,
    Pure,
    Relation,
    Release,
    Sampling,
    Unit,
    check_number,
)
from tacit.privacy.gdp import gdp_epsilon
from tacit.privacy.shown import show_epsilon

UNITS: tuple[Unit, ...] = ("example", "client")
OBSERVERS: tuple[Observer, ...] = ("server", "clients", "public")
RELATIONS: tuple[Relation, ...] = ("zero-out", "replace")
# The relation that a unit's figure is for where several stand side by side. One example can turn
# its client's contribution round, which is what replacing the client does and more than zeroing it
# out: only so does an example never cost more than its whole client.
SIDE_BY_SIDE: dict[Unit, Relation] = {"example": "zero-out", "client": "replace"}

# one mechanism, as data, and the relation its sensitivity is stated for
Part = tuple[Event, Sampling, str]
Bill = frozenset[tuple[Part, int]]  # mechanisms and how often each was used


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
    owners = by_owner(
        ledger, unit=unit, observer=observer, delta=delta, relation=relation, quick=quick
    )
    return max(owners.values(), default=math.inf)


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
    covering = ledger.covering()
    lines = [line for line in ledger if visible(line, observer, covering)]
    owners = {line.owner for line in ledger} - {FEDERATION} or {line.owner for line in ledger}
    shared = [line for line in lines if line.owner == FEDERATION]
    own: dict[str, list[Release]] = {owner: [] for owner in owners}
    for line in lines:
        if line.owner != FEDERATION:
            own[line.owner].append(line)
    grid = 1e-2 if quick else None
    return {
        owner: bill_epsilon(bill(mine + shared, unit), relation, delta, grid)
        for owner, mine in own.items()
    }


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


def _twice(stated: str, relation: Relation) -> bool:
    """Tell whether neighbours are twice as far apart as an event was stated for."""
    return stated == "swap" or (stated == "zero-out" and relation == "replace")


def bill(lines: list[Release], unit: Unit) -> Bill:
    """Return what some lines cost a unit.

    Protecting an example does not protect a client, the reverse does.
    """
    parts: Counter[Part] = Counter()
    for line in lines:
        event = (
            NonPrivate("it protects an example, not a client") if ruins(line, unit) else line.event
        )
        parts[event, line.sampling, _stated(line, unit)] += line.total()
    return frozenset(parts.items())


@lru_cache(maxsize=4096)
def bill_epsilon(bill: Bill, relation: Relation, delta: float, grid: float | None = None) -> float:
    """Return the certified epsilon of a bill.

    With a given grid it is an upper bound that is not refined.
    """
    check_number("delta", delta, above=0, below=1)
    paid = sorted(((part, n) for part, n in bill if not isinstance(part[0], Nothing)), key=repr)
    if not bill or any(not finite(part, relation) for part, _ in paid):
        return math.inf
    if not paid:
        return 0.0
    if all(
        isinstance(event, Gaussian) and sampling.law == "everyone"
        for (event, sampling, _), _ in paid
    ):
        return gdp_epsilon(
            math.sqrt(sum(n * gaussian_mu(part, relation) ** 2 for part, n in paid)), delta
        )
    return (
        refined(paid, relation, delta) if grid is None else pld_epsilon(paid, relation, delta, grid)
    )


def finite(part: Part, relation: Relation) -> bool:
    """Tell whether a mechanism gives any guarantee.

    One stated for replacement gives none for zeroing out, and one stated for anything that is not
    known gives none at all.
    """
    event, _, stated = part
    if isinstance(event, NonPrivate) or (stated == "replace" and relation == "zero-out"):
        return False
    if stated not in ("zero-out", "replace", "either", "swap", "as is"):
        return False
    return all(
        0 < value < math.inf for value in vars(event).values() if isinstance(value, float | int)
    )


def gaussian_mu(part: Part, relation: Relation) -> float:
    """Return the mu of one Gaussian release.

    Replacing is zeroing out and putting another in, so it moves a sum twice as far.
    """
    event, _, stated = part
    assert isinstance(event, Gaussian)
    return (2.0 if _twice(stated, relation) else 1.0) / event.z


def refined(bill: Sequence[tuple[Part, int]], relation: Relation, delta: float) -> float:
    """Return the PLD's epsilon on a grid fine enough that halving it moves the result by less than 0.1%."""
    interval, last = 1e-3, math.inf
    while True:
        now = pld_epsilon(bill, relation, delta, interval)
        if last - now <= 0.001 * now or interval < 1e-4:
            return min(now, last)
        interval, last = interval / 2, now


def pld_epsilon(
    bill: Iterable[tuple[Part, int]], relation: Relation, delta: float, interval: float
) -> float:
    """Return the epsilon of the composed privacy loss distribution on a given grid.

    Never below the truth.
    """
    # imported late: it would slow down every start
    from dp_accounting.pld import privacy_loss_distribution as pld

    total = pld.identity(value_discretization_interval=interval)
    for part, n in bill:
        total = total.compose(_pld(part, relation, interval).self_compose(n))
    return float(total.get_epsilon_for_delta(delta))


def _pld(part: Part, relation: Relation, interval: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    event, sampling, stated = part
    twice = 2.0 if _twice(stated, relation) else 1.0
    grid = {"value_discretization_interval": interval}
    if isinstance(event, Gaussian):
        return _gaussian_pld(event.z, sampling, twice, grid)
    if sampling.law != "everyone":
        raise TypeError(f"no accountant for a subsampled {type(event).__name__}")
    if isinstance(event, Laplace):
        return pld.from_laplace_mechanism(event.b / twice, **grid)
    assert isinstance(event, Pure)
    return pld.from_privacy_parameters(
        DifferentialPrivacyParameters(event.epsilon * twice, 0), **grid
    )


def _gaussian_pld(z: float, sampling: Sampling, twice: float, grid: dict[str, float]) -> Any:
    """Return the PLD of one Gaussian release on a sample.

    Poisson: dp-accounting's, for either relation. Fixed size, without replacement: the sample with
    and without a unit differ by exchanging it for another, which moves the sum by twice the clip,
    so both relations are dominated by the Poisson pair with half the noise (Zhu, Dong and Wang
    2022, Proposition 30).
    """
    import dp_accounting as dp
    from dp_accounting.pld import privacy_loss_distribution as pld

    if sampling.law == "fixed":
        return pld.from_gaussian_mechanism(z / 2, sampling_prob=sampling.q, **grid)
    replace = (
        dp.NeighboringRelation.REPLACE_ONE
        if twice == 2.0
        else dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    return pld.from_gaussian_mechanism(
        z, sampling_prob=sampling.q, neighboring_relation=replace, **grid
    )


def rdp_epsilon(bill: Iterable[tuple[Part, int]], delta: float) -> float:
    """Return the epsilon of Renyi accounting for zero-out, as a cross-check.

    An upper bound, usually looser.
    """
    import absl.logging
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    absl.logging.set_verbosity(
        absl.logging.ERROR
    )  # it warns of orders that it leaves out, which only loosens the bound
    accountant = RdpAccountant()
    for (event, sampling, _), n in bill:
        if not isinstance(event, Gaussian):
            return math.inf
        z = event.z / 2 if sampling.law == "fixed" else event.z
        accountant.compose(dp.PoissonSampledDpEvent(sampling.q, dp.GaussianDpEvent(z)), n)
    return float(accountant.get_epsilon(delta))


def approve(ledger: Ledger, *, budget: float, unit: Unit, observer: Observer, delta: float) -> None:
    """Refuse a ledger that has passed its budget."""
    if budget == math.inf:
        return
    spent = epsilon(ledger, unit=unit, observer=observer, delta=delta)
    if not spent <= budget:
        raise BudgetReached(
            f"budget = {budget:g}: the next step would bring epsilon to {show_epsilon(spent, 4)} "
            f"({unit} level, against the {observer}, delta {delta:g}); stopped before it"
        )
