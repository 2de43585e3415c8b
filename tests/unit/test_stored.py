"""Large objects stay in files: the same as in memory, and in memory only while they are used."""

import gc
import io
import math
import weakref
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save as save_tensors

from tacit.codec import KINDS as ALL_KINDS
from tacit.codec import Stored, encode, load, pack, same, save, unpack
from tacit.core import AskId, BadInput, Later, Params, Replies, Sample
from tacit.core.cohort import Everyone
from tacit.core.params import PART, mean
from tacit.engines.messages import all_finite
from tacit.engines.replies import length

KINDS = [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16]
TENSORS = st.builds(
    lambda kind, shape: (torch.rand(shape) * 9).to(kind),
    st.sampled_from(KINDS),
    st.lists(st.integers(0, 3), max_size=3),
)
OBJECTS = st.dictionaries(st.text(max_size=3), TENSORS | st.integers() | st.text(max_size=9))


def stored(blob, folder, before=b""):
    source = io.BytesIO(before + blob)
    source.seek(len(before))
    return Stored(source, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stored")


@given(OBJECTS, st.binary(max_size=9))
def test_what_is_stored_is_what_was_packed(folder, sent, before):
    blob = pack(sent)
    kept = stored(blob, folder, before)
    assert len(kept) == len(blob)
    assert same(unpack(kept), sent)
    assert same(unpack(kept), unpack(blob)), "also when it is read again"
    assert not list(folder.iterdir()), "the file has no name"


@given(st.data())
def test_what_is_damaged_is_refused_or_means_the_same_as_in_memory(folder, data):
    blob = bytearray(pack({"w": torch.arange(5.0), "v": torch.ones(2, 3, dtype=torch.uint8)}))
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] = data.draw(st.integers(0, 255))
    del blob[data.draw(st.integers(at, len(blob))) :]
    results = []
    for read in (lambda: unpack(bytes(blob)), lambda: unpack(stored(bytes(blob), folder))):
        try:
            results.append(read())
        except BadInput:
            results.append(None)
    assert same(*results)


@pytest.mark.parametrize(
    "about",
    [
        '"dtype":"F32","shape":[9],"data_offsets":[0,4]',
        '"dtype":"F32","shape":[1],"data_offsets":[0,400]',
        '"dtype":"F32","shape":[-1],"data_offsets":[0,4]',
        '"dtype":"F32","shape":[1000000000000,0],"data_offsets":[0,4]',
        '"dtype":"F99","shape":[1],"data_offsets":[0,4]',
        '"shape":[1],"data_offsets":[0,4]',
    ],
)
@pytest.mark.parametrize("twice", [False, True])
def test_a_tensor_that_is_not_there_is_refused(folder, about, twice):
    good = '"000000":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},' if twice else ""
    skeleton = '"__metadata__":{"json":"{\\"$\\":\\"tensor\\",\\"key\\":\\"000000\\"}"}'
    text = f'{{{good}"000000":{{{about}}},{skeleton}}}'.encode()
    blob = len(text).to_bytes(8, "little") + text + bytes(4)
    with pytest.raises(BadInput):
        unpack(stored(blob, folder))


def test_a_file_may_not_say_too_much_of_itself(folder):
    with pytest.raises(BadInput, match="must be at most"):
        Stored(io.BytesIO(pack({"w": "x" * 1000})), folder, longest=99)


def test_who_writes_to_a_reply_finds_that_again(folder):
    kept = stored(pack(torch.zeros(4)), folder)
    unpack(kept)[1] = 5.0
    assert unpack(kept).tolist() == [0, 5, 0, 0]


@dataclass(frozen=True)
class Update:
    dx: Params
    n: int


def test_of_large_replies_only_those_in_use_are_in_memory():
    alive, most = weakref.WeakSet(), []

    def read(i):
        dx = Params(w=torch.full((3,), float(i)))
        alive.add(dx["w"])
        return Update(dx, i)

    class Watched(float):
        """A weight that looks how many replies there are when it is used."""

        def __truediv__(self, other):
            gc.collect()
            most.append(len(alive))
            return float(self) / other

    ids = tuple("1234")
    replies = Replies(
        AskId("a"),
        Sample(ids, 0, Everyone()),
        {i: Later(lambda i=i: read(int(i))) for i in ids},
        {},
    )
    assert [r.n for r in replies] == [1, 2, 3, 4]
    assert [r.n for r in replies[1:3]] == [2, 3]
    got = mean((r.dx, Watched(r.n)) for r in replies)
    assert most == [4, 3, 3, 2], "each goes when it has been added"
    assert got["w"].tolist() == pytest.approx([3.0] * 3)


@given(st.lists(st.floats(-1e30, 1e30), max_size=5), st.sampled_from(KINDS[:2]))
def test_the_norm_has_the_bits_of_its_formula(values, kind):
    x = Params(a=torch.tensor(values, dtype=kind), b=torch.linspace(0, 1, 1000))
    wide = [float((v.double() / 1.0).square().sum()) for v in x.values()]
    assert x.norm() == math.sqrt(sum(wide))
    assert length(x) == pytest.approx(x.norm(), rel=1e-12)
    assert x["a"].tolist() == torch.tensor(values, dtype=kind).tolist(), "nothing is written to"


def test_what_is_looked_at_by_parts_is_looked_at_to_the_end():
    v = torch.zeros(2 * PART + 3)
    assert all_finite(v)
    assert length(Params(w=v)) == 0.0
    v[-1] = 3.0
    v[0] = 4.0
    assert length(Params(w=v)) == 5.0
    v[-1] = math.nan
    assert not all_finite(v)


def test_no_number_that_is_not_finite_is_overlooked_among_others():
    kinds = torch.float32, torch.float64, torch.bfloat16
    values = [torch.ones(2, 3), torch.ones(0), torch.ones((), dtype=kinds[1]), torch.ones(4)]
    values += [torch.ones(5, dtype=kinds[2])]
    assert all_finite()
    assert all_finite(*values)
    for v in values:
        for wrong in (math.nan, math.inf, -math.inf) if v.numel() else ():
            v.view(-1)[-1] = wrong
            assert not all_finite(*values)
        v.fill_(1)


@given(some=OBJECTS)
def test_what_is_packed_is_what_safetensors_writes(some):
    text, tensors = encode(some)
    plain = {k: v.contiguous() for k, v in tensors.items()}
    assert pack(some) == save_tensors(plain, metadata={"json": text})


def test_every_kind_of_number_is_packed_as_safetensors_does():
    made = [torch.ones(2, 3).to(kind) for kind in [*ALL_KINDS.values(), torch.float8_e5m2] * 2]
    plain = {f"{n:06d}": v for n, v in enumerate(made)}
    assert pack(made) == save_tensors(plain, metadata={"json": encode(made)[0]})


def test_tensors_with_memory_in_common_are_saved_each_by_itself(tmp_path):
    base = torch.arange(12.0)
    sent = [base, base, base[3:6], base.view(3, 4).T, base.view(3, 4)[:, 1]]
    assert same(unpack(pack(sent)), sent)
    assert pack(sent) == pack([v.clone() for v in sent])
    save(sent, tmp_path / "file", place="here")
    assert same(load(tmp_path / "file", place="here"), sent)


def test_taking_an_object_apart_keeps_nothing_in_memory():
    gc.disable()
    try:
        _, tensors = encode({"w": [torch.zeros(3)]})
        gone = weakref.ref(tensors["000000"])
        del tensors
        assert gone() is None, "also without a collection of garbage"
    finally:
        gc.enable()
