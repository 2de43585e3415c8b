"""`tacit serve`, `tacit join`, `tacit keys`: the same experiments with real sites."""

from __future__ import annotations

import importlib.util
import ipaddress
import logging
import math
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tacit.cli import interrupts
from tacit.cli.flags import parse
from tacit.core import BadInput, Json, check

if TYPE_CHECKING:
    from tacit.apps.policy import Policy
    from tacit.core import Params
    from tacit.data.examples import Dataset
    from tacit.experiment.config import Experiment

log = logging.getLogger("tacit.site")

KEYS_HELP = """\
usage: tacit keys init DIR [HOST ...]      an authority, and a server certificate for these hosts
       tacit keys new NAME [DIR]           at a site: its key pair, NAME.key and NAME.pub, in DIR
                                           (default: here)
       tacit keys add DIR NAME FILE.pub    let the owner of this key connect as NAME
       tacit keys remove DIR NAME          and no longer, from this moment on
       tacit keys revoke DIR NAME          the same, and its key can never be registered again
       tacit keys renew DIR                a new server key and certificate, which last 90 days
       tacit keys list DIR                 who may connect

DIR is the coordinator's folder of keys. A site gets DIR/ca.crt from it, makes its own key, and
hands out NAME.pub only.
"""
KEYS_ARGUMENTS = {  # how many each command takes
    "init": (1, 99),
    "new": (1, 2),
    "add": (3, 3),
    "remove": (2, 2),
    "revoke": (2, 2),
    "renew": (1, 1),
    "list": (1, 1),
}


def _needs_flower() -> None:
    if importlib.util.find_spec("flwr") is None:  # importing it takes seconds
        raise BadInput("flwr: not installed; `pip install 'tacit[flower]'`")


def keys(args: Sequence[str]) -> None:
    """Make and register keys."""
    if not args or {"-h", "--help"} & set(args):
        print(KEYS_HELP, end="")
        return
    _needs_flower()
    from tacit.apps import keys as k
    from tacit.core import check

    word, *rest = args
    check.choice("keys", word, tuple(KEYS_ARGUMENTS))
    least, most = KEYS_ARGUMENTS[word]
    if not least <= len(rest) <= most:
        raise BadInput(f"keys {word}: {len(rest)} arguments; see `tacit keys --help`")
    if options := [arg for arg in rest if arg.startswith("-")]:
        raise BadInput(f"{options[0]}: unknown option; see `tacit keys --help`")
    folder = Path(rest[0])
    if word == "init":
        k.make_authority(folder, rest[1:])
        print(
            f"authority and server certificate in {folder}; give {folder / 'ca.crt'} to every site"
        )
    elif word == "new":
        private = k.make_site_key(Path(rest[1]) if len(rest) > 1 else Path(), rest[0])
        print(f"{private} stays here; give {private.with_suffix('.pub')} to the coordinator")
    elif word == "add":
        k.register(folder, rest[1], Path(rest[2]))
        print(f"{rest[1]} may connect")
    elif word == "remove":
        k.remove(folder, rest[1])
        print(f"{rest[1]} may not connect any more")
    elif word == "revoke":
        k.revoke(folder, rest[1])
        print(f"{rest[1]} may not connect any more, and its key cannot be registered again")
    elif word == "renew":
        due = k.renew(folder)
        print(f"server certificate in {folder} lasts {k.SERVER_DAYS} days from now")
        if due:
            print(f"the authority's was made anew, too: give {folder / 'ca.crt'} to every site")
    else:
        print(
            "\n".join(f"{name}  {text}" for name, text in k.register_of(folder).items()) or "nobody"
        )


