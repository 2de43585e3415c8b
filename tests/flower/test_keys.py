"""Keys: who may connect, under which name."""

import os
import stat
import subprocess
import sys

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from tacit.apps import keys
from tacit.apps.private_files import keep_private
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
    private = keys.read_private(tmp_path / "hospital-a.key")
    assert keys.public_keys(tmp_path / "keys")["hospital-a"] == private.public_key()
    assert call(["keys", "remove", "keys", "hospital-a"]) == 0
    assert keys.register_of(tmp_path / "keys") == {}


@pytest.mark.parametrize("word", ["init", "new", "add", "remove", "revoke", "renew", "list"])
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
        ["init", "other", "ünï.example"],
        ["init", "other", "a b"],
        ["init", "other", "evil\x1b[31m"],
        ["revoke", "keys", "hospital-b"],
        ["renew", "nowhere"],
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
    assert not (tmp_path / "other").exists()


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
    f"{HERE} --insecure --threads 0": ["threads = 0", "at least 1"],
    f"{HERE} --insecure --threads 999999999999": ["threads = 999999999999", "at most"],
    f"{HERE} --insecure --delta 2": ["delta = 2", "below 1"],
    f"{HERE} --insecure --max-message 0": ["max_message = 0", "at least 1"],
    f"{HERE} --insecure --patience -1": ["patience = -1", "above 0"],
    "serve e.toml --insecure --patience -1": ["patience = -1", "above 0"],
    "serve e.toml --insecure --wait-for -1": ["wait_for = -1", "at least 0"],
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused_before_anything_is_made(tmp_path, monkeypatch, capsys, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.toml").write_text('method.name = "fedavg"\n')
    assert call(line.split()) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert [words for words in REFUSED[line] if words not in said] == []
    assert [file.name for file in tmp_path.iterdir()] == ["e.toml"]


def test_flags_that_cannot_work_are_refused_before_torch_is_there():
    """Importing it takes a second and a half."""
    line = "join --server a:0 --name a --data digits --key a.key --ca ca.crt"
    code = f"from tacit.cli.main import call; import sys; call({line.split()}); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_register_that_is_damaged_or_cannot_be_read(tmp_path):
    (tmp_path / "sites.json").write_text("{")
    with pytest.raises(BadInput, match=r"sites\.json': not JSON"):
        keys.register_of(tmp_path)
    for other in ("[]", '{"a": 3}', "null"):
        (tmp_path / "sites.json").write_text(other)
        with pytest.raises(BadInput, match=r"sites\.json': must be names with public keys"):
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


def test_a_revoked_key_cannot_be_registered_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for line in ("init keys", "new a", "add keys a a.pub", "revoke keys a", "new b"):
        assert call(["keys", *line.split()]) == 0
    assert keys.register_of(tmp_path / "keys") == {}
    capsys.readouterr()
    for name in ("a", "c"):
        assert call(["keys", "add", "keys", name, "a.pub"]) == 2
        assert "this key was revoked" in capsys.readouterr().err
    assert call(["keys", "add", "keys", "a", "b.pub"]) == 0  # the same site, with a new key


def certificate(folder, name):
    return x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes())


def alternatives(made):
    return made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def test_certificates_last_90_days_and_are_renewed_for_the_same_hosts(tmp_path):
    keys.make_authority(tmp_path, ["fl.example.org", "192.0.2.7"])
    server, ca = certificate(tmp_path, "server"), certificate(tmp_path, "ca")
    assert 89 <= keys.left(server).days <= 90
    assert keys.check_certificate(tmp_path) == ""
    assert keys.renew(tmp_path) is False
    again = certificate(tmp_path, "server")
    assert again.serial_number != server.serial_number
    assert again.public_key() != server.public_key()
    assert alternatives(again) == alternatives(server)
    assert certificate(tmp_path, "ca") == ca
    again.verify_directly_issued_by(ca)


def test_an_authority_that_ends_soon_is_renewed_with_its_key(tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "AUTHORITY_DAYS", 60)
    keys.make_authority(tmp_path, [])
    old = (tmp_path / "ca.crt").read_bytes()
    monkeypatch.undo()
    assert keys.renew(tmp_path) is True
    new = (tmp_path / "ca.crt").read_bytes()
    assert new != old
    assert keys.authority_of(new) == keys.authority_of(old)  # signatures stay valid
    # a site that still has the old one is not shut out
    certificate(tmp_path, "server").verify_directly_issued_by(x509.load_pem_x509_certificate(old))


def test_a_certificate_that_ends_is_said_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "SERVER_DAYS", 10)
    keys.make_authority(tmp_path, [])
    assert keys.check_certificate(tmp_path).startswith("the server's certificate ends in 9 days")
    monkeypatch.setattr(keys, "SERVER_DAYS", 0)
    keys.renew(tmp_path)
    with pytest.raises(BadInput, match="has expired; `tacit keys renew"):
        keys.check_certificate(tmp_path)


def test_stores_are_for_one_account(tmp_path):
    """Also those that an earlier version left readable; links are not followed."""
    outside = tmp_path / "outside"
    outside.write_text("x")
    outside.chmod(0o644)
    (tmp_path / "store" / "run" / "1").mkdir(parents=True)
    (tmp_path / "store" / "run" / "1" / "ledger.jsonl").touch(0o644)
    (tmp_path / "store" / "link").symlink_to(outside)
    before = os.umask(0o022)
    try:
        keep_private(tmp_path / "store")
        (tmp_path / "store" / "new.db").touch()
    finally:
        os.umask(before)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "store").rglob("*")}
    assert modes == {
        "run": 0o700,
        "1": 0o700,
        "ledger.jsonl": 0o600,
        "link": 0o644,
        "new.db": 0o600,
    }
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700
