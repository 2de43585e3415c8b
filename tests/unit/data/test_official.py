"""Readers of the official formats, on tiny files written in them,
and on the real ones where they are.
"""

import gzip
import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tacit.data
from tacit.core.errors import BadInput
from tacit.data import KNOWN, load, load_official
from tacit.data.files import FILES, OfficialFile, data_folder, locate
from tacit.data.official import read_cifar, read_idx, read_idx_pair, read_svhn


def idx(path: Path, array: np.ndarray, cut: int = 0) -> Path:
    """Write an idx .gz whose header tells the array's shape; leave the last ``cut`` bytes out."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    raw = header + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(raw[: len(raw) - cut]))
    return path


PIXELS = np.arange(2 * 3 * 4).reshape(2, 3, 4)


def test_idx_gives_pixels_and_shape(tmp_path):
    read = read_idx(idx(tmp_path / "a.gz", PIXELS))
    assert read.dtype == torch.uint8
    assert read.tolist() == PIXELS.tolist()
    plain = tmp_path / "a"
    plain.write_bytes(gzip.decompress((tmp_path / "a.gz").read_bytes()))
    assert read_idx(plain).tolist() == PIXELS.tolist()


def test_idx_pair(tmp_path):
    images, labels = idx(tmp_path / "x.gz", PIXELS), idx(tmp_path / "y.gz", np.array([7, 2]))
    read = read_idx_pair(images, labels, 10)
    assert read.x.shape == (2, 1, 3, 4)
    assert read.x[1, 0].tolist() == PIXELS[1].tolist()
    assert read.y.dtype == torch.int64
    assert read.y.tolist() == [7, 2]
    turned = read_idx_pair(images, labels, 10, transposed=True)
    assert turned.x[1, 0].tolist() == PIXELS[1].T.tolist()
    assert turned.x.is_contiguous()


def test_idx_refusals(tmp_path):
    with pytest.raises(
        BadInput, match=r"cut\.gz: 35 bytes where its header \(2, 3, 4\) needs 40: cut short"
    ):
        read_idx(idx(tmp_path / "cut.gz", PIXELS, cut=5))
    whole = idx(tmp_path / "whole.gz", PIXELS).read_bytes()
    (tmp_path / "half.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match=r"half\.gz: cut short or not a \.gz file"):
        read_idx(tmp_path / "half.gz")
    (tmp_path / "text.gz").write_bytes(b"<html>not found</html>")
    with pytest.raises(BadInput, match=r"text\.gz: cut short or not a \.gz file"):
        read_idx(tmp_path / "text.gz")
    (tmp_path / "empty.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(BadInput, match=r"empty\.gz: starts with nothing"):
        read_idx(tmp_path / "empty.gz")
    with pytest.raises(BadInput, match="no such file"):
        read_idx(tmp_path / "none.gz")


def test_idx_pair_refusals(tmp_path):
    images, labels = idx(tmp_path / "x.gz", PIXELS), idx(tmp_path / "y.gz", np.array([7, 2]))
    with pytest.raises(BadInput, match=r"y\.gz: label 7: must be 0\.\.4"):
        read_idx_pair(images, labels, 5)
    with pytest.raises(BadInput, match=r"2 images, but z\.gz has 3 labels"):
        read_idx_pair(images, idx(tmp_path / "z.gz", np.array([1, 2, 3])), 10)
    with pytest.raises(BadInput, match=r"y\.gz: shape \(2,\): must be \(n, height, width\)"):
        read_idx_pair(labels, images, 10)
    with pytest.raises(BadInput, match=r"x\.gz: shape \(2, 3, 4\): must be \(n,\)"):
        read_idx_pair(images, images, 10)


def cifar(path: Path, labels: list[list[int]], seed: int) -> np.ndarray:
    """Write CIFAR records with random pixels; return the pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(np.concatenate([np.array(labels, np.uint8), pixels], 1).tobytes())
    return pixels


def test_cifar_planes_and_order_of_files(tmp_path):
    first, second = cifar(tmp_path / "1.bin", [[3], [9]], 1), cifar(tmp_path / "2.bin", [[0]], 2)
    read = read_cifar([tmp_path / "1.bin", tmp_path / "2.bin"], 1)
    assert read.x.shape == (3, 3, 32, 32)
    assert read.x.dtype == torch.uint8
    assert read.y.tolist() == [3, 9, 0]
    assert read.x[1, 2, 5, 7] == int(first[1, 2 * 1024 + 5 * 32 + 7])
    assert read.x[2, 0, 31, 0] == int(second[0, 31 * 32])


