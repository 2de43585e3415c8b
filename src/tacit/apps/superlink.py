"""The coordinator's end of Flower.

Its server as a process on loopback, the gate before it, and a grid to send with.

Flower's server (SuperLink) does the transport, the registry of nodes and the bookkeeping of the
run. It is started in the isolation mode in which the server program is somebody else's process:
this one. The bundle that Flower wants with every run holds no code.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tacit import __version__
from tacit.apps.flower_internals import (
    SUPERLINK,
    AcquireTaskRequest,
    ControlHttpClient,
    Fab,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    RegisterNodeRequest,
    RuntimeHttpClient,
    RuntimeVersionHttpInterceptor,
    SendTaskHeartbeatRequest,
    StartRunRequest,
    SuperExecAuthHttpInterceptor,
    TaskIdentity,
    TaskType,
    public_key_to_bytes,
    run_from_proto,
)
from tacit.apps.gateway import Badge, Gate
from tacit.apps.keys import check_certificate, register_of
from tacit.apps.post import Post
from tacit.apps.private_files import keep_private
from tacit.apps.sending import PostGrid
from tacit.codec import write_atomically
from tacit.core import BadInput, TacitError
from tacit.engines.facts import Facts, facts_from
from tacit.engines.flower import QUIET, letter, opened, packed, post
from tacit.engines.messages import plain_words

START = 60.0  # seconds that Flower may take to start
GREETING = 30.0  # seconds that a site may take to answer a greeting
STARTS = 3  # of one that ends before it answers
RESTARTS = 5  # of Flower's server in a row
STEADY = 30.0  # seconds after which a restart is no longer one of a row
BUNDLE = f"""
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "tacit"
version = "{__version__}"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "tacit"
[tool.flwr.app.components]
serverapp = "tacit.experiment.cluster:server"
clientapp = "tacit.experiment.cluster:client"
[tool.flwr.app.config]
experiment = ""
out = ""
"""
log = logging.getLogger("tacit.link")


class LinkLost(TacitError):
    """Flower's server ended and could not be started again."""


