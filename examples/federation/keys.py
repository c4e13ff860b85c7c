"""A certificate authority of your own, the SuperLink's certificate, and a key pair for each SuperNode.

    python examples/federation/keys.py DIR --host superlink.example.org --host 10.0.0.5 --nodes 4

Writes ca.crt (for every machine), ca.key (for none: keep it off line), server.pem and server.key (for the SuperLink), and node-N with
node-N.pub for each SuperNode: the private key to the node, the public one to the SuperLink's operator.
"""

import argparse
import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey


def write_keys(folder: Path, hosts: Sequence[str], nodes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    authority, authority_key = _authority(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    names = x509.SubjectAlternativeName([_name(host) for host in hosts])
    certificate = (
        _certificate(hosts[0], key, authority.subject, days=825)
        .add_extension(names, critical=False)
        .add_extension(usage, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    (folder / "server.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_private(folder / "server.key", key, serialization.PrivateFormat.PKCS8)
    for node in range(nodes):
        write_node(folder / f"node-{node}")


def _authority(folder: Path) -> tuple[x509.Certificate, Key]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "federation")])
    certificate = (
        _certificate("federation", key, name, days=3650)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_signs_certificates(), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_private(folder / "ca.key", key, serialization.PrivateFormat.PKCS8)
    return certificate, key


def _certificate(name: str, key: Key, issuer: x509.Name, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _signs_certificates() -> x509.KeyUsage:
    others = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    return x509.KeyUsage(key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False, **dict.fromkeys(others, False))


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_node(path: Path) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(path, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(path.name + ".pub").write_bytes(public + b"\n")


def _write_private(path: Path, key: Key, form: serialization.PrivateFormat) -> None:
    """Nobody but its owner may read it, from the first moment."""
    content = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", action="append", required=True, help="a name or address under which nodes reach the SuperLink")
    parser.add_argument("--nodes", type=int, default=4)
    asked = parser.parse_args()
    write_keys(asked.folder, asked.host, asked.nodes)


if __name__ == "__main__":
    main()
