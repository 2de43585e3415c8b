"""The user's own data: each format read to exact values, each fault refused in one line."""

import builtins
import hashlib
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, TensorDataset

from tacit.core import BadInput, seed_for
from tacit.data import anywhere, from_torch, load
from tacit.data.examples import Examples
from tacit.data.labels import told
from tacit.data.places import keys
from tacit.data.user_data import hold_out, load_own


def refused(path: Path | str) -> str:
    """Return the one line with which data are refused."""
    with pytest.raises(BadInput) as caught:
        load_own(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def npz(folder: Path, **arrays: object) -> Path:
    np.savez(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


def by_value(x: torch.Tensor) -> list[float]:
    """Return the first value of each example, sorted: which examples there are, in any order."""
    return sorted(x.flatten(1)[:, 0].tolist())


# Held-out part


def test_hold_out_by_hand():
    """A record is held out if the hash of its values, its label and its number is below a fifth."""
    x = torch.tensor([[i / 4, 1.0] for i in range(40)] + [[7.0, 1.0]] * 3)
    y = torch.tensor([0, 1] * 20 + [1] * 3)
    train, test = hold_out(Examples(x, y), ("ill", "well"), 0.2, seed=3)
    secret = seed_for("record", 3, "hold-out").to_bytes(8, "big")
    expected = []
    for i in range(43):
        values = struct.pack("<2f", *x[i].tolist()) + (b"ill", b"well")[int(y[i])]
        record = hashlib.blake2b(values, digest_size=16).digest()
        alike = max(i - 40, 0).to_bytes(8, "big")  # row 28 has another label, so it is another
        bits = hashlib.blake2b(record + alike, digest_size=8, key=secret).digest()
        if int.from_bytes(bits, "big") < 0.2 * 2**64:
            expected.append(i)
    assert test.tolist() == expected
    assert train.tolist() == [i for i in range(43) if i not in expected]
    assert hold_out(Examples(x, y), ("ill", "well"), 0.2, seed=4)[1].tolist() != expected


def test_neighbouring_files_are_neighbouring_training_sets(tmp_path):
    """One record more moves the sums of a class, which `moments` releases, by that record at most.

    Rows have norm at most 1, and that is the sensitivity for which noise is drawn.
    """
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(1001, 3)), np.arange(1001) % 4
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    sums = []
    for n in (1000, 1001):
        train = load_own(npz(tmp_path, x=x[:n], y=y[:n])).train
        sums.append(torch.zeros(4, 3).index_add_(0, train.y, train.x))
    assert (sums[0] - sums[1]).norm() < 1 + 1e-5


def test_minus_zero_is_the_record_that_zero_is():
    one, other = (
        keys(Examples(torch.full((1, 2), v), torch.tensor([0])), ("a",), seed=0, use="u")
        for v in (0.0, -0.0)
    )
    assert one == other


# .npz


def test_npz_with_both_parts(tmp_path):
    x = np.arange(3 * 2 * 2, dtype=np.uint8).reshape(3, 2, 2)
    data = load(
        str(npz(tmp_path, x_train=x, y_train=[1, 0, 1], x_test=x[:1] + 100, y_test=np.array([[2]])))
    )
    assert data.name == "mine"
    assert data.train.x.tolist() == x[:, None].tolist()
    assert data.train.x.dtype == torch.uint8
    assert data.test.x.tolist() == [[[[100, 101], [102, 103]]]]
    assert (data.train.y.tolist(), data.test.y.tolist()) == ([1, 0, 1], [2])
    assert data.classes == ("0", "1", "2")
    assert (data.mean, data.std) == ((0.5,), (0.5,))


def test_npz_without_test_part_holds_one_out(tmp_path):
    data = load_own(
        npz(tmp_path, x=np.arange(50, dtype=np.float64)[:, None] / 8, y=np.arange(50) % 2)
    )
    assert 0 < len(data.test) < len(data.train)
    assert data.train.x.dtype == torch.float32
    assert by_value(torch.cat([data.train.x, data.test.x])) == [i / 8 for i in range(50)]
    for part in (data.train, data.test):
        assert ((part.x[:, 0] * 8).long() % 2 == part.y).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_npz_channels_are_found_on_either_side(tmp_path, channels):
    first = np.random.default_rng(0).integers(0, 256, (4, channels, 5, 6), dtype=np.uint8)
    for x in (first, first.transpose(0, 2, 3, 1)):
        data = load_own(
            npz(tmp_path, x_train=x, y_train=[0, 1, 0, 1], x_test=x, y_test=[0, 1, 0, 1])
        )
        assert data.shape == (channels, 5, 6)
        assert data.train.x.tolist() == first.tolist()
        assert len(data.mean) == channels


def test_npz_words_as_labels_and_bytes_as_features(tmp_path):
    x = np.arange(8, dtype=np.uint8).reshape(4, 2)
    data = load_own(
        npz(
            tmp_path, x_train=x, y_train=["wolf", "cat", "cat", "ape"], x_test=x[:1], y_test=["cat"]
        )
    )
    assert data.classes == ("ape", "cat", "wolf")
    assert (data.train.y.tolist(), data.test.y.tolist()) == ([2, 1, 1, 0], [1])
    assert data.train.x.tolist() == x.astype(float).tolist()
    assert data.train.x.dtype == torch.float32


TWO = np.zeros((4, 2), np.float32)
BAD_ARRAYS = {
    r"mine.npz: holds \['a'\]: must hold x and y": {"a": TWO},
    r"must hold x and y, or x_train": {"x_train": TWO, "y_train": [0, 0, 1, 1], "x_test": TWO},
    r"mine.npz: 4 inputs but 3 labels": {"x": TWO, "y": [0, 1, 1]},
    r"input \(1, 0\) = nan: must be a finite number": {
        "x": np.array([[1.0], [np.nan]]),
        "y": [0, 0],
    },
    r"input \(0, 0\) = -inf": {"x": np.array([[-np.inf], [2]]), "y": [0, 0]},
    r"input \(0, 0\) = 1e\+300: must be a finite number \(float32\)": {
        "x": np.array([[1e300], [2]]),
        "y": [0, 0],
    },
    r"label -1 of example 2: must be a whole number from 0": {"x": TWO, "y": [0, 1, -1, 0]},
    r"label 0.5 of example 1: must be a whole number": {"x": TWO, "y": [0, 0.5, 1, 1]},
    r"label nan of example 3": {"x": TWO, "y": [0, 0, 1, np.nan]},
    r"label 99999 of example 0: must be a whole number from 0 to 65535": {
        "x": TWO,
        "y": [99999, 0, 0, 0],
    },
    r"labels of shape \(4, 3\): must be one label per example": {"x": TWO, "y": np.zeros((4, 3))},
    r"labels of type complex128": {"x": TWO, "y": np.zeros(4, complex)},
    r"label '' of example 1: must be a whole number or a word; it is missing": {
        "x": TWO,
        "y": ["a", "", "b", "b"],
    },
    r"inputs of shape \(0, 2\) are empty": {"x": TWO[:0], "y": []},
    r"no labels": {"x": TWO, "y": []},
    r"inputs of shape \(4,\): must be": {"x": TWO[:, 0], "y": [0, 0, 1, 1]},
    r"inputs of type <U1: must be uint8 images or numbers": {
        "x": np.array([["a"], ["b"]]),
        "y": [0, 1],
    },
    r"both ends could be the channels": {"x": np.zeros((2, 3, 5, 3), np.uint8), "y": [0, 1]},
    r"neither end is 1 or 3 channels": {"x": np.zeros((2, 4, 5, 6), np.uint8), "y": [0, 1]},
    r"none of its 1 records is in the test part \(each is held out": {"x": TWO[:1], "y": [3]},
    r"test inputs are float32 \(1,\): must be float32 \(2,\)": {
        "x_train": TWO,
        "y_train": [0, 0, 1, 1],
        "x_test": TWO[:, :1],
        "y_test": [0, 0, 1, 1],
    },
    r"mine.npz test: 4 inputs but 1 labels": {
        "x_train": TWO,
        "y_train": [0] * 4,
        "x_test": TWO,
        "y_test": [0],
    },
}


@pytest.mark.parametrize("pattern", BAD_ARRAYS)
def test_npz_refusals(tmp_path, pattern):
    assert re.search(pattern, refused(npz(tmp_path, **BAD_ARRAYS[pattern])))


def test_npz_that_is_none(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.array([{"a": 1}], dtype=object), y=[0])
    assert "cannot be read as .npz" in refused(path)
    for raw in (b"", b"not a zip at all", npz(tmp_path, x=TWO, y=[0, 0, 1, 1]).read_bytes()[:300]):
        path.write_bytes(raw)
        assert "cannot be read as .npz" in refused(path)
    np.save(tmp_path / "a.npy", TWO)
    path.write_bytes((tmp_path / "a.npy").read_bytes())
    assert "cannot be read as .npz" in refused(path)


# Folder of images


def picture(path: Path, pixels: object, mode: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.array(pixels, np.uint8))
    (image.convert(mode) if mode else image).save(path)


def test_folder_with_train_and_test(tmp_path):
    picture(tmp_path / "train/dog/a.png", [[1, 2, 3], [4, 5, 6]])
    picture(tmp_path / "train/cat/b.png", [[7, 8, 9], [10, 11, 12]])
    picture(tmp_path / "test/dog/c.png", [[0, 0, 0], [0, 0, 255]])
    (tmp_path / "train/cat/notes.txt").write_text("not an image")
    data = load(str(tmp_path))
    assert data.classes == ("cat", "dog")
    assert data.shape == (1, 2, 3)
    assert data.train.y.tolist() == [0, 1]
    assert data.train.x[:, 0].tolist() == [[[7, 8, 9], [10, 11, 12]], [[1, 2, 3], [4, 5, 6]]]
    assert (data.test.y.tolist(), int(data.test.x[0, 0, 1, 2])) == ([1], 255)


def test_folder_of_colour_with_a_class_called_train(tmp_path):
    for kind in ("train", "bus", "10"):
        for i in range(9):
            picture(tmp_path / kind / f"{i}.png", [[[i, 100, 200], [9, 8, 7]]])
    data = load_own(tmp_path)
    assert data.classes == ("10", "bus", "train")
    assert data.shape == (3, 1, 2)
    assert data.train.plus(data.test).y.bincount().tolist() == [9, 9, 9]
    assert len(data.test) > 0
    assert data.train.x[0, :, 0, 1].tolist() == [9, 8, 7]
    assert data.train.x[0, 1:, 0, 0].tolist() == [100, 200]


def test_folder_refusals(tmp_path):
    assert "no class folders" in refused(tmp_path)
    (tmp_path / "empty").mkdir()
    assert "empty: no images" in refused(tmp_path)
    (tmp_path / "empty").rmdir()
    picture(tmp_path / "a/1.png", [[1, 2], [3, 4]])
    picture(tmp_path / "b/2.png", [[1, 2, 3]])
    assert re.search(r"2\.png: grey 3x1, but the first image is grey 2x2", refused(tmp_path))
    picture(tmp_path / "b/2.png", [[1, 2], [3, 4]], "RGB")
    assert re.search(r"2\.png: RGB 2x2, but the first image is grey 2x2", refused(tmp_path))
    Image.fromarray(np.zeros((2, 2), np.uint16)).save(tmp_path / "b/2.png")
    assert re.search(r"2\.png: pixels of mode I;16: must be 8 bits", refused(tmp_path))
    (tmp_path / "b/2.png").write_bytes((tmp_path / "a/1.png").read_bytes()[:40])
    assert re.search(r"2\.png: cannot be read as an image", refused(tmp_path))


# Tables


def table(folder: Path, text: str, name: str = "visits.csv") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_csv_with_a_label_column(tmp_path):
    rows = "".join(f"{i},{i % 2},{i / 4}\n" for i in range(50))
    data = load(str(table(tmp_path, "\ufeffage,label,dose\n" + rows + "\n")))
    both = data.train.plus(data.test)
    assert data.shape == (2,)
    assert 0 < len(data.test) < len(data.train)
    assert sorted(both.x.tolist()) == [[i, i / 4] for i in range(50)]
    assert (both.x[:, 0].long() % 2 == both.y).all()
    assert both.x.dtype == torch.float32
    assert data.classes == ("0", "1")


def test_csv_with_a_named_label_column_of_words(tmp_path):
    path = table(tmp_path, "outcome,x\n" + " well ,1\n" * 20 + '"ill, badly",2\n' * 20)
    data = load(f"{path}:outcome")
    assert data.classes == ("ill, badly", "well")
    both = data.train.plus(data.test)
    assert both.y.bincount().tolist() == [20, 20]
    assert both.x[:, 0].tolist() == (2 - both.y).tolist()


BAD_TABLES = {
    r"visits\.csv: empty": "",
    r"no rows below the header": "a,label\n",
    r"only the column 'label'": "label\n1\n",
    r"no label column 'label': did you mean visits\.csv:labels\? It has a, labels": (
        "a,labels\n1,2\n"
    ),
    r"no label column 'label': name it as visits\.csv:COLUMN; It has a, b": "a,b\n1,2\n",
    r"column 'a' is there more than once": "a,a,label\n1,2,3\n",
    r"visits\.csv line 3: 2 values: must be 3": "a,b,label\n1,2,0\n1,2\n",
    r"visits\.csv line 2: b = 'tall': must be a finite number": "a,b,label\n1,tall,0\n",
    r"visits\.csv line 2: a = '': must be a finite number": "a,b,label\n,1,0\n",
    r"visits\.csv line 2: a = 'nan'": "a,label\nnan,0\n",
    r"visits\.csv line 2: a = 'inf'": "a,label\ninf,0\n",
    r"visits\.csv line 3: label = '' is missing": "a,label\n1,0\n1,\n",
    r"visits\.csv line 3: label '-1': must be a whole number from 0 to 65535": (
        "a,label\n1,0\n1,-1\n"
    ),
    r"visits\.csv line 2: label '1\.5': must be a whole number": "a,label\n1,1.5\n1,2\n",
}


@pytest.mark.parametrize("pattern", BAD_TABLES)
def test_csv_refusals(tmp_path, pattern):
    assert re.search(pattern, refused(table(tmp_path, BAD_TABLES[pattern])))


def test_csv_that_is_not_text(tmp_path):
    (tmp_path / "visits.csv").write_bytes(b"a,label\n\xff\xfe,1\n")
    assert "cannot be read as CSV in UTF-8" in refused(tmp_path / "visits.csv")


def parquet(folder: Path, **columns: object) -> Path:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    pq.write_table(pa.table(columns), folder / "visits.parquet")
    return folder / "visits.parquet"


def test_parquet(tmp_path):
    path = parquet(tmp_path, a=[1, 2, 3, 4, 5], b=[0.5] * 5, kind=["y", "x", "y", "y", "y"])
    data = load(f"{path}:kind")
    both = data.train.plus(data.test)
    assert data.classes == ("x", "y")
    assert sorted(both.x.tolist()) == [[float(i), 0.5] for i in range(1, 6)]
    assert both.y[both.x[:, 0] == 2].tolist() == [0]
    assert both.y.sum() == 4


def test_parquet_refusals(tmp_path):
    assert "column 'a' has 1 missing values" in refused(
        parquet(tmp_path, a=[1, None], label=[0, 0])
    )
    assert "column 'label' has 1 missing values" in refused(
        parquet(tmp_path, a=[1, 2], label=[0, None])
    )
    assert "column 'a' is not numeric" in refused(parquet(tmp_path, a=["p", "q"], label=[0, 0]))
    assert "row 1: a = inf" in refused(parquet(tmp_path, a=[1.0, float("inf")], label=[0, 0]))
    assert "no rows" in refused(parquet(tmp_path, a=np.zeros(0), label=np.zeros(0)))
    assert "only the column 'label'" in refused(parquet(tmp_path, label=[0, 1]))
    assert "no label column 'label'" in refused(parquet(tmp_path, a=[0, 1], b=[1, 2]))
    path = parquet(tmp_path, a=[1, 2], label=[0, 0])
    path.write_bytes(path.read_bytes()[:50])
    assert "cannot be read as Parquet" in refused(path)


def test_parquet_without_pyarrow(monkeypatch, tmp_path):
    (tmp_path / "visits.parquet").write_bytes(b"PAR1")
    real = builtins.__import__

    def without(name: str, *args: object, **kwargs: object) -> object:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "reading Parquet needs pyarrow: pip install 'tacit[parquet]'" in refused(
        tmp_path / "visits.parquet"
    )


def test_other_paths_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    assert "must be a .npz, .csv or .parquet file, or a folder" in refused(tmp_path / "a.txt")
    assert "no such file or folder" in refused(tmp_path / "b.csv")
    assert "no such file or folder" in refused(f"{tmp_path}/b.csv:column")


# torch


class Listed(torch.utils.data.Dataset):
    def __init__(self, items: list[object], classes: list[str] | None = None) -> None:
        self.items = items
        if classes:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> object:
        return self.items[i]


def test_torch_tensors_with_a_test_part():
    x = torch.arange(12, dtype=torch.float32).reshape(4, 3)
    train, test = (
        TensorDataset(x, torch.tensor([0, 1, 2, 1])),
        TensorDataset(x[:1] + 50, torch.tensor([2])),
    )
    data = from_torch(train, test=test, name="mine")
    assert data.name == "mine"
    assert data.train.x.tolist() == x.tolist()
    assert data.train.y.tolist() == [0, 1, 2, 1]
    assert data.test.x.tolist() == [[50, 51, 52]]
    assert data.classes == ("0", "1", "2")


def test_torch_pictures_keep_the_names_of_their_classes():
    items = [(Image.fromarray(np.full((2, 3, 3), i, np.uint8)), i % 2) for i in range(40)]
    data = from_torch(Listed(items, ["even", "odd"]))
    assert data.classes == ("even", "odd")
    assert data.shape == (3, 2, 3)
    assert data.train.x.dtype == torch.uint8
    assert (data.train.x[:, 0, 0, 0].long() % 2 == data.train.y).all()
    assert not data.inferred
    words = [(np.ones(2), "ba"[i % 2]) for i in range(40)]
    named = from_torch(Listed(words, ["b", "a", "c"]))
    assert named.classes == ("b", "a", "c")
    assert named.train.plus(named.test).y.bincount().tolist() == [20, 20]
    assert from_torch(Listed(words)).classes == ("a", "b")
    assert from_torch(Listed(words)).inferred
    with pytest.raises(BadInput, match=r"own: label 1 of example 1: must be one of the classes 0"):
        from_torch(Listed(items, ["even"]))


def test_torch_refusals():
    class Endless(IterableDataset):
        def __iter__(self):
            return iter([])

    for given, pattern in (
        (Endless(), "own train: Endless has no length"),
        (Listed([]), "Listed has no items"),
        (Listed([np.ones(2)]), r"item 0 is a ndarray: must be a pair"),
        (
            Listed([(np.ones(2), 0), (np.ones(3), 0)]),
            r"input 1 is float64 \(3,\) and the first float64 \(2,\)",
        ),
        (Listed([(np.array([1, np.inf]), 0)] * 2), r"own: input \(0, 1\) = inf"),
        (Listed([(np.ones(2), -3)] * 2), "own: label -3 of example 0"),
        (Listed([(np.ones(2), np.zeros(4))] * 2), r"own: labels of shape \(2, 4\)"),
    ):
        with pytest.raises(BadInput, match=pattern):
            from_torch(given)


# Stated classes


def test_classes_that_are_stated_need_not_be_in_the_data(tmp_path):
    path = table(tmp_path, "a,label\n" + "".join(f"{i},{1 + i % 2}\n" for i in range(40)))
    found, three, words = (load(str(path), classes=c) for c in (None, 3, "2,1,0"))
    assert (found.classes, found.inferred) == (("0", "1", "2"), True)
    assert (three.classes, three.inferred) == (("0", "1", "2"), False)
    assert torch.equal(three.train.y, found.train.y)
    assert words.classes == ("2", "1", "0")
    assert torch.equal(words.train.y, 2 - found.train.y)
    assert all(torch.equal(found.train.x, other.train.x) for other in (three, words))


def test_a_label_that_is_not_among_the_classes_is_refused_by_file_and_row(tmp_path):
    rows = "".join(f"{i},benign\n" for i in range(20))
    path = table(tmp_path, "a,label\n\n" + rows + "7, rare \n")
    with pytest.raises(
        BadInput, match=r"visits\.csv line 23: label 'rare': must be one of the cla"
    ):
        load(str(path), classes="benign,malignant")
    with pytest.raises(
        BadInput, match=r"mine\.npz: label 3 of example 2: must be one of the class"
    ):
        load(str(npz(tmp_path, x=TWO, y=[0, 1, 3, 1])), classes=3)
    parquet_file = parquet(tmp_path, a=[1, 2], label=["x", "y"])
    with pytest.raises(BadInput, match=r"visits\.parquet row 1: label 'y': must be one of"):
        load(str(parquet_file), classes=["x"])


def test_folders_are_classes_if_somebody_says_so(tmp_path):
    for i in range(20):
        picture(tmp_path / "scans/07" / f"{i}.png", [[i]])
    (tmp_path / "scans/8").mkdir()
    assert "8: no images" in refused(tmp_path / "scans")
    for classes in ("folders", "07,8", ["07", "8"]):
        data = load(str(tmp_path / "scans"), classes=classes)
        assert data.classes == ("07", "8")
        assert not data.inferred
    with pytest.raises(BadInput, match=r"07/0\.png: label '07': must be one of the classes 7, 8"):
        load(str(tmp_path / "scans"), classes="7,8")
    with pytest.raises(BadInput, match=r"classes = 'folders': .*csv is no folder of images"):
        load(str(table(tmp_path, "a,label\n1,2\n")), classes="folders")


@pytest.mark.parametrize(
    ("classes", "why"),
    [
        ("a,,b", "none empty"),
        ("a,b,a", "'a' is there twice"),
        ("1,01", "'1' is there twice"),
        ("0", "0 of them: must be between 1 and 65536"),
        ("99999", "99999 of them"),
        ([], "0 of them"),
    ],
)
def test_bad_classes_are_refused(classes, why):
    with pytest.raises(BadInput, match=why):
        told(classes)


def test_a_known_data_set_has_its_own_classes():
    assert load("digits", classes=10).classes == tuple("0123456789")
    with pytest.raises(BadInput, match="digits has its own; leave them out"):
        load("digits", classes=3)


# Paths


def test_a_path_that_holds_in_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("d.csv", "odd.csv:name"):
        (tmp_path / name).write_text("a,b/c\n1,2\n")
    assert (
        anywhere("d.csv") == anywhere("./d.csv") == anywhere("~/d.csv") == str(tmp_path / "d.csv")
    )
    assert anywhere("d.csv:b/c") == f"{tmp_path / 'd.csv'}:b/c"
    assert anywhere("odd.csv:name") == str(tmp_path / "odd.csv:name")
    for name in ("digits", "mnist", "sites", "missing.npz", ""):
        assert anywhere(name) == name
