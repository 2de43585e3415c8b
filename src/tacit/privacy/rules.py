"""Rules: each knows a release from both sides, how it is made and what the ledger will say of it.

A *rule* is a frozen dataclass of public numbers (clipping norm, noise multiplier, rounds). It does
two things with them:

- ``send(me, x)`` is the deed: it clips, writes the ledger line, draws the noise, and returns what
  may leave the client;
- ``lines(owner, n, times)`` is the prediction: the lines that the ledger will hold after ``times``
  rounds, from public facts only.

A method makes its rule in one place, the hook ``rule``. Its task sends by it, and
``Method.releases`` asks it for the lines::

    def rule(self, client, n, K, delta):
        mu = gdp_mu(self.epsilon, delta) / K**0.5
        return Update.costing(mu, "mine: update", clip=self.clip)

    dx = method.rule(me.id, me.size, K, delta).send(me, y - x)  # in the task

So prediction and deed cannot differ: a setting that one of them forgot would be missing in the
other, too. Noise solved from an epsilon depends on delta, so delta goes in where the rule is made;
were it told to ``lines`` alone, it could be another one there. Rules draw nothing themselves: that
is done in :mod:`tacit.privacy.mechanisms`, where each mechanism has its line beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar, runtime_checkable

from tacit.core import (
    Accounted,
    Array,
    Client,
    ClientId,
    Cohort,
    Law,
    Ledger,
    Nothing,
    Params,
    Pure,
    Relation,
    Release,
    Released,
    Replies,
    Sample,
    Sampling,
    Sizes,
    Stated,
    Times,
    Unit,
)
from tacit.privacy import mechanisms

T = TypeVar("T")
In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)


@runtime_checkable
class Rule(Accounted, Protocol[In, Out]):
    """One released quantity of a client: :meth:`send` is the deed, ``lines`` the prediction."""

    def send(self, me: Client, x: In) -> Out:
        """Write the ledger line and return what may leave the client."""
        ...


def lines_of(rule: Accounted, sizes: Sizes, times: Times) -> list[Release]:
    """Return the lines of one rule that all clients follow, each as often as it takes part."""
    return [line for c, n in sizes.items() if times[c] for line in rule.lines(c, n, times[c])]


def once(rule: Accounted, sizes: Sizes, who: Iterable[ClientId]) -> list[Release]:
    """Return the lines of a rule that some clients follow once, before the first round."""
    return [line for c in who for line in rule.lines(c, sizes[c], 1)]


def over(line: Release, owner: ClientId, times: int) -> list[Release]:
    """Return a line about an owner in ``times`` rounds; in none there is nothing to say."""
    return [replace(line, owner=owner, rounds=((0, times - 1),))] if times else []


def in_turn(rules: Iterable[Accounted], owner: ClientId, n: int) -> list[Release]:
    """Return the lines of an owner that follows another rule in each of its rounds.

    Rounds with the same line are one line.
    """
    each = ((k, line) for k, rule in enumerate(rules) for line in rule.lines(owner, n, 1))
    return list(Ledger(replace(line, rounds=((k, k),)) for k, line in each))


@dataclass(frozen=True)
class Together:
    """Several rules that a client follows in the same round; of none there is nothing to say."""

    rules: tuple[Accounted, ...]

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        return [line for rule in self.rules for line in rule.lines(owner, n, times)]


@dataclass(frozen=True)
class Silent:
    """A task after which nothing leaves the client. The ledger says so."""

    task: str

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        return over(mechanisms.line_of(self.task, Nothing()), owner, times)


@dataclass(frozen=True)
class Open:
    """Sent as it is. The ledger says infinity, and why."""

    what: str  # as the ledger names it
    why: str

    def send(self, me: Client, x: Params) -> Params:
        self.note(me)
        return Params(x).as_released()

    def note(self, me: Client) -> None:
        """Write that what follows uses the data without a mechanism, whatever it is."""
        mechanisms.without_guarantee(me, self.what, self.why)

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        return over(mechanisms.claimed_line(self.what, self.why), owner, times)


@dataclass(frozen=True)
class AsPublished:
    """A published formula's noise that proves nothing. The ledger says infinity, and why."""

    what: str
    sd: float  # standard deviation of the noise
    why: str  # what the paper's proof lacks
    clip: float = math.inf  # the paper's clipping norm, if it has one

    def send(self, me: Client, x: Params) -> Params:
        x = x.clipped(self.clip) if self.clip < math.inf else x
        return mechanisms.claimed_gaussian(me, self.what, x, sd=self.sd, why=self.why)

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        return over(mechanisms.claimed_line(self.what, self.why), owner, times)


