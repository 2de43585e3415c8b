"""What a method is: a frozen dataclass of settings with these hooks, each with a default."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, final

from torch import Tensor
from typing_extensions import TypeVar

from tacit.core.client import Client
from tacit.core.cohort import Cohort, Sample, some
from tacit.core.data import Examples, Goal
from tacit.core.errors import BadInput
from tacit.core.ledger import FEDERATION, NonPrivate, Observer, Release, Unit
from tacit.core.names import ClientId
from tacit.core.own_code import wire_name
from tacit.core.params import Params, load_params

Sizes = Mapping[ClientId, int]  # how many examples each client has: public
Times = Mapping[ClientId, int]  # how often each client takes part: public
Protects = tuple[Unit, Observer]  # what is protected, and from whom
Claim = tuple[str, float, str]  # of a paper: the accountant, its epsilon, a remark


@dataclass(frozen=True)
class Known:
    """What is public of an experiment before it starts, for methods that choose settings by it."""

    sizes: Sizes
    delta: float  # of every (epsilon, delta)
    linear: int = 0  # numbers in a linear model of public features; 0: it is another network
    features: bool = False  # whether inputs are public features, whatever network takes them


class State(Protocol):
    """All that survives a yield: the shared model, the rounds done, and what a method adds."""

    @property
    def x(self) -> Params: ...
    @property
    def round(self) -> int: ...


# of a method: see Method; who does not say which state it has may do with it what it likes
S = TypeVar("S", bound=State, default=Any)


class Predictor(Protocol):
    """From inputs to class scores."""

    def __call__(self, inputs: Tensor) -> Tensor: ...


class Accounted(Protocol):
    """Whatever can say beforehand what the ledger will hold, such as a rule or DP-SGD."""

    def lines(self, owner: ClientId, n: int, times: int, /) -> list[Release]:
        """Return the ledger lines after ``times`` rounds.

        Args:
            owner: the client, or FEDERATION for what the server releases about all of them
            n: how many examples the client has; how many clients the federation has
            times: the rounds that the owner takes part in; lines number them from 0
        """
        ...


@dataclass(frozen=True)
class Unnoised:
    """Updates that a method sends as they are, without noise: epsilon is infinite."""

    name: str  # of the method

    @classmethod
    def of(cls, method: Method) -> Unnoised:
        """Return the rule of a method, by the name of its class."""
        return cls(type(method).__name__.lower())

    def lines(self, owner: ClientId, n: int, times: int, /) -> list[Release]:
        """Return the one line that is enough, however many rounds there are."""
        event = NonPrivate(f"{self.name} sends its updates without noise")
        return [Release(self.name, "example", owner, "server", event, ((0, 0),))][:times]


@dataclass(frozen=True)
class Method(ABC, Generic[S]):
    """A federated method. Subclass it as a frozen dataclass; its fields are its settings and flags.

    ``Method[MyState]`` says which state it has, so that a type checker sees what becomes of it.

    ``init`` and ``run`` have to be written, and a field ``rounds``. Everything else has a default.
    """

    answers: ClassVar[Literal["network", "shared", "personal"]] = "network"
    """Which model is scored: the network with the parameters ``s.x``; what :meth:`predictor` makes
    of the state, the same for everybody; or what it makes for each client."""

    shares: ClassVar[bool] = True
    """The network ``s.x`` is trained by all; False: nothing is, and only clients have models."""

    pooled: ClassVar[bool] = False
    """One client holds everybody's data: a ceiling to compare with."""

    goals: ClassVar[tuple[Goal, ...]] = ("classes",)
    """What it can predict: with others than classes, its clients train by ``SGD`` alone."""

    needs_public: ClassVar[bool] = False
    """Needs examples that belong to nobody, which some splits set aside."""

    can_follow: ClassVar[bool] = True
    """Its clients train in every round on whatever data they hold, so that another method may
    prepare these: it can be the main phase of DA-FL."""

    @property
    def wants_features(self) -> bool:
        """Whether it works with public features of images, not with their pixels.

        Then an experiment which does not say otherwise puts some in front of it: see
        ``--features``.
        """
        return False

    @property
    def prefers_features(self) -> bool:
        """Whether it works best with public features and a linear model of them.

        Then an experiment that names neither features nor a network has both.
        """
        return self.wants_features

    @property
    def features_network(self) -> str:
        """The network that public features have where an experiment names none."""
        return "logistic"

    averages: ClassVar[bool] = False
    """Its server takes ``cohort.mean`` of the replies and nothing rests on its being the mean, so
    that another rule may stand in for it, against clients that lie: see ``--aggregate``."""

    @property
    def takes_aggregate(self) -> bool:
        """Whether this method, with these settings, takes another rule than the mean."""
        return self.averages

    @property
    @abstractmethod
    def rounds(self) -> int:
        """How many rounds there are; as a rule a field."""

    @property
    def per_round(self) -> int:
        """How many clients take part in a round, 0 for all; as a rule a field."""
        return 0

    @property
    def protects(self) -> Protects:
        """What the method's guarantee is about, and against whom."""
        return ("example", "server")

    @property
    def per_example(self) -> bool:
        """Whether it clips gradients example by example: then the network has to allow it."""
        return False

    def check_inputs(self, shape: tuple[int, ...]) -> None:
        """Refuse inputs of a shape, or what is to be made of them, before anything starts."""
        return

    @abstractmethod
    def init(self, x0: Params) -> S:
        """Return the first state, given the network's first parameters."""

    @abstractmethod
    def run(self, cohort: Cohort, s: S) -> Iterator[S]:
        """Yield the states that follow ``s``, one for each step that may be saved.

        It is started anew from each state that it has yielded, so nothing else survives.
        """

    @final
    def participants(self, cohort: Cohort, t: int) -> Sample:
        """Return who takes part in round t: ``per_round`` clients by lot, or everyone."""
        return cohort.sample(some(self.per_round), t)

    @final
    def most_rounds(self, cohort: Cohort) -> int:
        """Return in how many rounds the client takes part that is sampled most often.

        No data decide that.
        """
        if not self.per_round:
            return self.rounds
        drawn = Counter(i for t in range(self.rounds) for i in self.participants(cohort, t).ids)
        return max(drawn.values(), default=0)

    def predictor(self, me: Client, s: S) -> Predictor:
        """Return the function from inputs to scores that a client answers with."""
        load_params(me.model.eval(), s.x)
        return me.model

    def tuned(self, known: Known) -> Self:
        """Return this method with settings that it chooses itself, where nobody has said any."""
        return self

    def solved(self, sizes: Sizes, times: Times, delta: float) -> Self:
        """Return this method with whatever it solves from an epsilon before it starts."""
        return self

    def rule(self, client: ClientId, n: int, K: int, delta: float) -> Accounted:
        """Return the rule by which a client's updates are released: see ``tacit.privacy.rules``.

        Let the task send by the same rule that this returns; then what :meth:`releases` predicts is
        what happens. The default is that updates are sent as they are: infinite.

        Args:
            client: whose rule; as a rule all have the same
            n: how many examples it has
            K: the rounds that the most frequent participant takes part in
            delta: of the (epsilon, delta) that noise is solved from
        """
        return Unnoised.of(self)

    def first_rule(self, client: ClientId, n: int, delta: float) -> Accounted | None:
        """Return the rule of what every client releases once, before the first round, if anything.

        Whether it is sampled in a round or not. Arguments are those of :meth:`rule`.
        """
        return None

    def server_rule(self, delta: float) -> Accounted | None:
        """Return the rule of what the server releases in each round about all clients, if it does.

        Then nobody but the server sees what clients send, and their own rules are not asked.
        """
        return None

    def releases(self, sizes: Sizes, times: Times, delta: float) -> list[Release]:
        """Return what the ledger will say at the end, from public facts only.

        The default asks the rules: of every client at first, then the server's in every round, or
        else those of the clients that take part.
        """
        firsts = {c: self.first_rule(c, n, delta) for c, n in sizes.items()}
        lines = [line for c, rule in firsts.items() if rule for line in rule.lines(c, sizes[c], 1)]
        if server := self.server_rule(delta):
            return lines + server.lines(FEDERATION, len(sizes), self.rounds)
        K = max(times.values(), default=0)
        rules = {c: self.rule(c, n, K, delta) for c, n in sizes.items() if times[c]}
        each = [line for c, rule in rules.items() for line in rule.lines(c, sizes[c], times[c])]
        return lines + each

    def claims(self, sizes: Sizes, delta: float) -> list[Claim]:
        """Return what the method's paper claims; nothing of it certifies."""
        return []

    def claimed(self, t: int, sizes: Sizes, delta: float) -> tuple[float, float] | None:
        """Return the noise multiplier and the epsilon that the paper claims after round t.

        None where it claims nothing by rounds. Nothing of it certifies.
        """
        return None

    def performance_loss(self, t: int, sizes: Sizes, delta: float) -> float | None:
        """Return LDP-FL's own diagnostic after t rounds, if it is known for the method.

        Not a privacy quantity.
        """
        return None

    def measured(self, s: S) -> dict[str, float]:
        """Return what the method measures of itself, between 0 and 1, by name."""
        return {}

    def synthetic(self, s: S) -> Sequence[Examples]:
        """Return synthetic examples that the server has: they are kept with the run, and shown."""
        return ()

    def groups(self, sizes: Sizes) -> dict[str, list[ClientId]]:
        """Return the kinds of clients that it tells apart by their public sizes, if it does.

        Sizes that it cannot work with are refused here, before anything starts.
        """
        return {}

    def grouped(self, s: S) -> dict[str, list[ClientId]]:
        """Return the same for a state that knows the sizes."""
        return {}

    def innermost(self, s: S) -> Innermost:
        """Return the method and state to score, where one prepares the ground for another."""
        return self, s


