"""What every method has to satisfy, a function each; what is wrong comes back in one line each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from tacit.codec import pack, same, unpack
from tacit.core import Ledger, Method, Params, State, TooFewReplies
from tacit.engines.config import Fault, no_fault
from tacit.engines.server import Engine
from tacit.experiment.drive import drive
from tacit.experiment.evaluate import evaluate
from tacit.testing.memory import Memory, attributes, modules_of, rebuilt
from tacit.testing.places import written_at
from tacit.testing.sources import SOURCES, UNSEEDED, Watch, disturbed
from tacit.testing.world import Sandbox

Faults = Mapping[tuple[str, int], str]  # by client and round: "crash", "lost" or "die"
HINT = "draw from me.rng in a task, from cohort.rng(...) at the server"


# -----------------------------------------------------------------------------------------------
# runs


def most_steps(method: Method) -> int:
    """Return a number of steps that no method needs for its rounds."""
    return 20 + 5 * max(1, method.rounds)


def steps(
    method: Method,
    engine: Engine,
    s: State,
    *,
    memory: Memory | None = None,
    stop_after: int | None = None,
    on_step: Callable[[State], None] = lambda s: None,
) -> Iterator[State]:
    """Yield a run's states; every step is done as in a process that has just started.

    Args:
        method: is made anew of its settings for each step
        engine: where the clients are
        s: the state to start from
        memory: what else a process would not have from the one before
        stop_after: so many steps, if not all
        on_step: is told each new state before it is yielded, and may save it
    """
    memory = memory or Memory.of(method)
    try:
        for _ in range(most_steps(method) if stop_after is None else stop_after):
            memory.forget()
            following = drive(rebuilt(method), engine, s, stop_after=1)
            if same(following, s):
                break
            on_step(following)
            s = following
            yield s
    finally:
        memory.forget()


def run_to_end(method: Method, engine: Engine, sandbox: Sandbox) -> State:
    """Return the last state of a run."""
    return last(steps(method, engine, s := rebuilt(method).init(sandbox.x0)), s)


def last(states: Iterator[State], first: State) -> State:
    """Return the last of some states as it is read back, or the one before them."""
    read: State = unpack(pack([first, *states][-1]))
    return read


def first_difference(a: list[State], b: list[State]) -> str:
    """Say where two lists of states part; nothing where they do not."""
    for x, y in itertools.zip_longest(a, b):
        if x is None or y is None:
            return "one of them ends earlier"
        if not same(x, y):
            return f"after round {min(x.round, y.round)}: {', '.join(_parted(x, y))}"
    return ""


def _parted(x: Any, y: Any) -> list[str]:
    """Return the fields in which two states differ."""
    if type(x) is not type(y):
        return ["states of another kind"]
    names = (f.name for f in fields(x))
    return [f"`s.{n}`" for n in names if not same(getattr(x, n), getattr(y, n))]


# -----------------------------------------------------------------------------------------------
# it runs at all


def states_are_fit(sandbox: Sandbox, method: Method) -> list[str]:
    """Check that a first state can be saved: a dataclass with ``x`` and ``round`` that packs."""
    s = rebuilt(method).init(sandbox.x0)
    return unfit(s, "init() returns")


def unfit(s: Any, how: str) -> list[str]:
    """Return why a state cannot be saved."""
    kind = type(s).__name__
    if not is_dataclass(type(s)):
        return [f"{how} a {kind}: must be a frozen dataclass with the fields x and round"]
    missing = [name for name in ("x", "round") if name not in dir(s)]
    if missing:
        return [f"{how} a {kind} without {' and '.join(missing)}: every state has x and round"]
    values = {f.name: getattr(s, f.name) for f in fields(s)}
    found = [f"{how} a {kind} that cannot be saved: field {line}" for line in _unpacked(values)]
    if not isinstance(s.x, Params):
        found.append(f"{how} a {kind} whose x is a {type(s.x).__name__}: must be Params")
    if not isinstance(s.round, int):
        found.append(f"{how} a {kind} whose round is {s.round!r}: must be a whole number")
    return found


def _unpacked(values: Mapping[str, object]) -> Iterator[str]:
    for name, value in values.items():
        try:
            back = unpack(pack(value))
        except Exception as e:  # a class with surprises of its own
            yield f"`{name}`: {' '.join(str(e).split())}"
            continue
        if not same(value, back):
            yield f"`{name}`: comes back as something else"


def rounds_are_kept(sandbox: Sandbox, method: Method) -> list[str]:
    """Check that run() ends after ``rounds`` rounds and yields after each of them."""
    engine = sandbox.serial(method)
    memory = Memory.of(method)
    fresh = rebuilt(method)
    first = fresh.init(sandbox.x0)
    seen = [first]
    for s in itertools.islice(fresh.run(engine, unpack(pack(first))), most_steps(method)):
        if wrong := unfit(s, "run() yields"):
            return wrong
        if pack(s) == pack(seen[-1]):
            return [
                f"run() yields the same state twice, after round {s.round}: "
                "a state that follows another has more rounds, or a phase lacks its guard"
            ]
        seen.append(s)
    memory.forget()
    return _miscounted([s.round for s in seen], method.rounds)


def _miscounted(rounds: list[int], wanted: int) -> list[str]:
    """Return what is wrong with the rounds of the states of a run."""
    if rounds[-1] > wanted:
        return [f"run() does not end: it goes on after its {wanted} rounds"]
    if rounds[-1] < wanted:
        return [f"run() ends after round {rounds[-1]} of {wanted}"]
    missing = sorted({*range(wanted + 1)} - {*rounds})
    if missing:
        return [f"run() yields nothing after round {', '.join(map(str, missing))}"]
    back = any(b < a for a, b in itertools.pairwise(rounds))
    return ["run() yields states whose rounds go back"] if back else []


def models_answer(sandbox: Sandbox, method: Method) -> list[str]:
    """Check that the model that a run ends with can be scored on test data."""
    engine = sandbox.serial(method)
    s = run_to_end(method, engine, sandbox)
    result = evaluate(method, s, engine, sandbox.federation(method), 1)
    if 0 <= result.accuracy <= 1:
        return []
    return [f"its accuracy is {result.accuracy}: must be between 0 and 1"]


# -----------------------------------------------------------------------------------------------
# nothing else decides


def only_seeds_decide(sandbox: Sandbox, method: Method) -> list[str]:
    """Check that neither the wall clock nor anybody's global generator changes a run."""
    watch = Watch(modules_of(type(method)))
    usual = _under(sandbox, method, watch)
    if not first_difference(usual, _under(sandbox, method, watch, SOURCES)):
        return []
    if where := first_difference(usual, _under(sandbox, method, watch)):
        calls = _calls(watch, UNSEEDED)
        return [f"two runs with the same seed differ {where}{calls}; {HINT}"]
    guilty = [x for x in SOURCES if first_difference(usual, _under(sandbox, method, watch, [x]))]
    return [f"depends on {source}{_calls(watch, source)}; {HINT}" for source in guilty]


