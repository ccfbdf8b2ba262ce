"""The keys of a sink of documents: the cluster, and the index."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pgstream_dagster.config.queues import QueueConfig
from pgstream_dagster.config.section import Variable


class DocumentsConfig(QueueConfig):
    """Messages as documents of OpenSearch or Elasticsearch, one for each event or change."""

    places: ClassVar[tuple[str, ...]] = ("index",)

    url_from: Variable = Field(
        description="The variable with the address: `https://user:password@host:9200`."
    )
    index: str | None = Field(
        default=None,
        min_length=1,
        description="The index of documents; the metadata `index` of an event goes over it.",
    )
    api_key_from: Variable | None = Field(
        default=None, description="The variable with an API key, in place of user and password."
    )
    ca: str | None = Field(
        default=None,
        min_length=1,
        description="A file of certificates by which the cluster is known (PEM).",
    )
