"""`check_method` passes what is right and says what is wrong, in one line with the place."""

import itertools
import random
import re
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import tacit
from tacit.local.sgd import SGD
from tacit.methods.fedavg import FedAvg
from tacit.methods.spec import method_class
from tacit.testing import Failed, Report, check_method, examined, findings
from tacit.testing.sources import SOURCES, Watch, disturbed

EXAMPLE = Path(__file__).parents[2] / "examples" / "02_own_method.py"
HEAD = """
from __future__ import annotations
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
import numpy as np
import torch
from tacit import SGD, Client, Cohort, Params, Reply, Trains, mean, some, task

@dataclass(frozen=True)
class State:
    x: Params
    round: int = 0

@dataclass(frozen=True)
class Update:
    dx: Params
    n: int

@task
def train(me: Client, x: Params, sgd: SGD) -> Reply[Update]:
    y, _ = sgd.fit(me, x)
    return Reply(Update(dx=y - x, n=me.size))
"""
USUAL = """
@dataclass(frozen=True)
class Mine(Trains):
    def init(self, x0):
        return State(x0)

    def run(self, cohort, s):
        for t in range(s.round, self.rounds):
            replies = cohort.ask(train(x=s.x, sgd=self.sgd), cohort.sample(some(self.per_round), t))
            d = mean((r.dx, r.n) for r in replies)
            s = State(s.x + d, t + 1)
            yield s
"""
count = itertools.count()
slowly = partial(pytest.param, marks=pytest.mark.slow)  # a case like another, for `make slow`


@pytest.fixture
def mine(tmp_path):
    """Write a method to a file of its own, with some lines in place of others, and load it."""
    loaded = []

    def write(*changes, more="", prefix=""):
        body = HEAD + textwrap.dedent(prefix) + USUAL
        for old, new in changes:
            assert body.count(old) == 1, old
            body = body.replace(old, new)
        file = tmp_path / f"mine_{next(count)}.py"
        file.write_text(body + textwrap.dedent(more))
        cls = method_class(f"{file}:Mine")
        loaded.append(cls.__module__)
        return cls(), file

    yield write
    for name in loaded:
        del sys.modules[name]


def line_of(file, text):
    """Return where a text stands: ``file:line``."""
    (number,) = [n for n, row in enumerate(file.read_text().splitlines(), 1) if text in row]
    return f"{file.name}:{number}"


def the_finding(method):
    """Return the one line that is said against a method."""
    said = findings(method)
    assert len(said) == 1, said
    assert "\n" not in said[0]
    return said[0]


STEP = "            s = State(s.x + d, t + 1)\n"


# -----------------------------------------------------------------------------------------------
# what is right


def test_the_example_passes_within_its_time(one_thread):
    start = time.monotonic()
    report = check_method(f"{EXAMPLE}:FedAdam")
    assert report == Report("FedAdam")
    assert str(report) == "FedAdam: all checks passed"
    assert time.monotonic() - start < 60  # alone it takes 7 s; others may be at work


@pytest.mark.slow
def test_the_usual_method_of_this_file_passes_also_with_dp_sgd(mine):
    method, _ = mine()
    assert findings(method) == []
    assert findings(replace(method, sgd=SGD(clip=1.0, z=1.0))) == []


def test_it_is_a_public_name():
    assert tacit.testing.check_method is check_method


@pytest.mark.slow
def test_a_setting_without_help_is_only_remarked_upon(mine):
    method, _ = mine(("class Mine(Trains):\n", "class Mine(Trains):\n    beta: float = 0.5\n\n"))
    report = check_method(method)
    assert report.findings == ()
    assert report.remarks == ("setting `beta` has no help: write a comment behind it",)


@pytest.mark.slow
def test_the_globals_of_a_module_are_put_back(mine):
    method, _ = mine((STEP, STEP + "            SEEN.append(t)\n"), prefix="SEEN = []")
    assert findings(method) == []  # nobody reads it, so nothing depends on it
    assert vars(sys.modules[type(method).__module__])["SEEN"] == []


def generators():
    """Return where everybody's generators stand."""
    numpy = np.random.get_state()[1].tolist()  # noqa: NPY002
    return random.getstate(), numpy, torch.get_rng_state().tolist()