def _under(
    sandbox: Sandbox, method: Method, watch: Watch, other: Collection[str] = ()
) -> list[State]:
    with disturbed(watch, other):
        return list(steps(method, sandbox.serial(method), rebuilt(method).init(sandbox.x0)))


def _calls(watch: Watch, source: str) -> str:
    return f": {', '.join(watch.seen[source])}" if source in watch.seen else ""


def nothing_survives(sandbox: Sandbox, method: Method) -> list[str]:
    """Check that a generator that lives on gives the same run as one restarted at every step."""
    memory = Memory.of(method)
    living = rebuilt(method)
    before = attributes(living)
    engine = sandbox.serial(method)
    alive = list(itertools.islice(living.run(engine, living.init(sandbox.x0)), most_steps(method)))
    after = attributes(living)
    moved = [name for name in after if name not in before or after[name] != before[name]]
    modules = modules_of(type(method))
    left = [f"attribute `self.{name}`{written_at(name, modules)}" for name in moved]
    elsewhere = memory.changed()
    anew = list(steps(method, sandbox.serial(method), living.init(sandbox.x0), memory=memory))
    differs = first_difference(alive, anew)
    if differs:
        left = [*left, *elsewhere] or ["a local variable of run() that lives across a yield"]
    why = f" (a restarted run differs {differs})" if differs else ""
    return [f"state that survives outside `s`: {what}{why}" for what in left]