Innermost = tuple[Method, State]  # the method and the state to score


@dataclass(frozen=True)
class Nested:
    """The state of a method that runs inside another one, and whose state it is."""

    method: str  # the class of the method, as messages and files name it
    state: State  # what that method's ``init`` or ``run`` has returned

    @classmethod
    def of(cls, method: Method, state: State) -> Nested:
        """Return a state of ``method``, marked as such."""
        return cls(_class_name(method), state)

    def opened_by(self, method: Method) -> Any:
        """Return the state to the method that made it; another one is refused."""
        if self.method != _class_name(method):
            raise BadInput(f"state: is one of {self.method}, not of {_class_name(method)}")
        return self.state

    def then(self, state: State) -> Nested:
        """Return the state that follows, of the same method."""
        return replace(self, state=state)


@dataclass(frozen=True)
class Outer:
    """The state of a method around another one: its model and its rounds are the inner one's."""

    inner: Nested

    @classmethod
    def around(cls, method: Method, x0: Params) -> Self:
        """Return the state around the first one of the inner method."""
        return cls(Nested.of(method, method.init(x0)))

    @property
    def x(self) -> Params:
        """The model of the inner method."""
        return self.inner.state.x

    @property
    def round(self) -> int:
        """How many rounds the inner method has done."""
        return self.inner.state.round


def _class_name(method: Method) -> str:
    cls = type(method)
    return f"{wire_name(cls.__module__)}:{cls.__qualname__}"
