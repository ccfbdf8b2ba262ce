"""The modifiers that one place of the pipeline names, with their secrets: plain data, no I/O."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from pgstream_dagster import settings
from pgstream_dagster.config.modifiers import ModifierConfig
from pgstream_dagster.config.pipeline import PipelineConfig
from pgstream_dagster.config.transformers import Transformer
from pgstream_dagster.modifiers.keys import Secrets, aes_key
from pgstream_dagster.modifiers.modifiers import Modifiers
from pgstream_dagster.schema.table import TableSchema


@dataclass(frozen=True, slots=True)
class Rules:
    """
    The modifiers of one place, in their order; travels to the tasks of a Spark job.

    `environment` has the variables that they name, and no others.
    """

    configs: Mapping[str, ModifierConfig] = field(default_factory=dict[str, ModifierConfig])
    key: bytes | None = field(default=None, repr=False)
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    versions: tuple[TableSchema, ...] = ()

    @classmethod
    def read(
        cls, config: PipelineConfig, names: Sequence[str], environment: Mapping[str, str]
    ) -> Self:
        """
        The modifiers of these names, with all that they need from the environment.

        Raises:
            MissingSetting, InvalidSetting: a secret is missing or unusable.
        """
        if not names:
            return cls()
        configs = {name: config.modifiers[name] for name in names}
        variables = {v for modifier in configs.values() for v in modifier.variables()}
        given = {name: environment[name] for name in variables if name in environment}
        rules = cls(configs, settings.modifier_key(environment), given)
        rules._require_secrets()
        return rules

    @property
    def is_empty(self) -> bool:
        """Whether everything passes as it is."""
        return not self.configs

    def knowing(self, versions: Iterable[TableSchema]) -> Self:
        """The same rules, following columns through the renames that versions show."""
        return replace(self, versions=tuple(versions))

    def open(self, *, before_log: bool = False) -> Modifiers:
        """What modifies changes, for one thread; closed by the caller."""
        return Modifiers(
            self.configs,
            tuple(self.configs),
            self.key,
            self.environment,
            self.versions,
            before_log=before_log,
        )

    @property
    def fingerprint(self) -> str:
        """The same as long as the results are; empty where everything passes as it is."""
        if self.is_empty:
            return ""
        texts = [config.model_dump_json(exclude_defaults=True) for config in self.configs.values()]
        secret = self.secret_of(rule for config in self.configs.values() for rule in config.rules())
        return hmac.digest(secret, repr(texts).encode(), "sha256").hex()

    def secret_of(self, rules: Iterable[Transformer]) -> bytes:
        """The secrets that the results of rules depend on, one after the other."""
        secrets = self._secrets
        return b"".join(
            aes_key(key_hex, secrets)
            if (key_hex := getattr(rule, "key_hex", None)) is not None
            else secrets.key()
            for rule in rules
            if rule.needs_key or hasattr(rule, "key_hex")
        )

    @property
    def _secrets(self) -> Secrets:
        return Secrets(self.key, self.environment)

    def _require_secrets(self) -> None:
        for config in self.configs.values():
            self.secret_of(config.rules())
            for rule in config.rules():
                if (variable := getattr(rule, "postgres_url", None)) is not None:
                    self._secrets.variable(variable, "the address of the anonymizer's server")
