"""The certificates that an edge shows: found in the operator's directory, checked, and made into files for HAProxy.

What is taken, in the directory and in the directories in it:

    fullchain.pem + privkey.pem      as certbot keeps them in live/NAME/
    NAME.crt + NAME.key              as `tls.crt` and `tls.key` of Kubernetes
    NAME.pem                         certificates and key in one file

Each becomes one file, key first: a pair of which only one half was replaced does not fit together and is refused.

Public: `read_bundles`, `write_bundles`, `bundles_in`, `CertificatesUnusable`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quaymaster.net.private_files import write_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

FILE_BYTES_MAX: Final = 256 * 1024
BUNDLES_MAX: Final = 1_000
_KEY_MARK: Final = b"PRIVATE KEY-----"
_CERTIFICATE_MARK: Final = b"-----BEGIN CERTIFICATE-----"
_CERTBOT: Final = ("fullchain.pem", "privkey.pem")
_CERTBOT_FILES: Final = frozenset({*_CERTBOT, "cert.pem", "chain.pem"})


class CertificatesUnusable(Exception):
    """A directory holds no certificate, or one that cannot be shown; the message names the file."""


def read_bundles(directory: Path) -> dict[str, bytes]:
    """Return key and certificates of each name, as HAProxy takes them, in the order of the names.

    Raises:
        CertificatesUnusable: there is none, or one of them cannot be used.
    """
    bundles: dict[str, bytes] = {}
    try:
        inner = sorted(
            path for path in directory.iterdir() if path.is_dir() and not path.name.startswith(".")
        )
        for place, prefix in [(directory, ""), *((path, path.name) for path in inner)]:
            for name, certificates, key in _pairs_in(place):
                if len(bundles) >= BUNDLES_MAX:
                    raise CertificatesUnusable(f"{directory} holds over {BUNDLES_MAX} certificates.")
                whole = "-".join(part for part in (prefix, name) if part) or "default"
                bundles[whole] = _bundle(certificates, key)
    except OSError as error:
        raise CertificatesUnusable(
            f"{error.filename or directory} cannot be read: {error.strerror}."
        ) from None
    if not bundles:
        raise CertificatesUnusable(
            f"{directory} holds no certificate with its key: NAME.pem, NAME.crt and NAME.key, "
            "or fullchain.pem and privkey.pem."
        )
    return dict(sorted(bundles.items()))


def bundles_in(directory: Path) -> dict[str, bytes]:
    """Return what `write_bundles` wrote; nothing where it did not."""
    return {path.stem: path.read_bytes() for path in sorted(directory.glob("*.pem"))}


def write_bundles(directory: Path, bundles: Mapping[str, bytes]) -> None:
    """Write the files that HAProxy reads, mode 0600, and remove others. Raises OSError."""
    directory.mkdir(mode=0o700, exist_ok=True)
    for path in directory.glob("*.pem"):
        if path.stem not in bundles:
            path.unlink()
    for name, content in bundles.items():
        write_private(directory / f"{name}.pem", content)


def _pairs_in(place: Path) -> Iterator[tuple[str, Path, Path]]:
    """Yield name, certificates and key of what one directory holds."""
    files = sorted(path for path in place.iterdir() if path.is_file())
    names = {path.name for path in files}
    is_certbots = names.issuperset(_CERTBOT)
    if is_certbots:
        yield "", place / _CERTBOT[0], place / _CERTBOT[1]
    for path in files:
        if path.suffix == ".crt" and f"{path.stem}.key" in names:
            yield path.stem, path, path.with_suffix(".key")
        elif path.suffix == ".pem" and not (is_certbots and path.name in _CERTBOT_FILES):
            content = _read(path)
            if _KEY_MARK in content and _CERTIFICATE_MARK in content:
                yield path.stem, path, path


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise CertificatesUnusable(f"{path} has over {FILE_BYTES_MAX} bytes.")
    return content


def _bundle(certificates_path: Path, key_path: Path) -> bytes:
    """Return key and certificates, without anything else that may be in their files."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        certificates = x509.load_pem_x509_certificates(_read(certificates_path))
    except ValueError as error:
        raise CertificatesUnusable(f"{certificates_path} holds no certificate: {error}.") from None
    try:
        key: PrivateKeyTypes = serialization.load_pem_private_key(_read(key_path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CertificatesUnusable(f"{key_path} holds no private key, or an encrypted one.") from None
    if _public(key.public_key()) != _public(certificates[0].public_key()):
        raise CertificatesUnusable(
            f"The key in {key_path} is not that of the certificate in {certificates_path}."
        )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + b"".join(one.public_bytes(serialization.Encoding.PEM) for one in certificates)


def _public(key: object) -> bytes:
    from cryptography.hazmat.primitives import serialization

    encoded: bytes = key.public_bytes(  # type: ignore[attr-defined]
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return encoded
