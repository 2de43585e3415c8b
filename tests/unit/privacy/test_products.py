"""Products of matrices, by torch's library and by numpy's: the same, where it pays."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from often import often
from torch import nn

from tacit.models.precision import made_for_bf16
from tacit.privacy import products as module
from tacit.privacy.perexample import clipped_sum
from tacit.privacy.products import advice, kernels, product, wider

pytestmark = pytest.mark.usefixtures("one_thread")


class Library:
    """What numpy multiplies with, as far as anybody here asks: its kernels and its threads."""

    internal_api = "openblas"

    def __init__(self, architecture="SkylakeX", filepath="/x/numpy.libs/libopenblas.so"):
        self.architecture, self.filepath = architecture, filepath
        self.threads, self.seen = 7, []
        self.dynlib = self

    @property
    def openblas_set_num_threads_local(self):
        def limit(threads):
            before, self.threads = self.threads, threads
            self.seen.append(threads)
            return before

        return limit


@pytest.fixture
def by_numpy(monkeypatch):
    library = Library()
    monkeypatch.setattr(module, "wider", lambda: library)
    return library


def found(monkeypatch, library, **has):
    """Return what would be used with such a library on such a processor."""

    class Loaded:
        lib_controllers = [library] if library else []

        def select(self, internal_api):
            return self

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    monkeypatch.setattr(module, "ThreadpoolController", Loaded)
    return wider.__wrapped__()


@given(
    sizes=st.tuples(*[st.integers(1, 6)] * 4),
    turned=st.booleans(),
    inside=st.booleans(),
    double=st.booleans(),
)
@often(30)
def test_both_ways_give_the_sums_of_products(sizes, turned, inside, double):
    n, rows, depth, columns = sizes
    torch.manual_seed(0)
    kind = torch.float64 if double else torch.float32
    left = torch.randn(n, depth, rows, dtype=kind).mT if turned else torch.randn(n, rows, depth)
    left, right = left.to(kind), torch.randn(n, depth, columns, dtype=kind)
    want = torch.stack([a @ b for a, b in zip(left, right, strict=True)])
    room = torch.full((n + 2, rows, columns + 3), 5.0, dtype=kind)
    with pytest.MonkeyPatch.context() as patch:
        for library in (None, Library()):
            patch.setattr(module, "wider", lambda library=library: library)
            out = room[1:-1, :, :columns] if inside else torch.empty_like(want)
            assert product(left, right, out) is out
            torch.testing.assert_close(out, want)
            torch.testing.assert_close(product(left, right), want)
            torch.testing.assert_close(product(left[0], right[0]), want[0])
    if inside:  # and nothing is written beside it
        assert (room[0] == 5).all()
        assert (room[-1] == 5).all()
        assert (room[:, :, columns:] == 5).all()


def test_numpy_computes_in_one_thread_and_gets_its_own_back(by_numpy):
    a = torch.eye(3).expand(2, 3, 3)
    product(a, a, torch.empty(2, 3, 3))
    assert by_numpy.seen == [1, 7]
    with pytest.raises(ValueError, match="mismatch"):
        product(a, torch.ones(2, 4, 3), torch.empty(2, 3, 3))
    assert by_numpy.threads == 7


def test_it_is_set_up_twice_for_all_products_of_some_examples(by_numpy):
    """To ask a library for one thread takes as long as a small product.

    Between the two a network's own code is called, which numpy's warnings are no secret to.
    """
    model = nn.Sequential(nn.Conv2d(1, 5, 3), nn.Conv2d(5, 4, 3), nn.Flatten(), nn.Linear(64, 3))
    loss = lambda m, x, y: F.cross_entropy(m(x), y, reduction="none")  # noqa: E731
    clipped_sum(model, loss, torch.randn(6, 1, 8, 8), torch.arange(6) % 3, 0.1, micro=2)
    assert by_numpy.seen == [1, 7] * 2 * 3
    product(torch.eye(2), torch.eye(2))  # and no longer than for that sum
    assert by_numpy.seen == [1, 7] * 7


def test_a_library_that_cannot_be_told_in_each_thread_is_not_used(monkeypatch):
    """What sets its threads for all does nothing in some of them; more threads, other bits."""
    library = Library()
    library.dynlib = object()
    assert found(monkeypatch, library, avx512_f=True, cpu_name="AMD EPYC") is None


@pytest.mark.skipif(wider() is None, reason="torch multiplies on this processor")
@pytest.mark.parametrize("first", ["here", "elsewhere"])
def test_one_thread_is_one_in_every_thread(first):
    """A process of its own: whoever comes first decides what the library thinks of threads."""
    code = """
