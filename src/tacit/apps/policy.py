"""What a coordinator may ask of a site: decided by the site's owner, said in words, kept by name.

A policy follows from an experiment that the owner has seen (its method with exactly its settings),
or from a file of methods and bounds. Whatever else is asked is refused.
"""

from __future__ import annotations

import dis
import importlib.util
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TypeGuard

from tacit import privacy
from tacit.core import (
    FEDERATION,
    BadInput,
    Call,
    Json,
    Known,
    Ledger,
    Method,
    Params,
    Task,
    check,
)
from tacit.core.registry import names_code
from tacit.core.schema import leaves
from tacit.core.toml import read_toml
from tacit.experiment.config import Experiment
from tacit.local.sgd import SGD
from tacit.methods.spec import method_class, name_of, validated

SAID = ("lr", "batch")  # of training: what a rule may choose from what other sites say
# a setting: the dataclass that has it (None: an argument of a task) and its name
Key = tuple[type | None, str]
Bounds = tuple[float, float]
SHOWN = ("clip", "z", "epsilon", "lr", "batch", "epochs", "mode")  # settings that words name first
FREE = ("per_round", "weights")  # settings that cost a site nothing


class Refused(BadInput):
    """The site will not do what it is asked."""


def refuse_code(words: Iterable[str], own: Collection[str | None]) -> None:
    """Refuse words that name code, unless this site gave it itself.

    That is ``module:attribute`` of a module that is here, ``file.py:attribute``, or an installed
    name.
    """
    for word in words:
        module = re.match(r"([A-Za-z_]\w*)[\w.]*:[A-Za-z_]", word)
        known = module is not None and importlib.util.find_spec(module[1]) is not None
        installed = ":" not in word and names_code(word)
        if (known or installed or ".py:" in word) and word not in own:
            raise Refused(
                f"{word!r}: names code, and this site runs only what it has installed itself"
            )


@dataclass(frozen=True)
class Policy:
    """What may be asked of a site. Settings that have neither bounds nor values are refused."""

    methods: tuple[str, ...]
    tasks: frozenset[str] = frozenset()
    classes: frozenset[type] = frozenset()  # of methods that may be in an argument
    values: Mapping[Key, tuple[object, ...]] = field(default_factory=dict)
    bounds: Mapping[str, Bounds] = field(default_factory=dict)  # by name; they go before values
    networks: tuple[str, ...] = ()  # empty: any of this package
    rounds: float = math.inf
    budget: float = math.inf  # epsilon for one example against the server, over all runs
    run_budget: float = math.inf  # the same for one run, without reports about test data
    delta: float = 1e-5  # of the run's budget: the owner's, whatever the coordinator says
    metrics: str | None = None  # exact, none, or the epsilon of a report; None: not said here
    message: int | None = None  # megabytes of one message; None: not said here
    open: bool = False  # whatever this package can do

    def allows(self, call: Call[object], round: int = 0) -> None:
        """Refuse a call that is not within this policy, by the name of what is not."""
        if self.open:
            return
        at = Task.registry[call.task].at
        # a model is measured when its round has ended
        if not 0 <= round < self.rounds + (at == "measure"):
            raise Refused(f"policy: round {round + 1}: at most {self.rounds:g} were agreed to")
        if at == "client" and call.task not in self.tasks:
            raise Refused(f"policy: task = {call.task!r}: not one of {', '.join(self.methods)}")
        for owner, name, value in leaves(dict(call.args)):
            if owner is not None and issubclass(owner, Method) and owner not in self.classes:
                raise Refused(f"policy: {owner.__name__}: not one of {', '.join(self.methods)}")
            self._check_setting(owner, name, value)

    def _check_setting(self, owner: type | None, name: str, value: object) -> None:
        if name in self.bounds and _is_number(value):
            least, most = self.bounds[name]
            if not least <= value <= most:
                raise Refused(f"policy: {name} = {value}: must be {_range(least, most)}")
        elif value not in (held := self._held(owner, name, value)):
            agreed = " or ".join(map(str, held))
            raise Refused(f"policy: {name} = {value}: must be {agreed}, as agreed")

    def _held(self, owner: type | None, name: str, value: object) -> tuple[object, ...]:
        """Return what a setting may be; parts of a method's settings are held to the method's."""
        for (of, setting), agreed in self.values.items():
            if setting == name and (of is owner or (of and owner and issubclass(of, owner))):
                return tuple(agreed)
        return (value,)

    def allows_network(self, name: str) -> None:
        """Refuse a network that is not within this policy."""
        if self.networks and name not in self.networks:
            raise Refused(f"policy: model = {name!r}: must be {' or '.join(self.networks)}")

    def words(self) -> str:
        """Say in one sentence what may be asked."""
        if self.open:
            return "the coordinator may ask for anything that this package can do"
        networks = f"network {' or '.join(self.networks)}" if self.networks else "any network"
        rounds = "" if self.rounds == math.inf else f"at most {self.rounds:g} rounds"
        said = [" or ".join(self.methods) + self._how(), networks, rounds, *self._limits()]
        return f"the coordinator may ask for {', '.join(filter(None, said))}; nothing else"

    def _how(self) -> str:
        """Return the settings, those of privacy first, as words."""
        given = {name: bounds for name, bounds in self.bounds.items() if bounds != (0.0, math.inf)}
        named = {name: _range(*bounds) for name, bounds in given.items()}
        for (_, name), values in self.values.items():
            if name in SHOWN and values != (0.0,):
                named.setdefault(name, " or ".join(map(_plain, values)))
        order = [*(n for n in SHOWN if n in named), *(n for n in named if n not in SHOWN)]
        shown = [f"{n} {named[n]}" for n in order if n not in ("rounds", *FREE)]
        private = " with DP-SGD" if self._least("clip") > 0 else ""
        return private + "".join(f", {word}" for word in shown)

    def _least(self, name: str) -> float:
        if name in self.bounds:
            return self.bounds[name][0]
        known = self.values.get((SGD, name), (0.0,))
        return min(v for v in known if _is_number(v))

    def _limits(self) -> Iterator[str]:
        if self.budget < math.inf:
            yield f"at most {self.budget:g} of epsilon in all"
        if self.run_budget < math.inf:
            yield f"at most {self.run_budget:.4g} of epsilon in a run"
        if math.isinf(self.budget) and math.isinf(self.run_budget):
            yield "without any bound on epsilon"
        if self.message is not None:
            yield f"messages of at most {self.message} MB"


