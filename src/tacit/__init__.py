"""Tacit: private federated learning on non-IID data, with a privacy figure you can trust."""

from __future__ import annotations

from tacit.core.lazy import lazily

TYPE_CHECKING = False  # as that of typing, whose import takes its time
if TYPE_CHECKING:  # what is exported: see lazily
    from tacit import data as data
    from tacit import privacy as privacy
    from tacit import testing as testing
    from tacit.core import BadInput as BadInput
    from tacit.core import Client as Client
    from tacit.core import Cohort as Cohort
    from tacit.core import Everyone as Everyone
    from tacit.core import Fixed as Fixed
    from tacit.core import Method as Method
    from tacit.core import Params as Params
    from tacit.core import Poisson as Poisson
    from tacit.core import Release as Release
    from tacit.core import Reply as Reply
    from tacit.core import check as check
    from tacit.core import mean as mean
    from tacit.core import public as public
    from tacit.core import some as some
    from tacit.core import task as task
    from tacit.experiment.compare import compare as compare
    from tacit.experiment.result import Run as Run
    from tacit.experiment.start import resume as resume
    from tacit.experiment.start import run as run
    from tacit.experiment.sweep import sweep as sweep
    from tacit.experiment.trained import load as load
    from tacit.local.sgd import SGD as SGD
    from tacit.local.sgd import Trains as Trains
    from tacit.privacy.rules import Rule as Rule

__version__ = "0.1.0"
__getattr__ = lazily(__name__, __file__)  # `tacit --help` need not wait for torch
