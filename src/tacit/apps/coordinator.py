"""The coordinator.

Waits for its sites, conducts the experiment with them, and can go on after a kill.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from tacit import data
from tacit.apps.keys import register_of
from tacit.apps.superlink import Link
from tacit.core import BadInput, ClientId, TooFewReplies
from tacit.data.examples import Examples
from tacit.engines.config import Config
from tacit.engines.facts import Facts
from tacit.engines.flower import AtServer, Charter, Sites
from tacit.engines.messages import plain_words
from tacit.experiment.config import Experiment, to_toml
from tacit.experiment.loop import conduct
from tacit.experiment.result import Run
from tacit.experiment.rundir import RunDir, free_folder
from tacit.experiment.sites import AtSites, agreed
from tacit.experiment.watch import Watcher
from tacit.methods.spec import name_of, validated
from tacit.synthesis import encoder_file

ROLL = "sites.json"  # in a run directory: who takes part
SECRET = "samples.secret"  # and what samples of clients derive from, for nobody else's eyes


@dataclass(frozen=True)
class Terms:
    """How a coordinator deals with its sites."""

    host: str
    port: int
    keys: Path | None  # None: without TLS and keys
    wait_for: int  # sites; 0: all
    patience: float  # seconds to wait for them
    deadline: float  # seconds for an answer
    limit: int  # bytes of a message
    public: str | None  # data that belong to nobody, for methods that use some
    samples: Literal["os", "seeded"] = "os"  # where a new run's choice of clients comes from
    max_norm: float | None = None  # of an update; None: by the median of each round


@dataclass(frozen=True)
class Roll:
    """Who takes part in a run, by client number.

    Kept in the run directory, so that a resumed run is the same.
    """

    run: str
    sites: dict[ClientId, str]
    facts: dict[ClientId, Facts]


def serve(
    experiment: Experiment,
    out: Path | None,
    terms: Terms,
    watch: Watcher,
    say: Callable[[str], None],
) -> Run:
    """Start an experiment with sites in a new run directory."""
    folder = out or free_folder(
        Path("runs") / f"{name_of(experiment.method)}-sites-s{experiment.setting.seed}"
    )
    if RunDir(folder).begun:
        raise BadInput(
            f"out = '{folder}': there is a run already; `tacit serve {folder}` continues it"
        )
    names = list(register_of(terms.keys)) if terms.keys else None
    if names == []:
        raise BadInput(
            f"keys = '{terms.keys}': no site is registered; `tacit keys add` registers one"
        )
    folder.mkdir(parents=True, exist_ok=True)
    directory = RunDir(folder)
    with _alone(directory), _link(folder, terms, experiment) as link:
        say(_listening(terms, folder))
        facts = gather(link, names, experiment.setting.clients, terms, say)
        roll = enrol(names or sorted(facts), facts)
        sample_seed = draw_sample_seed(experiment.setting.seed, terms, say)
        venue = _venue(experiment, roll, sample_seed, link, terms)
        directory.begin(venue.experiment)
        directory.put_schema(venue.federation.dataset.schema)
        directory.put(SECRET, str(sample_seed).encode(), private=True)
        write_roll(folder, roll)
        return _conduct(venue, directory, watch, link, say)


def go_on(folder: Path, terms: Terms, watch: Watcher, say: Callable[[str], None]) -> Run:
    """Continue a run with sites from its last checkpoint; one that is finished is left as it is."""
    directory = RunDir.open(folder)
    roll, sample_seed = read_roll(folder), read_sample_seed(folder)
    if is_finished(directory):
        say(f"{folder}: all rounds are done")
        return Run(folder)
    with _alone(directory), _link(folder, terms, directory.experiment()) as link:
        say(_listening(terms, folder))
        gather(link, list(roll.sites.values()), len(roll.sites), terms, say)
        venue = _venue(directory.experiment(), roll, sample_seed, link, terms)
        return _conduct(venue, directory, watch, link, say)


@contextmanager
def _alone(directory: RunDir) -> Iterator[None]:
    """Refuse a second coordinator of a run before anything is touched."""
    directory.lock()
    try:
        yield
    finally:
        directory.unlock()


def is_finished(directory: RunDir) -> bool:
    """Tell whether there is nothing left to ask sites for."""
    saved = directory.checkpoint()
    rounds = directory.experiment().method.rounds
    return saved is not None and saved[0].round >= rounds


def _link(folder: Path, terms: Terms, experiment: Experiment) -> Link:
    """Return the link to the sites of a run, which tells them what is run."""
    return Link(
        folder / "flower",
        terms.host,
        terms.port,
        terms.keys,
        terms.limit,
        to_toml(_as_told(experiment)),
    )


def _as_told(experiment: Experiment) -> Experiment:
    """Return an experiment as sites are told of it: an encoder by what is in it, not by a path."""
    s = experiment.setting
    if not encoder_file.is_file(s.features):
        return experiment
    told = encoder_file.named(encoder_file.pinned(s.features))
    return replace(experiment, setting=replace(s, features=told))


def _conduct(
    venue: AtSites, directory: RunDir, watch: Watcher, link: Link, say: Callable[[str], None]
) -> Run:
    made: list[Sites] = []
    open = venue.open

    def remembered(charter: Charter, config: Config, at_server: AtServer) -> Sites:
        made.append(open(charter, config, at_server))
        return made[0]

    done = conduct(replace(venue, open=remembered), directory, watch)
    down, up = made[0].carried_down, made[0].carried_up
    wire = (
        f"{link.gate.bytes_out:,} bytes down for {down:,} of calls, {link.gate.bytes_in:,} up for "
        f"{up:,} of answers"
    )
    say(f"on the wire: {wire}")
    return done


def _listening(terms: Terms, folder: Path) -> str:
    how = "TLS and keys" if terms.keys else "no TLS, no keys"
    return f"listening on {terms.host}:{terms.port} ({how}); files in {folder}"


def gather(
    link: Link, names: list[str] | None, clients: int, terms: Terms, say: Callable[[str], None]
) -> dict[str, Facts]:
    """Wait until enough sites have connected and said what their data look like."""
    expected = len(names) if names is not None else clients
    wanted, end = min(terms.wait_for or expected, expected), time.monotonic() + terms.patience
    seen: dict[str, Facts] = {}
    strangers: set[str] = set()  # who answer with another's name
    while len(seen) < wanted:
        online = {
            name: node for name, node in link.nodes().items() if names is None or name in names
        }
        done = seen.keys() | strangers
        fresh = {node: name for name, node in online.items() if name not in done}
        for node, facts in link.greet(set(fresh)).items():
            if facts.name != fresh[node]:
                if fresh[node] not in strangers:
                    say(f"{fresh[node]} is left out: it answers as {plain_words(facts.name)!r}")
                strangers.add(fresh[node])
                continue
            seen[facts.name] = facts
            say(f"{facts.name} has joined ({len(seen)} of {expected}): {facts.examples:,} examples")
        if len(seen) < wanted and time.monotonic() > end:
            raise TooFewReplies(
                f"{len(seen)} of {wanted} sites connected within {terms.patience:g} s"
            )
        time.sleep(0.1)
    return seen


def enrol(names: list[str], facts: dict[str, Facts]) -> Roll:
    """Number the sites in the order of their names."""
    width = len(str(len(names) - 1))
    sites = {f"{i:0{width}d}": name for i, name in enumerate(sorted(names))}
    return Roll(
        secrets.token_hex(16), sites, {i: facts[name] for i, name in sites.items() if name in facts}
    )


def read_roll(folder: Path) -> Roll:
    """Read who takes part in a run."""
    if not (folder / ROLL).exists():
        raise BadInput(
            f"'{folder}': not a run with sites (no {ROLL}); `tacit resume` continues others"
        )
    try:
        raw = json.loads(RunDir.open(folder).get(ROLL))
    except json.JSONDecodeError:
        raise BadInput(f"'{folder / ROLL}': not JSON") from None
    if not isinstance(raw, dict):
        raise BadInput(f"'{folder / ROLL}': must say run, sites and facts")
    roll: Roll = validated(Roll, raw, ROLL)
    return roll


def draw_sample_seed(known: int, terms: Terms, say: Callable[[str], None]) -> int:
    """Return what a new run's samples of clients derive from."""
    if terms.samples == "seeded":
        say(
            f"samples of clients derive from seed {known}, which every site is told: "
            "all can tell who takes part"
        )
        return known
    return secrets.randbits(128)