ANYTHING = Policy(("anything",), open=True)


def from_experiment(
    experiment: Experiment, x0: Params, size: int, *, linear: bool = False, features: bool = False
) -> Policy:
    """Return the policy that allows an experiment with exactly its settings.

    Numbers that the method solves or chooses itself, from what all sites say, may be any: what they
    cost is bounded by the run's budget.

    Args:
        experiment: what the owner has seen
        x0: the parameters of its network
        size: how many training examples this site has
        linear: whether the network is a linear model of public features
        features: whether it has public features for inputs
    """
    setting = experiment.setting
    numbers = sum(v.numel() for v in x0.values()) if linear else 0
    known = Known({"0": size}, setting.delta, numbers, features or linear)
    method = experiment.method.tuned(known)
    agreed = _for_method(_with_usual(experiment.method, method, known), x0)
    policy = _left_open(agreed, _for_method(_solved(method, size, setting.delta), x0))
    policy = _with_words(policy, _for_method(experiment.method, x0))
    values = {**policy.values, (None, "delta"): (setting.delta,)}
    networks = () if setting.model == "auto" else (setting.model,)
    cost = foretold(method, size, setting.delta)
    return replace(
        policy,
        values=values,
        networks=networks,
        rounds=method.rounds,
        run_budget=cost,
        delta=setting.delta,
    )


def _with_usual(given: Method, tuned: Method, known: Known) -> Method:
    """Return a method with all in place of ``auto`` that does not follow from other sites."""
    usual = given.tuned(replace(known, linear=0, features=False))
    if usual == tuned:
        return usual
    first, plain, chosen = (_training(m) for m in (given, usual, tuned))
    if first is None or plain is None or chosen is None:
        return given
    # passes over the data are work, and follow from the rounds alone
    named: Json = {"epochs": chosen.usual_epochs}
    named |= {n: getattr(plain, n) for n in SAID if getattr(plain, n) == getattr(chosen, n)}
    return replace(given, **{"sgd": replace(first, **named)})


