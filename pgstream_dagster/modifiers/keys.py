"""The key of the transformers, secrets that rules name, and encryption and hashes by them."""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from pgstream_dagster.config.transformers import EncryptedAesSiv
from pgstream_dagster.errors import InvalidSetting, MissingSetting
from pgstream_dagster.modifiers.anonymizer import Sessions
from pgstream_dagster.modifiers.digest import derived, encoded
from pgstream_dagster.settings import missing_modifier_key

AES_SIV_BYTES = 64
"""Two keys of AES-256."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """What rules take from the environment, never shown, and sessions made with it."""

    modifier_key: bytes | None = field(default=None, repr=False)
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    sessions: Sessions = field(default_factory=Sessions, repr=False)

    def key(self) -> bytes:
        """The key of the transformers. Raises `MissingSetting`."""
        if self.modifier_key is None:
            raise missing_modifier_key()
        return self.modifier_key

    def variable(self, name: str, meaning: str) -> str:
        """The value of a variable that a rule names. Raises `MissingSetting`."""
        value = self.environment.get(name, "").strip()
        if not value:
            raise MissingSetting(name, meaning)
        return value


def hashed(secret: bytes, text: str) -> str:
    """HMAC-SHA-256 in hexadecimal."""
    return hmac.digest(secret, encoded(text), "sha256").hex()


def encryption(rule: EncryptedAesSiv, secrets: Secrets) -> Callable[[str], str]:
    """What encrypts a text as base64url without padding."""
    cipher, associated = AESSIV(_aes_key(rule, secrets)), [rule.associated_data.encode()]

    def encrypted(text: str) -> str:
        return urlsafe_b64encode(cipher.encrypt(encoded(text), associated)).rstrip(b"=").decode()

    return encrypted


def _aes_key(rule: EncryptedAesSiv, secrets: Secrets) -> bytes:
    """The key of a rule's variable, else one derived from the key of the transformers."""
    if rule.key_hex is None:
        secret = derived(secrets.key(), "encrypted_aes_siv")
        return HKDFExpand(SHA256(), AES_SIV_BYTES, b"AES-SIV").derive(secret)
    return aes_key(rule.key_hex, secrets)


def aes_key(variable: str, secrets: Secrets) -> bytes:
    """
    The key that a variable has.

    Raises:
        MissingSetting
        InvalidSetting: the variable has no 64 bytes in hexadecimal; its value is not shown.
    """
    text = secrets.variable(variable, "a key of 64 bytes in hexadecimal")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != AES_SIV_BYTES:
        raise InvalidSetting(variable, "something else", "64 bytes in hexadecimal")
    return key
