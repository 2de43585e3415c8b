"""Networks: shapes, counts, seeds, and the user's own."""

from __future__ import annotations

import itertools
import sys
import textwrap

import pytest
import torch
from torch import nn

from tacit.codec import same
from tacit.compress.binary import rows_for
from tacit.core import BadInput, params_of
from tacit.models import MODELS, build, choose

SHAPES = {
    "logistic": [(5,), (1, 8, 8)],
    "mlp": [(5,), (1, 8, 8)],
    "dafl-cnn": [(1, 16, 16), (1, 28, 28), (3, 32, 32)],
    "ldp-cnn": [(1, 4, 4), (1, 28, 28), (3, 32, 32)],
    "ldp-cnn-pool": [(1, 4, 4), (1, 28, 28)],
    "cuag-cnn": [(1, 16, 16), (1, 28, 28), (3, 32, 32)],
    "conv6": [(1, 8, 8), (1, 28, 28), (3, 32, 32)],
    "resnet18": [(1, 8, 8), (3, 32, 32)],
    "vgg16": [(3, 32, 32)],
}
HUGE = {"vgg16-large"}  # half a gigabyte: looked at without weights, below
SHAPES |= {name: [] for name in HUGE}
CASES = [(name, shape) for name in MODELS for shape in SHAPES[name]]


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_scores_have_one_column_for_each_class(name, shape):
    model = build(name, shape, 7, 0)
    with torch.no_grad():
        scores = model(torch.randn(3, *shape, generator=torch.Generator().manual_seed(0)))
    assert scores.shape == (3, 7)
    assert torch.isfinite(scores).all()
    assert not list(model.buffers())


@pytest.mark.parametrize("name", [name for name in MODELS if name not in HUGE])
def test_every_parameter_is_trained(name):
    model = build(name, SHAPES[name][0], 4, 0)
    inputs = torch.randn(4, *SHAPES[name][0], generator=torch.Generator().manual_seed(1))
    loss = nn.functional.cross_entropy(model(inputs), torch.arange(4))
    assert all(g is not None for g in torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("name", ["dafl-cnn", "ldp-cnn-pool", "cuag-cnn", "conv6"])
def test_pooling_first_changes_no_bit(name):
    pooled_first = build(name, (3, 16, 16), 10, 0)
    layers = list(pooled_first)
    for at in [k for k, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d)]:
        assert isinstance(layers[at + 1], nn.ReLU)
        layers[at : at + 2] = reversed(layers[at : at + 2])
    x = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    x[0] = 0.0  # all numbers of a window alike
    found = []
    for model in (pooled_first, nn.Sequential(*layers)):
        out = model(x)
        found.append([out, *torch.autograd.grad(out.square().sum(), list(model.parameters()))])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_cuag_cnn_has_the_papers_size():
    size = params_of(build("cuag-cnn", (3, 32, 32), 10, 0)).size()
    by_hand = (
        (3 * 25 + 1) * 64
        + (64 * 25 + 1) * 64
        + (64 * 25 + 1) * 384
        + (384 + 1) * 192
        + (192 + 1) * 10
    )
    assert size == by_hand == 797_962
    assert round(size * 4 * 300 / 2**30, 4) == 0.8918


def test_large_vgg16_has_the_size_of_cuags_table_6():
    """Convolutions 14,714,688, then 25,088 to 4096 to 4096 to 10; 75.0468 GB at rate 0.5."""
    with torch.device("meta"):
        model = MODELS["vgg16-large"].make((3, 32, 32), 10)
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    sizes = [p.numel() for p in model.parameters()]
    by_hand = 14_714_688 + (25_088 + 1) * 4096 + (4096 + 1) * 4096 + (4096 + 1) * 10
    assert sum(sizes) == by_hand == 134_301_514
    for rate, gigabytes in {0.5: 75.0468, 0.4: 60.0375, 0.3: 45.0281}.items():
        sent = sum(rows_for(n, rate) for n in sizes) * 4 * 300 / 2**30
        assert sent == pytest.approx(gigabytes, abs=1e-4)  # rows of a layer are whole


def test_cuag_cnn_has_the_rates_of_cuags_table_6():
    sizes = [p.numel() for p in build("cuag-cnn", (3, 32, 32), 10, 0).parameters()]
    for rate, gigabytes in {1.0: 0.8918, 0.5: 0.4459, 0.4: 0.3567, 0.3: 0.2675}.items():
        sent = sum(rows_for(n, rate) for n in sizes) * 4 * 300 / 2**30
        assert round(sent, 4) == gigabytes