def _training(method: Method) -> SGD | None:
    """Return how a method's clients train, if it has such a setting."""
    found = vars(method).get("sgd")
    return found if isinstance(found, SGD) else None


def _with_words(policy: Policy, given: Policy) -> Policy:
    """Return a policy that also takes the word ``auto`` for the usual number in its place."""
    words = {k: [v for v in seen if v == "auto"] for k, seen in given.values.items()}
    values = {k: tuple(dict.fromkeys((*v, *words.get(k, ())))) for k, v in policy.values.items()}
    return replace(policy, values=values)


def _solved(method: Method, size: int, delta: float) -> Method:
    """Return a method as it would be with one other, larger site; some tell two kinds apart."""
    try:
        return method.solved({"0": size, "1": 10 * size}, dict.fromkeys("01", method.rounds), delta)
    except BadInput:
        return method


def _left_open(agreed: Policy, solved: Policy) -> Policy:
    """Return what was agreed to, words with what they become, without numbers that are solved."""
    later = solved.values
    values = {k: tuple(dict.fromkeys((*v, *later.get(k, ())))) for k, v in agreed.values.items()}
    same = {k for k, v in agreed.values.items() if later.get(k, v) == v}
    kept = {k: v for k, v in values.items() if k in same or not any(map(_is_number, v))}
    bounds = {k: b if b == solved.bounds[k] else (0.0, math.inf) for k, b in agreed.bounds.items()}
    return replace(agreed, values=kept, bounds=bounds)


def _for_method(method: Method, x0: Params) -> Policy:
    """Return what one method asks: its tasks, and its own settings and its inner method's."""
    inner, _ = method.innermost(method.init(x0))
    reach = _Reach()
    values: dict[Key, tuple[object, ...]] = {}
    for m in (method, inner):
        reach.of_class(type(m))
        own = {f.name for f in fields(m)}
        for owner, name, value in leaves(m):
            for key in [(owner, name), *([(None, name)] if name in own else [])]:
                values[key] = (*values.get(key, ()), value)
    values = {key: tuple(dict.fromkeys(seen)) for key, seen in values.items()}
    for _, name in [key for key in values if key[1] in FREE]:
        values = {key: seen for key, seen in values.items() if key[1] != name}
    bounds = _noise(values)
    tasks, classes = frozenset(reach.tasks), frozenset(reach.classes)
    return Policy((name_of(method),), tasks, classes, values, bounds)


def _noise(values: dict[Key, tuple[object, ...]]) -> dict[str, Bounds]:
    """Take the noise multiplier of SGD out of the values: more noise is always welcome."""
    given = values.pop((SGD, "z"), None)
    if given is None:
        return {}
    solved = any(values[SGD, "epsilon"])
    return {"z": (0.0 if solved else min(v for v in given if _is_number(v)), math.inf)}


@dataclass
class _Reach:
    """The tasks that a method's code names, and the methods that it makes use of."""

    tasks: set[str] = field(default_factory=set)
    classes: set[type] = field(default_factory=set)
    seen: set[CodeType] = field(default_factory=set)

    def of_class(self, cls: type) -> None:
        """Look at all functions of a class, and of those that it is derived from."""
        if cls in self.classes:
            return
        self.classes.add(cls)
        self._of_members(cls)

    def _of_members(self, cls: type) -> None:
        for base in cls.__mro__:
            for member in vars(base).values():
                inner = member.fget if isinstance(member, property) else member
                if isinstance(inner, FunctionType):
                    self._of_code(inner.__code__, inner.__globals__)

    def _of_code(self, code: CodeType, names: Mapping[str, object]) -> None:
        if code in self.seen:
            return
        self.seen.add(code)
        for name in code.co_names:
            self._of_object(names.get(name))
        for first, then in pairwise(dis.get_instructions(code)):
            room = names.get(str(first.argval)) if first.opname == "LOAD_GLOBAL" else None
            if isinstance(room, ModuleType):  # as in scaffold.Scaffold(...)
                self._of_object(vars(room).get(str(then.argval)))
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                self._of_code(inner, names)

    def _of_object(self, found: object) -> None:
        if isinstance(found, Task):
            self.tasks.add(found.name)
        elif isinstance(found, FunctionType):
            self._of_code(found.__code__, found.__globals__)
        elif isinstance(found, type) and issubclass(found, Method) and found is not Method:
            self.of_class(found)
        elif isinstance(found, type) and is_dataclass(found) and found is not Method:
            self._of_members(found)  # a part of a method, such as one of its phases