@dataclass(frozen=True)
class ServeFlags:
    """Flags of ``tacit serve``."""

    keys: Path | None = None  # folder of keys, made by `tacit keys init`
    host: str = "127.0.0.1"  # address to listen on; 0.0.0.0: all
    port: int = 9092  # port to listen on: the only one that sites must reach
    out: Path | None = None  # run directory; default: a new one in runs/
    wait_for: int = 0  # sites that must have connected before the first round; 0: all
    patience: float = 600.0  # seconds to wait for them
    deadline: float = 600.0  # seconds that a site has for an answer
    max_message: int = 1024  # megabytes of one message at most
    # the largest norm of a site's update; median: ten times the median of each round's norms, and
    # never less than the norm of the model
    max_norm: float | Literal["median"] = "median"
    public: str | None = None  # data that belong to nobody, for methods that use some
    # who takes part: os: a secret; seeded: a rehearsal, as in a simulation
    samples: Literal["os", "seeded"] = "os"
    insecure: bool = False  # no TLS, no keys: on loopback only
    # curves for TensorBoard or MLflow too, in runs/
    track: Literal["none", "tensorboard", "mlflow"] = "none"


def serve(args: Sequence[str]) -> None:
    """Coordinate sites."""
    about = (
        "Coordinate real sites. The first argument is an experiment file, or the directory of a "
        "run to continue."
    )
    if not args or args[0].startswith("-"):
        parse(ServeFlags, args or ["--help"], prog="tacit serve EXPERIMENT.toml|RUN", about=about)
        raise BadInput(
            f"{args[0]}: the first argument must be an experiment file or the directory of a run"
        )
    _needs_flower()
    what, given = (
        Path(args[0]),
        parse(ServeFlags, args[1:], prog=f"tacit serve {args[0]}", about=about),
    )
    _check_network(given.insecure, given.host, {"--keys": given.keys})
    check.number("port", given.port, at_least=1, at_most=65535)
    check.number("deadline", given.deadline, above=0)
    check.number("max_message", given.max_message, at_least=1)
    if given.max_norm != "median":
        check.number("max_norm", given.max_norm, above=0)
    _quiet()
    from tacit.apps.coordinator import Terms, go_on
    from tacit.apps.coordinator import serve as start
    from tacit.cli.runs import conclude, telling_if_stopped
    from tacit.cli.tracking import watcher
    from tacit.experiment.config import read_experiment
    from tacit.experiment.rundir import RunDir
    from tacit.methods.spec import name_of

    limit = given.max_message << 20
    terms = Terms(
        given.host,
        given.port,
        given.keys,
        given.wait_for,
        given.patience,
        given.deadline,
        limit,
        given.public,
        given.samples,
        None if given.max_norm == "median" else given.max_norm,
    )
    experiment = RunDir.open(what).experiment() if what.is_dir() else read_experiment(what)
    interrupts.in_order()
    with telling_if_stopped(), watcher(name_of(experiment.method), given.track) as watch:
        watch.begin(name_of(experiment.method), experiment.method.rounds)
        done = (
            go_on(what, terms, watch, _say)
            if what.is_dir()
            else start(experiment, given.out, terms, watch, _say)
        )
    conclude(done)


