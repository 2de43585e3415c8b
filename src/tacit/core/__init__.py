"""The words every room shares. May import torch and numpy, nothing of ours."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.core.client import Call, Client, ClientId, Reply, Task, no_limit, task
    from tacit.core.cohort import (
        Cohort,
        Everyone,
        Fixed,
        Law,
        Poisson,
        Replies,
        Sample,
        check_rounds,
        most_rounds,
        some,
    )
    from tacit.core.errors import (
        BadInput,
        BudgetReached,
        Diverged,
        TacitError,
        TooFewReplies,
        check_choice,
        check_clip,
        check_number,
        in_clip_range,
    )
    from tacit.core.ledger import (
        FEDERATION,
        Event,
        Gaussian,
        Laplace,
        Ledger,
        Noise,
        NonPrivate,
        Nothing,
        Observer,
        PublicFloat,
        PublicInt,
        Pure,
        Relation,
        Release,
        Released,
        Rounds,
        Sampling,
        Stated,
        Unit,
        is_public,
        public,
        union,
        unnoised,
    )
    from tacit.core.method import (
        Accounted,
        Claim,
        Method,
        Nested,
        Outer,
        Predictor,
        Sizes,
        State,
        Times,
    )
    from tacit.core.params import Params, load_params, mean, params_of, weighted_sum
    from tacit.core.seeds import rng_for, seed_for

_WHERE = {
    "client": "Call Client ClientId Reply Task no_limit task",
    "cohort": ("Cohort Everyone Fixed Law Poisson Replies Sample check_rounds most_rounds some"),
    "errors": (
        "BadInput BudgetReached Diverged TacitError TooFewReplies "
        "check_choice check_clip check_number in_clip_range"
    ),
    "ledger": (
        "Event FEDERATION Gaussian Laplace Ledger Noise NonPrivate Nothing Observer PublicFloat PublicInt "
        "Pure Relation Release Released Rounds Sampling Stated Unit is_public public union "
        "unnoised"
    ),
    "method": "Accounted Claim Method Nested Outer Predictor Sizes State Times",
    "params": "Params load_params mean params_of weighted_sum",
    "seeds": "rng_for seed_for",
}
_MODULES = {name: module for module, names in _WHERE.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import a word's module when the word is first used: accounting need not wait for torch."""
    if name not in _MODULES:
        raise AttributeError(f"module 'tacit.core' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tacit.core.{_MODULES[name]}"), name)


__all__ = [
    "FEDERATION",
    "Accounted",
    "BadInput",
    "BudgetReached",
    "Call",
    "Claim",
    "Client",
    "ClientId",
    "Cohort",
    "Diverged",
    "Event",
    "Everyone",
    "Fixed",
    "Gaussian",
    "Laplace",
    "Law",
    "Ledger",
    "Method",
    "Nested",
    "Noise",
    "NonPrivate",
    "Nothing",
    "Observer",
    "Outer",
    "Params",
    "Poisson",
    "Predictor",
    "PublicFloat",
    "PublicInt",
    "Pure",
    "Relation",
    "Release",
    "Released",
    "Replies",
    "Reply",
    "Rounds",
    "Sample",
    "Sampling",
    "Sizes",
    "State",
    "Stated",
    "TacitError",
    "Task",
    "Times",
    "TooFewReplies",
    "Unit",
    "check_choice",
    "check_clip",
    "check_number",
    "check_rounds",
    "in_clip_range",
    "is_public",
    "load_params",
    "mean",
    "most_rounds",
    "no_limit",
    "params_of",
    "public",
    "rng_for",
    "seed_for",
    "some",
    "task",
    "union",
    "unnoised",
    "weighted_sum",
]
