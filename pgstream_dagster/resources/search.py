"""The search cluster as a Dagster resource: how to reach it."""

import os
from typing import Any

import dagster as dg
from pydantic import Field

from pgstream_dagster import settings
from pgstream_dagster.search_settings import SearchSettings


class SearchCluster(dg.ConfigurableResource[Any]):
    """
    OpenSearch or Elasticsearch, where the pipeline file names indices.

    Without `url`, a field that is left out is taken from the environment when a run starts. With
    `url`, only the fields count: the environment's credentials belong to the address given there,
    and are not sent to another one.
    """

    url: str | None = Field(
        default=None,
        description="Address, https://host:port; without it PGSTREAM_SEARCH_URL.",
    )
    user: str | None = Field(
        default=None, description="A user, with `password`; without it PGSTREAM_SEARCH_USER."
    )
    password: str | None = Field(
        default=None,
        description="The user's password; without it PGSTREAM_SEARCH_PASSWORD. Give an EnvVar: a "
        "literal would be shown.",
    )
    api_key: str | None = Field(
        default=None,
        description="An API key in place of a user; without it PGSTREAM_SEARCH_API_KEY. Give an "
        "EnvVar: a literal would be shown.",
    )
    ca_file: str | None = Field(
        default=None,
        description="File of certificates by which the cluster is known (PEM); without it "
        "PGSTREAM_SEARCH_CA, else the system's.",
    )

    def settings(self) -> SearchSettings | None:
        """How to reach the cluster, `None` without an address; opens nothing. Holds secrets."""
        return settings.search_settings(self._environment())

    def _environment(self) -> dict[str, str]:
        fields = {
            settings.SEARCH_URL: self.url,
            settings.SEARCH_USER: self.user,
            settings.SEARCH_PASSWORD: self.password,
            settings.SEARCH_API_KEY: self.api_key,
            settings.SEARCH_CA: self.ca_file,
        }
        given = {name: value for name, value in fields.items() if value}
        return given if self.url else {**os.environ, **given}