def test_cifar100_uses_the_fine_label(tmp_path):
    pixels = cifar(tmp_path / "train.bin", [[19, 99], [4, 30]], 3)
    read = read_cifar([tmp_path / "train.bin"], 2)
    assert read.y.tolist() == [99, 30]
    assert read.x[0].flatten().tolist() == pixels[0].tolist()


def test_cifar_refusals(tmp_path):
    cifar(tmp_path / "a.bin", [[3], [10]], 1)
    with pytest.raises(BadInput, match=r"a\.bin: label 10: must be 0\.\.9"):
        read_cifar([tmp_path / "a.bin"], 1)
    (tmp_path / "a.bin").write_bytes((tmp_path / "a.bin").read_bytes()[:-1])
    with pytest.raises(
        BadInput, match=r"a\.bin: 6,145 bytes: must be a whole number of 3,073-byte records"
    ):
        read_cifar([tmp_path / "a.bin"], 1)
    (tmp_path / "a.bin").write_bytes(b"")
    with pytest.raises(BadInput, match="0 bytes"):
        read_cifar([tmp_path / "a.bin"], 1)


def svhn(path: Path, labels: list[int], count: int | None = None) -> np.ndarray:
    """Write an SVHN file; return its pixels (height, width, channel, n)."""
    from scipy.io import savemat

    pixels = np.random.default_rng(5).integers(
        0, 256, (32, 32, 3, count or len(labels)), dtype=np.uint8
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"X": pixels, "y": np.array(labels, np.uint8)[:, None]}, do_compression=True)
    return pixels


def test_svhn_ten_means_zero(tmp_path):
    pixels = svhn(tmp_path / "a.mat", [10, 1, 9])
    read = read_svhn(tmp_path / "a.mat")
    assert read.y.tolist() == [0, 1, 9]
    assert read.y.dtype == torch.int64
    assert read.x.shape == (3, 3, 32, 32)
    assert read.x[2, 1, 4, 6] == int(pixels[4, 6, 1, 2])


def test_svhn_refusals(tmp_path):
    from scipy.io import savemat

    path = tmp_path / "a.mat"
    svhn(path, [0, 1])
    with pytest.raises(BadInput, match=r"labels 0\.\.1: must be whole numbers 1\.\.10"):
        read_svhn(path)
    svhn(path, [1, 2], count=3)
    with pytest.raises(BadInput, match="3 images and 2 labels"):
        read_svhn(path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(BadInput, match=r"cut short or not a \.mat file"):
        read_svhn(path)
    path.write_bytes(b"nothing of the kind" * 20)
    with pytest.raises(BadInput, match=r"cut short or not a \.mat file"):
        read_svhn(path)
    savemat(path, {"Z": np.zeros(3)})
    with pytest.raises(BadInput, match=r"holds \['Z'\]: must hold X and y"):
        read_svhn(path)
    savemat(path, {"X": np.zeros((2, 2)), "y": np.zeros(3)})
    with pytest.raises(BadInput, match=r"X is float64 \(2, 2\)"):
        read_svhn(path)
    with pytest.raises(BadInput, match="no such file"):
        read_svhn(tmp_path / "b.mat")


def publish(monkeypatch: pytest.MonkeyPatch, name: str, folder: Path) -> None:
    """Make the tiny files in a folder the official ones of a set."""
    tiny = []
    for file in FILES[name]:
        raw = (folder / file.path).read_bytes()
        tiny.append(
            OfficialFile(
                file.path, len(raw), "md5", hashlib.md5(raw).hexdigest(), ("https://x.example/",)
            )
        )
    monkeypatch.setitem(FILES, name, tuple(tiny))


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "emnist-digits"])
def test_load_idx_sets_from_a_folder(monkeypatch, tmp_path, name):
    paths = [tmp_path / file.path for file in FILES[name]]
    for images, labels, shift in ((paths[0], paths[1], 0), (paths[2], paths[3], 100)):
        idx(images, PIXELS + shift)
        idx(labels, np.array([9, 1]))
    publish(monkeypatch, name, tmp_path)
    data = load(name, tmp_path)
    upright = PIXELS if name != "emnist-digits" else PIXELS.transpose(0, 2, 1)
    assert data.name == name
    assert data.train.x[:, 0].tolist() == upright.tolist()
    assert data.test.x[:, 0].tolist() == (upright + 100).tolist()
    assert data.train.y.tolist() == [9, 1]
    assert len(data.classes) == 10
    assert data.classes[9] == ("Ankle boot" if name == "fashion-mnist" else "9")