def test_the_clock_and_the_generators_are_put_back():
    states = generators()
    clock = time.time
    for other in ((), SOURCES):
        with disturbed(Watch(()), other):
            assert (time.time is clock, time.time() > 2e9) == (False, bool(other))
            random.random(), np.random.normal(), torch.randn(())  # noqa: NPY002
    assert generators() == states
    assert time.time is clock


# -----------------------------------------------------------------------------------------------
# state that survives


def test_state_in_self_is_named(mine):
    momentum = """\
            m = 0.9 * vars(self).get("_m", d.zeros()) + d
            object.__setattr__(self, "_m", m)
            s = State(s.x + m, t + 1)
"""
    method, file = mine((STEP, momentum))
    said = the_finding(method)
    place = line_of(file, "object.__setattr__")
    assert said.startswith(f"state that survives outside `s`: attribute `self._m` ({place})")
    assert said.endswith("(a restarted run differs after round 2: `s.x`)")


@pytest.mark.slow
def test_an_attribute_is_named_also_if_nothing_depends_on_it_yet(mine):
    mutated = STEP + '            object.__setattr__(self, "_seen", t)\n'
    method, file = mine((STEP, mutated))
    place = line_of(file, "object.__setattr__")
    expected = f"state that survives outside `s`: attribute `self._seen` ({place})"
    assert the_finding(method) == expected


@pytest.mark.slow
def test_a_cached_property_is_no_state(mine):
    more = "    @functools.cached_property\n    def half(self):\n        return 0.5\n\n"
    method, _ = mine(
        ("import random\n", "import functools\nimport random\n"),
        ("    def init(self, x0):", more + "    def init(self, x0):"),
        ("s.x + d", "s.x + self.half * d"),
    )
    assert findings(method) == []


@pytest.mark.parametrize(
    ("prefix", "read", "write", "words"),
    [
        ("CACHE = {}", 'CACHE.get("m", d.zeros())', 'CACHE["m"] = m', "global `CACHE` of mine_"),
        slowly(
            "", 'vars(Mine).get("kept", d.zeros())', "Mine.kept = m", "class attribute `Mine.kept`"
        ),
        slowly("", 'globals().get("M") or d.zeros()', 'globals()["M"] = m', "global `M` of mine_"),
    ],
)
def test_state_in_a_module_or_a_class_is_named(mine, prefix, read, write, words):
    step = f"            m = 0.9 * ({read}) + d\n            {write}\n"
    later = "\ndef unused():\n    return M\n" if "globals" in read else ""
    method, file = mine((STEP, step + STEP.replace("+ d", "+ m")), prefix=prefix, more=later)
    said = the_finding(method)
    assert said.startswith(f"state that survives outside `s`: {words}")
    assert f"({line_of(file, f'            {write}')})" in said


@pytest.mark.slow
def test_a_local_across_a_yield_is_named(mine):
    method, _ = mine(
        ("        for t in range", "        m = s.x.zeros()\n        for t in range"),
        (STEP, "            m = 0.9 * m + d\n" + STEP.replace("+ d", "+ m")),
    )
    said = the_finding(method)
    assert "`s`: a local variable of run() that lives across a yield (a restarted run" in said


@pytest.mark.slow
def test_what_a_task_leaves_in_its_process_is_noticed(mine):
    method, _ = mine(
        (
            "    return Reply(Update(dx=y - x",
            "    SEEN.append(1)\n    return Reply(Update(dx=y - x",
        ),
        ("n=me.size)", "n=me.size + len(SEEN))"),
        prefix="SEEN = []",
    )
    said = findings(method)
    assert any("worker processes and this one alone differ after round 1" in line for line in said)
    assert any("tasks leave something behind: global `SEEN` of mine_" in line for line in said)


# -----------------------------------------------------------------------------------------------
# clocks and generators


@pytest.mark.parametrize(
    ("call", "source", "name"),
    [
        ("time.time()", "the wall clock", "time.time"),
        ("float(torch.randn(()))", "PyTorch's global generator", "torch.randn"),
        slowly("time.perf_counter()", "the wall clock", "time.perf_counter"),
        slowly("time.monotonic_ns()", "the wall clock", "time.monotonic_ns"),
        slowly("random.random()", "Python's global generator", "random.random"),
        slowly("np.random.normal()", "NumPy's global generator", "numpy.random.normal"),
    ],
)
def test_a_clock_or_a_generator_of_everybody_is_named_with_its_line(mine, call, source, name):
    method, file = mine(("s.x + d", f"s.x + (1 + 1e-3 * {call} % 1) * d"))
    assert the_finding(method) == (
        f"depends on {source}: {name} ({line_of(file, call)}); "
        "draw from me.rng in a task, from cohort.rng(...) at the server"
    )