def engines_agree(sandbox: Sandbox, method: Method, counts: tuple[int, ...] = (2,)) -> list[str]:
    """Check that worker processes, however many, give the same as this one, to the bit."""
    memory = Memory.of(method)
    left: dict[str, None] = {}  # in the order in which they were found
    serial = sandbox.serial(method)
    first = rebuilt(method).init(sandbox.x0)

    def look(s: State) -> None:
        left.update(dict.fromkeys(memory.changed()))

    want = list(steps(method, serial, first, memory=memory, on_step=look))
    found = []
    for other, count in enumerate(counts):
        workers = sandbox.workers(method, count=count)
        with disturbed(Watch(()), SOURCES if other % 2 == 0 else ()):
            got = list(steps(method, workers, rebuilt(method).init(sandbox.x0)))
        found += [f"{count} worker processes {line}" for line in _against(want, got)]
        found += _books(serial, workers, count)
    why = f"; tasks leave something behind: {', '.join(left)}" if left else ""
    return [line + why for line in found]


def _against(want: list[State], got: list[State]) -> list[str]:
    where = first_difference(want, got)
    return [f"and this one alone differ {where}"] if where else []


def _books(a: Engine, b: Engine, count: int) -> list[str]:
    """Compare the ledgers and the traffic of two engines."""
    found = []
    if a.ledger != b.ledger:
        found.append(f"{count} worker processes write another ledger than this one alone")
    if (a.bytes_up, a.bytes_down) != (b.bytes_up, b.bytes_down):
        found.append(f"{count} worker processes send another number of bytes than this one alone")
    return found


# -----------------------------------------------------------------------------------------------
# faults


def undisturbed(sandbox: Sandbox, method: Method) -> tuple[State, Ledger]:
    """Return the last state and the ledger of a run that nothing stops."""
    engine = sandbox.serial(method)
    return run_to_end(method, engine, sandbox), engine.ledger


def resume_is_invisible(
    sandbox: Sandbox, method: Method, whole: tuple[State, Ledger], cut: int, server_dies: bool
) -> list[str]:
    """Check that a run which stops after a step goes on as if it had not.

    Args:
        sandbox: the small world
        method: what runs
        whole: how an undisturbed run ends
        cut: how many steps are done before
        server_dies: whether clients have done the next round already, and nobody has saved it
    """
    want, ledger = whole
    folder = sandbox.fresh()
    first = sandbox.serial(method, folder=folder)
    s = rebuilt(method).init(sandbox.x0)
    s = last(steps(method, first, s, stop_after=cut, on_step=lambda s: first.mark_saved()), s)
    snapshot = first.snapshot()
    if server_dies:
        next(steps(method, first, s, stop_after=1), None)
    second = sandbox.serial(method, folder=folder)
    second.restore(snapshot, Ledger(first.ledger))
    got = last(steps(method, second, s), s)
    when = f"a run that is resumed after {cut} steps"
    found = [] if same(want, got) else [f"{when} ends with another {', '.join(_parted(want, got))}"]
    return found + ([f"{when} has another ledger"] if second.ledger != ledger else [])


def faulty(
    engine_of: Callable[[Method, Fault], Engine], method: Method, sandbox: Sandbox, table: Faults
) -> tuple[State | None, Engine]:
    """Return the last state under faults and the engine, or None where too few replied."""
    engine = engine_of(method, lambda client, t: table.get((client, t)))
    try:
        return run_to_end(method, engine, sandbox), engine
    except TooFewReplies:
        return None, engine


def lost_is_never_done(sandbox: Sandbox, method: Method, table: Faults) -> list[str]:
    """Check that a reply that did not arrive has no effect later, at the server or the client."""
    a, _ = faulty(sandbox.serial, method, sandbox, table)
    b, _ = faulty(sandbox.serial, method, sandbox, {place: "crash" for place in table})
    which = ", ".join(f"client {i} in round {t + 1}" for i, t in table)
    if (a is None) != (b is None):
        return [f"a lost reply decides whether enough replied ({which})"]
    if a is None or same(a, b):
        return []
    return [
        f"a reply that was lost ({which}) has an effect on {', '.join(_parted(a, b))}: "
        "must be as if the client had never worked"
    ]


def asked_of(method: Method, sandbox: Sandbox) -> tuple[list[tuple[str, int]], Ledger]:
    """Run to the end; return who was asked for something in which round, and the ledger."""
    asked: list[tuple[str, int]] = []

    def record(client: str, t: int) -> str | None:
        asked.append((client, t))
        return no_fault(client, t)

    engine = sandbox.serial(method, record)
    run_to_end(method, engine, sandbox)
    return asked, engine.ledger
