"""audit.json: what an attack on a run, or on a synthetic set, has found; written and read here."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from tacit import codec
from tacit.attacks import Outcome
from tacit.core import check
from tacit.report.metric_lines import number, plain_json

FILE = "audit.json"
MOST_BYTES = 1_000_000


@dataclass(frozen=True)
class Audit:
    """How well one attack has told members from others. It refutes a claim; it proves none."""

    attacked: str  # such as "membership, from synthetic.npz"
    members: int  # records that were trained on
    others: int  # records that were not
    auc: float  # 0.5 is guessing
    advantage: float  # true minus false positives at the best threshold
    true_positives_at_1_percent: float  # where one of a hundred others is suspected
    epsilon_at_least: float | None = None  # a lower bound, where the attack was made for one


def audit_of(outcome: Outcome, attacked: str, *, epsilon_at_least: float | None = None) -> Audit:
    """Return what is written down of an attack.

    Args:
        outcome: what :mod:`tacit.attacks` has found
        attacked: what was attacked, and how
        epsilon_at_least: a lower bound from :mod:`tacit.privacy.audit`. It needs many runs that do
            not depend on each other, so it does not follow from one outcome.
    """
    if epsilon_at_least is not None:
        check.number("epsilon_at_least", epsilon_at_least, at_least=0, below=math.inf)
    many = len(outcome.members), len(outcome.others)
    found = outcome.auc, outcome.advantage, outcome.found(0.01)
    return Audit(attacked, *many, *found, epsilon_at_least)


def write_audits(folder: Path, *audits: Audit) -> Path:
    """Write what attacks have found into a folder, where its report shows it."""
    text = json.dumps({"attacks": [asdict(audit) for audit in audits]}, indent=1, allow_nan=False)
    codec.write_atomically(folder / FILE, (text + "\n").encode())
    return folder / FILE


def read_audits(folder: Path) -> list[Audit]:
    """Return what attacks have found; what is not of this format is left out."""
    file = folder / FILE
    try:
        small = file.stat().st_size <= MOST_BYTES
        found = plain_json(file.read_text(encoding="utf-8"))["attacks"] if small else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
    lines = found if isinstance(found, list) else []
    return [audit for line in lines if (audit := _audit(line)) is not None]


def _audit(line: object) -> Audit | None:
    if not isinstance(line, dict):
        return None
    try:
        audit = Audit(**line)
    except TypeError:
        return None
    shares = (audit.auc, audit.advantage, audit.true_positives_at_1_percent)
    bound = 0 if audit.epsilon_at_least is None else audit.epsilon_at_least
    counted = all(type(n) is int and n > 0 for n in (audit.members, audit.others))
    told = isinstance(audit.attacked, str) and number(bound) and 0 <= bound < math.inf
    return audit if counted and told and all(number(v) and 0 <= v <= 1 for v in shares) else None
