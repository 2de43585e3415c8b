"""A small web server on this machine alone that shows runs and follows them while they go on.

It reads run directories inside of one folder and writes nothing. A run is named by its place in the
list of runs, so no other file can be asked for; requests that another site makes, or that call this
server by another name, are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from tacit.core import BadInput, Json
from tacit.experiment.rundir import SEVERAL
from tacit.experiment.samples import SAMPLES
from tacit.privacy import show_epsilon
from tacit.report.figures import figures
from tacit.report.holdings import holdings_of
from tacit.report.page import body, frame, percent, state, template, whole_page
from tacit.report.reading import MOST_RUNS, RunFacts, read_run, with_labels

SELECTED = 50  # runs in one report
ODD = "surrogateescape"  # names of folders need not be UTF-8
STAMPED = ("config.toml", "metrics.jsonl", "ledger.jsonl", "about.json", "sites.json", "audit.json")
READ = (*STAMPED, "certificate.json", "sheet.png", SAMPLES, "checkpoint")
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class NotThere(Exception):
    """There is nothing at an address."""


@dataclass
class Runs:
    """The runs in a folder, by their names in it."""

    root: Path
    known: dict[str, tuple[str, RunFacts]] = field(default_factory=dict)  # with what they were of

    def names(self) -> dict[str, Path]:
        """Return the runs that there are now; one that leads out of the folder is none."""
        found = {str(run.relative_to(self.root)): run for run in self._folders()}
        return dict(list(found.items())[:MOST_RUNS])

    def _folders(self) -> Iterator[Path]:
        if (self.root / "config.toml").is_file():
            yield self.root
            return
        for folder in sorted(f for f in self.root.iterdir() if f.is_dir()):
            several = any((folder / name).is_file() for name in SEVERAL)
            inside = sorted(f for f in folder.iterdir() if f.is_dir()) if several else [folder]
            yield from (f for f in inside if (f / "config.toml").is_file() and self._holds(f))

    def _holds(self, run: Path) -> bool:
        """Tell whether all that is read of a run is inside of the folder."""
        files = [run / name for name in READ]
        files += (run / "checkpoint" / "clients").glob("*/ledger.jsonl")
        root = self.root.resolve()
        return all(file.resolve().is_relative_to(root) for file in files)

    def read(self, names: Sequence[str]) -> list[RunFacts]:
        """Return some runs as they are now."""
        there = self.names()
        if not names or len(names) > SELECTED or any(name not in there for name in names):
            raise NotThere
        return with_labels([self._read(name, there[name]) for name in dict.fromkeys(names)])

    def _read(self, name: str, folder: Path) -> RunFacts:
        now = _stamp_of(folder)
        if name not in self.known or self.known[name][0] != now:
            self.known[name] = (now, read_run(folder))
        return self.known[name][1]

    def all(self) -> list[tuple[str, RunFacts]]:
        """Return every run with its name, what changed last first."""
        there = self.names()
        order = sorted(there, key=lambda name: -_changed(there[name] / "metrics.jsonl"))
        return [(name, self._read(name, there[name])) for name in order]

    def stamp(self, names: Sequence[str]) -> str:
        """Return what changes whenever one of the runs does."""
        there = self.names()
        said = [f"{name} {_stamp_of(there[name])}" for name in names if name in there]
        return hashlib.sha256(os.fsencode("\n".join(said))).hexdigest()[:16]


def _stamp_of(run: Path) -> str:
    names = (*STAMPED, "checkpoint/open")
    return " ".join(f"{_changed(run / name)}:{_size(run / name)}" for name in names)


def _changed(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1


def listing(runs: Runs) -> str:
    """Return the list of runs as a form to choose from."""
    rows = [
        {
            "name": name,
            "method": run.method,
            "accuracy": percent(run.final.get("accuracy")),
            "epsilon": show_epsilon(run.spent),
            "done": run.done,
            "rounds": f"{run.done} of {run.rounds or '?'}",
            "state": state(run),
            "address": "/report?" + urlencode({"run": name}, errors=ODD),
        }
        for name, run in runs.all()
    ]
    text: str = template("runs.html").render(rows=rows)
    return text


def answer(runs: Runs, address: str) -> tuple[str, str]:
    """Return the kind and the text of what is at an address."""
    parts = urlsplit(address)
    asked = parse_qs(parts.query, max_num_fields=2 * SELECTED, errors=ODD)
    chosen, stamp = asked.get("run", []), asked.get("stamp", [""])[0]
    # the stamp comes before what it is of: what changes meanwhile is told again, never left out
    if parts.path == "/":
        title, now = f"Runs in {runs.root.resolve().name}", runs.stamp(list(runs.names()))
        page = frame(title, listing(runs), [], live="/news?all=1", stamp=now, draws=False)
        return "text/html", page
    if parts.path == "/report":
        live, now = (
            "/news?" + urlencode({"run": chosen}, doseq=True, errors=ODD),
            runs.stamp(chosen),
        )
        found = runs.read(chosen)
        return "text/html", whole_page(", ".join(chosen[:3]), found, found[0].metric, live, now)
    if parts.path == "/news":
        return "application/json", json.dumps(_news(runs, chosen, stamp))
    raise NotThere


def _news(runs: Runs, chosen: list[str], stamp: str) -> Json:
    """Return what has changed since a stamp."""
    now = runs.stamp(chosen or list(runs.names()))
    if now == stamp:
        return {"stamp": now}
    if not chosen:
        return {"stamp": now, "body": listing(runs), "figures": []}
    found = runs.read(chosen)
    metric = found[0].metric
    drawn = figures(found, holdings_of(found), metric)
    plain = [figure.plain() for figure in drawn]
    return {"stamp": now, "body": body(found, drawn, metric), "figures": plain}


class Handler(BaseHTTPRequestHandler):
    """Answers requests to look, and no others."""

    server: Viewer
    server_version = "tacit"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        """Answer one request."""
        if why := self._refused():
            self._send(403, "text/plain", why)
            return
        try:
            kind, text = answer(self.server.runs, self.path)
        except (NotThere, ValueError):  # also of addresses that are none
            self._send(404, "text/plain", "there is nothing here")
        else:
            self._send(200, kind, text)

    def _refused(self) -> str:
        """Say why a request is not answered; nothing if it is."""
        names = [f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost")]
        if self.headers.get_all("Host", []) not in [[name] for name in names]:
            return "this server is called 127.0.0.1"
        origins = [f"http://{name}" for name in names]
        if any(origin not in origins for origin in self.headers.get_all("Origin", [])):
            return "another site asks"
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return "another site asks"
        return ""

    def _send(self, code: int, kind: str, text: str) -> None:
        blob = text.encode("utf-8", "replace")
        self.send_response(code)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(blob)))
        self.end_headers()
        self.wfile.write(blob)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a page that follows a run asks every second."""


class Viewer(ThreadingHTTPServer):
    """The server, on the loopback address alone."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        if not folder.is_dir():
            raise BadInput(f"'{folder}': no such folder")
        self.runs = Runs(folder)
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except (OSError, OverflowError) as e:
            said = e.strerror if isinstance(e, OSError) else "from 0 to 65535"
            raise BadInput(f"port = {port}: cannot be used ({said})") from None

    @property
    def address(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: somebody has closed a page."""
