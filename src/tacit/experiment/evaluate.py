"""How good a state is, in a simulation, where the server has all test data.

On the whole test set, for each class, and for each client on its own test data.
"""

from __future__ import annotations

from typing import Any

import torch

from tacit.core import Client, ClientId, Method, Params, PartOfTests, Reply, task
from tacit.data.federated import Federation
from tacit.engines.server import Engine
from tacit.experiment.scoring import Evaluation, Scored, Tally, counted, score_with
from tacit.local.sgd import network


@task(at="server")
def score(me: Client, x: Params) -> Reply[Scored]:
    """Score the shared model."""
    return Reply(score_with(me, network(me, x)))


@task(at="server")
def score_with_method(me: Client, method: Method, s: Any) -> Reply[Scored]:
    """Score what a method makes of its state: a model of this client's own, or everybody's."""
    return Reply(score_with(me, method.predictor(me, s)))


def evaluate(
    method: Method, s: Any, engine: Engine, federation: Federation, parts: int
) -> Evaluation:
    """Evaluate a state; the test set is divided into ``parts`` that are scored in parallel."""
    method, s = method.innermost(s)
    if method.answers == "personal":
        return Evaluation.of(_personal(method, s, engine, federation), personal=True)
    ids = [PartOfTests(k, parts).id for k in range(parts)]
    plain = method.answers == "network"
    call = score(x=s.x) if plain else score_with_method(method=method, s=s)
    return _shared(engine.look(call, ids, s.round), federation)


def _shared(scored: dict[ClientId, Scored], federation: Federation) -> Evaluation:
    """Evaluate what everybody answers with, given its predictions on parts of the test set."""
    test = federation.dataset.test.y
    classes = len(federation.dataset.classes)
    right = torch.cat([part.predicted for part in scored.values()]) == test
    loss = sum(part.loss for part in scored.values())
    whole = counted(right, test, classes, loss)
    return Evaluation.of(_owners(right, federation), personal=False, whole=whole)


def _owners(right: torch.Tensor, federation: Federation) -> dict[ClientId, Tally]:
    """Return what each client would count on its own rows of the test set."""
    if federation.split.relabel is not None:
        # a shared model cannot know a client's private label order, so its own accuracy means
        # nothing
        return {}
    test = federation.dataset.test.y
    classes = len(federation.dataset.classes)
    owners = zip(federation.everyone, federation.split.test, strict=True)
    return {i: counted(right[rows], test[rows], classes, 0.0) for i, rows in owners}


def _personal(
    method: Method, s: Any, engine: Engine, federation: Federation
) -> dict[ClientId, Tally]:
    """Return what each client counts with a model of its own, under the classes' public names."""
    owners = zip(federation.everyone, federation.split.test, strict=True)
    rows = {i: mine for i, mine in owners if len(mine)}
    scored = engine.look(score_with_method(method=method, s=s), list(rows), s.round)
    test = federation.dataset.test.y
    classes = len(federation.dataset.classes)
    right = {i: scored[i].predicted == federation.test(i).examples.y for i in rows}
    return {i: counted(right[i], test[rows[i]], classes, scored[i].loss) for i in rows}
