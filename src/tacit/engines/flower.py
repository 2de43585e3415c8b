"""The cohort at real sites.

Calls travel as Flower messages, and what comes back is checked before it counts.

Flower carries and keeps books; it never sees more than bytes. A letter is one ConfigRecord (what is
asked, of whom, in which run) and a packed call or answer, the same bytes that the other engines
pass between processes: in the same record if it is small, else in one ArrayRecord.
"""

from __future__ import annotations

import json
import time
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from tacit.codec import pack, unpack
from tacit.compress.replies import restore
from tacit.core import (
    BadInput,
    Call,
    ClientId,
    Observer,
    Owner,
    Params,
    Release,
    Released,
    Task,
    TooFewReplies,
    Unit,
    ask_id,
)
from tacit.core.data import Examples
from tacit.engines.config import Config
from tacit.engines.messages import Answer, Head, Refusal, check_finite
from tacit.engines.server import Engine, Results

T = TypeVar("T")
AtServer = Callable[[Call[Any], Examples, int], Any]  # runs a task at the server itself
TYPE = "query.tacit"  # of every message
QUIET = {  # in the environment of all of Flower's processes: nobody is called, nothing installed
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
# bytes that travel within a record: every part of a message is a request of its own
SMALL = 1 << 20
POLL = 0.2  # seconds between looks for replies
PLAIN = (bool, int, float, str, Params, Tensor)  # fields of these types are checked
KINDS = {
    2: "failed at the site",
    3: "no answer in time",
    4: "no answer in time",
    5: "not connected",
    8: "crashed",
}


@dataclass(frozen=True)
class Charter:
    """What a site must know of a run besides the call.

    It goes with every message and never changes.
    """

    run: str  # a random name, in hexadecimal digits
    clients: int
    seed: int
    model: str
    shape: tuple[int, ...]  # of one input
    classes: int
    delta: float
    compress: str = "none"  # how updates travel
    budget: float = 0.0  # of the run, besides the site's own; 0: none
    unit: Unit = "example"  # what that budget is for
    observer: Observer = "server"  # and against whom


@dataclass(frozen=True)
class Facts:
    """What a site says of itself when it is greeted: all of it public, by its own decision."""

    name: str
    version: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # public constants that inputs are scaled with
    std: tuple[float, ...]
    examples: int  # to train on
    tests: int


def letter(kind: str, about: Mapping[str, Any], body: Array | bytes) -> RecordDict:
    """Return the content of a message."""
    head = {"kind": kind, "about": json.dumps(about)}
    if isinstance(body, bytes):
        return RecordDict({"head": ConfigRecord({**head, "packed": body})})
    return RecordDict({"head": ConfigRecord({**head}), "body": ArrayRecord({"packed": body})})


def packed(blob: bytes) -> Array | bytes:
    """Return bytes as Flower carries them.

    Large ones in chunks, each under its own hash, so that it is stored once.
    """
    return Array("uint8", (len(blob),), "tacit", blob) if len(blob) > SMALL else blob


def opened(content: RecordDict, limit: int) -> tuple[str, dict[str, Any], bytes]:
    """Take a letter apart, or refuse it."""
    try:
        head = content.config_records["head"]
        kind, about = head["kind"], json.loads(str(head["about"]))
        blob = head["packed"] if "packed" in head else content.array_records["body"]["packed"].data
    except (KeyError, ValueError) as e:
        raise BadInput(f"message: not one of ours ({e!r})") from None
    if not isinstance(kind, str) or not isinstance(about, dict) or not isinstance(blob, bytes):
        raise BadInput("message: not one of ours")
    if len(blob) > limit:
        raise BadInput(f"message: {len(blob):,} bytes: must be at most {limit:,}")
    return kind, about, blob


class Sites(Engine):
    """Sends calls through a Flower grid and waits for answers, but never longer than the deadline."""

    def __init__(
        self,
        grid: Grid,
        sites: Mapping[ClientId, str],
        charter: Charter,
        config: Config,
        *,
        at_server: AtServer,
        # the nodes of the sites that are connected now, by name
        nodes: Callable[[], Mapping[str, int]],
        deadline: float,
        limit: int,
        ours: bool = False,  # nodes are parts of a simulation: a refusal may stop the run
    ) -> None:
        super().__init__(config)
        self.grid = grid
        self.sites = dict(sites)
        self.charter = charter
        self.at_server = at_server
        self.nodes = nodes
        self.deadline = deadline
        self.limit = limit
        self.ours = ours
        # bytes of calls and answers, over all exchanges
        self.carried_down = 0
        self.carried_up = 0

    def own(self, call: Call[T], data: Examples, round: int) -> T:
        """Run a task at the coordinator."""
        result: T = self.at_server(call, data, round)
        return result

    def close(self) -> None:
        """Leave the connection to its owner."""

    def exchange(self, kind: str, call: bytes, heads: Sequence[Head]) -> Results:
        """Send to every site that is connected.

        A missing, late or bad answer costs that site the round.
        """
        online, body, task = self.nodes(), packed(call), unpack(call)
        named = {h.client: self.sites[h.client] for h in heads}
        failed = {i: f"{name}: not connected" for i, name in named.items() if name not in online}
        asked = {online[named[h.client]]: h for h in heads if h.client not in failed}
        about = {
            node: {"charter": asdict(self.charter), "head": asdict(h)} for node, h in asked.items()
        }
        letters = {node: letter(kind, a, body) for node, a in about.items()}
        self.carried_down += len(call) * len(letters)
        got: dict[ClientId, bytes] = {}
        sent: dict[ClientId, Any] = {}
        for node, result in post(self.grid, letters, self.deadline):
            client = asked[node].client
            try:
                got[client], sent[client] = self._checked(result, asked[node], task)
            except BadInput as e:
                failed[client] = f"{self.sites[client]}: {e}"
            self.config.on_answer(len(got) + len(failed), len(heads))
        self.carried_up += sum(map(len, got.values()))
        answered = {i: s for i, s in sent.items() if not isinstance(s, Refusal)}
        for client, why in misfits(answered, task).items():
            failed[client] = f"{self.sites[client]}: {why}"
            del got[client]
        return got, failed

    def look(self, call: Call[T], ids: Sequence[ClientId], round: int) -> dict[ClientId, T]:
        """Evaluate at the sites. Each decides what it reports, and writes that down.

        Who is silent is left out.
        """
        blob, heads = pack(call), [self._head(i, ask_id(call.task, round), round) for i in ids]
        blobs, failed = self.exchange("look", blob, heads)
        self.failed = failed | self.failed  # what went wrong in training is worth more
        got: dict[ClientId, Answer] = {i: unpack(blobs[i]) for i in ids if i in blobs}
        self.learn(r for answer in got.values() for r in answer.ledger)
        return {i: answer.sent for i, answer in got.items()}

    def _checked(self, result: RecordDict | str, head: Head, call: Call[Any]) -> tuple[bytes, Any]:
        """Return an answer that a method can use, packed and what it sends, or raise :class:`BadInput`."""
        if isinstance(result, str):
            raise BadInput(result)
        kind, about, blob = opened(result, self.limit)
        if kind != "answer":
            raise BadInput(" ".join(str(about.get("why", "refused"))[:500].split()))
        if about.get("ask") != head.ask:
            raise BadInput(f"answers {about.get('ask')!r}, but was asked {head.ask!r}")
        answer = unpack(blob)
        if self.ours and isinstance(answer, Refusal):
            return blob, answer
        check_answer(self._expanded(answer, call), head, call)
        return blob, answer.sent

    def _expanded(self, answer: Any, call: Call[Any]) -> Any:
        """Return an answer as its task made it, or refuse what no honest compression sends."""
        if not isinstance(answer, Answer) or not is_dataclass(answer.sent):
            return answer
        try:
            return replace(answer, sent=restore(self.config.compress, answer.sent, call.args))
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as e:
            raise BadInput(f"message: cannot be expanded ({type(e).__name__})") from None


def post(
    grid: Grid, letters: Mapping[int, RecordDict], deadline: float
) -> Iterator[tuple[int, RecordDict | str]]:
    """Send one letter to each node; yield what each answers, or why it does not, as it comes."""
    end, waiting = time.monotonic() + deadline, {}
    messages = [Message(content, node, TYPE, ttl=deadline) for node, content in letters.items()]
    for message, sent in zip(messages, grid.push_messages(messages), strict=True):
        if sent:
            waiting[sent] = message.metadata.dst_node_id
        else:
            yield message.metadata.dst_node_id, "Flower did not take the message"
    while waiting and time.monotonic() < end:
        for reply in _pull(grid, list(waiting)):
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                yield node, _words(reply.error) if reply.has_error() else reply.content
        if waiting:
            time.sleep(POLL)
    for node in waiting.values():
        yield node, f"no answer within {deadline:g} s"


def _pull(grid: Grid, ids: list[str]) -> Sequence[Message]:
    """Look for replies; while Flower is being started again there are none."""
    try:
        return list(grid.pull_messages(ids))
    except httpx.TransportError:
        time.sleep(1.0)
        return []
    except httpx.HTTPStatusError as e:
        raise TooFewReplies(
            f"Flower refuses to go on with the run ({e.response.status_code})"
        ) from None


def _words(error: Any) -> str:
    return f"{KINDS.get(error.code, 'failed')} ({error.reason})"


def check_answer(answer: Any, head: Head, call: Call[Any]) -> None:
    """Refuse an answer that is not what the task promises.

    Type, fields, shapes, finite numbers, own ledger lines.
    """
    if not isinstance(answer, Answer) or not isinstance(answer.ledger, list):
        raise BadInput("message: not an answer")
    for line in answer.ledger:
        if not isinstance(line, Release) or line.owner not in (
            head.client,
            Owner(head.client, tests=True).id,
        ):
            raise BadInput("message: a ledger line that is not this site's")
    promised = _promised(call.task)
    if promised is not None:
        _check_fields(answer.sent, promised)
    check_finite(answer.sent, head)


def _promised(task: str) -> type[Any] | None:
    """Return the dataclass that a task says it sends."""
    said = typing.get_type_hints(Task.registry[task].fn).get("return")
    (what,) = typing.get_args(said) or (None,)
    return what if isinstance(what, type) and is_dataclass(what) else None


def _check_fields(sent: Any, promised: type[Any]) -> None:
    if type(sent) is not promised:
        raise BadInput(f"message: a {type(sent).__name__}: must be a {promised.__name__}")
    for name, kind in typing.get_type_hints(promised).items():
        value = getattr(sent, name)
        plain = next((p for p in PLAIN if isinstance(kind, type) and issubclass(kind, p)), None)
        if plain is not None and not isinstance(value, (int, float) if plain is float else plain):
            raise BadInput(
                f"message: {name} is a {type(value).__name__}: must be a {plain.__name__}"
            )


def misfits(sent: Mapping[ClientId, Any], call: Call[Any]) -> dict[ClientId, str]:
    """Return whose tensors have not the shapes of most, and why.

    Of as many, those of the call are right.

    Updates are added up, so honest sites send tensors of the same shapes: the model's, or those of
    a compression.
    """
    shapes = {
        i: tuple((k, tuple(v.shape), v.dtype) for x in points(o) for k, v in x.items())
        for i, o in sent.items()
    }
    why = {i: _misfit(o, call) for i, o in sent.items()}
    votes = Counter(shapes.values())
    right = max(sent, key=lambda i: (votes[shapes[i]], not why[i], i), default=None)
    wrong = [i for i in sent if right is not None and shapes[i] != shapes[right]]
    return {i: why[i] or "message: not the shapes that most sites send" for i in wrong}


def _misfit(sent: Any, call: Call[Any]) -> str:
    try:
        for got in points(sent):
            for known in points(call.args):
                check_shapes(got, known)
    except BadInput as e:
        return str(e)
    return ""


def points(o: Any) -> Iterator[Params]:
    """Find all points of parameter space in an object."""
    if isinstance(o, Params):
        yield o
    elif isinstance(o, Released):
        yield from points(o.value)
    elif isinstance(o, Mapping):
        for v in o.values():
            yield from points(v)
    elif isinstance(o, list | tuple):
        for v in o:
            yield from points(v)
    elif is_dataclass(o) and not isinstance(o, type):
        for f in fields(o):
            yield from points(getattr(o, f.name))


def check_shapes(got: Params, known: Params) -> None:
    """Refuse tensors that bear the names of known ones without their shape and type."""
    shared = got.keys() & known.keys()
    if shared and got.keys() != known.keys():
        raise BadInput(f"message: parameters {sorted(got)[:3]}: must be {sorted(known)[:3]}")
    for k in shared:
        if got[k].shape != known[k].shape or got[k].dtype != known[k].dtype:
            raise BadInput(
                f"message: {k} has shape {tuple(got[k].shape)} and type {got[k].dtype}: "
                f"must be {tuple(known[k].shape)} and {known[k].dtype}"
            )