@dataclass
class Link:
    """Everything of Flower's that a coordinator needs, for the time of a run."""

    folder: Path  # for Flower's files
    host: str
    port: int
    keys: Path | None  # the coordinator's keys; None: without TLS and keys, on loopback
    limit: int  # bytes of one message
    experiment: str = ""  # what is run, as TOML: sites are told when they are greeted
    grid: PostGrid = field(init=False)
    gate: Gate = field(init=False)
    post: Post = field(init=False)
    _process: subprocess.Popen[bytes] = field(init=False)
    _registered: dict[str, int] = field(init=False, default_factory=dict)  # nodes by name
    _facts: dict[int, Facts] = field(init=False, default_factory=dict)
    _closing: threading.Event = field(init=False, default_factory=threading.Event)

    def __enter__(self) -> Link:
        """Start Flower and the gate, register the sites, and take up the run."""
        if self.keys and (soon := check_certificate(self.keys)):
            log.warning("%s", soon)
        keep_private(self.folder.parent)
        self.folder.mkdir(parents=True, exist_ok=True)
        os.environ.update(QUIET)
        os.environ["NO_PROXY"] = ",".join(
            filter(None, [os.environ.get("NO_PROXY", ""), "127.0.0.1,localhost,::1"])
        )
        for old in self.folder.glob("superlink.db*"):
            old.unlink()
        self.inside, self.secret = f"127.0.0.1:{_free_port()}", secrets.token_bytes(32)
        write_atomically(self.folder / "secret", self.secret, private=True)
        self._start()
        try:
            self._open()
        except httpx.HTTPError:
            self.__exit__()
            raise LinkLost("Flower's server ended while it was started") from None
        except BaseException:
            self.__exit__()
            raise
        return self

    def _open(self) -> None:
        names = register_of(self.keys) if self.keys else {}
        badges = {name: Badge() for name in names}
        inside = f"http://{self.inside}"
        self.post = Post(self.folder / "post", self.limit)
        self.gate = Gate(inside, keys=self.keys, post=self.post, badges=badges)
        with self._client(ControlHttpClient) as control:
            for name, badge in badges.items():
                public = public_key_to_bytes(badge.private.public_key())
                answer = control.RegisterNode(RegisterNodeRequest(public_key=public, name=name))
                self._registered[name] = answer.node_id
            control.StartRun(StartRunRequest(fab=Fab(content=bundle())))
        self._take_up_run()
        self._threads = [threading.Thread(target=f, daemon=True) for f in (self._watch, self._beat)]
        for thread in self._threads:
            thread.start()
        self.gate.serve(self.host, self.port)

    def _start(self) -> None:
        """Start Flower's server and wait until it answers; one that ends before is started again.

        It may have been killed; but not for ever, as it may also find what it cannot work with.
        """
        for _ in range(STARTS):
            self._launch()
            if self._answers():
                return
            if self._process.poll() is None or self._closing.is_set():
                break
        self._process.kill()
        raise LinkLost(f"Flower's server did not start; see {self.folder / 'superlink.log'}")

    def _launch(self) -> None:
        host, _, port = self.inside.rpartition(":")
        command = [sys.executable, "-c", SUPERLINK, str(os.getpid())]
        # without TLS: it is reached over loopback alone, where the gate signs for the sites
        command += ["--host", host, "--port", port, "--insecure"]
        command += [
            "--isolation",
            "process",
            "--superexec-auth-secret-file",
            str(self.folder / "secret"),
        ]
        command += [
            "--database",
            str(self.folder / "superlink.db"),
            "--disable-runtime-dependency-installation",
        ]
        env = {**os.environ, **QUIET, "FLWR_HOME": str(self.folder / "home")}
        with (self.folder / "superlink.log").open("ab") as out:
            self._process = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env=env,
                start_new_session=True,
            )
        (self.folder / "superlink.pid").write_text(str(self._process.pid))

    def _answers(self) -> bool:
        """Wait until Flower's server answers, and tell whether it does."""
        end = time.monotonic() + START
        with httpx.Client(trust_env=False) as probe:  # is it there? nothing is sent
            while self._process.poll() is None and time.monotonic() < end:
                try:
                    probe.get(f"http://{self.inside}/health")
                    return True
                except httpx.TransportError:
                    time.sleep(0.1)
        return False

    def _client(self, cls: Any, *interceptors: Any) -> Any:
        version = RuntimeVersionHttpInterceptor(component_name="tacit")
        return cls.from_server_address(self.inside, True, None, [version, *interceptors])

    def _take_up_run(self) -> None:
        """Claim the run's server program for this process, and open the grid."""
        method = "/flwr.proto.Runtime/AcquireTask"
        signed = SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=[method])
        with self._client(RuntimeHttpClient, signed) as runtime:
            claim = runtime.AcquireTask(
                AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
            )
        self.grid = PostGrid(self.inside, True, None, token=claim.token)
        self.grid.post = self.post
        self.grid._retry_invoker.max_time = START
        given = self.grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
        TaskIdentity.node_id = given.context.node_id
        self.grid.set_run(run_from_proto(given.run))

    def _watch(self) -> None:
        """Start Flower's server again if it ends.

        Its database has the run, the nodes and the messages.
        """
        row = 0
        while row < RESTARTS:
            began = time.monotonic()
            self._process.wait()
            if self._closing.is_set():
                return
            row = 1 if time.monotonic() - began > STEADY else row + 1
            log.warning(
                "Flower's server ended with %s; it is started again", self._process.returncode
            )
            try:
                self._start()
            except LinkLost as e:
                log.error("%s", e)
                return

    def _beat(self) -> None:
        """Tell Flower that the server program lives."""
        while not self._closing.wait(10.0):
            try:
                self.grid._runtime_client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except (httpx.HTTPError, RuntimeError) as e:
                log.warning("no heartbeat: %s", e)

    def nodes(self) -> dict[str, int]:
        """Return the nodes of all sites that are connected, by name.

        With keys, a name is bound to its key.
        """
        try:
            online = set(self.grid.get_node_ids())
        except httpx.TransportError:
            return {}
        if self.gate.guard:
            known = self.gate.guard.names()  # a key may have been revoked since
            mine = {name: self._registered[name] for name in known & self._registered.keys()}
            return {name: node for name, node in mine.items() if node in online}
        self.greet(online - self._facts.keys())
        return {facts.name: node for node, facts in self._facts.items() if node in online}

    def greet(self, nodes: set[int]) -> dict[int, Facts]:
        """Ask nodes who they are and what their data look like.

        Who does not answer well is left out.
        """
        hello = letter("hello", {"experiment": self.experiment}, packed(b""))
        for node, answer in post(self.grid, dict.fromkeys(nodes, hello), GREETING):
            try:
                self._facts[node] = _facts(answer)
            except Exception as e:  # whatever it is, the others are greeted
                why = str(e) if isinstance(e, TacitError | ValueError) else type(e).__name__
                log.warning("node %s: %s", node, plain_words(why))
        return {node: self._facts[node] for node in nodes if node in self._facts}

    def __exit__(self, *failure: object) -> None:
        """End the run and every process."""
        self._closing.set()
        if hasattr(self, "grid"):
            self.grid._retry_invoker.max_tries = 1
            status = "completed" if failure[:1] == (None,) else "failed"
            with contextlib.suppress(httpx.HTTPError, RuntimeError):
                self.grid._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=status))
            self.grid.close()
        if hasattr(self, "gate"):
            self.gate.close()
            self.post.close()
        self._process.terminate()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in getattr(self, "_threads", []):
            thread.join(timeout=5)


def _facts(answer: Any) -> Facts:
    if isinstance(answer, str):
        raise ValueError(answer)
    kind, about, _ = opened(answer, 1 << 20)
    if kind != "answer":
        raise BadInput(plain_words(about.get("why", "refused")))
    facts = facts_from(about.get("facts"))
    if facts.version != __version__:
        raise ValueError(f"{facts.name} runs tacit {facts.version}: must be {__version__}, as here")
    return facts


def bundle() -> bytes:
    """Return the app bundle that Flower wants with a run.

    A description and no code, always the same bytes.
    """
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as z:
        z.writestr(zipfile.ZipInfo("pyproject.toml"), BUNDLE)
    return made.getvalue()


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
