"""A site: its own data, its own memory, its own budget, and a say in everything that it is asked.

It runs the installed package and nothing else: it speaks Flower's Fleet API, as Flower's own node
does, but never fetches the code that Flower can ship with a run. The server's word is checked, not
trusted.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from flwr.app import RecordDict

from tacit import __version__
from tacit.apps.beforehand import Beforehand
from tacit.apps.books import Books
from tacit.apps.policy import Policy, Refused, refuse_code
from tacit.codec import encode, pack, unpack, write_atomically
from tacit.compress import Compressor
from tacit.core import (
    BadInput,
    Call,
    Client,
    ClientId,
    Damaged,
    Json,
    Kept,
    Ledger,
    Method,
    Noise,
    Owner,
    Release,
    TacitError,
    Task,
    ask_id,
    check,
    params_of,
)
from tacit.core.registry import names_code
from tacit.core.schema import check_args
from tacit.data.examples import Dataset, Examples, Pool
from tacit.data.splits import Split
from tacit.engines.charging import charge_failure
from tacit.engines.client_host import World
from tacit.engines.facts import Facts, schema_parts
from tacit.engines.flower import Charter, letter, opened, packed
from tacit.engines.messages import LONGEST_CALL, NO_REPORT, Answer, Head, Refusal, check_finite
from tacit.engines.replies import check_shapes, points
from tacit.engines.store import BACK, ClientStore
from tacit.experiment.encoding import NONE, featured, shape_of
from tacit.experiment.model_file import described, taken_apart, to_bytes
from tacit.experiment.scoring import Tally
from tacit.experiment.sites import holding, tally, tally_own, tally_shared
from tacit.local.sgd import network
from tacit.methods import METHODS
from tacit.methods.spec import validated
from tacit.models import build
from tacit.privacy import show_epsilon
from tacit.privacy.guard import Budget
from tacit.privacy.rules import Histogram, Open
from tacit.report.account import against_server, left_in_words
from tacit.synthesis import encoder_file

log = logging.getLogger("tacit.site")
OWN_MODEL = "eps inf: a site's own model, which no mechanism has released; keep it at the site"
SHARED_MODEL = "as the coordinator's ledger says"
# for a measuring task: whose model its method must answer with
ANSWERS = {tally_shared.name: "shared", tally_own.name: "personal"}


@dataclass
class Site:
    """What a site has, and how far it lets the server go."""

    name: str
    dataset: Dataset
    folder: Path  # its memory of all runs
    part: Split | None = None  # the rows of the data set that are its own; None: all
    budget: float = math.inf  # of epsilon, against the server, over all runs together
    delta: float = 1e-5
    noise: Noise = "os"
    # epsilon of each report about its test data; infinite: exact; 0: no reports
    metrics: float = math.inf
    model: str | None = None  # a network of its own, as module:Class, that the server may ask for
    limit: int = 1 << 30
    # an encoder of its own, as module:function, that the server may ask for as public features
    features: str | None = None
    policy: Policy | None = None  # what the server may ask for; None: nothing was agreed to yet
    # asked with what a server says that it runs, while there is no policy
    agree: Callable[[str], Policy] | None = None
    model_out: Path | None = None  # where the model goes that this site answers with
    _worlds: dict[Charter, World] = field(default_factory=dict)
    _prices: dict[Charter, Beforehand] = field(default_factory=dict)

    def __post_init__(self) -> None:
        len(METHODS)  # their tasks must be known here before anybody asks for one
        if self.dataset.goal != "classes":
            raise BadInput(f"task = {self.dataset.goal!r}: sites predict classes, and nothing else")
        if self.dataset.inferred:
            raise BadInput(
                "classes: must be stated; those found in the data tell of single records"
            )

    @property
    def books(self) -> Books:
        """The ledgers of all runs."""
        return Books(self.folder)

    def facts(self) -> Facts:
        """Say what is public about this site."""
        d, p = self.dataset, self.part
        sizes = (len(p.train[0]), len(p.test[0])) if p else (len(d.train), len(d.test))
        return Facts(
            self.name,
            __version__,
            d.shape,
            d.classes,
            d.mean,
            d.std,
            *sizes,
            schema_parts(d.schema),
        )

    def reply(self, content: RecordDict) -> RecordDict:
        """Answer a letter, or say why not; whatever is in it, the site goes on."""
        try:
            kind, about, blob = opened(content, self.limit)
            if kind == "hello":
                self._agree(about)
                return letter("answer", {"facts": asdict(self.facts())}, packed(b""))
            check.choice("message kind", kind, ("hello", "ask", "look"))
            charter = validated(Charter, _dict(about, "charter"), "charter")
            head = validated(Head, _dict(about, "head"), "head")
            answer = self.answer(kind, charter, head, blob)
            return letter("answer", {"ask": head.ask}, packed(answer))
        except TacitError as e:
            log.warning("refused: %s", e)
            return letter("refused", {"why": f"refused: {e}"}, packed(b""))
        # the words of an unforeseen error might hold data, so they stay here
        except Exception as e:
            log.exception("failed")
            return letter(
                "refused",
                {"why": f"failed with {type(e).__name__}; see the site's log"},
                packed(b""),
            )

    def answer(self, kind: str, charter: Charter, head: Head, blob: bytes) -> bytes:
        """Do one request, if it is in order."""
        call = unpack(blob, known=True, longest=LONGEST_CALL)
        if not isinstance(call, Call):
            raise BadInput("message: not a call")
        world = self._world(charter, head.client)
        self._check(kind, world, head, call)
        store = world.store(head.client)
        self._check_books(charter.run, head.client)
        kept = _kept(store, head)
        with torch.random.fork_rng(devices=[]):
            if kind == "ask":
                self._check_price(charter, world, head, call, kept)
            self._check_order(store, head)
            log.info("run %s, round %d: %s", charter.run[:8], head.round + 1, call.task)
            if kind == "look" and self.model_out is not None:
                try:
                    self._take_model(world, charter, head, call, kept)
                except Exception:  # it may fail because of what is here: nobody else may notice
                    log.exception("--model-out: the model of round %d is not kept", head.round)
            ask = kind == "ask"
            done = world.handle(head, call, blob) if ask else self._report(world, head, call)
        self.books.note(charter.run, head.client)
        if kind == "ask":
            log.info("%s", self.spent_in_words(charter.run, head.client, store.ledger()))
        if isinstance(done, Refusal):
            raise _refused(done)
        return pack(done)

    def _agree(self, about: Mapping[str, object]) -> None:
        """Settle what a server may ask for, if that is not settled yet; nothing is told before."""
        if self.policy is None and self.agree is not None:
            self.policy = self.agree(str(about.get("experiment", "")))
        self._agreed()

    def _agreed(self) -> Policy:
        """Return the policy, or refuse to do anything without one."""
        if self.policy is None:
            raise Refused("policy: this site's owner has agreed to nothing yet")
        return self.policy

    def _check_price(
        self,
        charter: Charter,
        world: World,
        head: Head,
        call: Call[object],
        kept: Kept,
    ) -> None:
        """Refuse what would pass a budget before any work on data."""
        budgets = (self.budget, self._agreed().run_budget, charter.budget or math.inf)
        if min(budgets) == math.inf:
            return
        if charter not in self._prices:
            self._prices = {charter: Beforehand.of(world, head.client)}
        self._prices[charter].check(head, call, kept, world.store(head.client).ledger())

    def _world(self, charter: Charter, client: ClientId) -> World:
        """Return this site as a client of a run. The first message of a run fixes its charter."""
        if charter in self._worlds:
            world = self._worlds[charter]
        else:
            _check_charter(charter, self.dataset, self.model, self.features)
            self._agreed().allows_network(charter.model)
            model = build(charter.model, charter.shape, charter.classes, charter.seed)
            place = holding(
                self.dataset, charter.clients, seed=charter.seed, client=int(client), of=self.part
            )
            place = featured(place, _own_word(charter, self.features), strict=False)
            folder, approve = self.folder / charter.run, partial(self._approve, charter)
            how = (self.noise, charter.delta, approve, Compressor.of(charter.compress))
            world = World(place, model, charter.seed, folder, "cpu", *how, durable=True)
        if client not in world.federation.everyone:
            raise Refused(f"client = {client!r}: must be one of {charter.clients} numbers")
        _fix(self.folder / charter.run / "charter.json", {**_said(charter), "client": client})
        self._worlds = {charter: world}
        return world

    def _check(self, kind: str, world: World, head: Head, call: Call[object]) -> None:
        """Refuse what is unknown, does not fit, is not finite, or was not agreed to."""
        known = Task.registry.get(call.task)
        if known is None:
            raise Refused(f"task = {call.task!r}: not a known task")
        wanted = "measure" if kind == "look" else "client"
        if known.at != wanted:
            raise Refused(f"task = {call.task!r}: is for the {known.at}, not for a {kind}")
        if head.ask != ask_id(call.task, head.round) or head.round < 0:
            raise Refused(f"ask = {head.ask!r}: must be {ask_id(call.task, head.round)}")
        refuse_code(_words(json.loads(encode(dict(call.args))[0])), {self.model})
        check_args(call)
        check_finite(dict(call.args), head)
        mine = params_of(world.model)
        for x in points(call.args):
            if any(k in mine for k in x):
                check_shapes(x, mine)
        for name, value in call.args.items():
            _check_examples(name, value, world.federation.dataset)
        _check_answers(call)
        self._agreed().allows(call, head.round)

    def _check_books(self, run: str, client: ClientId) -> None:
        """Refuse to go on with a store that is damaged; where it lies here is told nobody."""
        try:
            self.books.open()
            self.books.check(run, client)
            if self.budget < math.inf:  # other runs count
                self.books.verify()
        except Damaged as e:
            log.error("%s", e)
            raise Refused("this site's memory is damaged; its owner is told how") from None

    def _check_order(self, store: ClientStore, head: Head) -> None:
        """Refuse rounds of long ago: a server goes back to its checkpoints, which are few."""
        last = max((end for line in store.ledger() for _, end in line.rounds), default=0)
        if head.round < last - BACK:
            raise Refused(
                f"round {head.round + 1}: this site has done round {last + 1}; "
                f"only the last {BACK} can be repeated"
            )

    def _approve(self, charter: Charter, ledger: Ledger) -> None:
        """Refuse what would pass the run's budget, or this site's own, which counts all runs."""
        told = charter.budget or math.inf
        Budget(told, charter.unit, charter.observer, charter.delta).check(ledger)
        own = Ledger(line for line in ledger if not Owner.read(line.owner).tests)
        if len(own):
            agreed = self._agreed()
            Budget(agreed.run_budget, delta=agreed.delta).check(own)
        if self.budget < math.inf:
            client = next((Owner.read(line.owner).client for line in ledger), "0")
            every = Ledger([*ledger, *self._past(charter.run, client)])
            Budget(self.budget, delta=self.delta).check(every)

    def _past(self, run: str, client: ClientId) -> list[Release]:
        """Return what other runs released, as if it had been this client of this run."""
        lines = []
        for name, ledger in self.books.ledgers():
            if (other := name.partition("/")[0]) != run:
                for line in ledger:
                    owner = replace(Owner.read(line.owner), client=client)
                    lines.append(replace(line, what=f"{line.what} in run {other}", owner=owner.id))
        return lines

    def spent_in_words(self, run: str, client: ClientId, ledger: Ledger) -> str:
        """Say what this site has spent by now, all runs together; on the way an upper bound."""
        every = Ledger([*ledger, *self._past(run, client)])
        now = against_server(ledger, self.delta, quick=True)
        spent = against_server(every, self.delta, quick=True)
        return (
            f"spent so far: eps {show_epsilon(now)} in this run, {show_epsilon(spent)} in all runs "
            f"for one example against the server, delta {self.delta:g}; "
            f"{left_in_words(spent, self.budget)}"
        )

    def _take_model(
        self,
        world: World,
        charter: Charter,
        head: Head,
        call: Call[object],
        kept: Kept,
    ) -> None:
        """Keep the model that is about to be measured, if this site's owner wants it.

        It stays here. The last one that is measured is the final one.
        """
        assert self.model_out is not None
        me = world.client(call.task, head.client, head.round, kept)
        shared = call.task == tally.name
        with torch.no_grad():
            predict = (
                network(me, call.args["x"])
                if shared
                else call.args["method"].predictor(me, call.args["s"])
            )
        personal = call.task == tally_own.name
        relabel = world.federation.split.relabel
        about = replace(
            described(self.dataset, method="", seed=charter.seed),
            client=self.name if personal else "",
            order=tuple(relabel[int(head.client)]) if personal and relabel else (),
            privacy=OWN_MODEL if personal else SHARED_MODEL,
            front="" if charter.features == NONE else _own_word(charter, self.features),
        )
        known = taken_apart(predict, about, charter.model)
        if known is None:
            log.warning("--model-out: the model of this method is code, and no file")
            return
        write_atomically(self.model_out, to_bytes(*known), private=True)
        log.info("the model of round %d is in %s", head.round, self.model_out)

    def _report(self, world: World, head: Head, call: Call[object]) -> Answer | Refusal:
        """Measure a model on this site's test data, and report as much as the site allows.

        The ledger says what, before it is known.
        """
        if self.metrics == 0:
            raise Refused(f"metrics: {NO_REPORT}")
        store = world.store(head.client)
        me = world.client(call.task, head.client, head.round, {}, store.ledger())
        examiner = replace(me, id=Owner(head.client, tests=True).id)
        try:
            if call.task == tally_own.name:
                why = "metrics of a personal model depend on its training data"
                Open("metrics", why).note(me)
            if self.metrics == math.inf:
                why = "the counts of right and wrong on test data, not training data, are exact"
                Open("metrics", why).note(examiner)
            else:  # what cannot be paid for is not even counted
                trial = replace(examiner, spent=Ledger(examiner.spent), drawn=[])
                self._noisy(trial, Tally([0] * me.classes, [0] * me.classes, None))
            counted: Tally = world.look(head, call)
            if self.metrics < math.inf:
                counted = self._noisy(examiner, counted)
            return Answer(counted, False, list(me.spent))
        except Exception as e:
            return Refusal.of(e, charge_failure(me, head, e))
        finally:
            store.write_ledger(me.spent, durable=True)

    def _noisy(self, examiner: Client, counted: Tally) -> Tally:
        """Return counts with noise: a test example is in one of them, once."""
        counts = np.array([counted.right, counted.wrong])
        noisy = Histogram("metrics", self.metrics).send(examiner, counts).value.tolist()
        return Tally(noisy[0], noisy[1], None)


def _refused(refusal: Refusal) -> TacitError:
    """Return what the server is told of a refusal: the words of an unforeseen error stay here."""
    if (error := refusal.again()) is not None:
        return error
    log.error("failed: %s", refusal.words)
    return Refused("this site failed to do it; see its log")


def _kept(store: ClientStore, head: Head) -> Kept:
    """Return the state that the server says it has accepted; where it lies here is told nobody."""
    try:
        return store.kept(head.accepted)
    except BadInput as e:
        log.warning("%s", e)
        raise Refused(f"accepted = {head.accepted!r}: this site keeps no such state") from None


def _dict(about: Mapping[str, object], key: str) -> Json:
    if not isinstance(given := about.get(key), dict):
        raise BadInput(f"message: no {key}")
    return given


def _check_examples(name: str, value: object, dataset: Dataset) -> None:
    """Refuse examples in an argument that are not of the kind of this site's own."""
    if isinstance(value, Pool):
        value = value.examples
    if not isinstance(value, Examples):
        return
    x, y = value.x, value.y
    if tuple(x.shape[1:]) != dataset.shape or x.dtype != dataset.train.x.dtype:
        raise Refused(f"{name}: inputs of shape {tuple(x.shape[1:])} and type {x.dtype}")
    whole = y.dtype == torch.int64 and y.shape == x.shape[:1]
    if not whole or bool(((y < 0) | (y >= len(dataset.classes))).any()):
        raise Refused(f"{name}: labels must be from 0 to {len(dataset.classes) - 1}, one an input")


