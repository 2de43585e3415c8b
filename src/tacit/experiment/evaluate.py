"""How good a state is.

On the whole test set, for each class, and for each client on its own test data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.core import Client, ClientId, Method, Params, Predictor, Reply, task
from tacit.data.federated import Federation
from tacit.engines.server import Engine
from tacit.local.sgd import network

Array = np.ndarray[Any, Any]
CHUNK = 500  # examples scored at a time


@dataclass(frozen=True)
class Scored:
    """Predictions for some test examples, in order, and the sum of their losses."""

    predicted: Tensor
    loss: float


@dataclass(frozen=True)
class Evaluation:
    """``accuracy`` is of the shared model on the whole test set, or, for personal models, the mean over clients."""

    accuracy: float
    loss: float
    personal: bool
    per_class: list[float | None]
    per_client: dict[ClientId, float]  # clients that have test data of their own

    def line(self) -> dict[str, Any]:
        """Return what goes into metrics.jsonl; single clients only where there are not too many."""
        own = np.array(list(self.per_client.values()) or [np.nan])
        summary = (
            {"mean": own.mean(), "std": own.std(), "worst": own.min()} if self.per_client else {}
        )
        return {
            "accuracy": self.accuracy,
            "loss": self.loss,
            "personal": self.personal,
            "per_class": self.per_class,
            "own_data": {k: round(float(v), 6) for k, v in summary.items()},
            **({"per_client": self.per_client} if len(self.per_client) <= 100 else {}),
        }


def score_with(me: Client, predict: Predictor) -> Scored:
    """Score a client's test data."""
    predicted, loss = [torch.zeros(0, dtype=torch.int64)], 0.0
    with torch.no_grad():
        for start in range(0, len(me.test), CHUNK):
            inputs, labels = me.test.batch(slice(start, start + CHUNK))
            scores = predict(inputs)
            predicted.append(scores.argmax(1).cpu())
            loss += float(F.cross_entropy(scores, labels, reduction="sum"))
    return Scored(torch.cat(predicted), loss)


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
        return _personal(method, s, engine, federation)
    ids = [f"test:{k}/{parts}" for k in range(parts)]
    plain = method.answers == "network"
    call = score(x=s.x) if plain else score_with_method(method=method, s=s)
    scored = engine.look(call, ids, s.round)
    predicted = torch.cat([scored[i].predicted for i in ids]).numpy()
    right = predicted == federation.dataset.test.y.numpy()
    owners = dict(zip(federation.everyone, federation.split.test, strict=True))
    if federation.split.relabel is not None:
        # a shared model cannot know a client's private label order, so its own accuracy means
        # nothing
        owners = {}
    per_client = {i: float(right[rows].mean()) for i, rows in owners.items() if len(rows)}
    loss = sum(part.loss for part in scored.values()) / len(right)
    return Evaluation(float(right.mean()), loss, False, _per_class(right, federation), per_client)


def _personal(method: Method, s: Any, engine: Engine, federation: Federation) -> Evaluation:
    clients = [
        i for i, rows in zip(federation.everyone, federation.split.test, strict=True) if len(rows)
    ]
    scored = engine.look(score_with_method(method=method, s=s), clients, s.round)
    right = {
        i: scored[i].predicted.numpy() == federation.test(i).examples.y.numpy() for i in clients
    }
    per_client = {i: float(r.mean()) for i, r in right.items()}
    examples = sum(map(len, right.values()))
    loss = sum(part.loss for part in scored.values()) / max(examples, 1)
    return Evaluation(
        float(np.mean(list(per_client.values()))),
        loss,
        True,
        _per_class_own(right, federation),
        per_client,
    )


def _per_class(
    right: Array, federation: Federation, labels: Array | None = None
) -> list[float | None]:
    y = federation.dataset.test.y.numpy() if labels is None else labels
    shares = [right[y == k] for k in range(len(federation.dataset.classes))]
    return [round(float(r.mean()), 6) if len(r) else None for r in shares]


def _per_class_own(right: Mapping[ClientId, Array], federation: Federation) -> list[float | None]:
    rows = np.concatenate([federation.split.test[int(i)] for i in right])
    return _per_class(
        np.concatenate(list(right.values())), federation, federation.dataset.test.y.numpy()[rows]
    )
