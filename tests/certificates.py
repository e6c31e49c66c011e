"""Authorities and certificates for tests of encrypted connections, as PEM files."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)
KEY_PASSWORD = "key-of-the-client"


class Authority:
    """Signs certificates; writes NAME.pem, NAME.key and NAME.store (both in one file, for a broker) to its folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.file = folder, folder / f"{name}.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signed = self._sign(self._subject, self._key.public_key(), x509.BasicConstraints(ca=True, path_length=None))
        self.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, host: str | None = None, password: str | None = None) -> tuple[Path, Path]:
        """(certificate, private key), for a host if one is given."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        hosts = x509.SubjectAlternativeName([_host(host)]) if host else None
        signed = self._sign(subject, key.public_key(), *([hosts] if hosts else []))
        certificate = signed.public_bytes(serialization.Encoding.PEM)
        lock = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)
        files = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        for file, content in zip(files, (certificate, private), strict=True):
            file.write_bytes(content)
        (self.folder / f"{name}.store").write_bytes(private + certificate)
        return files

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *extensions: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._subject).public_key(key)
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - DAY)
        builder = builder.not_valid_after(now + 30 * DAY)
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
