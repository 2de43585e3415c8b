"""The words every room shares. May import torch and numpy, nothing of ours."""

from __future__ import annotations

from tacit.core.lazy import lazily

TYPE_CHECKING = False  # as that of typing, whose import takes its time
if TYPE_CHECKING:  # what is exported: see lazily
    from tacit.core import check as check
    from tacit.core.aggregate import Aggregate as Aggregate
    from tacit.core.check import in_clip_range as in_clip_range
    from tacit.core.client import Again as Again
    from tacit.core.client import Call as Call
    from tacit.core.client import Client as Client
    from tacit.core.client import Reply as Reply
    from tacit.core.client import Task as Task
    from tacit.core.client import afresh as afresh
    from tacit.core.client import no_limit as no_limit
    from tacit.core.client import task as task
    from tacit.core.cohort import Cohort as Cohort
    from tacit.core.cohort import Everyone as Everyone
    from tacit.core.cohort import Fixed as Fixed
    from tacit.core.cohort import Later as Later
    from tacit.core.cohort import Law as Law
    from tacit.core.cohort import Poisson as Poisson
    from tacit.core.cohort import Replies as Replies
    from tacit.core.cohort import Sample as Sample
    from tacit.core.cohort import some as some
    from tacit.core.errors import BadInput as BadInput
    from tacit.core.errors import BudgetReached as BudgetReached
    from tacit.core.errors import Damaged as Damaged
    from tacit.core.errors import Diverged as Diverged
    from tacit.core.errors import NotPrivate as NotPrivate
    from tacit.core.errors import TacitError as TacitError
    from tacit.core.errors import TooFewReplies as TooFewReplies
    from tacit.core.ledger import FEDERATION as FEDERATION
    from tacit.core.ledger import Event as Event
    from tacit.core.ledger import Gaussian as Gaussian
    from tacit.core.ledger import Laplace as Laplace
    from tacit.core.ledger import Ledger as Ledger
    from tacit.core.ledger import Noise as Noise
    from tacit.core.ledger import NonPrivate as NonPrivate
    from tacit.core.ledger import Nothing as Nothing
    from tacit.core.ledger import Observer as Observer
    from tacit.core.ledger import PublicFloat as PublicFloat
    from tacit.core.ledger import PublicInt as PublicInt
    from tacit.core.ledger import Pure as Pure
    from tacit.core.ledger import Relation as Relation
    from tacit.core.ledger import Release as Release
    from tacit.core.ledger import Released as Released
    from tacit.core.ledger import Rounds as Rounds
    from tacit.core.ledger import Sampling as Sampling
    from tacit.core.ledger import Stated as Stated
    from tacit.core.ledger import Unit as Unit
    from tacit.core.ledger import is_public as is_public
    from tacit.core.ledger import public as public
    from tacit.core.ledger import union as union
    from tacit.core.loose import Array as Array
    from tacit.core.loose import Json as Json
    from tacit.core.loose import Kept as Kept
    from tacit.core.loose import Keywords as Keywords
    from tacit.core.method import Accounted as Accounted
    from tacit.core.method import Claim as Claim
    from tacit.core.method import Innermost as Innermost
    from tacit.core.method import Known as Known
    from tacit.core.method import Method as Method
    from tacit.core.method import Nested as Nested
    from tacit.core.method import Outer as Outer
    from tacit.core.method import Predictor as Predictor
    from tacit.core.method import Protects as Protects
    from tacit.core.method import Sizes as Sizes
    from tacit.core.method import State as State
    from tacit.core.method import Times as Times
    from tacit.core.method import Unnoised as Unnoised
    from tacit.core.names import AskId as AskId
    from tacit.core.names import ClientId as ClientId
    from tacit.core.names import Owner as Owner
    from tacit.core.names import PartOfTests as PartOfTests
    from tacit.core.names import ask_id as ask_id
    from tacit.core.names import pairs_of as pairs_of
    from tacit.core.names import plain_value as plain_value
    from tacit.core.params import Params as Params
    from tacit.core.params import load_params as load_params
    from tacit.core.params import mean as mean
    from tacit.core.params import params_of as params_of
    from tacit.core.params import weighted_sum as weighted_sum
    from tacit.core.seeds import rng_for as rng_for
    from tacit.core.seeds import seed_for as seed_for

__getattr__ = lazily(__name__, __file__)  # accounting need not wait for torch
