"""Keys: who may connect, under which name."""

import stat

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from tacit.apps import keys
from tacit.cli.main import call
from tacit.core import BadInput


def test_the_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(["keys", "init", "keys", "fl.example.org", "192.0.2.7"]) == 0
    assert call(["keys", "new", "hospital-a"]) == 0
    assert call(["keys", "add", "keys", "hospital-a", "hospital-a.pub"]) == 0
    capsys.readouterr()
    assert call(["keys", "list", "keys"]) == 0
    assert capsys.readouterr().out.startswith("hospital-a  ecdsa-sha2-nistp384 ")
    for secret in ("keys/ca.key", "keys/server.key", "hospital-a.key"):
        assert stat.S_IMODE((tmp_path / secret).stat().st_mode) == 0o600
    assert keys.public_pems(tmp_path / "keys")["hospital-a"] == keys.read_private(
        tmp_path / "hospital-a.key"
    ).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    assert call(["keys", "remove", "keys", "hospital-a"]) == 0
    assert keys.register_of(tmp_path / "keys") == {}


@pytest.mark.parametrize("word", ["init", "new", "add", "remove", "list"])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_makes_nothing(tmp_path, monkeypatch, capsys, word, flag):
    monkeypatch.chdir(tmp_path)
    assert call(["keys", word, flag]) == 0
    assert call(["keys", word, "keys", flag]) == 0
    out, err = capsys.readouterr()
    assert out.count("usage: tacit keys init DIR") == 2
    assert err == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "args",
    [
        ["init", "keys"],
        ["init", "-keys"],
        ["new", "../evil"],
        ["new", "Hospital A"],
        ["new", "hospital-a"],
        ["add", "keys", "hospital-a", "hospital-a.pub"],
        ["add", "keys", "hospital-b", "hospital-a.pub"],
        ["add", "keys", "hospital-b", "hospital-a.key"],
        ["add", "keys", "hospital-b", "other.pub"],
        ["add", "keys", "hospital-b", "missing.pub"],
        ["add", "keys", "hospital-b"],
        ["remove", "keys", "hospital-b"],
        ["list", "nowhere"],
        ["steal"],
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path, monkeypatch, capsys, args):
    monkeypatch.chdir(tmp_path)
    call(["keys", "init", "keys"])
    call(["keys", "new", "hospital-a"])
    call(["keys", "add", "keys", "hospital-a", "hospital-a.pub"])
    other = ed25519.Ed25519PrivateKey.generate()
    (tmp_path / "other.pub").write_bytes(
        other.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    )
    before = (tmp_path / "keys" / "sites.json").read_bytes()
    capsys.readouterr()
    assert call(["keys", *args]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert (tmp_path / "keys" / "sites.json").read_bytes() == before


HERE = "join --server 127.0.0.1:9092 --name a --data digits"
REFUSED = {
    "keys init --force": ["--force", "unknown option", "tacit keys --help"],
    "keys new --name": ["--name", "unknown option", "tacit keys --help"],
    "keys list nope": ["keys = 'nope'", "no folder of keys", "tacit keys init nope"],
    "serve e.toml --keys nope": ["keys = 'nope'", "no folder of keys", "tacit keys init nope"],
    "serve e.toml --insecure --port 99999": ["port = 99999", "at least 1", "at most 65535"],
    "serve e.toml --insecure --port 0": ["port = 0", "at least 1"],
    "serve e.toml --insecure --keys keys": ["--insecure", "contradicts --keys"],
    "join --server a:99999 --name a --data digits --key a.key --ca ca.crt": [
        "--server",
        "'a:99999'",
        "65535",
    ],
    "join --server a:0 --name a --data digits --key a.key --ca ca.crt": [
        "--server",
        "'a:0'",
        "from 1",
    ],
    f"{HERE} --insecure --key a.key": ["--insecure", "contradicts --key,"],
    f"{HERE} --insecure --key a.key --ca ca.crt": ["--insecure", "contradicts --key and --ca"],
    f"{HERE} --key a.key": ["--key and --ca: needed"],
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused_before_anything_is_made(tmp_path, monkeypatch, capsys, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.toml").write_text('method.name = "fedavg"\n')
    assert call(line.split()) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert [words for words in REFUSED[line] if words not in said] == []
    assert [file.name for file in tmp_path.iterdir()] == ["e.toml"]


def test_a_register_that_is_damaged_or_cannot_be_read(tmp_path):
    (tmp_path / "sites.json").write_text("{")
    with pytest.raises(BadInput, match=r"sites\.json': not JSON"):
        keys.register_of(tmp_path)
    (tmp_path / "sites.json").unlink()
    (tmp_path / "sites.json").mkdir()
    with pytest.raises(BadInput, match=r"sites\.json': cannot be read"):
        keys.register_of(tmp_path)


def test_a_key_that_others_can_read_is_not_used(tmp_path):
    private = keys.make_site_key(tmp_path, "a")
    private.chmod(0o644)
    with pytest.raises(BadInput, match="chmod 600"):
        keys.read_private(private)
    private.chmod(0o600)
    other = ed25519.Ed25519PrivateKey.generate()
    private.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    with pytest.raises(BadInput, match="not a private key of the kind"):
        keys.read_private(private)
