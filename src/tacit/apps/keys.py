"""Who may connect.

A local authority for the server's certificate, and a register of site names and their keys.

The coordinator's folder has ca.crt, ca.key, server.crt, server.key, sites.json and, once a key was
revoked, revoked.json. A site needs
ca.crt and its own private key, which it can make itself, so that the key never travels.
"""

from __future__ import annotations

import datetime
import hashlib
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

from tacit.core import BadInput
from tacit.core.files import write_atomically

PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey
SERVER_DAYS = 90  # of the server's certificate
AUTHORITY_DAYS = 3 * 365  # of the authority's, which sites are given by hand
WARN_DAYS = 14
REVOKED = "revoked.json"
HOST = re.compile(r"(\*\.)?[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*\.?")
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?")


def check_name(name: str) -> None:
    """Refuse a name that could not be a file's or that would sort oddly."""
    if not NAME.fullmatch(name):
        raise BadInput(
            f"name = {name!r}: must be 1-64 small letters, digits and inner hyphens, "
            "such as hospital-a"
        )


def make_authority(folder: Path, hosts: Sequence[str]) -> None:
    """Make an authority and the server's certificate for some host names and addresses.

    Loopback is always included.
    """
    if (folder / "ca.key").exists():
        raise BadInput(f"keys = '{folder}': there is an authority already")
    names = _subject_names(hosts)  # a host that cannot be is refused before anything is written
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    key = ec.generate_private_key(ec.SECP384R1())
    write_atomically(folder / "ca.key", _pem(key), private=True)
    _write_certificate(folder / "ca.crt", _authority_certificate(key))
    _make_server_certificate(folder, names)
    _write_register(folder, {})


def renew(folder: Path) -> bool:
    """Make the server's key and certificate anew, for the same host names.

    The authority keeps its key. Its own certificate is made anew when less than a server's lifetime
    is left of it: until the old one ends, sites can be given the new one.

    Returns:
        whether sites must be given a new ca.crt
    """
    key, ca = _authority(folder)
    names = _certificate(folder / "server.crt").extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    due = left(ca) < datetime.timedelta(days=SERVER_DAYS)
    if due:
        _write_certificate(folder / "ca.crt", _authority_certificate(key))
    _make_server_certificate(folder, list(names.value))
    return due


def left(certificate: x509.Certificate) -> datetime.timedelta:
    """Return for how long a certificate is still valid; less than nothing: it has expired."""
    return certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)


def check_certificate(folder: Path) -> str:
    """Refuse a server's certificate that has expired; return a warning if it soon will, or ''."""
    rest = left(_certificate(folder / "server.crt"))
    if rest <= datetime.timedelta():
        raise BadInput(
            f"keys = '{folder}': the server's certificate has expired; `tacit keys renew {folder}`"
        )
    soon = rest < datetime.timedelta(days=WARN_DAYS)
    told = f"the server's certificate ends in {rest.days} days; `tacit keys renew {folder}`"
    return told if soon else ""


def _authority(folder: Path) -> tuple[PrivateKey, x509.Certificate]:
    try:
        key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        ca = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    except (OSError, ValueError):
        raise BadInput(
            f"keys = '{folder}': no authority; `tacit keys init {folder}` makes one"
        ) from None
    assert isinstance(key, PrivateKey)
    return key, ca


def _certificate(file: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(_read(file))
    except ValueError:
        raise BadInput(f"'{file}': not a certificate") from None


def _authority_certificate(key: PrivateKey) -> x509.Certificate:
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
    draft = _draft(name, name, key, AUTHORITY_DAYS).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    return draft.add_extension(usage, critical=True).sign(key, hashes.SHA384())


def _make_server_certificate(folder: Path, names: Sequence[x509.GeneralName]) -> None:
    """Make the server's key and certificate anew."""
    authority, ca = _authority(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tacit server")])
    draft = _draft(subject, ca.subject, key, SERVER_DAYS).add_extension(
        x509.SubjectAlternativeName(names), critical=False
    )
    draft = draft.add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    draft = draft.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    certificate = draft.add_extension(issuer, critical=False).sign(authority, hashes.SHA384())
    write_atomically(folder / "server.key", _pem(key), private=True)
    _write_certificate(folder / "server.crt", certificate)


def _write_certificate(file: Path, certificate: x509.Certificate) -> None:
    write_atomically(file, certificate.public_bytes(Encoding.PEM))


def _draft(
    subject: x509.Name, issuer: x509.Name, key: PrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _subject_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    return [_general_name(h) for h in dict.fromkeys(["localhost", "127.0.0.1", "::1", *hosts])]


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not HOST.fullmatch(host):
        raise BadInput(
            f"host = {host!a}: must be a name of letters, digits, hyphens and dots, or an address"
        )
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
    _public_key(text, str(public))
    if name in known:
        raise BadInput(
            f"name = {name!r}: is registered; `tacit keys remove {folder} {name}` takes it off"
        )
    if text in known.values():
        raise BadInput(f"'{public}': this key is registered for another name")
    if text in revoked(folder):
        raise BadInput(f"'{public}': this key was revoked; `tacit keys new` makes another")
    _write_register(folder, known | {name: text})


def remove(folder: Path, name: str) -> None:
    """Let nobody connect under a name."""
    known = register_of(folder)
    if name not in known:
        raise BadInput(
            f"name = {name!r}: is not registered; registered: {', '.join(known) or 'none'}"
        )
    _write_register(folder, {k: v for k, v in known.items() if k != name})


def revoke(folder: Path, name: str) -> None:
    """Let nobody connect under a name, and nobody register its key again."""
    known = register_of(folder)
    if name in known:
        gone = [*revoked(folder), known[name]]
        write_atomically(folder / REVOKED, (json.dumps(gone, indent=1) + "\n").encode())
    remove(folder, name)


def revoked(folder: Path) -> list[str]:
    """Return the public keys that may never be registered again."""
    file = folder / REVOKED
    if not file.exists():
        return []
    try:
        gone = json.loads(_read(file))
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise BadInput(f"'{file}': not JSON") from None
    if not (isinstance(gone, list) and all(isinstance(k, str) for k in gone)):
        raise BadInput(f"'{file}': must be a list of public keys")
    return gone


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
    if not (isinstance(known, dict) and all(isinstance(k, str) for k in known.values())):
        raise BadInput(f"'{folder / 'sites.json'}': must be names with public keys")
    return dict(sorted(known.items()))


def public_keys(folder: Path) -> dict[str, PublicKey]:
    """Return the registered names with their public keys."""
    return {
        name: _public_key(text, f"sites.json, {name}") for name, text in register_of(folder).items()
    }


def fingerprint(key: PublicKey) -> str:
    """Return the short name of a public key, the same however it is written."""
    blob = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(blob).hexdigest()


def authority_of(certificate: bytes) -> str:
    """Return the short name of an authority's key, which a renewed certificate keeps."""
    try:
        key = x509.load_pem_x509_certificate(certificate).public_key()
    except ValueError:
        raise BadInput("ca: not a certificate of the kind `tacit keys init` makes") from None
    if not isinstance(key, PublicKey):
        raise BadInput("ca: not a certificate of the kind `tacit keys init` makes")
    return fingerprint(key)


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


def _public_key(text: str, where: str) -> PublicKey:
    try:
        key = load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, PublicKey):
        raise BadInput(
            f"{where}: not a public key of the kind `tacit keys new` makes (ecdsa-sha2-nistp384)"
        )
    return key


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
