"""The cohort at real sites.

Calls travel as Flower messages, and what comes back is checked before it counts.

Flower carries and keeps books; it never sees more than bytes. A letter is one ConfigRecord (what is
asked, of whom, in which run) and a packed call or answer, the same bytes that the other engines
pass between processes: in the same record if it is small, else in one ArrayRecord.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import Any, TypeVar

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from tacit.codec import Blob, Stored, parse_json, unpack
from tacit.compress.replies import restore
from tacit.core import (
    FEDERATION,
    AskId,
    BadInput,
    BudgetReached,
    Call,
    ClientId,
    Json,
    Ledger,
    NonPrivate,
    Observer,
    Owner,
    Release,
    TacitError,
    Task,
    TooFewReplies,
    Unit,
    ask_id,
    check,
)
from tacit.core.data import Examples
from tacit.data.examples import Pool
from tacit.engines.asked import answered_in, missing, odd, rounds_in
from tacit.engines.attendance import Attendance
from tacit.engines.blame import Step
from tacit.engines.config import Config
from tacit.engines.facts import Facts
from tacit.engines.messages import LONGEST_HEAD, NO_REPORT, Answer, Head, Refusal, plain_words
from tacit.engines.replies import (
    MOST_LINES,
    Form,
    Known,
    check_ledger,
    check_sent,
    misfits,
    norms_of,
    read_answer,
    too_long,
)
from tacit.engines.server import Engine, Results

T = TypeVar("T")
AtServer = Callable[[Call[object], Examples, int], Any]  # runs a task at the server itself
TYPE = "query.tacit"  # of every message
QUIET = {  # in the environment of all of Flower's processes: nobody is called, nothing installed
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
# bytes that travel within a record: every part of a message is a request of its own
SMALL = 1 << 20
SIZES = "sizes of "  # before a client's number, in a snapshot
POLL = 0.2  # seconds between looks for replies
KINDS = {2: "failed at the site", 5: "not connected", 8: "crashed"}
LATE = (3, 4)  # kinds of errors by which Flower says that nothing came in time


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
    features: str = "none"  # public ones that stand in for inputs: the shape above is theirs


def letter(kind: str, about: Mapping[str, object], body: Array | bytes) -> RecordDict:
    """Return the content of a message."""
    head = {"kind": kind, "about": json.dumps(about)}
    if isinstance(body, bytes):
        return RecordDict({"head": ConfigRecord({**head, "packed": body})})
    return RecordDict({"head": ConfigRecord({**head}), "body": ArrayRecord({"packed": body})})


class InFile(RecordDict):
    """A letter whose packed call or answer is too large for memory, and lies in a file."""

    def __init__(self, head: Mapping[str, str], body: Stored) -> None:
        super().__init__({"head": ConfigRecord({**head})})
        self.body = body


def packed(blob: bytes) -> Array | bytes:
    """Return bytes as Flower carries them.

    Large ones in chunks, each under its own hash, so that it is stored once.
    """
    return Array("uint8", (len(blob),), "tacit", blob) if len(blob) > SMALL else blob


def opened(content: RecordDict, limit: int) -> tuple[str, Json, bytes]:
    """Take a letter apart, or refuse it."""
    kind, about, blob = opened_anywhere(content, limit)
    if not isinstance(blob, bytes):
        raise BadInput("message: not one of ours")
    return kind, about, blob


def opened_anywhere(content: RecordDict, limit: int) -> tuple[str, dict[str, Any], Blob]:
    """Take a letter apart whose body may lie in a file, or refuse it."""
    try:
        head = content.config_records["head"]
        kind, about = head["kind"], parse_json(str(head["about"]), LONGEST_HEAD)
        blob = content.body if isinstance(content, InFile) else _body(content)
    except BadInput:
        raise
    except (KeyError, ValueError) as e:
        raise BadInput(f"message: not one of ours ({repr(e)[:200]})") from None
    if not isinstance(kind, str) or not isinstance(about, dict):
        raise BadInput("message: not one of ours")
    if not isinstance(blob, bytes | Stored):
        raise BadInput("message: not one of ours")
    if len(blob) > limit:
        raise BadInput(f"message: {len(blob):,} bytes: must be at most {limit:,}")
    return kind, about, blob


def _body(content: RecordDict) -> Any:
    head = content.config_records["head"]
    return head["packed"] if "packed" in head else content.array_records["body"]["packed"].data


def _untold(client: ClientId, round: int, call: Call[object]) -> Release:
    """Return the line for something that a site has sent without one."""
    owner = Owner(client, tests=Task.registry[call.task].at == "measure").id
    event = NonPrivate(f"{call.task} was answered without a ledger line")
    return Release(call.task, "example", owner, "server", event, ((round, round),))


@dataclass
class Used:
    """What could be made of a site's answer."""

    why: str = ""  # what is wrong with it; nothing: it can be used
    blob: Blob = b""
    form: Form | None = None  # of what came, perhaps compressed
    norms: Mapping[str, float] = field(default_factory=dict)  # of its updates
    ledger: Sequence[Release] = ()  # what the site says that it has released, if that is in order
    polite: bool = False  # the site refuses, in words
    silent: bool = False  # it sends something and has no ledger line for it