def _say(text: str) -> None:
    print(text, flush=True)


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
    given = parse(
        JoinFlags, args, prog="tacit join", about="Take part in a federation with your own data."
    )
    _needs_flower()
    host, _, port = given.server.rpartition(":")
    if not (host and port.isdecimal() and 1 <= int(port) <= 65535):
        raise BadInput(
            f"--server = {given.server!r}: must be HOST:PORT, with a port from 1 to 65535"
        )
    _check_network(given.insecure, host, {"--key": given.key, "--ca": given.ca})
    if given.budget != math.inf:
        check.number("budget", given.budget, above=0)
    _quiet()
    import torch

    from tacit.apps.books import Books, write_budget
    from tacit.apps.books import Terms as SiteTerms
    from tacit.apps.connection import Fleet
    from tacit.apps.keys import check_name, read_private
    from tacit.apps.private_files import keep_private
    from tacit.apps.site import Site
    from tacit.experiment.encoding import featured, settled
    from tacit.experiment.rundir import RunDir
    from tacit.experiment.signs import of_data, warn_of
    from tacit.experiment.sites import holding
    from tacit.methods.spec import method_class

    check_name(given.name)
    if given.method is not None:
        method_class(given.method)
    check.number("threads", given.threads, at_least=1)
    torch.set_num_threads(given.threads)
    dataset, part = _data(given)
    _try_model(given.model, dataset)
    if given.features is not None:  # what it cannot encode, nobody but its owner learns
        given = replace(given, features=(word := settled(given.features)))
        featured(holding(dataset, 1, seed=0, client=0, of=part), word)
    size = len(part.train[0]) if part else len(dataset.train)
    policy = agreed(given, dataset, size)
    folder = given.store or Path("sites") / given.name
    keep_private(folder)
    lock = RunDir(folder)
    lock.lock()  # two processes must not share a ledger
    Books(folder).verify()
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
    write_budget(folder, SiteTerms(given.name, site.budget, given.delta))
    warn_of(of_data(dataset))
    if policy is not None:
        _say(in_words(policy, given))
    ca = given.ca.read_bytes() if given.ca else None
    fleet = Fleet(given.server, ca, read_private(given.key) if given.key else None, given.patience)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: fleet.stop.set())
    site.agree = partial(ask_owner, given, dataset, size, fleet.stop.set)
    fleet.run(site)


def agreed(given: JoinFlags, dataset: Dataset, size: int) -> Policy | None:
    """Return the policy that flags state; None: the owner is to be asked at this terminal."""
    from tacit.apps.policy import ANYTHING, read_policy
    from tacit.experiment.config import read_experiment

    if given.accept and given.policy:
        raise BadInput("--accept: contradicts --policy; leave one of them out")
    if given.policy:
        return read_policy(given.policy, _first_parameters("auto", dataset))
    if given.accept == "anything":
        return ANYTHING
    if given.accept:
        return _accepted(read_experiment(Path(given.accept)), given, dataset, size)
    if not sys.stdin.isatty():
        raise BadInput(
            "--accept: needed where there is no terminal to ask at: the experiment file that you "
            "agree to, or --policy FILE"
        )
    return None


def _accepted(experiment: Experiment, given: JoinFlags, dataset: Dataset, size: int) -> Policy:
    from tacit.apps.policy import from_experiment
    from tacit.experiment.encoding import NONE, chosen_features, is_linear, network_for

    s = experiment.setting
    told = _own_encoder(s.features, given.features)
    features = chosen_features(told, experiment.method, dataset.shape, s.model)
    word = network_for(s.model, features, dataset.shape, experiment.method)
    x0 = _first_parameters(word, dataset, features)
    linear, featured = is_linear(word, features), features != NONE
    return from_experiment(experiment, x0, size, linear=linear, features=featured)


def _own_encoder(told: str, own: str | None) -> str:
    """Return the features of an experiment, an encoder's file as this site's owner has named it."""
    from tacit.apps.policy import Refused
    from tacit.synthesis import encoder_file

    if not encoder_file.is_file(told):
        return told
    wanted = encoder_file.digest_of(told)  # an experiment file of one's own need not say it
    if own is None or (wanted and not encoder_file.same(told, own)):
        raise Refused(f"features = {told[:80]!r}: not the encoder given with --features")
    return own


def _first_parameters(model: str, dataset: Dataset, features: str = "none") -> Params:
    """Return the parameters that a network begins with on such data, or features of them."""
    from tacit.core import params_of
    from tacit.experiment.encoding import shape_of
    from tacit.models import build, choose

    shape = shape_of(features, dataset.shape)
    return params_of(build(choose(model, shape), shape, len(dataset.classes), 0))


