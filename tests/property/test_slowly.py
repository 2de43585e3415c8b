"""Layers without a fast path: gradients of examples as a loop and as Opacus have them."""

import copy
import math
import warnings

import pytest
import slow_networks as networks
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tacit
from tacit.core import BadInput
from tacit.data.examples import Dataset, Examples
from tacit.privacy import check_network
from tacit.privacy.losses import cross_entropies
from tacit.privacy.perexample import HAIR, clipped_sum
from tacit.privacy.slowly import gradients, is_slow

pytestmark = [pytest.mark.usefixtures("one_thread")]
quick = settings(max_examples=4, deadline=None)
CLIP = 0.1


def loop(model, x, y):
    """Return each example's gradient by plain autograd."""
    weights = [p for p in model.parameters() if p.requires_grad]
    each = [
        torch.autograd.grad(cross_entropies(model, x[i : i + 1], y[i : i + 1]).sum(), weights)
        for i in range(len(x))
    ]
    return {p: torch.stack(of) for p, of in zip(weights, zip(*each, strict=True), strict=True)}


def assert_as_a_loop(model, x, clip=CLIP):
    assert is_slow(model)
    y = torch.randint(0, networks.CLASSES, (len(x),))
    want = loop(model, x, y)
    for p, G in gradients(model, cross_entropies, x, y).items():
        torch.testing.assert_close(G, want[p], rtol=1e-5, atol=1e-5)
    norms = torch.stack([G.flatten(1).norm(dim=1) for G in want.values()]).norm(dim=0)
    got, seen = clipped_sum(model, cross_entropies, x, y, clip, micro=2)
    torch.testing.assert_close(seen, norms, rtol=1e-5, atol=1e-6)
    c = (clip * (1 - HAIR) / norms).clamp(max=1.0)
    for p, G in want.items():
        torch.testing.assert_close(got[p], torch.tensordot(c, G, dims=1), rtol=1e-5, atol=1e-5)
        assert p.grad is None


@pytest.mark.parametrize("name", networks.GOOD)
@quick
@given(n=st.integers(1, 5), steps=st.integers(1, 4), seed=st.integers(0, 99))
def test_gradients_are_those_of_a_loop(name, n, steps, seed):
    torch.manual_seed(seed)
    assert_as_a_loop(networks.GOOD[name](), torch.randn(n, steps, 6))


@quick
@given(n=st.integers(1, 4), groups=st.sampled_from([1, 2]), kernel=st.integers(1, 3))
def test_volumes(n, groups, kernel):
    torch.manual_seed(n)
    assert_as_a_loop(networks.Volume(kernel, groups), torch.randn(n, 2, 3, 4, 3))


@quick
@given(n=st.integers(1, 4), mode=st.sampled_from(["sum", "mean", "max"]))
def test_bags_of_words(n, mode):
    torch.manual_seed(n)
    assert_as_a_loop(networks.Bag(mode), torch.randint(0, 7, (n, 5)))


@pytest.mark.parametrize("name", networks.GOOD)
@quick
@given(scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e3]), clip=st.sampled_from([1e-6, 1e-2, 1.0]))
def test_no_example_counts_for_more_than_the_clip(name, scale, clip):
    torch.manual_seed(0)
    model, x = networks.GOOD[name](), scale * torch.randn(3, 2, 6)
    y = torch.tensor([0, 1, 2])
    every, _ = clipped_sum(model, cross_entropies, x, y, clip)
    others, _ = clipped_sum(model, cross_entropies, x[1:], y[1:], clip)
    moved = math.hypot(*(float((every[p] - others[p]).double().norm()) for p in every))
    assert moved <= clip * (1 + 1e-6) + 1e-12


def test_an_example_that_is_not_finite_counts_for_nothing():
    model, y = networks.Attention(), torch.tensor([0, 1])
    x = torch.randn(2, 3, 6)
    alone, _ = clipped_sum(model, cross_entropies, x[:1], y[:1], CLIP)
    x[1] = math.nan
    both, norms = clipped_sum(model, cross_entropies, x, y, CLIP)
    assert not norms[1].isfinite()
    for p in alone:
        torch.testing.assert_close(both[p], alone[p])