def read_sample_seed(folder: Path) -> int:
    """Read what a run's samples of clients derive from."""
    return int(RunDir.open(folder).get(SECRET))


def _venue(
    experiment: Experiment, roll: Roll, sample_seed: int, link: Link, terms: Terms
) -> AtSites:
    return AtSites.of(
        experiment,
        roll.facts,
        len(roll.sites),
        open=partial(_open, link, roll, terms),
        run=roll.run,
        sample_seed=sample_seed,
        public=_public(terms.public),
    )


def _open(
    link: Link, roll: Roll, terms: Terms, charter: Charter, config: Config, at_server: AtServer
) -> Sites:
    return Sites(
        link.grid,
        roll.sites,
        charter,
        config,
        at_server=at_server,
        nodes=link.nodes,
        deadline=terms.deadline,
        limit=terms.limit,
        facts=partial(registered, link, roll),
        max_norm=terms.max_norm,
    )


def registered(link: Link, roll: Roll, client: ClientId, node: int) -> Facts:
    """Return what a site said of itself when it joined; one that comes late is asked now.

    It must have the others' shape, classes and scaling, and its own name.
    """
    if client not in roll.facts:
        facts = link.greet({node}).get(node)
        if facts is None or facts.name != roll.sites[client]:
            raise BadInput("facts: does not say what its data look like, in its own name")
        first = next(iter(roll.facts))
        agreed({first: roll.facts[first], client: facts})
        roll.facts[client] = facts
        write_roll(link.folder.parent, roll)
    return roll.facts[client]


def write_roll(folder: Path, roll: Roll) -> None:
    """Write down who takes part, and what they said of themselves."""
    RunDir.open(folder).put(ROLL, json.dumps(asdict(roll), indent=1).encode())


def _public(name: str | None) -> Examples | None:
    return None if name is None else data.load(name).train
