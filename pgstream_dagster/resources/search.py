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

    url: str | None = Field(default=None, description=settings.SEARCH_URL.description)
    user: str | None = Field(default=None, description=settings.SEARCH_USER.description)
    password: str | None = Field(
        default=None, description=f"{settings.SEARCH_PASSWORD.description} {settings.ENV_VAR_HINT}"
    )
    api_key: str | None = Field(
        default=None, description=f"{settings.SEARCH_API_KEY.description} {settings.ENV_VAR_HINT}"
    )
    ca_file: str | None = Field(default=None, description=settings.SEARCH_CA.description)

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
        return settings.with_fields({} if self.url else os.environ, fields)
