"""Who may connect.

A local authority for the server's certificate, and a register of site names and their keys.

The coordinator's folder has ca.crt, ca.key, server.crt, server.key and sites.json. A site needs
ca.crt and its own private key, which it can make itself, so that the key never travels.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tacit.codec import write_atomically
from tacit.core import BadInput

PrivateKey = ec.EllipticCurvePrivateKey
YEARS = 10
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?")


def check_name(name: str) -> None:
    """Refuse a name that could not be a file's or that would sort oddly."""
    if not NAME.fullmatch(name):
        raise BadInput(
            f"name = {name!r}: must be 1-64 small letters, digits and inner hyphens, such as hospital-a"
        )


def make_authority(folder: Path, hosts: Sequence[str]) -> None:
    """Make an authority and the server's certificate for some host names and addresses.

    Loopback is always included.
    """
    if (folder / "ca.key").exists():
        raise BadInput(f"keys = '{folder}': there is an authority already")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tacit authority")])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    draft = _draft(name, name, key).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    certificate = draft.add_extension(usage, critical=True).sign(key, hashes.SHA384())
    write_atomically(folder / "ca.key", _pem(key), private=True)
    (folder / "ca.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    make_server_certificate(folder, hosts)
    _write_register(folder, {})


def make_server_certificate(folder: Path, hosts: Sequence[str]) -> None:
    """Make the server's key and certificate anew."""
    try:
        authority = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        ca = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    except (OSError, ValueError):
        raise BadInput(
            f"keys = '{folder}': no authority; `tacit keys init {folder}` makes one"
        ) from None
    assert isinstance(authority, PrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tacit server")])
    names = [_general_name(h) for h in dict.fromkeys(["localhost", "127.0.0.1", "::1", *hosts])]
    draft = _draft(subject, ca.subject, key).add_extension(
        x509.SubjectAlternativeName(names), critical=False
    )
    draft = draft.add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    draft = draft.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    certificate = draft.add_extension(issuer, critical=False).sign(authority, hashes.SHA384())
    write_atomically(folder / "server.key", _pem(key), private=True)
    (folder / "server.crt").write_bytes(certificate.public_bytes(Encoding.PEM))


def _draft(subject: x509.Name, issuer: x509.Name, key: PrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def make_site_key(folder: Path, name: str) -> Path:
    """Make a site's key pair, NAME.key and NAME.pub; only the second is for others."""
    check_name(name)
    private = folder / f"{name}.key"
    if private.exists():
        raise BadInput(f"'{private}': is there already")
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    blob = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    write_atomically(private, blob, private=True)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (folder / f"{name}.pub").write_bytes(public + f" {name}\n".encode())
    return private


def register(folder: Path, name: str, public: Path) -> None:
    """Let the owner of a key connect under a name."""
    check_name(name)
    known = register_of(folder)
    text = " ".join(_read(public).decode(errors="replace").split()[:2])
    _public_pem(text, str(public))
    if name in known:
        raise BadInput(
            f"name = {name!r}: is registered; `tacit keys remove {folder} {name}` takes it off"
        )
    if text in known.values():
        raise BadInput(f"'{public}': this key is registered for another name")
    _write_register(folder, known | {name: text})


def remove(folder: Path, name: str) -> None:
    """Let nobody connect under a name."""
    known = register_of(folder)
    if name not in known:
        raise BadInput(
            f"name = {name!r}: is not registered; registered: {', '.join(known) or 'none'}"
        )
    _write_register(folder, {k: v for k, v in known.items() if k != name})


def register_of(folder: Path) -> dict[str, str]:
    """Return the registered names with their public keys, in the order of names."""
    if not (folder / "sites.json").exists():
        raise BadInput(
            f"keys = '{folder}': no folder of keys; `tacit keys init {folder}` makes one"
        )
    try:
        known = json.loads(_read(folder / "sites.json"))
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise BadInput(f"'{folder / 'sites.json'}': not JSON") from None
    return dict(sorted(known.items()))


def public_pems(folder: Path) -> dict[str, bytes]:
    """Return the registered public keys as Flower writes them."""
    return {
        name: _public_pem(text, f"sites.json, {name}") for name, text in register_of(folder).items()
    }


def read_private(file: Path) -> PrivateKey:
    """Read a site's private key."""
    if os.name == "posix" and file.exists() and file.stat().st_mode & 0o077:
        raise BadInput(f"'{file}': others can read this key; `chmod 600 {file}`")
    try:
        key = load_ssh_private_key(_read(file), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, PrivateKey):
        raise BadInput(f"'{file}': not a private key of the kind `tacit keys new` makes")
    return key


def _public_pem(text: str, where: str) -> bytes:
    try:
        key = load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise BadInput(
            f"{where}: not a public key of the kind `tacit keys new` makes (ecdsa-sha2-nistp384)"
        )
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as e:
        raise BadInput(f"'{file}': cannot be read ({e.strerror})") from None


def _pem(key: PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write_register(folder: Path, known: dict[str, str]) -> None:
    write_atomically(
        folder / "sites.json", (json.dumps(dict(sorted(known.items())), indent=1) + "\n").encode()
    )