@pytest.mark.parametrize("name", networks.GOOD)
def test_such_networks_can_train_privately_and_it_is_said_to_be_slow(name):
    torch.manual_seed(0)
    assert "by torch.func, the slow way" in check_network(networks.GOOD[name](), (3, 6), 3)


def test_volumes_and_bags_can_train_privately():
    assert "Conv3d has no fast path" in check_network(networks.Volume(), (2, 3, 4, 3), 3)
    assert "EmbeddingBag has no fast path" in check_network(networks.Bag(), (5,), 3)


@pytest.mark.parametrize("made", networks.BAD)
def test_networks_that_mix_examples_are_refused(made):
    torch.manual_seed(0)
    with pytest.raises(BadInput, match=networks.BAD[made]):
        check_network(made(), (3, 6), 3)


def test_frozen_layers_need_no_slow_way():
    model = networks.Attention()
    model.layer.requires_grad_(False)
    assert not is_slow(model)
    assert "slow" not in check_network(model, (3, 6), 3)


# ---- Opacus


def opacus():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own imports warn
        return pytest.importorskip("opacus", reason='needs Opacus: pip install "opacus==1.6.*"')


def dp_twin(model):
    """Return a copy with Opacus' own layers in place of torch's recurrent and attention layers."""
    from opacus.layers import DPGRU, DPLSTM, DPRNN

    twin = copy.deepcopy(model)
    layer = twin.layer
    kinds = {nn.LSTM: DPLSTM, nn.GRU: DPGRU, nn.RNN: DPRNN}
    if kind := kinds.get(type(layer)):
        made = kind(6, 4, layer.num_layers, batch_first=True, bidirectional=layer.bidirectional)
        made.load_state_dict(layer.state_dict())
        twin.layer = made
    return twin.to(next(model.parameters()).dtype)


RECURRENT = ["lstm", "gru", "rnn", "lstm of two layers, two ways", "rms norm"]


def opacus_gradients(model, x, y):
    """Return each example's gradient, by the names that torch has for parameters."""
    from opacus import GradSampleModule

    twin = dp_twin(model)
    renamed = {}
    if type(twin.layer) is not type(model.layer):
        renamed = {f"layer.{old}": f"layer.{new}" for old, new in twin.layer.old_to_new.items()}
    private = GradSampleModule(twin, loss_reduction="sum", strict=False)
    cross_entropies(private, x, y).sum().backward()
    named = {k.removeprefix("_module."): p.grad_sample for k, p in private.named_parameters()}
    return {renamed.get(k, k): G for k, G in named.items()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RECURRENT)
@quick
@given(n=st.integers(1, 4), steps=st.integers(2, 4), seed=st.integers(0, 99))
def test_gradients_are_those_of_opacus(name, n, steps, seed):
    opacus()
    torch.manual_seed(seed)
    model, x = networks.GOOD[name]().double(), torch.randn(n, steps, 6, dtype=torch.float64)
    y = torch.randint(0, networks.CLASSES, (n,))
    wanted = opacus_gradients(model, x, y)
    found = gradients(model, cross_entropies, x, y)
    assert wanted.keys() == dict(model.named_parameters()).keys()
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[p], wanted[name], rtol=1e-5, atol=1e-6)
    every = torch.stack([G.flatten(1).norm(dim=1) for G in wanted.values()]).norm(dim=0)
    _, norms = clipped_sum(model, cross_entropies, x, y, CLIP)
    torch.testing.assert_close(norms, every, rtol=1e-5, atol=1e-6)


class BagByOffsets(nn.Module):
    """The same network, with words as Opacus takes them: in a row, and where bags begin."""

    def __init__(self, model):
        super().__init__()
        self.words, self.last = copy.deepcopy(model.words), copy.deepcopy(model.last)

    def forward(self, x):
        return self.last(self.words(x.flatten(), torch.arange(len(x)) * x.shape[1]))