def ask_owner(
    given: JoinFlags, dataset: Dataset, size: int, leave: Callable[[], None], text: str
) -> Policy:
    """Show what a coordinator says that it runs; return the policy for it if the owner agrees.

    Args:
        given: the flags of `tacit join`
        dataset: the site's data
        size: how many training examples the site has
        leave: ends the connection, if the owner does not agree
        text: the experiment, as the coordinator tells it
    """
    from tacit.apps.policy import Refused

    policy = _accepted(_told(text, given), given, dataset, size)
    print(f"\nThe coordinator at {given.server} wants to run:\n\n{_printable(text)}")
    print(f"If you agree, {in_words(policy, given)}.")
    if not _yes("Do you agree? [y/N] "):
        leave()
        raise Refused("policy: this site's owner does not agree")
    return policy


def _yes(question: str) -> bool:
    """Ask at the terminal; Ctrl-C and the end of input are a no."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(question).strip().lower() in ("y", "yes")
    except (KeyboardInterrupt, EOFError):
        return False
    finally:
        signal.signal(signal.SIGINT, before)


def _told(text: str, given: JoinFlags) -> Experiment:
    """Return the experiment that a coordinator describes; no code of its choice is looked at."""
    import tomllib

    from tacit.apps.policy import Refused, refuse_code
    from tacit.core.registry import names_code
    from tacit.experiment.config import experiment_from

    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise BadInput(f"experiment: not TOML ({e})") from None
    raw = {k: v for k, v in raw.items() if k not in ("data", "split")}  # nobody's affair here
    method = raw.pop("method", {})
    method = {"name": method} if isinstance(method, str) else dict(method)
    if given.method is not None and names_code(str(method.get("name"))):
        method["name"] = given.method
    refuse_code(_words(raw), _own(given))
    for word in _words(method):
        if names_code(word) and word not in _own(given):
            raise Refused(f"method: {word[:80]!r} names code, and --method does not")
    if ":" in str(raw.get("model")) and raw["model"] != given.model:
        raise Refused(f"model = {raw['model'][:80]!r}: not the network given with --model")
    return experiment_from({**raw, "method": method})


def _words(raw: Json) -> list[str]:
    from tacit.core.schema import leaves

    return [value for _, _, value in leaves(raw) if isinstance(value, str)]


def _own(given: JoinFlags) -> set[str | None]:
    return {given.method, given.model, given.features}


def _printable(text: str) -> str:
    """Return a text from elsewhere without anything that a terminal would obey."""
    return "".join(c for c in text if c.isprintable() or c == "\n")[:10_000]


def in_words(policy: Policy, given: JoinFlags) -> str:
    """Say what a site allows, its flags included."""
    budget = "" if given.budget == math.inf else f"; --budget {given.budget:g} over all runs"
    metrics = given.metrics or policy.metrics or "exact"
    return f"{policy.words()}{budget}; metrics: {metrics}"


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


def _data(given: JoinFlags) -> tuple[Dataset, Any]:
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


def _check_network(insecure: bool, host: str, keys: dict[str, Path | None]) -> None:
    """TLS and keys are the rule; without them nothing leaves this machine."""
    given = [flag for flag, file in keys.items() if file is not None]
    if insecure and given:
        raise BadInput(
            f"--insecure: contradicts {' and '.join(given)}, which would not be used; "
            "leave one of them out"
        )
    if insecure and not _loopback(host):
        raise BadInput(f"--insecure: only on loopback, such as 127.0.0.1, not on {host}")
    if not insecure and len(given) < len(keys):
        flags = " and ".join(keys)
        raise BadInput(
            f"{flags}: needed for TLS and authentication (`tacit keys --help`); --insecure: "
            "on loopback only"
        )


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _quiet() -> None:
    """Send our log to stderr, and Flower's nowhere unless it warns."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("tacit").setLevel(logging.INFO)
    import flwr  # noqa: F401  # it adds a handler of its own

    logging.getLogger("flwr").setLevel(logging.WARNING)
