"""`tacit join`: take part as a site, with your own data."""

from __future__ import annotations

import logging
import math
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tacit.cli.agreeing import agreed, ask_owner, in_words
from tacit.cli.connecting import check_network, needs_flower, quiet, say
from tacit.cli.flags import parse
from tacit.core import BadInput, check

if TYPE_CHECKING:
    from tacit.apps.connection import Fleet
    from tacit.apps.policy import Policy
    from tacit.apps.site import Site
    from tacit.data.examples import Dataset
    from tacit.data.splits import Split
    from tacit.experiment.rundir import RunDir

ABOUT = "Take part in a federation with your own data."
log = logging.getLogger("tacit.site")


@dataclass(frozen=True)
class JoinFlags:
    """Flags of ``tacit join``."""

    server: str  # the coordinator, as HOST:PORT
    name: str  # this site's name, as registered
    # this site's data: a .npz, .csv or .parquet file, a folder of images by class, or a known data
    # set
    data: str
    key: Path | None = None  # this site's private key, made by `tacit keys new`
    ca: Path | None = None  # the coordinator's ca.crt
    store: Path | None = None  # folder of this site's memory and ledger; default: sites/NAME
    # where the model goes that this site answers with, such as model.safetensors: the shared one,
    # or its own where each site has its own; `tacit predict` takes it
    model_out: Path | None = None
    # epsilon that all runs together may cost, for one example against the server
    budget: float = math.inf
    delta: float = 1e-5  # the delta of that budget
    # reports about test data: exact, none, or the epsilon of each report; default: as the policy
    # file says, else exact
    metrics: str = ""
    # the experiment file that you have seen and agree to: the coordinator may ask for what it says
    # and for nothing else; or anything. Without it you are asked, if there is a terminal
    accept: str = ""
    # a file of methods and bounds that the coordinator must keep within; see docs/sites.md
    policy: Path | None = None
    # all classes of the federation, in order, such as benign,malignant; or N for 0..N-1; or
    # folders, for those of a folder of images. Own data need it
    classes: str = ""
    # the schema file of a table that all sites share; it states the classes
    schema: str = ""
    label: str = ""  # the column of a table to predict, without a schema
    columns: str = ""  # features of a table without a schema, with commas between
    drop: str = ""  # columns of a table to leave out, such as numbers of patients
    # your own encoder of texts, as module:function, where the schema names it
    encoder: str = ""
    # a method whose code is not in this package, as file.py:Name or module:Name, that the
    # coordinator may use; no other code of anybody's runs here
    method: str | None = None
    model: str | None = None  # a network of your own, as module:Class, that the coordinator may use
    # the only encoder, as a file of `tacit encode` or your own as module:function, that the
    # coordinator may use as public features; those of this package it may always use
    features: str | None = None
    # seeded: a rehearsal that can be repeated and protects nothing
    noise: Literal["os", "seeded"] = "os"
    split: str = "iid"  # with --part: how a data set is divided, for a rehearsal
    part: str = ""  # such as 0/3: hold only the first of three parts
    seed: int = 0  # with --part: the split's seed
    # processors to use; with 1 the result is the same, bit for bit, as in a simulation
    threads: int = 1
    patience: float = 3600.0  # seconds without a connection before giving up
    max_message: int = 1024  # megabytes of one message at most
    insecure: bool = False  # no TLS, no keys: on loopback only


def join(args: Sequence[str]) -> None:
    """Take part as a site."""
    given = parse(JoinFlags, args, prog="tacit join", about=ABOUT)
    needs_flower()
    _check(given)
    quiet()
    _compute_with(given.threads)
    dataset, part = _data(given)
    given = _with_own_code(given, dataset, part)
    size = len(part.train[0]) if part else len(dataset.train)
    policy = agreed(given, dataset, size)
    folder = given.store or Path("sites") / given.name
    lock = _locked(folder)  # for as long as this runs: two processes must not share a ledger
    site = _site(given, dataset, part, policy, lock.folder)
    _tell(given, dataset, policy)
    fleet = _fleet(given)
    site.agree = partial(ask_owner, given, dataset, size, fleet.stop.set)
    fleet.run(site)


def _check(given: JoinFlags) -> None:
    """Refuse flags that cannot work, whatever the data."""
    host, _, port = given.server.rpartition(":")
    if not (host and port.isdecimal() and 1 <= int(port) <= 65535):
        raise BadInput(
            f"--server = {given.server!r}: must be HOST:PORT, with a port from 1 to 65535"
        )
    check_network(given.insecure, host, {"--key": given.key, "--ca": given.ca})
    if given.budget != math.inf:
        check.number("budget", given.budget, above=0)
    check.number("delta", given.delta, above=0, below=1)
    check.number("threads", given.threads, at_least=1, at_most=os.cpu_count() or 1)
    check.number("patience", given.patience, above=0)
    check.number("max_message", given.max_message, at_least=1)
    _check_names(given)