import sys, threading, time, torch
from tacit.privacy.products import product
torch.manual_seed(0)
a, b = torch.randn(1200, 1200), torch.randn(25, 9000)
c = torch.randn(9000, 32)
def work():
    product(a, a)
    p, t = time.process_time(), time.thread_time()
    for _ in range(4): product(a, a)
    print((time.process_time() - p) / (time.thread_time() - t) < 1.5, product(b, c).sum().item())
def elsewhere():
    thread = threading.Thread(target=work); thread.start(); thread.join()
for where in (work, elsewhere) if sys.argv[1] == "here" else (elsewhere, work):
    where()
"""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", code, first], capture_output=True, text=True, env=environment
    )
    one, other = done.stdout.splitlines()
    assert one == other
    assert one.startswith("True")


def test_a_network_hears_of_its_own_warnings(by_numpy):
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.ask = nn.Linear(4, 3), []

        def forward(self, x):
            self.ask.append(np.geterr()["over"])
            return self.layer(x)

    model = Whole()
    loss = lambda m, x, y: F.cross_entropy(m(x), y, reduction="none")  # noqa: E731
    with np.errstate(over="raise"):
        clipped_sum(model, loss, torch.randn(6, 4), torch.arange(6) % 3, 0.1)
    assert model.ask == ["raise"]


def test_numbers_without_end_are_no_warning(by_numpy):
    huge = torch.full((1, 2, 2), 1e30)
    out = torch.empty(1, 2, 2)
    product(huge, huge, out)
    assert out.isinf().all()


@pytest.mark.parametrize("channels", [1, 3])
def test_clipped_sums_are_the_same_by_both(monkeypatch, channels):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(channels, 5, 3), nn.Tanh(), nn.Conv2d(5, 4, 3), nn.Flatten(), nn.Linear(64, 3)
    )
    x, y = torch.randn(6, channels, 8, 8), torch.arange(6) % 3
    calls = []
    real = np.matmul
    monkeypatch.setattr(np, "matmul", lambda *a, **k: calls.append(1) or real(*a, **k))
    each = []
    for library in (None, Library()):
        monkeypatch.setattr(module, "wider", lambda library=library: library)
        sums, norms = clipped_sum(
            model, lambda m, x, y: F.cross_entropy(m(x), y, reduction="none"), x, y, 0.1
        )
        assert bool(calls) == (library is not None)
        each.append([norms, *sums.values()])
    for by_torch, by_numpys in zip(*each, strict=True):
        torch.testing.assert_close(by_numpys, by_torch, rtol=1e-4, atol=1e-6)


def test_it_is_used_where_torch_leaves_half_of_the_vectors(monkeypatch):
    library = Library()
    amd = {"avx512_f": True, "cpu_name": "AMD EPYC"}
    assert found(monkeypatch, library, **amd) is library
    assert found(monkeypatch, library, avx512_f=True, cpu_name="Intel(R) Xeon(R)") is None
    assert found(monkeypatch, library, avx512_f=False, cpu_name="AMD EPYC") is None
    assert found(monkeypatch, library, avx512_f=True) is None  # older versions of torch do not say
    assert found(monkeypatch, Library(architecture="Haswell"), **amd) is None
    assert found(monkeypatch, Library(filepath="/numpy/scipy.libs/libopenblas.so"), **amd) is None
    assert found(monkeypatch, None, **amd) is None


def test_what_keeps_the_processor_from_its_full_width_is_told(monkeypatch):
    amd = {"avx512_f": True, "cpu_name": "AMD EPYC"}
    monkeypatch.setattr(module, "wider", wider.__wrapped__)
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    found(monkeypatch, Library(), **amd)
    assert advice().endswith("by numpy, with all of AVX-512 (SkylakeX)")
    found(monkeypatch, Library(architecture="Haswell"), **amd)
    assert advice().endswith("with half of AVX-512 (numpy's does no better here)")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert advice().endswith("with half of AVX-512 (OPENBLAS_CORETYPE = Haswell: unset it)")
    found(monkeypatch, Library(), avx512_f=True, cpu_name="Intel(R) Xeon(R)")
    assert advice() == "examples' gradients are multiplied by torch"


def test_a_torch_that_does_not_tell_of_the_processor_multiplies_itself(monkeypatch):
    """Before 2.11 it has no such function."""
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert wider.__wrapped__() is None
    assert made_for_bf16() == []
    assert kernels()


def test_what_is_loaded_here_is_found_or_not_needed():
    library = wider()
    assert library is None or library.architecture in module.WIDE