@pytest.mark.slow
def test_a_generator_of_everybody_in_a_task_is_named(mine):
    method, file = mine(("dx=y - x", "dx=np.random.rand() * (y - x)"))
    place = line_of(file, "np.random.rand")
    assert f"NumPy's global generator: numpy.random.rand ({place})" in the_finding(method)


@pytest.mark.slow
def test_a_name_imported_from_its_module_is_followed(mine):
    method, file = mine(
        ("import random\n", "import random\nfrom time import time as now\n"),
        ("s.x + d", "s.x + (1 + 1e-3 * (now() % 1)) * d"),
    )
    assert f"the wall clock: time.time ({line_of(file, '(now()')})" in the_finding(method)


def test_a_generator_without_a_seed_is_named(mine):
    method, file = mine(("s.x + d", "s.x + np.random.default_rng().random() * d"))
    said = the_finding(method)
    assert said.startswith("two runs with the same seed differ after round 1: `s.x`: ")
    assert f"numpy.random.default_rng ({line_of(file, 'default_rng()')})" in said


@pytest.mark.slow
def test_a_clock_that_only_measures_is_allowed(mine):
    method, _ = mine((STEP, "            time.perf_counter()\n" + STEP))
    assert findings(method) == []


# -----------------------------------------------------------------------------------------------
# promises


LEAKS = [
    ("    n: int\n", "    n: int\n    raw: Params\n"),
    (
        "    return Reply(Update(dx=y - x, n=me.size))",
        "    inputs, _ = me.data.batch(slice(None))\n"
        "    return Reply(Update(dx=y - x, n=me.size, raw=Params(m=inputs.mean(0))))",
    ),
]


@pytest.mark.parametrize("sgd", [SGD(), slowly(SGD(clip=1.0, z=2.0))])
def test_a_tensor_without_noise_is_named_with_its_task(mine, sgd):
    """With a clip it promises something; without, what it would promise with one is looked at."""
    method, file = mine(*LEAKS)
    said = the_finding(replace(method, sgd=sgd))
    assert said.startswith(
        f"train ({line_of(file, 'def train')}) sends raw to the server without noise, although "
        "the method says that it protects example/server (releases(): eps "
    )


def test_a_released_point_that_is_written_to_is_named(mine):
    method, file = mine(
        (
            "    return Reply(Update(dx=y - x, n=me.size))",
            "    dx = y - x\n"
            "    inputs, _ = me.data.batch(slice(None))\n"
            "    next(iter(dx.values())).add_(inputs.mean())\n"
            "    return Reply(Update(dx=dx, n=me.size))",
        )
    )
    said = the_finding(replace(method, sgd=SGD(clip=1.0, z=2.0)))
    assert said.startswith(f"train ({line_of(file, 'def train')}) sends dx to the server without")


@pytest.mark.slow
def test_more_than_was_said_beforehand_is_named(mine):
    """It trains twice a round and says once."""
    method, _ = mine(("    y, _ = sgd.fit(me, x)", "    y, _ = sgd.fit(me, sgd.fit(me, x)[0])"))
    said = the_finding(replace(method, sgd=SGD(batch=100, clip=1.0, z=2.0)))
    spent, told = map(float, re.match(r"spends eps (\S+) .* than the (\S+) that", said).groups())
    assert spent > 1.3 * told
    assert "releases() says beforehand" in said


@pytest.mark.slow
def test_a_method_that_promises_nothing_may_send_anything(mine):
    method, _ = mine(
        *LEAKS,
        (
            "    def init(self, x0):",
            "    def __post_init__(self):\n"
            "        self.sgd.refuse_clip('must be 0')\n\n"
            "    def init(self, x0):",
        ),
    )
    assert findings(method) == []


