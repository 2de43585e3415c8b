"""A federation in one process: honest sites, a coordinator, one site that says what it likes."""

import json
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

from asking import a_site, records

from tacit.apps.flower_internals import TaskIdentity
from tacit.apps.policy import ANYTHING
from tacit.codec import pack, unpack
from tacit.core import params_of
from tacit.data.examples import Dataset
from tacit.engines.flower import Sites, letter, opened, packed
from tacit.experiment.config import Experiment, Setting
from tacit.experiment.loop import conduct
from tacit.experiment.rundir import RunDir
from tacit.experiment.sites import AtSites
from tacit.experiment.watch import Nobody
from tacit.local.sgd import SGD
from tacit.methods.fedavg import FedAvg

NAMES = {"0": "anna", "1": "bert", "2": "cleo", "3": "dora"}
LIAR = "2"  # cleo
LIMIT = 1 << 24
ROUNDS = 2
PLAIN = FedAvg(rounds=ROUNDS, sgd=SGD(batch=5))
PRIVATE = FedAvg(rounds=ROUNDS, sgd=SGD(batch=5, clip=1.0, z=1.0))
SILENT = object()  # no answer comes
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # Flower wants to know


def part(i, of=4, n=48):
    """Return the records of one site: all have as many, of all classes."""
    whole = records(n)
    mine = slice(i * n // of, (i + 1) * n // of)
    rows = range(n)[mine]
    return Dataset("tiny", whole.train.take(rows), whole.test.take(rows), whole.classes)


class Grid:
    """Carries letters within this process; ``lie`` may replace whatever the liar answers."""

    def __init__(self, sites, lie):
        self.sites, self.lie, self.waiting = sites, lie, {}

    def push_messages(self, messages):
        ids = [f"{len(self.waiting)}.{k}" for k, _ in enumerate(messages)]
        for number, message in zip(ids, messages, strict=True):
            self.waiting[number] = (message.metadata.dst_node_id, message.content)
        return ids

    def pull_messages(self, ids):
        for number in ids:
            node, content = self.waiting[number]
            said = self.sites[node].reply(content)
            if self.lie is not None and node == int(LIAR):
                said = self.lie(content, said)
            late = said is SILENT
            yield SimpleNamespace(
                metadata=SimpleNamespace(reply_to_message_id=number),
                has_error=partial(bool, late),
                error=SimpleNamespace(code=3, reason="nothing came"),
                content=said,
            )


def venue(
    folder, method=PLAIN, lie=None, *, without=(), facts=None, count=4, metrics=math.inf, **how
):
    """Return a place to conduct an experiment with a few sites, one of which lies."""
    names = {i: n for i, n in NAMES.items() if int(i) < count}
    sites = {
        int(i): replace(
            a_site(folder / "stores" / name, part(int(i), count), metrics=metrics),
            name=name,
            policy=ANYTHING,
        )
        for i, name in names.items()
    }
    known = {i: sites[int(i)].facts() for i in names} | (facts or {})
    online = {name: int(i) for i, name in names.items() if i not in without}
    sink = {"nodes": lambda: online, "deadline": 60.0, "limit": LIMIT}

    def open(charter, config, at_server):
        made.append(
            Sites(
                Grid(sites, lie),
                names,
                charter,
                config,
                at_server=at_server,
                facts=lambda client, node: known[client],
                **sink | how,
            )
        )
        return made[-1]

    made = []
    setting = Setting(model="mlp", noise="seeded", clients=count, delta=1e-5)
    place = AtSites.of(
        Experiment(method, setting), known, count, open=open, run="0123456789abcdef", sample_seed=1
    )
    return place, made


class Scene:
    """Honest sites that stay, and one coordinator after the other: for many lies in short time."""

    def __init__(self, folder, method=PLAIN, **how):
        self.place, self.made = venue(folder, method, self._said, **how)
        self.directory = RunDir.create(folder / "run", self.place.experiment)
        self.x = params_of(self.place.model)
        self.lie, self.max_norm = None, None

    def _said(self, content, said):
        return said if self.lie is None else self.lie(content, said)

    def engine(self, lie, **how):
        """Return a coordinator that knows nothing yet; what it learns is written to a file."""
        self.lie = lie
        self.written = []
        config = replace(
            self.place.config(self.directory),
            on_release=lambda lines, ledger: self.written.extend(lines),
            **how,
        )
        engine = self.place.engine(self.directory, config)
        engine.max_norm = self.max_norm
        return engine


def run(folder, method=PLAIN, lie=None, **how):
    """Conduct an experiment; return its run directory and the engine."""
    place, made = venue(folder, method, lie, **how)
    directory = RunDir.create(folder / "run", place.experiment)
    conduct(place, directory, Nobody())
    return directory, made[0]


def kind_of(content):
    return opened(content, LIMIT)[0]


def changed(change, kinds=("ask",)):
    """Return a lie that changes what the honest site would answer to some kinds of letters."""

    def lie(content, said):
        if kind_of(content) not in kinds:
            return said
        word, about, blob = opened(said, LIMIT)
        return letter(word, about, packed(pack(change(unpack(blob)))))

    return lie


def rewritten(change, kinds=("ask",)):
    """Return a lie that changes the JSON of an answer, as a text if it likes."""

    def lie(content, said):
        if kind_of(content) not in kinds:
            return said
        word, about, blob = opened(said, LIMIT)
        return letter(word, about, packed(reskeletoned(blob, change)))

    return lie


def reskeletoned(blob, change):
    """Return a packed answer whose JSON skeleton was changed: to a value, or to a text as it is."""
    size = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + size])
    made = change(json.loads(header["__metadata__"]["json"]))
    header["__metadata__"]["json"] = made if isinstance(made, str) else json.dumps(made)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + blob[8 + size :]