def test_load_cifar_sets_from_a_folder(monkeypatch, tmp_path):
    for name, labels in (("cifar10", [[6]]), ("cifar100", [[2, 98]])):
        pixels = [cifar(tmp_path / file.path, labels, i) for i, file in enumerate(FILES[name])]
        publish(monkeypatch, name, tmp_path)
        data = load_official(name, tmp_path)
        assert data.train.x.flatten(1).tolist() == np.concatenate(pixels[:-1]).tolist()
        assert data.test.x.flatten(1).tolist() == pixels[-1].tolist()
        assert data.classes[int(data.test.y[0])] == ("frog" if name == "cifar10" else "woman")
        assert len(data.mean) == len(data.std) == 3


def test_load_svhn_from_a_folder(monkeypatch, tmp_path):
    svhn(tmp_path / "SVHN/train_32x32.mat", [10, 3])
    svhn(tmp_path / "SVHN/test_32x32.mat", [5])
    publish(monkeypatch, "svhn", tmp_path)
    data = load_official("svhn", tmp_path)
    assert (data.train.y.tolist(), data.test.y.tolist()) == ([0, 3], [5])


def test_digits_are_scikit_learns_and_the_test_part_never_changes():
    from sklearn.datasets import load_digits

    data, source = load("digits"), load_digits()
    assert (len(data.train), len(data.test), data.shape) == (1437, 360, (1, 8, 8))
    assert data.test.y.bincount().tolist() == [36, 37, 35, 37, 36, 36, 36, 36, 35, 36]
    packed = np.load(Path(tacit.data.__file__).with_name("digits.npz"), allow_pickle=False)
    rows = packed["test"].astype(int)
    assert (
        hashlib.sha256(rows.astype("<i2").tobytes()).hexdigest()
        == "f1d7873f468621fbefcca8eefcdfff061aaf281b653fb990db26b9861518ea31"
    )
    scaled = np.rint(source.images * 255 / 16).astype(int)
    assert data.test.x[:, 0].tolist() == scaled[rows].tolist()
    assert data.test.y.tolist() == source.target[rows].tolist()
    assert data.train.x[:, 0].tolist() == np.delete(scaled, rows, 0).tolist()
    assert data.mean == (round(float(scaled.mean()) / 255, 4),)
    assert data.std == (round(float(scaled.std()) / 255, 4),)


def test_unknown_names():
    with pytest.raises(
        BadInput, match=r"data = 'mnst': did you mean 'mnist'\? Allowed: digits, mnist"
    ):
        load("mnst")
    with pytest.raises(
        BadInput, match=r"data = 'no/such\.npz': no such file or folder; known names: digits"
    ):
        load("no/such.npz")
    with pytest.raises(BadInput, match="data = ''"):
        load("")
    with pytest.raises(BadInput, match="no such file or folder"):
        load("~nobody-of-this-name/x.npz")
    with pytest.raises(BadInput, match="data = 'cifar': did you mean 'cifar10'"):
        load_official("cifar")


def test_import_stays_light():
    code = (
        "import sys, tacit.data, tacit.cli.runs, tacit.cli.method_cost; "
        "print([m for m in ('scipy', 'PIL', 'sklearn', 'pyarrow') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


REAL = {  # training examples and classes
    "mnist": (60_000, 10),
    "fashion-mnist": (60_000, 10),
    "emnist-digits": (240_000, 10),
    "cifar10": (50_000, 10),
    "cifar100": (50_000, 100),
    "svhn": (73_257, 10),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files(name):
    if any(locate(file, data_folder()) is None for file in FILES[name]):
        pytest.skip(f"the official files of {name} are not in the data folder (TACIT_DATA)")
    data = load(name)
    count, classes = REAL[name]
    assert len(data.train) == count
    assert len(data.classes) == classes == len(data.train.y.unique())
    for i, (mean, std) in enumerate(zip(data.mean, data.std, strict=True)):
        plane = data.train.x[:, i].double() / 255
        assert float(plane.mean()) == pytest.approx(mean, abs=2e-4)
        assert float(plane.std()) == pytest.approx(std, abs=2e-4)


def test_known_names():
    assert list(KNOWN) == ["digits", *REAL]