def test_ldp_cnn_has_the_papers_layers():
    model = build("ldp-cnn", (1, 28, 28), 10, 0)
    convolutions = [m for m in model if isinstance(m, nn.Conv2d)]
    (linear,) = [m for m in model if isinstance(m, nn.Linear)]
    assert [(c.in_channels, c.out_channels, c.kernel_size, c.stride) for c in convolutions] == [
        (1, 16, (5, 5), (2, 2)),
        (16, 32, (5, 5), (2, 2)),
    ]
    assert (linear.in_features, linear.out_features) == (7 * 7 * 32, 10)


def test_other_sizes_by_hand():
    assert params_of(build("logistic", (1, 8, 8), 10, 0)).size() == 65 * 10
    assert params_of(build("mlp", (1, 8, 8), 10, 0)).size() == 65 * 64 + 65 * 10
    dafl = (25 + 1) * 16 + (16 * 25 + 1) * 32 + (32 * 16 + 1) * 128 + (128 + 1) * 10
    assert params_of(build("dafl-cnn", (1, 28, 28), 10, 0)).size() == dafl
    vgg = build("vgg16", (3, 32, 32), 10, 0)
    assert (
        sum(isinstance(m, nn.Conv2d) for m in vgg) + sum(isinstance(m, nn.Linear) for m in vgg)
        == 16
    )


@pytest.mark.parametrize("name", [n for n, made in MODELS.items() if made.least and n not in HUGE])
def test_images_that_are_too_small_are_refused(name):
    least = MODELS[name].least
    build(name, (1, least, least), 3, 0)
    for shape in [(1, least - 1, least), (1, least, least - 1), (least * least,)]:
        with pytest.raises(BadInput) as caught:
            build(name, shape, 3, 0)
        what = "x".join(map(str, shape))
        assert str(caught.value) == (
            f"model = {name!r}: needs images of at least {least}x{least}; these inputs are {what}"
        )


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(BadInput, match=r"^model = 'dafl-cn': did you mean 'dafl-cnn'\?"):
        build("dafl-cn", (1, 28, 28), 10, 0)


def test_auto_is_a_cnn_for_images_and_an_mlp_for_the_rest():
    assert choose("auto", (1, 16, 16)) == "dafl-cnn"
    assert [choose("auto", shape) for shape in [(1, 15, 16), (8,), (256, 256)]] == ["mlp"] * 3
    assert choose("logistic", (1, 16, 16)) == "logistic"
    assert same(params_of(build("auto", (8,), 3, 0)), params_of(build("mlp", (8,), 3, 0)))


@pytest.mark.parametrize("name", ["logistic", "mlp", "dafl-cnn", "resnet18"])
def test_the_seed_alone_decides_the_weights(name):
    torch.manual_seed(1)
    first = params_of(build(name, (1, 16, 16), 3, 0))
    torch.manual_seed(2)
    assert same(first, params_of(build(name, (1, 16, 16), 3, 0)))
    assert not same(first, params_of(build(name, (1, 16, 16), 3, 1)))


@pytest.mark.parametrize("name", ["mlp", "dafl-cnn"])
def test_the_global_generator_is_left_as_it_was(name):
    before = torch.random.get_rng_state()
    build(name, (1, 16, 16), 3, 0)
    assert torch.equal(torch.random.get_rng_state(), before)


# ---- the user's own
# -------------------------------------------------------------------------------------------------

COUNT = itertools.count()


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return a function that writes a module to the working folder and returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def write(text):
        names.append(name := f"own_model_{next(COUNT)}")
        header = "import torch\nfrom torch import nn\n\n"
        (tmp_path / f"{name}.py").write_text(header + textwrap.dedent(text))
        return name

    yield write
    for name in names:
        sys.modules.pop(name, None)


def refusal(name, shape=(6,), classes=3):
    """Return the one line with which a model is refused."""
    with pytest.raises(BadInput) as caught:
        build(name, shape, classes, 0)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(f"model = {name!r}: ")
    return line


GOOD = """
    class Net(nn.Module):
        def __init__(self, shape, classes):
            super().__init__()
            self.layer = nn.Linear(shape[0], classes)

        def forward(self, x):
            return self.layer(x)
"""


