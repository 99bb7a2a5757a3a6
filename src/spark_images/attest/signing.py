"""Keys: ECDSA on P-256 with SHA-256, as cosign makes them, from a file, the environment or a program that holds them.

Formats and mathematics are the library's (cryptography); what is signed is bundle.py's.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from spark_images.errors import HostProgramError, SignatureError, UsageError
from spark_images.process import hand

KEY, PASSWORD, PUBLIC_KEY = "SPARK_IMAGES_SIGNING_KEY", "SPARK_IMAGES_SIGNING_PASSWORD", "SPARK_IMAGES_VERIFY_KEY"
PROGRAM = "exec:"  # before the path of a program that holds the key
PROGRAM_S = 120  # a key in the cloud answers in a second; somebody may have to touch a token
MAKE = (
    "make a key: `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out signing.key` and "
    "`openssl pkey -in signing.key -pubout -out signing.pub`"
)
_ECDSA = ec.ECDSA(hashes.SHA256())


@dataclass(frozen=True)
class PublicKey:
    """What signatures are checked against."""

    key: ec.EllipticCurvePublicKey = field(repr=False)

    @property
    def hint(self) -> str:
        """How bundles name it: base64 of the sha256 of its DER form."""
        der = self.key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return base64.b64encode(hashlib.sha256(der).digest()).decode()

    def signed(self, data: bytes, signature: bytes) -> bool:
        """Whether the signature is of these bytes, by this key."""
        try:
            self.key.verify(signature, data, _ECDSA)
        except InvalidSignature:
            return False
        return True


class Signer(Protocol):
    """Somebody who can sign."""

    @property
    def public(self) -> PublicKey: ...
    def sign(self, data: bytes) -> bytes:
        """The signature in ASN.1 DER."""
        ...


@dataclass(frozen=True)
class _Key:
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def public(self) -> PublicKey:
        return PublicKey(self.key.public_key())

    def sign(self, data: bytes) -> bytes:
        return self.key.sign(data, _ECDSA)


@dataclass(frozen=True)
class _Program:
    """`PROGRAM public-key` prints the key in PEM; `PROGRAM sign` reads bytes and writes their signature in DER."""

    path: str

    @property
    def public(self) -> PublicKey:
        return _public(self._run("public-key", b""), self.path)

    def sign(self, data: bytes) -> bytes:
        signature = self._run("sign", data)
        if not self.public.signed(data, signature):
            raise SignatureError(f"what `{self.path} sign` wrote is no signature by its own key over SHA-256, in DER")
        return signature

    def _run(self, word: str, data: bytes) -> bytes:
        try:
            ended = hand([self.path, word], data, timeout_s=PROGRAM_S)
        except HostProgramError as err:
            raise SignatureError(f"`{self.path} {word}` does not run") from err
        if ended.status:
            said = ended.stderr.strip().splitlines()
            raise SignatureError(f"`{self.path} {word}` ended with status {ended.status}", why=said[-3:])
        return ended.stdout


def find_signer(named: str | None, env: Mapping[str, str] = os.environ) -> Signer | None:
    """The key named on the command line, else by $SPARK_IMAGES_SIGNING_KEY; None where neither names one.

    named: a PEM file, or `exec:PROGRAM`. The variable may also hold the PEM text itself. A password comes from
    $SPARK_IMAGES_SIGNING_PASSWORD. Raises UsageError for what is no such key.
    """
    stated = named or env.get(KEY)
    if not stated:
        return None
    if stated.startswith(PROGRAM):
        return _Program(stated.removeprefix(PROGRAM))
    inline = named is None and "-----BEGIN" in stated
    source = f"${KEY}" if inline else stated
    data = stated.encode() if inline else _read(stated)
    password = env.get(PASSWORD)
    try:
        key = serialization.load_pem_private_key(data, password.encode() if password else None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # the library's words may hold parts of the file
        needs = b"ENCRYPTED" in data and not password
        raise UsageError(
            f"`{source}` is no private key that can be read",
            why=(f"it is encrypted, and ${PASSWORD} is not set",) if needs else (),
            hint=MAKE,
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UsageError(f"`{source}` is no ECDSA key on the curve P-256", hint=MAKE)
    return _Key(key)


def find_public_key(named: str | None, env: Mapping[str, str] = os.environ) -> PublicKey | None:
    """As find_signer, of the key that signatures have to be by: a PEM file, or $SPARK_IMAGES_VERIFY_KEY."""
    stated = named or env.get(PUBLIC_KEY)
    if not stated:
        return None
    if named is None and "-----BEGIN" in stated:
        return _public(stated.encode(), f"${PUBLIC_KEY}")
    return _public(_read(stated), stated)


def _public(data: bytes, source: str) -> PublicKey:
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError(f"`{source}` is no public key in PEM form", hint=MAKE) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UsageError(f"`{source}` is no ECDSA key on the curve P-256", hint=MAKE)
    return PublicKey(key)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as err:
        raise UsageError(f"the key `{path}` cannot be read: {(err.strerror or '').lower()}", hint=MAKE) from None
