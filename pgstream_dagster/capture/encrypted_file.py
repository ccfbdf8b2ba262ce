"""A temporary file that nothing but this object can read: its key is nowhere else."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import IO, Final

from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

_BLOCK_BYTES: Final = 16


class EncryptedFile:
    """
    A file that is written once, from its start, and then read once, from its start.

    AES in counter mode: a key is used for one file, so its counter may begin anywhere. It hides
    what is written; a file without a name needs no protection against changes.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._cipher = Cipher(AES256(secrets.token_bytes(32)), CTR(bytes(_BLOCK_BYTES)))
        self._stream: CipherContext = self._cipher.encryptor()

    def write(self, data: bytes) -> None:
        """Append."""
        self._file.write(self._stream.update(data))

    def writelines(self, parts: Iterable[bytes | memoryview]) -> None:
        """Append one after the other."""
        for part in parts:
            self._file.write(self._stream.update(part))

    def flush(self) -> None:
        """Hand what was written to the system."""
        self._file.flush()

    def seek(self, place: int) -> None:
        """Begin to read; the only place is the start."""
        assert place == 0
        self._file.seek(0)
        self._stream = self._cipher.decryptor()

    def read(self, size: int) -> bytes:
        """The next bytes; fewer where the file ends."""
        return self._stream.update(self._file.read(size))

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