@pytest.mark.filterwarnings("ignore")
@quick
@given(n=st.integers(1, 4), mode=st.sampled_from(["sum", "mean"]))
def test_bags_are_those_of_opacus(n, mode):
    opacus()
    from opacus import GradSampleModule

    torch.manual_seed(n)
    # a word that is twice in a bag counts once for Opacus; a loop has it right, see above
    model, x = networks.Bag(mode), torch.stack([torch.randperm(7)[:5] for _ in range(n)])
    y = torch.randint(0, networks.CLASSES, (n,))
    private = GradSampleModule(BagByOffsets(model), loss_reduction="sum")
    cross_entropies(private, x, y).sum().backward()
    found = gradients(model, cross_entropies, x, y)
    for p, other in zip(model.parameters(), private.parameters(), strict=True):
        torch.testing.assert_close(found[p], other.grad_sample, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@quick
@given(n=st.integers(1, 4), steps=st.integers(2, 4), seed=st.integers(0, 99))
def test_attention_is_that_of_opacus(n, steps, seed):
    """Opacus' attention has steps first inside, so all that is trained has."""
    opacus()
    from opacus import GradSampleModule
    from opacus.layers import DPMultiheadAttention

    torch.manual_seed(seed)
    model, x = networks.Attention().double(), torch.randn(n, steps, 6, dtype=torch.float64)
    y = torch.randint(0, networks.CLASSES, (n,))
    model.first.requires_grad_(False)
    model.last.requires_grad_(False)
    twin = DPMultiheadAttention(6, 2)
    twin.load_state_dict(model.layer.state_dict())
    private = GradSampleModule(twin.double(), loss_reduction="sum", batch_first=False)
    h = torch.tanh(model.first(x)).transpose(0, 1)
    scores = model.last(private(h, h, h, need_weights=False)[0].mean(0))
    nn.functional.cross_entropy(scores, y, reduction="sum").backward()
    samples = [p.grad_sample.flatten(1).norm(dim=1) for p in private.parameters()]
    _, norms = clipped_sum(model, cross_entropies, x, y, CLIP)
    wanted = torch.stack(samples).norm(dim=0)
    torch.testing.assert_close(norms, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@quick
@given(n=st.integers(1, 4), kernel=st.integers(1, 3), groups=st.sampled_from([1, 2]))
def test_volumes_are_those_of_opacus(n, kernel, groups):
    opacus()
    from opacus import GradSampleModule

    torch.manual_seed(n)
    model, x = networks.Volume(kernel, groups).double(), torch.randn(n, 2, 3, 4, 3).double()
    y = torch.randint(0, networks.CLASSES, (n,))
    private = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")
    cross_entropies(private, x, y).sum().backward()
    found = gradients(model, cross_entropies, x, y)
    for p, other in zip(model.parameters(), private.parameters(), strict=True):
        torch.testing.assert_close(found[p], other.grad_sample, rtol=1e-5, atol=1e-5)


# ---- whole runs


@pytest.mark.parametrize("name", ["Recurrent", "Attention"])
def test_a_run_trains_them_and_says_that_it_is_slow(name, tmp_path, capsys):
    torch.manual_seed(0)
    examples = Examples(torch.randn(30, 3, 6), torch.arange(30) % 3)
    data = Dataset("steps", examples, examples, ("a", "b", "c"))
    model = f"{networks.__file__}:{name}"
    method = "fedavg:rounds=2,sgd.clip=1,sgd.z=1,sgd.batch=10"
    done = tacit.run(method, data=data, model=model, clients=2, workers=0, out=tmp_path / "run")
    assert done.rounds == 2
    assert 0 < done.spent < math.inf
    kind = {"Recurrent": "LSTM", "Attention": "MultiheadAttention"}[name]
    said = f"note: DP-SGD goes on by torch.func, the slow way, since {kind} has no fast path"
    assert said in capsys.readouterr().err