@dataclass(frozen=True)
class Noised:
    """Gaussian noise on a quantity that one unit moves by at most ``sensitivity``.

    Guarantee: the caller has seen to that bound, between neighbours by ``relation``.
    """

    what: str
    sensitivity: float
    z: float  # noise multiplier
    unit: Unit = "example"
    relation: Stated = "zero-out"

    def send(self, me: Client, x: Params) -> Params:
        return mechanisms.gaussian(
            me,
            self.what,
            x,
            sensitivity=self.sensitivity,
            z=self.z,
            unit=self.unit,
            relation=self.relation,
        )

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        line = mechanisms.gaussian_line(self.what, self.z, self.unit, self.relation)
        return over(line, owner, times)


@dataclass(frozen=True)
class Update:
    """A client's whole update, clipped to ``clip``, with noise ``z * clip``: protects the client.

    Two updates are up to ``2 * clip`` apart; :meth:`costing` takes that into account.
    """

    what: str
    clip: float  # clipping norm
    z: float  # noise multiplier

    @classmethod
    def costing(cls, mu: float, what: str, clip: float) -> Update:
        """Return the rule by which a round is mu-GDP."""
        return cls(what, clip, mechanisms.update_z(mu))

    def send(self, me: Client, x: Params) -> Params:
        return mechanisms.gaussian_update(me, self.what, x, clip=self.clip, z=self.z)

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        return over(mechanisms.update_line(self.what, self.z), owner, times)


@dataclass(frozen=True)
class NoisySteps:
    """The steps of DP-SGD: sums of clipped gradients over samples of examples, with noise.

    Protects examples. All steps of a round are one line.
    """

    q: float  # share of the examples that a step looks at
    clip: float  # clipping norm of an example's gradient
    z: float  # noise multiplier
    steps: int  # in a round
    law: Literal["poisson", "fixed"] = "poisson"  # by which examples are sampled
    what: str = "dp-sgd"

    def begin(self, me: Client) -> mechanisms.PrivateSteps:
        """Write the line; return what draws the samples and the noise, once for each step."""
        return mechanisms.PrivateSteps(
            me, self.q, self.clip, self.z, self.steps, self.law, self.what
        )

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        line = mechanisms.steps_line(self.what, self.q, self.z, self.steps, self.law)
        return over(line, owner, times)


@dataclass(frozen=True)
class Histogram:
    """Counts of examples with discrete Laplace noise: an example is in one of them, once."""

    what: str
    epsilon: float  # of all counts together

    def send(self, me: Client, counts: Array) -> Released[Array]:
        return mechanisms.discrete_laplace(me, self.what, counts, epsilon=self.epsilon)

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        return over(mechanisms.line_of(self.what, Pure(self.epsilon)), owner, times)


@dataclass(frozen=True)
class Choices:
    """Indices chosen by the exponential mechanism, each with an equal share of epsilon.

    Where their number is not known beforehand, one choice with all of epsilon costs no less.
    """

    what: str
    epsilon: float  # of all choices together
    choices: int = 1
    relation: Relation = "zero-out"

    @property
    def each(self) -> float:
        """The epsilon of one choice."""
        return self.epsilon / self.choices

    def send(
        self, me: Client, utilities: Sequence[Array], *, sensitivity: float
    ) -> Released[Array]:
        """Write the lines and return an index for each of the utilities.

        Args:
            me: the client
            utilities: for each choice how good every index is
            sensitivity: how far one unit moves the utility of an index, at most
        """
        if len(utilities) != self.choices:
            raise ValueError(f"utilities: {len(utilities)}, and the rule is for {self.choices}")
        return mechanisms.exponentials(
            me,
            self.what,
            utilities,
            sensitivity=sensitivity,
            epsilon=self.each,
            relation=self.relation,
        )

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        line = mechanisms.line_of(self.what, Pure(self.each), relation=self.relation)
        each = (replace(line, attempt=turn) for turn in range(self.choices))
        return [said for line in each for said in over(line, owner, times)]


