"""What a full block's content is called.

Used by `block_manager`. A hash stands for a block's tokens after everything before them, for the
model that computed them, and for whatever else K and V depend on or may be seen by.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as TokenIds
from hashlib import sha256

ExtraKey = tuple[str, bytes]  # what kind of thing it is, and the thing


def hash_root(model_id: str) -> bytes:
    """Return the parent of every first block of a model."""
    return sha256(_encode("model", model_id.encode())).digest()


def hash_block(
    parent: bytes, token_ids: TokenIds[int], extra_keys: Iterable[ExtraKey] = ()
) -> bytes:
    """Return the content hash of a full block: it stands for these tokens after that parent.

    SHA-256, because whoever can make two prompts collide reads another user's context
    (vllm#12621); chained, because equal tokens after different prefixes are different K and V.
    Extra keys carry the name of their kind, because an untagged adapter can equal a salt
    (vllm#44701), and every part its length, so that no two lists of keys read the same.
    """
    digest = sha256(parent)
    digest.update(len(token_ids).to_bytes(8, "little"))
    digest.update(array("q", token_ids).tobytes())
    for tag, value in extra_keys:
        digest.update(_encode(tag, value))
    return digest.digest()


def _encode(tag: str, value: bytes) -> bytes:
    name = tag.encode()
    return b"".join(len(part).to_bytes(8, "little") + part for part in (name, value))
