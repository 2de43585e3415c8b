"""How a client's whole update is clipped and noised: mechanisms by name, and anybody's own.

A mechanism is a function of ``(what, clip, mu)``: what the ledger calls the release, the clipping
norm, and what one round may cost in Gaussian differential privacy. It returns a rule for updates
(see rules.py). ``file.py:function``, ``module:function`` and entry points of the group
``tacit.mechanisms`` are understood wherever a setting names one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tacit.core import BadInput, Client, ClientId, Params, Release
from tacit.core.registry import Registry
from tacit.privacy.gdp import gdp_mu
from tacit.privacy.rules import Rule, Update

UpdateRule = Rule[Params, Params]
Mechanism = Callable[[str, float, float], UpdateRule]
MECHANISMS: Registry[Mechanism] = Registry("mechanism", group="tacit.mechanisms")


@MECHANISMS.register("flat")
def flat(what: str, clip: float, mu: float) -> Update:
    """Clip the update as one vector."""
    return Update.costing(mu, what, clip)


@dataclass(frozen=True)
class ByLayer:
    """Each of L layers clipped to clip / sqrt(L), so no layer cuts another (McMahan et al. 2018).

    All together have norm ``clip`` at most, so the noise is that of the whole.
    """

    whole: Update

    def send(self, me: Client, x: Params) -> Params:
        share = self.whole.clip / math.sqrt(len(x))
        cut = Params({k: Params({k: v}).clipped(share)[k] for k, v in x.items()})
        return self.whole.send(me, cut)

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        return self.whole.lines(owner, n, times)


@MECHANISMS.register("layers")
def layers(what: str, clip: float, mu: float) -> ByLayer:
    """Clip every layer to its share of the clipping norm."""
    return ByLayer(Update.costing(mu, what, clip))


def check_mechanism(word: str) -> None:
    """Refuse a word that is no mechanism's; nothing is imported, whoever wrote the word."""
    if not MECHANISMS.is_own(word):
        MECHANISMS.check(word)


def rule_spending(
    word: str, what: str, clip: float, epsilon: float, times: int, delta: float
) -> UpdateRule:
    """Return the rule whose releases in so many rounds cost an epsilon together."""
    return update_rule(word, what, clip, float(gdp_mu(epsilon, delta) / times**0.5))


def update_rule(word: str, what: str, clip: float, mu: float) -> UpdateRule:
    """Return the rule of updates that a mechanism makes; a word that names code runs it.

    Args:
        word: of a mechanism
        what: as the ledger names the release
        clip: clipping norm of an update
        mu: what one round may cost; what it does cost is what the rule writes
    """
    if word in MECHANISMS:
        return MECHANISMS[word](what, clip, mu)
    try:
        made = MECHANISMS.own(word)(what, clip, mu)
    except BadInput:
        raise
    except Exception as e:  # it is the user's code: anything can happen
        why = f"{type(e).__name__}: {' '.join(str(e).split())}"
        raise BadInput(f"mechanism = {word!r}: cannot be made ({why})") from None
    if not isinstance(made, Rule):
        kind = type(made).__name__
        raise BadInput(f"mechanism = {word!r}: must return a rule (send, lines), not a {kind}")
    return made
