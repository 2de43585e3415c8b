"""How good a state is, in a simulation, where the server has all test data.

On the whole test set, for each class, and for each client on its own test data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from tacit.core import Client, ClientId, Method, Params, PartOfTests, Reply, State, task
from tacit.data.examples import Dataset
from tacit.data.federated import Federation
from tacit.engines.server import Engine
from tacit.experiment.metrics import confusion, measures
from tacit.experiment.scoring import (
    Errors,
    Evaluation,
    Scored,
    Tally,
    counted,
    counted_apart,
    score_with,
)
from tacit.local.sgd import network


@task(at="server")
def score(me: Client, x: Params, detailed: bool = False) -> Reply[Scored]:
    """Score the shared model."""
    return Reply(score_with(me, network(me, x), detailed=detailed))


@task(at="server")
def score_with_method(
    me: Client, method: Method, s: State, detailed: bool = False
) -> Reply[Scored]:
    """Score what a method makes of its state: a model of this client's own, or everybody's."""
    return Reply(score_with(me, method.predictor(me, s), detailed=detailed))


def evaluate(
    method: Method,
    s: State,
    engine: Engine,
    federation: Federation,
    parts: int,
    *,
    detailed: bool = False,
) -> Evaluation | Errors:
    """Evaluate a state; the test set is divided into ``parts`` that are scored in parallel.

    ``detailed`` measures more than what follows from counts.
    """
    method, s = method.innermost(s)
    if method.answers == "personal":
        return _personal(method, s, engine, federation, detailed)
    ids = [PartOfTests(k, parts).id for k in range(parts)]
    plain = method.answers == "network"
    more = {"detailed": detailed}
    call = score(x=s.x, **more) if plain else score_with_method(method=method, s=s, **more)
    scored = engine.look(call, ids, s.round)
    if federation.dataset.goal != "classes":
        return of_numbers(scored, federation.dataset)
    return _shared(scored, federation)


def of_numbers(scored: dict[ClientId, Scored], dataset: Dataset) -> Errors:
    """Return how far predictions are off, or how many labels are right."""
    given = torch.cat([part.predicted for part in scored.values()])
    loss = sum(part.loss for part in scored.values()) / len(given)
    y = dataset.test.y
    if dataset.goal == "multilabel":
        right = ((given > 0) == (y > 0.5)).double().mean(0)
        return Errors(float(loss), dict(zip(dataset.classes, right.tolist(), strict=True)), {})
    off = (given - y).abs().double().mean(0).tolist()
    units = [_unit(dataset, name) for name in dataset.classes]
    mae = {n: d * u for n, d, u in zip(dataset.classes, off, units, strict=True)}
    return Errors(float(loss), {}, mae)


def _unit(dataset: Dataset, label: str) -> float:
    """Return how much 1 in a target is in the label's own unit."""
    if dataset.schema is None:
        return 1.0
    column = dataset.schema[label]
    return (column.high - column.low) / 2


def _shared(scored: dict[ClientId, Scored], federation: Federation) -> Evaluation:
    """Evaluate what everybody answers with, given its predictions on parts of the test set."""
    test = federation.dataset.test.y
    classes = len(federation.dataset.classes)
    right = torch.cat([part.predicted for part in scored.values()]) == test
    loss = sum(part.loss for part in scored.values())
    whole = counted(right, test, classes, loss)
    evaluation = Evaluation.of(_owners(right, federation), personal=False, whole=whole)
    return _with_details(evaluation, test, [part.probabilities for part in scored.values()])


def _with_details(
    evaluation: Evaluation, labels: torch.Tensor, found: Sequence[torch.Tensor | None]
) -> Evaluation:
    """Return an evaluation with what probabilities say, where there are any."""
    known = [part for part in found if part is not None]
    if not known:
        return evaluation
    shares = torch.cat(known)
    table = confusion(labels, shares.argmax(1), shares.shape[1])
    return replace(evaluation, measures=measures(labels, shares), confusion=table)


def _owners(right: torch.Tensor, federation: Federation) -> dict[ClientId, Tally]:
    """Return what each client that has rows of the test set would count on them."""
    if federation.split.relabel is not None:
        # a shared model cannot know a client's private label order, so its own accuracy means
        # nothing
        return {}
    test = federation.dataset.test.y
    classes = len(federation.dataset.classes)
    owners = zip(federation.everyone, federation.split.test, strict=True)
    having = {i: rows for i, rows in owners if len(rows)}
    if not having:
        return {}
    whose = torch.arange(len(having)).repeat_interleave(torch.tensor([*map(len, having.values())]))
    rows = np.concatenate([*having.values()])
    return dict(zip(having, counted_apart(right[rows], test[rows], classes, whose), strict=True))


def _personal(
    method: Method, s: State, engine: Engine, federation: Federation, detailed: bool
) -> Evaluation:
    """Evaluate models of the clients' own, each on its client's test data.

    Everything is counted under the classes' public names.
    """
    owners = zip(federation.everyone, federation.split.test, strict=True)
    rows = {i: mine for i, mine in owners if len(mine)}
    call = score_with_method(method=method, s=s, detailed=detailed)
    scored = engine.look(call, list(rows), s.round)
    test = federation.dataset.test.y
    classes = len(federation.dataset.classes)
    right = {i: scored[i].predicted == federation.test(i).examples.y for i in rows}
    tallies = {i: counted(right[i], test[rows[i]], classes, scored[i].loss) for i in rows}
    labels = torch.cat([test[mine] for mine in rows.values()])
    found = [_in_public(scored[i].probabilities, i, federation) for i in rows]
    return _with_details(Evaluation.of(tallies, personal=True), labels, found)


def _in_public(
    shares: torch.Tensor | None, client: ClientId, federation: Federation
) -> torch.Tensor | None:
    """Return a client's probabilities with columns in the public order of the classes."""
    relabel = federation.split.relabel
    if shares is None or relabel is None:
        return shares
    return shares[:, list(relabel[int(client)])]
