"""`tacit privacy METHOD`: a method's whole cost before it runs, and what its paper claims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from tacit import privacy
from tacit.cli.flags import parse
from tacit.cli.method_words import METHOD_WORDS
from tacit.cli.runs import examples_of, first_line
from tacit.core import Keywords, Ledger, Relation, Unit, check
from tacit.experiment.config import Experiment, Setting, read_experiment
from tacit.experiment.forecast import over_rounds, predicted
from tacit.experiment.plan import Plan
from tacit.methods.spec import method_class, name_of
from tacit.report.conclusions import guarantee
from tacit.report.pictures import draw_epsilon
from tacit.report.tables import aligned


def method_cost(name: str, args: Sequence[str]) -> None:
    """Show what a method, or an experiment file, will spend, or what its paper claims."""
    file = name.endswith(".toml")
    begin = read_experiment(Path(name)) if file else Experiment(method_class(name)())
    given = parse(
        _flags(begin),
        args,
        prog=f"tacit privacy {name}",
        about=first_line(begin.method),
        examples=examples_of(name, begin.method),
        registry=METHOD_WORDS,
    )
    check.number("rounds", given.method.rounds, at_least=1)
    experiment = Experiment(given.method, given.setting)
    name = name_of(given.method) if file else name
    plan = Plan.of(experiment)
    if given.paper:
        show_claims(name, plan)
    else:
        show_cost(name, plan, predicted(experiment, plan))
    if given.plot is not None:
        print(f"picture: {draw_epsilon({name: over_rounds(experiment)}, given.plot, 'rounds')[0]}")


def _flags(begin: Experiment) -> Any:
    method = type(begin.method)
    return make_dataclass(
        "Flags",
        [
            ("method", Annotated[method, tyro.conf.arg(name="")], field(default=begin.method)),
            ("setting", Annotated[Setting, tyro.conf.arg(name="")], field(default=begin.setting)),
            (
                "paper",
                Annotated[
                    bool, tyro.conf.arg(help="what the paper claims, beside what it really spends")
                ],
                False,
            ),
            ("plot", Annotated[Path | None, tyro.conf.arg(help="draw epsilon over rounds")], None),
        ],
        frozen=True,
    )


def show_claims(name: str, plan: Plan) -> None:
    """Print what a paper claims, line by line, with the reason in a sentence."""
    method = plan.experiment.method
    sizes, delta = plan.federation.sizes(), plan.experiment.setting.delta
    found = method.claims(sizes, delta)
    if not found:
        print(f"{name}: nothing is claimed beyond the certificate")
        return
    print(f"{name}: what its paper claims and what holds")
    rows = [[word, privacy.show_epsilon(epsilon)] for word, epsilon, _ in found]
    print(
        aligned([["accountant", "epsilon"], *rows], ["remark", *(remark for _, _, remark in found)])
    )
    T = method.rounds
    marks = sorted({1, *(math.ceil(T * k / 6) for k in range(1, 7))})
    over = [(t, pair) for t in marks if (pair := method.claimed(t, sizes, delta))]
    if over:
        rows = [[str(t), f"{z:.4g}", privacy.show_epsilon(e)] for t, (z, e) in over]
        print(aligned([["round", "noise multiplier", "claimed epsilon"], *rows]))
    losses = [(t, p) for t in marks if (p := method.performance_loss(t, sizes, delta)) is not None]
    if losses:
        print("performance loss P: LDP-FL's own diagnostic, not a privacy quantity")
        print(aligned([["round", "P"], *([str(t), f"{p:.4g}"] for t, p in losses)]))


def show_cost(name: str, plan: Plan, ledger: Ledger) -> None:
    """Print epsilon for units, observers and relations, and what is guaranteed."""
    method = plan.experiment.method
    delta = plan.experiment.setting.delta
    unit, observer = method.protects
    print(
        f"{name}: {method.rounds} rounds, {len(plan.federation.everyone)} clients, delta {delta:g}"
    )
    print(cost_table(ledger, delta))
    where: Keywords = {"unit": unit, "observer": observer, "delta": delta}
    spent = privacy.epsilon(ledger, **where)
    replaced = privacy.epsilon(ledger, **where, relation="replace", quick=True)
    said = guarantee(unit, observer, spent=spent, replaced=replaced, delta=delta)
    why = privacy.reason(ledger, unit=unit, observer=observer, delta=delta)
    print(f"its guarantee: {said}: {why}")


def cost_table(ledger: Ledger, delta: float) -> str:
    """Return what examples and clients pay, against everybody.

    A client is replaced: zeroing one out may cost less than what one of its examples can do.
    """
    shown: list[tuple[Unit, Relation]] = [
        ("example", "zero-out"),
        ("example", "replace"),
        ("client", "replace"),
    ]
    rows = [["epsilon", *(f"against {who}" for who in privacy.OBSERVERS)]]
    for unit, relation in shown:
        where: Keywords = {"unit": unit, "relation": relation, "delta": delta}
        where["quick"] = relation == "replace"  # an upper bound, and the headline is another one
        cells = [privacy.epsilon(ledger, observer=who, **where) for who in privacy.OBSERVERS]
        rows.append([f"{unit}, {relation}", *map(privacy.show_epsilon, cells)])
    return aligned(rows)