def foretold(method: Method, size: int, delta: float) -> float:
    """Return what a run costs an example of a site at most, against the server.

    One round may be done again, as after a coordinator's restart. A method that tells kinds of
    sites apart is asked of either kind. Infinite where the method promises nothing, or cannot say
    it of so few sites.
    """
    for sizes in ([{"0": size}], *(_beside(size, others) for others in (1, 99))):
        try:
            return max(_cost(method, each, delta) for each in sizes)
        except BadInput:
            continue
    return math.inf


def _beside(size: int, others: int) -> list[dict[str, int]]:
    """Return a site's federations with larger sites, and with smaller ones."""
    names = [str(i) for i in range(1, others + 1)]
    return [{"0": size} | dict.fromkeys(names, n) for n in (10 * size, max(1, size // 10))]


def _cost(method: Method, sizes: Mapping[str, int], delta: float) -> float:
    """Return what a run costs an example of the first site."""
    once, again = (dict.fromkeys(sizes, method.rounds + more) for more in (0, 1))
    lines = method.solved(sizes, once, delta).releases(sizes, again, delta)
    own = Ledger(line for line in lines if line.owner in ("0", FEDERATION))
    if lines and not len(own):  # only the other kind releases anything
        return 0.0
    spent = privacy.epsilon(own, unit="example", observer="server", delta=delta)
    return spent * (1 + 1e-6)  # what is solved hits its epsilon almost


@dataclass(frozen=True)
class PolicyFile:
    """A policy as it is written down."""

    methods: list[str]
    modes: list[str] = field(default_factory=list)  # of methods that have a mode
    networks: list[str] = field(default_factory=list)  # none: any of this package
    rounds: int = 100  # of one run
    budget: float = math.inf  # of epsilon, over all runs together
    metrics: str = "none"
    message: int = 1024  # megabytes
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.methods:
            raise BadInput("policy.methods = []: must name at least one method")
        check.number("policy.rounds", self.rounds, at_least=1)
        check.number("policy.message", self.message, at_least=1)
        if self.budget != math.inf:
            check.number("policy.budget", self.budget, above=0)
        for name, (least, most) in self.bounds.items():
            if not least <= most:
                raise BadInput(
                    f"policy.bounds.{name} = [{least}, {most}]: must be from low to high"
                )


def read_policy(file: Path, x0: Params) -> Policy:
    """Read a policy file. Settings without bounds must be as the methods have them by default."""

    def made(raw: Json) -> Policy:
        given: PolicyFile = validated(PolicyFile, raw, "policy")
        return _from_file(given, x0)

    return read_toml(file, made)


def _from_file(given: PolicyFile, x0: Params) -> Policy:
    each = [_for_method(_usual(method_class(name)()), x0) for name in given.methods]
    values: dict[Key, tuple[object, ...]] = {}
    for policy in each:
        for key, seen in policy.values.items():
            values[key] = tuple(dict.fromkeys((*values.get(key, ()), *seen)))
    modes = {key: tuple(given.modes) for key in values if key[1] == "mode" and given.modes}
    known = {name for _, name in values} | {"z"}
    for name in given.bounds:
        if name not in known:
            raise BadInput(f"policy.bounds.{name}: no method of this policy has such a setting")
    noise = {name: bounds for policy in each for name, bounds in policy.bounds.items()}
    return Policy(
        tuple(given.methods),
        frozenset().union(*(policy.tasks for policy in each)),
        frozenset().union(*(policy.classes for policy in each)),
        values | modes,
        {**noise, "rounds": (0, given.rounds), **given.bounds},
        tuple(given.networks),
        given.rounds,
        given.budget,
        metrics=given.metrics,
        message=given.message,
    )


def _usual(method: Method) -> Method:
    """Return a method with the usual training, where its own is still to be chosen."""
    return method if _training(method) is None else method.tuned(Known({}, delta=0.0))


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _range(least: float, most: float) -> str:
    if most == math.inf:
        return f"at least {least:g}"
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"


def _plain(value: object) -> str:
    return f"{value:g}" if _is_number(value) else str(value)
