"""What sites' ledgers must say, from the method's rule and what sites said when they joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tacit.core import ClientId, Method, Release, some
from tacit.engines.facts import Facts
from tacit.engines.server import sample_rng
from tacit.experiment.forecast import before


@dataclass
class Prediction:
    """The lines of all sites, made anew when another site has joined."""

    method: Method
    everyone: tuple[ClientId, ...]
    facts: Mapping[ClientId, Facts]  # of those that have joined
    delta: float
    sample_seed: int
    _lines: dict[int, list[Release]] = field(default_factory=dict)  # by how many had joined
    _drawn: dict[ClientId, set[int]] = field(default_factory=dict)  # who is sampled in which rounds

    def expected(self, client: ClientId, answered: Collection[int]) -> list[Release]:
        """Return what a site's ledger must say if it has answered in these rounds.

        Nothing for a method of the user's own that states no rule.
        """
        if client not in self.facts or not answered or not states_rule(self.method):
            return []
        drawn = self._draws()[client]
        # lines number the rounds of their owner; one never sampled may be asked at the start
        times = len(drawn & set(answered)) if drawn else 1
        lines = (before(line, times) for line in self._predicted() if line.owner == client)
        return [line for line in lines if line.rounds]

    def _predicted(self) -> list[Release]:
        known = len(self.facts)
        if known not in self._lines:
            sizes = {i: self.facts[i].examples for i in self.everyone if i in self.facts}
            times = Counter({i: len(self._draws()[i]) for i in sizes})
            self._lines = {known: self.method.releases(sizes, times, self.delta)}
        return self._lines[known]

    def _draws(self) -> dict[ClientId, set[int]]:
        if not self._drawn:
            self._drawn = {i: set() for i in self.everyone}
            for t in range(self.method.rounds):
                for i in some(self.method.per_round).pick(
                    self.everyone, sample_rng(self.sample_seed, t)
                ):
                    self._drawn[i].add(t)
        return self._drawn


def states_rule(method: Method) -> bool:
    """Tell whether a method says beforehand what its clients release."""
    own = type(method)
    stated = (own.rule, own.first_rule, own.server_rule, own.releases)
    return stated != (Method.rule, Method.first_rule, Method.server_rule, Method.releases)