@dataclass(frozen=True)
class NoisyMean:
    """The server's: the mean of clipped points over a sample of clients, noise on the sum.

    Protects clients from everybody but the server. If the sample is ``secret``, the federation owns
    the line, and the law of the sample is part of it; else everybody in the sample pays.
    """

    task: str  # whose replies are summed up
    law: Law  # by which clients are sampled
    z: float  # noise multiplier
    secret: bool = True

    def afford(self, cohort: Cohort, sample: Sample) -> None:
        """Refuse a mean that would pass the budget, before any client works for it."""
        mechanisms.afford_mean(cohort, self.task, sample, self.z, secret=self.secret)

    def send(
        self,
        cohort: Cohort,
        replies: Replies[T],
        take: Callable[[T], Params],
        *,
        like: Params,
        clip: float,
        out_of: float,
        noise_z: float | None = None,
    ) -> Params:
        """Write the line and return the mean: see :func:`.mechanisms.gaussian_mean`."""
        return mechanisms.gaussian_mean(
            cohort,
            replies,
            take,
            like=like,
            clip=clip,
            z=self.z,
            out_of=out_of,
            noise_z=noise_z,
            secret=self.secret,
        )

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        """Return the federation's line for ``n`` clients, or that of one known to be in it."""
        line = mechanisms.mean_line(self.task, self.law, n, self.z)
        if not self.secret:
            line = replace(line, sampling=Sampling())
        return over(line, owner, times)


@dataclass(frozen=True)
class ClaimedMean:
    """The server's: a published mean whose noise proves nothing; the ledger says why."""

    task: str
    why: str

    def afford(self, cohort: Cohort, sample: Sample) -> None:
        """Refuse it under any budget, before any client works for it."""
        line = mechanisms.claimed_mean_line(self.task, self.why)
        cohort.afford(replace(line, rounds=((sample.round, sample.round),)))

    def send(
        self,
        cohort: Cohort,
        replies: Replies[T],
        take: Callable[[T], Params],
        *,
        clip: float,
        sd: float,
    ) -> Params:
        """Write the line and return the mean, each point clipped to ``clip``, with noise ``sd``."""
        return mechanisms.claimed_mean(cohort, replies, take, clip=clip, sd=sd, why=self.why)

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        return over(mechanisms.claimed_mean_line(self.task, self.why), owner, times)


@dataclass(frozen=True)
class NoisyCounts:
    """How many of a client's sub-teachers are for each class, query by query, noise at the client.

    Protects examples from the server. All queries are one line.
    """

    what: str
    queries: int
    scale: float  # of the noise
    kind: str = "gaussian"  # or laplace

    def send(self, me: Client, counts: Array) -> Released[Array]:
        """Write the line and return the noisy counts, a row for each query."""
        return mechanisms.noisy_counts(me, self.what, counts, scale=self.scale, kind=self.kind)

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        line = mechanisms.vote_line(
            owner, "sub-teachers", self.queries, scale=self.scale, kind=self.kind
        )
        return over(replace(line, what=self.what), owner, times)


@dataclass(frozen=True)
class NoisyWinners:
    """The server's: the class with the most votes after noise, one vote for each client.

    Protects clients from everybody but the server, who counts the votes.
    """

    task: str  # whose replies are the votes
    queries: int
    scale: float  # of the noise
    kind: str = "gaussian"  # or laplace

    def send(self, cohort: Cohort, replies: Replies[T], counts: Array) -> Array:
        """Write every voter's line and return the winner of each query, given the counts."""
        return mechanisms.noisy_votes(cohort, replies, counts, scale=self.scale, kind=self.kind)

    def lines(self, owner: ClientId, n: int, times: int) -> list[Release]:
        line = mechanisms.winners_line(self.task, self.queries, scale=self.scale, kind=self.kind)
        return over(line, owner, times)