# -----------------------------------------------------------------------------------------------
# states, rounds, settings, errors


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([(STEP, "")], "run() yields the same state twice, after round 0: "),
        ([("range(s.round, self.rounds)", "range(s.round, 10**6)")], "run() does not end: "),
        ([("range(s.round, self.rounds)", "range(s.round, 2)")], "run() ends after round 2 of 3"),
        (
            [("            yield s\n", "            if t != 1:\n                yield s\n")],
            "run() yields nothing after round 2",
        ),
        (
            [("    round: int = 0\n", "    round: int = 0\n    seen: Any = frozenset()\n")],
            "init() returns a State that cannot be saved: field `seen`: cannot send a frozenset",
        ),
        (
            [
                ("    round: int = 0\n", "    round: int = 0\n    seen: Any = None\n"),
                ("t + 1)", "t + 1, {t})"),
            ],
            "run() yields a State that cannot be saved: field `seen`: cannot send a set",
        ),
        (
            [("        return State(x0)", "        return x0")],
            "init() returns a Params: must be a frozen dataclass with the fields x and round",
        ),
    ],
)
def test_states_and_rounds(mine, changes, words):
    assert the_finding(mine(*changes)[0]).startswith(words)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("return State(x0)", "return State(x0 / 0 if x0['none'] else x0)"), "x0['none']"),
        (("    y, _ = sgd.fit(me, x)", "    y, _ = sgd.fit(me, x['none'])"), "x['none']"),
    ],
)
def test_a_failure_is_one_line_with_its_place(mine, change, text):
    method, file = mine(change)
    said = the_finding(method)
    assert "KeyError: 'none'" in said
    assert f"({line_of(file, text)})" in said


def test_a_message_that_cannot_be_sent_is_one_line_with_its_place(mine):
    method, file = mine(("train(x=s.x, sgd=self.sgd)", "train(x=s.x, sgd={1})"))
    said = the_finding(method)
    assert "TypeError: cannot send a set" in said
    assert f"({line_of(file, 'sgd={1}')})" in said


def test_a_setting_that_is_no_plain_value_is_named(mine):
    method, _ = mine(
        ("class Mine(Trains):\n", "class Mine(Trains):\n    how: Any = len  # a function\n")
    )
    said = findings(method)
    assert any(line.startswith("its settings do not survive config.toml: ") for line in said)


def test_a_field_without_a_default_is_named():
    @dataclass(frozen=True, kw_only=True)
    class Bare(FedAvg):
        beta: float

    assert "every field needs a default" in the_finding(Bare(beta=1.0))
    assert "'beta'" in the_finding(Bare(beta=1.0))


@pytest.mark.slow
def test_a_class_inside_a_function_is_named():
    @dataclass(frozen=True)
    class Local(FedAvg):
        pass

    assert the_finding(Local()).startswith("is defined inside a function")


def test_what_is_no_method_is_one_line():
    assert "must be a word such as" in the_finding(5)
    assert "cannot be loaded" in the_finding("nowhere.at_all:Mine")


@pytest.mark.slow
def test_all_findings_are_raised_one_line_each(mine):
    mutated = STEP + '            object.__setattr__(self, "_seen", t)\n'
    method, _ = mine((STEP, mutated), *LEAKS)
    with pytest.raises(Failed) as failed:
        check_method(method)
    assert len(failed.value.report.findings) == 2
    lines = str(failed.value).splitlines()
    assert lines == [f"Mine: {line}" for line in failed.value.report.findings]
    assert examined(method) == failed.value.report


# -----------------------------------------------------------------------------------------------
# client state, and faults


def test_a_lost_reply_that_has_an_effect_is_named(mine):
    """The server must not tell a reply that was lost from a client that never worked."""
    method, _ = mine(("s.x + d", "s.x + (0.5 if 'lost' in replies.failed.values() else 1.0) * d"))
    said = the_finding(method)
    assert re.match(r"a reply that was lost \(client \d in round \d\) has an effect on `s.x`", said)


@pytest.mark.slow
def test_it_works_in_a_session_without_a_file():
    """As in a notebook: the class is one of ``__main__``, which has no file."""
    code = HEAD + USUAL + "\nfrom tacit.testing import check_method\nprint(check_method(Mine()))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200
    )
    assert (done.stdout, done.returncode) == ("Mine: all checks passed\n", 0), done.stderr
