"""Writes the machine's certificate authorities as a Java key store: `trust_store.py FILE`.

Debian makes this file when ca-certificates-java is installed, which needs root. Standard library only: it runs before
the environment exists. The format is Java's own JKS, version 2.
"""

import hashlib
import ssl
import struct
import sys
from pathlib import Path

PASSWORD = "changeit"  # noqa: S105  Java's public default; it guards nothing


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def key_store(certificates: list[bytes]) -> bytes:
    """Trusted certificates (DER) -> a JKS file: magic, version, entries, and a salted SHA-1 of it all."""
    entries = [
        struct.pack(">I", 2) + text(f"ca{number}") + struct.pack(">Q", 0) + text("X.509")
        + struct.pack(">I", len(der)) + der
        for number, der in enumerate(certificates)
    ]  # fmt: skip
    body = struct.pack(">III", 0xFEEDFEED, 2, len(entries)) + b"".join(entries)
    seal = hashlib.sha1(PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body)  # noqa: S324  the format's own
    return body + seal.digest()


def main() -> None:
    trusted = ssl.create_default_context().get_ca_certs(binary_form=True)
    Path(sys.argv[1]).write_bytes(key_store(trusted))


if __name__ == "__main__":
    main()