def _check_answers(call: Call[object]) -> None:
    """Refuse to measure another kind of model than the task says.

    What a report costs follows from that.
    """
    if (wanted := ANSWERS.get(call.task)) is None:
        return
    method = call.args["method"]
    if not isinstance(method, Method) or method.answers != wanted:
        raise Refused(f"task = {call.task!r}: takes a method that answers with a {wanted} model")


def _words(o: object) -> Iterator[str]:
    """Find all words in the skeleton of an encoded object, but for names of its dataclasses."""
    if isinstance(o, str):
        yield o
    elif isinstance(o, list):
        for v in o:
            yield from _words(v)
    elif isinstance(o, dict):
        for k, v in o.items():
            yield from () if k == "$" else _words(v)


def _check_charter(
    charter: Charter, dataset: Dataset, model: str | None, features: str | None
) -> None:
    """Refuse a run whose name, size, data or network are not what this site has agreed to."""
    if not re.fullmatch(r"[0-9a-f]{16,64}", charter.run):
        raise Refused(f"run = {charter.run[:80]!r}: must be 16-64 hexadecimal digits")
    if not 1 <= charter.clients <= 1_000_000:
        raise Refused(f"clients = {charter.clients}: must be between 1 and 1000000")
    check.number("delta", charter.delta, above=0, below=1)
    check.number("budget", charter.budget, at_least=0)
    Compressor.of(charter.compress)
    told = charter.features
    code = ":" in told or names_code(told) or encoder_file.is_file(told)
    if code and _own_word(charter, features) != features:
        raise Refused(
            f"features = {charter.features[:80]!r}: not features of this package, "
            "nor the encoder given with --features"
        )
    shape = shape_of(_own_word(charter, features), dataset.shape)
    if charter.shape != shape or charter.classes != len(dataset.classes):
        raise Refused(
            f"shape = {charter.shape}, classes = {charter.classes}: not those of this site's data"
        )
    code = ":" in charter.model or names_code(charter.model)
    if code and charter.model != model:
        raise Refused(
            f"model = {charter.model!r}: not a network of this package, "
            "nor the one given with --model"
        )


def _own_word(charter: Charter, features: str | None) -> str:
    """Return the features that a run asks for, an encoder's file as this site's owner named it.

    What a coordinator calls a file is never looked for here: what is in it decides.
    """
    same = features is not None and encoder_file.same(features, charter.features)
    return features if same and features is not None else charter.features


def _said(charter: Charter) -> Json:
    """Return a charter as it is written down; one without features as it was before there were."""
    return {k: v for k, v in asdict(charter).items() if (k, v) != ("features", NONE)}


def _fix(file: Path, agreed: Json) -> None:
    """Write what a run was agreed to be, or refuse what differs from it."""
    text = json.dumps(agreed, sort_keys=True)
    if not file.exists():
        if any(file.parent.glob("*/ledger.*")):
            log.error("%s: is gone, and the run cannot go on without it", file)
            raise Refused("this site's memory is damaged; its owner is told how")
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text.encode(), durable=True)
    elif file.read_bytes() != text.encode():
        raise Refused("charter: not the one this run began with")
