"""TLS to PostgreSQL: the ledger checks whom it talks to, if its address says so."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import holdfast as hf

from .server import Server, find_binaries


def _certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a self-signed certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / f"{name}.crt", folder / f"{name}.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


@pytest.fixture
def secured(postgres: Server, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Return the address of a server that speaks TLS, and its certificate."""
    binaries = find_binaries()
    assert binaries is not None
    server, (certificate, key) = Server(binaries), _certificate(tmp_path, "server")
    server.use_tls(certificate, key)
    yield server.database("secured"), certificate
    server.stop()


def test_a_ledger_over_tls(secured: tuple[str, Path], tmp_path: Path) -> None:
    address, certificate = secured
    verified = f"{address}?sslmode=verify-full&sslrootcert={certificate}"
    ledger = hf.Ledger(verified)
    ledger.create_budget("ward-7", hf.Budget(1.0))
    with ledger._database._engine.connect() as connection:
        driver = connection.connection.dbapi_connection
        query = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        assert driver.execute(query).fetchone() == (True,)
    ledger.close()
    # The same ledger is found under the same place, whatever the options.
    assert hf.Ledger(address).names() == ["ward-7"]


def test_another_certificate_is_refused(secured: tuple[str, Path], tmp_path: Path) -> None:
    address, _ = secured
    other, _ = _certificate(tmp_path, "other")
    ledger = hf.Ledger(f"{address}?sslmode=verify-full&sslrootcert={other}")
    with pytest.raises(hf.errors.LedgerUnavailable, match="certificate verify failed"):
        ledger.create_budget("ward-7", hf.Budget(1.0))


def test_a_server_without_tls_is_refused_if_tls_is_asked_for(
    postgres: Server, tmp_path: Path
) -> None:
    certificate, _ = _certificate(tmp_path, "server")
    address = postgres.database(f"plain{tmp_path.name[-8:].replace('-', '_').lower()}")
    ledger = hf.Ledger(f"{address}?sslmode=verify-full&sslrootcert={certificate}")
    with pytest.raises(hf.errors.LedgerUnavailable, match="SSL"):
        ledger.create_budget("ward-7", hf.Budget(1.0))
