"""Keys of our own: a signature is good for its bytes and its key, and for nothing else."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from spark_images.attest.signing import Signer, find_signer


def signer_of_new_key(path: Path) -> Signer:
    key = ec.generate_private_key(ec.SECP256R1())
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(key.private_bytes(*form))
    signer = find_signer(str(path), {})
    assert signer
    return signer


def test_a_signature_holds_for_its_bytes_and_its_key_alone(tmp_path: Path) -> None:
    ours, other = (signer_of_new_key(tmp_path / name) for name in ("ours", "other"))
    signature = ours.sign(b"said")
    assert ours.public.signed(b"said", signature)
    assert not ours.public.signed(b"said otherwise", signature)
    assert not other.public.signed(b"said", signature)