def test_own_class_is_made_with_shape_and_classes(own):
    name = f"{own(GOOD)}:Net"
    model = build(name, (6,), 3, 0)
    assert type(model).__name__ == "Net"
    assert {k: tuple(v.shape) for k, v in params_of(model).items()} == {
        "layer.weight": (3, 6),
        "layer.bias": (3,),
    }
    assert same(params_of(model), params_of(build(name, (6,), 3, 0)))
    assert not same(params_of(model), params_of(build(name, (6,), 3, 1)))


def test_own_class_may_take_only_what_it_wants(own):
    name = own(
        """
        class Fixed(nn.Sequential):
            def __init__(self):
                super().__init__(nn.Linear(6, 3))

        def half(classes):
            return nn.Linear(6, classes)
        """
    )
    assert build(f"{name}:Fixed", (6,), 3, 0)(torch.zeros(1, 6)).shape == (1, 3)
    assert build(f"{name}:half", (6,), 5, 0)(torch.zeros(1, 6)).shape == (1, 5)


def test_own_class_with_another_number_of_classes(own):
    name = own("def net():\n    return nn.Linear(6, 4)")
    line = refusal(f"{name}:net")
    assert line.endswith("gives scores of shape (2, 4) for 2 inputs; 3 classes need (2, 3)")


def test_own_class_for_other_inputs(own):
    name = own("def net():\n    return nn.Linear(7, 3)")
    line = refusal(f"{name}:net")
    assert "does not take inputs of shape (6,)" in line


def test_missing_module():
    assert (
        "cannot be loaded (ModuleNotFoundError: No module named 'no_such_module_here')"
        in refusal("no_such_module_here:Net")
    )


def test_missing_class(own):
    name = own(GOOD)
    assert f"cannot be loaded (AttributeError: module '{name}' has no attribute 'Nett')" in refusal(
        f"{name}:Nett"
    )


def test_not_a_module(own):
    name = own("class Net:\n    pass")
    line = refusal(f"{name}:Net")
    assert line.endswith("must make a torch.nn.Module, not a Net")


def test_a_class_that_wants_more_than_we_give(own):
    name = own("class Net(nn.Module):\n    def __init__(self, depth):\n        super().__init__()")
    line = refusal(f"{name}:Net")
    assert "cannot be made (TypeError: " in line
    assert "depth" in line


@pytest.mark.parametrize("layer", ["BatchNorm1d", "LazyBatchNorm1d"])
def test_batch_norm_is_refused_by_layer_name_with_the_fix(own, layer):
    width = "" if layer.startswith("Lazy") else "5"
    name = own(
        f"""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(6, 5), nn.{layer}({width}))
                self.head = nn.Linear(5, 3)

            def forward(self, x):
                return self.head(self.body(x))
        """
    )
    line = refusal(f"{name}:Net")
    assert f"layer 'body.1' is a {layer}, which mixes examples" in line
    assert line.endswith("use nn.GroupNorm")


def test_the_fix_it_names_is_taken(own):
    name = own(
        "def net():\n    return nn.Sequential(nn.Linear(6, 5), nn.GroupNorm(1, 5), nn.Linear(5, 3))"
    )
    assert not list(build(f"{name}:net", (6,), 3, 0).buffers())


@pytest.mark.parametrize(
    "layer",
    [
        "nn.BatchNorm1d(5, track_running_stats=False)",
        "nn.InstanceNorm1d(5, track_running_stats=True)",
    ],
)
def test_other_layers_that_mix_examples_or_clients_are_refused(own, layer):
    name = own(f"def net():\n    return nn.Sequential(nn.Linear(6, 5), {layer}, nn.Linear(5, 3))")
    assert "use nn.GroupNorm" in refusal(f"{name}:net")


def test_lazy_layers_have_the_seeds_weights_and_leave_the_global_generator_alone(own):
    name = own("def net():\n    return nn.Sequential(nn.LazyLinear(5), nn.Linear(5, 3))")
    before = torch.get_rng_state()
    a, b = (params_of(build(f"{name}:net", (6,), 3, 0)) for _ in range(2))
    assert same(a, b)
    assert torch.equal(before, torch.get_rng_state())


def test_a_network_with_an_idle_parameter_or_none_is_refused(own):
    idle = own("""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.idle = nn.Linear(6, 3), nn.Linear(6, 3)

            def forward(self, x):
                return self.used(x)
        """)
    assert "parameter 'idle.weight' has no effect on the output" in refusal(f"{idle}:Net")
    bare = own("class Net(nn.Module):\n    def forward(self, x):\n        return x[:, :3]")
    assert "no trainable parameters" in refusal(f"{bare}:Net")