class Sites(Engine):
    """Sends calls through a Flower grid and waits for answers, never longer than the deadline."""

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
        # what a site has said of itself, given its node; None: nothing is known of any
        facts: Callable[[ClientId, int], Facts] | None = None,
        # the largest norm of an update; None: by the median of the round
        max_norm: float | None = None,
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
        self.facts = facts
        self.max_norm = max_norm
        self.registered: dict[ClientId, Facts] = {}
        self.attendance = Attendance()
        # how many examples a site may say that it has, since it was sent some
        self.sizes: dict[ClientId, tuple[int, ...]] = {}
        # bytes of calls and answers, over all exchanges
        self.carried_down = 0
        self.carried_up = 0
        self.asked: Call[object] | None = None  # what is sent next
        self.step: Step | None = None  # of the method that is under way

    def own(self, call: Call[T], data: Examples, round: int) -> T:
        """Run a task at the coordinator."""
        result: T = self.at_server(call, data, round)
        return result

    def close(self) -> None:
        """Leave the connection to its owner."""

    def packed(self, call: Call[object]) -> bytes:
        """Pack a call, and remember it: unpacked again, it would be in memory twice."""
        self.asked = call
        return super().packed(call)

    def advance(self, step: Callable[[], T]) -> T:
        """Make one step of a method's own code; who sends what it cannot work with is left out."""
        if self.ours:
            return step()
        accepted, failed = dict(self.accepted), dict(self.failed)
        sizes = self.bytes_up, self.bytes_up_each, self.bytes_down
        self.step = Step(self.sites)
        try:
            while True:
                try:
                    done = step()
                    self._note_use(self.step)
                    return done
                except BudgetReached:
                    raise
                except Exception as e:
                    self.step.fail(e)
                self.accepted, self.failed = dict(accepted), dict(failed)
                self.bytes_up, self.bytes_up_each, self.bytes_down = sizes
        finally:
            self.step = None

    def _note_use(self, step: Step) -> None:
        """Remember who has sent what the method could not work with."""
        blamed = step.blamed()
        for client in step.answered() - blamed:
            self.attendance.answered(client, "use")
        for client in blamed:
            self.attendance.missed(client, "use", step.round)

    def exchange(self, kind: str, call: bytes, heads: Sequence[Head]) -> Results:
        """Send to every site that is connected, unless this step of the method is done again."""
        if kind != "ask" or self.step is None:
            return self._exchange(kind, call, heads)
        known = self.step.again(call, heads)
        return known or self.step.note(call, heads, self._exchange(kind, call, heads))

    def _exchange(self, kind: str, call: bytes, heads: Sequence[Head]) -> Results:
        """Send to every site that is connected.

        A missing, late or bad answer costs that site the round, and nothing else. What a site says
        that it has released counts all the same.
        """
        task, self.asked = self.asked or unpack(call), None
        online, body = self.nodes(), packed(call)
        failed = {h.client: why for h in heads if (why := self._absent(h, online))}
        asked = {online[self.sites[h.client]]: h for h in heads if h.client not in failed}
        about = {
            node: {"charter": asdict(self.charter), "head": asdict(h)} for node, h in asked.items()
        }
        letters = {node: letter(kind, a, body) for node, a in about.items()}
        self.carried_down += len(call) * len(letters)
        used: dict[ClientId, Used] = {}
        for node, result in post(self.grid, letters, self.deadline):
            client = asked[node].client
            used[client] = self._used(result, node, asked[node], task)
            self.config.on_answer(len(used) + len(failed), len(heads))
        self._compare(used, task)
        for client, answer in used.items():
            self._note(client, kind, heads[0].round, answer, task)
        failed |= {i: answer.why for i, answer in used.items() if answer.why}
        got = {i: answer.blob for i, answer in used.items() if not answer.why}
        self.carried_up += sum(map(len, got.values()))
        return got, {i: f"{self.sites[i]}: {why}" for i, why in failed.items()}

    def _absent(self, head: Head, online: Mapping[str, int]) -> str:
        """Return why a site is not asked."""
        if self.sites[head.client] not in online:
            return "not connected"
        return self.attendance.left_out(head.client, head.round)

    def _used(self, result: RecordDict | str, node: int, head: Head, call: Call[object]) -> Used:
        """Return what can be made of an answer; whatever is in it, only its site pays for it."""
        used = Used()
        try:
            self._check(used, result, node, head, call)
        except TacitError as e:
            used.why = plain_words(str(e))
        except Exception as e:
            used.why = f"message: cannot be used ({type(e).__name__})"
        return used

    def _check(
        self, used: Used, result: RecordDict | str, node: int, head: Head, call: Call[object]
    ) -> None:
        """Fill in an answer that a method can use, or raise :class:`BadInput`.

        Its ledger is looked at first, because it counts also where the rest does not.
        """
        if isinstance(result, str):
            raise BadInput(result)
        kind, about, blob = opened_anywhere(result, self.limit)
        if kind != "answer":
            used.polite = True
            raise BadInput(plain_words(about.get("why", "refused")))
        if about.get("ask") != head.ask:
            other = plain_words(about.get("ask"), 60)
            raise BadInput(f"answers {other!r}, but was asked {head.ask!r}")
        answer = unpack(blob) if self.ours else read_answer(blob, call)
        used.blob = blob
        if self.ours and isinstance(answer, Refusal):
            return
        said = check_ledger(answer, head, self._last_asked(head.round))
        used.ledger = self._check_ledger(said, head)
        used.silent = self._silent(head, call, used.ledger)
        if used.silent:
            raise BadInput("ledger: no line about what it sends in this round")
        known = self._known(head.client, node)
        whole = self._expanded(answer, call)
        check_sent(whole, head, call, known)
        used.form = Form.of(answer.sent, call)
        if not self.ours:
            used.norms = norms_of(whole.sent, call)
            self._check_budget(head.client, used.ledger)

    def _last_asked(self, round: int) -> int:
        """Return the last round that sites may have a line of.

        A coordinator that was killed, or has gone back to an older checkpoint, asks again for
        rounds that sites have been through. Its own ledger is never taken back, but lacks what was
        under way at the kill: at most the measurement that follows.
        """
        return max([round, *(last for line in self.ledger for _, last in line.rounds)]) + 1

    def _check_ledger(self, lines: Sequence[Release], head: Head) -> Sequence[Release]:
        """Refuse lines that make a site's ledger longer, over the rounds, than any honest one."""
        own = Ledger(self._of(head.client))
        own.add(lines)
        check.number("ledger", len(own), at_most=MOST_LINES)
        return lines

    def _silent(self, head: Head, call: Call[object], lines: Sequence[Release]) -> bool:
        """Tell whether a site sends something without a line for it.

        By some rules nothing is released in a round, as by training on synthetic data alone.
        """
        tests = Task.registry[call.task].at == "measure"
        owner = Owner(head.client, tests=tests).id
        told = [line for line in (*self._of(head.client), *lines) if line.owner == owner]
        if self.ours or head.round in rounds_in(line for line in lines if line.owner == owner):
            return False
        expected = self.config.expected(head.client, answered_in(told) | {head.round})
        return tests or not expected or bool(missing(expected, told, head.round))

    def _of(self, client: ClientId) -> Iterator[Release]:
        """Find what the coordinator's ledger says about a site, its test data included."""
        mine = (client, Owner(client, tests=True).id)
        return (line for line in self.ledger if line.owner in mine)

    def settle_round(self, round: int) -> None:
        """Write lines for what was asked of sites and is not in their ledgers."""
        if not self.ours:
            for client in self.everyone:
                known = [line for line in self.ledger if line.owner == client]
                expected = self.config.expected(client, answered_in(known))
                self.learn(missing(expected, known, round))

    def _hold(self, client: ClientId, round: int, answer: Used, call: Call[object]) -> None:
        """Write what a site says that it has released, and at once what it should have said.

        At once where its ledger has a line of a kind that nobody asked for, or none at all.
        Otherwise the round is not over yet, and there may be more to come.
        """
        self.learn(answer.ledger)
        known = [line for line in self.ledger if line.owner == client]
        expected = self.config.expected(client, answered_in(known) | {round})
        if answer.silent and not (expected and Task.registry[call.task].at == "client"):
            self.learn([_untold(client, round, call)])
        elif answer.silent or odd(answer.ledger, expected, client):
            self.learn(missing(expected, known, round))

    def _known(self, client: ClientId, node: int) -> Known | None:
        """Return what this site has registered with."""
        if self.facts is None:
            return None
        if client not in self.registered:
            self.registered[client] = self.facts(client, node)
        return Known(self.registered[client], self.sizes.get(client, ()))

    def _check_budget(self, client: ClientId, lines: Sequence[Release]) -> None:
        """Refuse the answer of a site that says that it has spent more than the run allows."""
        owners = {FEDERATION, client, Owner(client, tests=True).id}
        own = Ledger(line for line in self.ledger if line.owner in owners)
        own.add(lines)
        try:
            self.config.approve_clients(own)
        except BudgetReached as e:
            raise BadInput(f"says that it has passed the {e}") from None

    def check_spent(self, ids: Iterable[ClientId]) -> None:
        """Leave real sites to :meth:`exchange`: one that has spent too much stops no other."""
        if self.ours:
            super().check_spent(ids)

    def _compare(self, used: Mapping[ClientId, Used], call: Call[object]) -> None:
        """Leave out whose tensors have not the shapes of the others', or are far too large."""
        forms = {i: u.form for i, u in used.items() if not u.why and u.form is not None}
        for client, why in misfits(forms).items():
            used[client].why = why
        fitting = {i: used[i].norms for i in forms if not used[i].why}
        for client, why in too_long(fitting, call, self.max_norm).items():
            used[client].why = why

    def _note(
        self, client: ClientId, kind: str, round: int, answer: Used, call: Call[object]
    ) -> None:
        """Remember how a site has answered, and what it says that it has released."""
        if not self.ours:
            self._hold(client, round, answer, call)
        if not answer.why:
            self.attendance.answered(client, kind)
            self._note_pools(client, call)
        elif not answer.polite:
            self.attendance.missed(client, kind, round)

    def _note_pools(self, client: ClientId, call: Call[object]) -> None:
        """Remember how many examples a site has with those that it was sent, if it keeps them."""
        for pool in call.args.values():
            if isinstance(pool, Pool) and self.facts is not None:
                own = self.registered[client].examples
                grown = len(pool.examples) + (0 if pool.instead else own)
                self.sizes[client] = tuple(sorted({*self.sizes.get(client, (own,)), grown}))

    def snapshot(self) -> dict[ClientId, AskId]:
        """Return what was accepted and, in the same form, how many examples sites may have."""
        grown = {f"{SIZES}{i}": AskId(" ".join(map(str, n))) for i, n in self.sizes.items()}
        return super().snapshot() | grown

    def restore(
        self,
        snapshot: Mapping[ClientId, AskId],
        ledger: Ledger | None = None,
        older: Iterable[Mapping[ClientId, AskId]] = (),
    ) -> None:
        """Go back to a snapshot."""
        grown = {i: n for i, n in snapshot.items() if i.startswith(SIZES)}
        super().restore({i: a for i, a in snapshot.items() if i not in grown}, ledger, older)
        self.sizes = {
            i.removeprefix(SIZES): tuple(int(k) for k in n.split()) for i, n in grown.items()
        }

    def look(self, call: Call[T], ids: Sequence[ClientId], round: int) -> dict[ClientId, T]:
        """Evaluate at the sites. Each decides what it reports, and writes that down.

        Who is silent is left out.
        """
        blob, heads = (
            self.packed(call),
            [self._head(i, ask_id(call.task, round), round) for i in ids],
        )
        blobs, failed = self.exchange("look", blob, heads)
        silent = {i for i, why in failed.items() if why.endswith(NO_REPORT)}  # as it may be
        wrong = {i: why for i, why in failed.items() if i not in silent}
        self.failed = wrong | self.failed  # what went wrong in training is worth more
        got: dict[ClientId, Answer] = {i: unpack(blobs[i]) for i in ids if i in blobs}
        self.learn(r for answer in got.values() for r in answer.ledger)
        return {i: answer.sent for i, answer in got.items()}

    def _expanded(self, answer: object, call: Call[object]) -> Any:
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
    end, waiting, late = time.monotonic() + deadline, {}, f"no answer within {deadline:g} s"
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
                yield node, _words(reply.error, late) if reply.has_error() else reply.content
        if waiting:
            time.sleep(POLL)
    for node in waiting.values():
        yield node, late


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


def _words(error: Error, late: str) -> str:
    if error.code in LATE:
        return late
    return f"{KINDS.get(error.code, 'failed')} ({plain_words(error.reason)})"
