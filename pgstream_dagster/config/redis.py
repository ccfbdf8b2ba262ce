"""The keys of a Redis sink: the address, and whether messages go to streams or to keys."""

from __future__ import annotations

from typing import ClassVar, Final

from pydantic import Field, model_validator

from pgstream_dagster.config.queues import QueueConfig
from pgstream_dagster.config.section import Variable

DEDUPLICATE_SECONDS: Final = 120
"""More than lies between a lost answer and the next attempt of a process that was started again."""


class RedisConfig(QueueConfig):
    """Messages as entries of Redis streams, or as values of Redis keys."""

    places: ClassVar[tuple[str, ...]] = ("stream", "key_prefix")

    url_from: Variable = Field(
        description="The variable with the address: `redis://user:password@host:6379/0`; `rediss:`"
        " is with TLS, `unix:` is a socket."
    )
    stream: str | None = Field(
        default=None,
        min_length=1,
        description="The stream of messages; the metadata `stream` of an event goes over it.",
    )
    max_len: int | None = Field(
        default=None,
        ge=1,
        le=1 << 40,
        description="About how many entries a stream keeps; Redis removes older ones.",
    )
    deduplicate_seconds: int = Field(
        default=DEDUPLICATE_SECONDS,
        ge=0,
        le=86_400,
        description="Seconds within which a message that comes again is not added to its stream"
        " again; 0: it always is.",
    )
    key_prefix: str | None = Field(
        default=None,
        description="Makes messages values of keys instead of entries of streams: this, then the"
        " message's id. The metadata `key` of an event goes over both.",
    )
    ttl_seconds: int | None = Field(
        default=None,
        ge=1,
        le=1 << 31,
        description="Seconds after which Redis removes such a key.",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> RedisConfig:
        if self.key_prefix is not None:
            for name in ("stream", "max_len", "deduplicate_seconds"):
                if name in self.model_fields_set:
                    raise ValueError(f"'{name}' is for streams, and 'key_prefix' for keys")
        elif self.ttl_seconds is not None:
            raise ValueError("'ttl_seconds' is for keys, and needs 'key_prefix'")
        return self