def _check_names(given: JoinFlags) -> None:
    """Refuse names that are none; what these need takes seconds to import."""
    from tacit.apps.keys import check_name
    from tacit.methods.spec import method_class

    check_name(given.name)
    if given.method is not None:
        method_class(given.method)


def _compute_with(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _with_own_code(given: JoinFlags, dataset: Dataset, part: Split | None) -> JoinFlags:
    """Try the network and the encoder of the owner's own; return flags that name what was tried."""
    from tacit.experiment.encoding import featured, settled
    from tacit.experiment.sites import holding

    _try_model(given.model, dataset)
    if given.features is None:
        return given
    word = settled(given.features)
    # what it cannot encode, nobody but its owner learns
    featured(holding(dataset, 1, seed=0, client=0, of=part), word)
    return replace(given, features=word)


def _locked(folder: Path) -> RunDir:
    """Return a site's folder, which is this process's alone from now on."""
    from tacit.apps.books import Books
    from tacit.apps.private_files import keep_private
    from tacit.experiment.rundir import RunDir

    keep_private(folder)
    lock = RunDir(folder)
    lock.lock()
    Books(folder).verify()
    return lock


def _site(
    given: JoinFlags, dataset: Dataset, part: Split | None, policy: Policy | None, folder: Path
) -> Site:
    """Return the site that flags and a policy describe; its budget is written down."""
    from tacit.apps.books import Terms, write_budget
    from tacit.apps.site import Site

    site = Site(
        given.name,
        dataset,
        folder,
        part,
        min(given.budget, policy.budget if policy else math.inf),
        given.delta,
        given.noise,
        _metrics(given.metrics or (policy and policy.metrics) or "exact"),
        given.model,
        min(given.max_message, (policy and policy.message) or given.max_message) << 20,
        given.features,
        policy,
    )
    site.model_out = given.model_out
    write_budget(folder, Terms(given.name, site.budget, given.delta))
    return site


def _tell(given: JoinFlags, dataset: Dataset, policy: Policy | None) -> None:
    """Say what is noticed of the data, and what the coordinator may ask for."""
    from tacit.experiment.signs import of_data, warn_of

    warn_of(of_data(dataset))
    if policy is not None:
        say(in_words(policy, given))


def _fleet(given: JoinFlags) -> Fleet:
    """Return the connection to the coordinator, which Ctrl-C and the end of the system end."""
    from tacit.apps.connection import Fleet
    from tacit.apps.keys import read_private

    ca = given.ca.read_bytes() if given.ca else None
    fleet = Fleet(given.server, ca, read_private(given.key) if given.key else None, given.patience)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: fleet.stop.set())
    return fleet


def _try_model(name: str | None, dataset: Dataset) -> None:
    """Refuse a network of one's own that cannot be made; say if no private method takes it.

    Which method it is for, a site learns from the first request, and refuses that.
    """
    if name is None:
        return
    from tacit.models import build
    from tacit.privacy import check_network

    model = build(name, dataset.shape, len(dataset.classes), 0)
    try:
        check_network(model, dataset.shape, len(dataset.classes))
    except BadInput as e:
        log.warning("methods that clip gradients example by example will be refused: %s", e)


def _data(given: JoinFlags) -> tuple[Dataset, Split | None]:
    """Return the site's data set and, in a rehearsal, the part of it that is its own."""
    from tacit.data.federated import federate
    from tacit.experiment.sites import part_of

    dataset = _stated(given)
    if not given.part:
        return dataset, None
    i, slash, n = given.part.partition("/")
    if not (slash and i.isdigit() and n.isdigit() and int(i) < int(n)):
        raise BadInput(f"--part = {given.part!r}: must be such as 0/3")
    return dataset, part_of(
        federate(dataset, given.split, clients=int(n), seed=given.seed).split, int(i)
    )


def _stated(given: JoinFlags) -> Dataset:
    """Return the site's data; a table that does not fit its schema is refused in its name."""
    from tacit.cli.stated_classes import load_stated
    from tacit.data import Reading

    reading = Reading(given.label, given.columns, given.drop, given.schema, given.encoder)
    try:
        return load_stated(given.data, given.classes, reading)
    except BadInput as e:
        raise BadInput(f"site {given.name}: {e}" if given.schema else str(e)) from None


def _metrics(text: str) -> float:
    if text in ("exact", "none"):
        return math.inf if text == "exact" else 0.0
    try:
        epsilon = float(text)
    except ValueError:
        raise BadInput(
            f"--metrics = {text!r}: must be exact, none, or the epsilon of each report"
        ) from None
    check.number("metrics", epsilon, above=0)
    return epsilon
