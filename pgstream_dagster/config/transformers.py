"""
Every transformer: its name, parameters, the types it takes, and what it does to uniqueness.

The declarations of the pipeline file, the checks at load and the reference page are these classes.
The names and parameters are those of xata's pgstream; what computes is in `modifiers`.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from pgstream_dagster.config.section import Identifier, Section, Variable

MAX_LENGTH: Final = 10_000
"""Of generated text, in characters: longer values are no stand-ins, they are a mistake."""


_REPEATABLE: Final = ("hash", "digest", "partial", "partial_email", "image_blur")
"""Functions of PostgreSQL Anonymizer that give the same result each time, as `pseudo_*` do."""

NOT_IN_TEMPLATES: Final = ("random", "pprint")
"""Filters that would give another result each time."""


class TypeClass(StrEnum):
    """Types of columns that a transformer treats alike."""

    STRING = "string"
    CITEXT = "citext"
    BYTEA = "bytea"
    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    DATE = "date"
    TIMESTAMP = "timestamp"
    UUID = "uuid"
    JSON = "json"
    HSTORE = "hstore"


ANY: Final = frozenset(TypeClass)
STRING_OR_BYTEA: Final = frozenset({TypeClass.STRING, TypeClass.BYTEA})
STRING_OR_CITEXT: Final = frozenset({TypeClass.STRING, TypeClass.CITEXT})
NUMBER: Final = frozenset({TypeClass.INTEGER, TypeClass.FLOAT, TypeClass.BYTEA})


class Uniqueness(StrEnum):
    """Whether different values stay different."""

    PRESERVED = "preserved"
    NOT_GUARANTEED = "not guaranteed"  # two values may become one, by chance
    LOSSY = "lossy"  # they do so by design


class ColumnReference(Section):
    """A column of the same row."""

    column: Identifier = Field(description="The column's name.")


DynamicParameters = dict[Identifier, ColumnReference]


class Transformer(Section):
    """What the rules of all transformers share."""

    accepts: ClassVar[frozenset[TypeClass] | None] = None
    """`None`: every type, also those of no class."""
    uniqueness: ClassVar[Uniqueness] = Uniqueness.NOT_GUARANTEED
    can_be_dynamic: ClassVar[frozenset[str] | None] = frozenset()
    """Parameters that another column may give; `None`: any name, for templates."""

    name: Any  # each has its own, a literal
    allow_uniqueness_loss: bool = Field(
        default=False,
        description="Whether the column may lose its uniqueness although it is part of a key.",
    )

    @property
    def needs_key(self) -> bool:
        """Whether its result depends on the key of the environment."""
        return True

    @property
    def dynamic(self) -> dict[str, str]:
        """The columns it reads besides its own, by the name of the parameter."""
        given: DynamicParameters = getattr(self, "dynamic_parameters", {})
        return {name: reference.column for name, reference in given.items()}

    @model_validator(mode="after")
    def _dynamic_names(self) -> Transformer:
        allowed = type(self).can_be_dynamic
        unknown = sorted(self.dynamic.keys() - allowed) if allowed is not None else []
        if unknown:
            names = ", ".join(sorted(allowed or ())) or "none"
            raise ValueError(f"{unknown[0]!r} cannot come from a column; what can: {names}")
        return self


class Keyless(Transformer):
    """A transformer whose result depends on the value alone."""

    @property
    def needs_key(self) -> bool:
        """Never."""
        return False


def _dynamic(text: str) -> Any:
    return Field(default_factory=dict, description=text)


GENERATOR: Final[Any] = Field(
    default="random",
    description="Taken over from pgstream. Both are deterministic here: the same value and key"
    " give the same result, so that a replay and a join see what they saw before.",
)
Generator = Literal["random", "deterministic"]


def _whole_number(value: object) -> object:
    """A whole number, also as text, as pgstream writes it."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,19}", value):
        return int(value)
    return value


def _day(text: str) -> str:
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
        raise ValueError("must be a day as yyyy-mm-dd")
    try:
        date.fromisoformat(text)
    except ValueError:
        raise ValueError("must be a day of the calendar") from None
    return text


def _instant(text: str) -> str:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise ValueError("must be a time as 2024-01-31T00:00:00Z, with its zone (RFC 3339)")
    return text


def _bound(text: str) -> str:
    if not re.fullmatch(r"[+-]?[0-9]{1,9}%?", text):
        raise ValueError("must be a whole number or a percentage in quotes: '4' or '15%'")
    return text


def _template(text: str) -> str:
    """A template that compiles; the names in it are looked up when it runs."""
    from jinja2 import Environment, TemplateSyntaxError

    environment = Environment(autoescape=False)  # noqa: S701 - no HTML
    for name in NOT_IN_TEMPLATES:
        environment.filters.pop(name)
    try:
        environment.from_string(text)
    except TemplateSyntaxError as error:
        raise ValueError(f"is no Jinja template: {error.message}") from None
    return text


def _anon_function(text: str) -> str:
    if not re.fullmatch(r"anon\.[a-z_][a-z0-9_]*(\(\))?", text):
        raise ValueError("must be a function of PostgreSQL Anonymizer, such as anon.fake_city")
    return text.removesuffix("()")


WholeNumber = Annotated[int, BeforeValidator(_whole_number)]
Day = Annotated[str, AfterValidator(_day)]
Instant = Annotated[str, AfterValidator(_instant)]
Bound = Annotated[str, AfterValidator(_bound)]
Template = Annotated[str, AfterValidator(_template)]
Length = Annotated[int, Field(ge=1, le=MAX_LENGTH)]


def ordered(least: Any, most: Any, names: tuple[str, str]) -> None:
    """Raise `ValueError` if the lower bound is above the upper one."""
    if least is not None and most is not None and least > most:
        raise ValueError(f"{names[0]} must not be greater than {names[1]}")


class Noop(Keyless):
    """The column passes as it is. An empty rule (`id: {}`) says the same."""

    uniqueness: ClassVar[Uniqueness] = Uniqueness.PRESERVED
    name: Literal["noop"] = "noop"


class Email(Transformer):
    """Another address of the same length before the replaced domain; also in a list `{a,b}`."""

    accepts: ClassVar[frozenset[TypeClass] | None] = STRING_OR_CITEXT
    name: Literal["email"]
    replacement_domain: str = Field(
        default="@example.com", description="What comes after the new name."
    )
    exclude_domain: str = Field(default="", description="Addresses of this domain stay unchanged.")
    salt: str | None = Field(
        default=None,
        min_length=1,
        description="Compute as pgstream does with this salt, which is then no secret (pgstream's"
        " default is `defaultsalt`). Without it: by the key of the environment.",
    )

    @property
    def needs_key(self) -> bool:
        """Unless a salt takes its place."""
        return self.salt is None


class EncryptedAesSiv(Transformer):
    """
    AES-SIV (RFC 5297) as base64url without padding.

    Equal values stay equal, and who has the key can decrypt them.
    """

    accepts: ClassVar[frozenset[TypeClass] | None] = STRING_OR_BYTEA
    uniqueness: ClassVar[Uniqueness] = Uniqueness.PRESERVED
    name: Literal["encrypted_aes_siv"]
    key_hex: Variable | None = Field(
        default=None,
        description="The name of the environment variable with the key: 64 bytes in hexadecimal."
        " Without it: a key derived from the key of the environment.",
    )
    associated_data: str = Field(
        default="",
        description="Binds the result to a place, such as `public.orders.path`: the same value"
        " elsewhere then has another result, and the two no longer join.",
    )

    @property
    def needs_key(self) -> bool:
        """Unless it has one of its own."""
        return self.key_hex is None

    @model_validator(mode="after")
    def _no_value(self) -> EncryptedAesSiv:
        if re.fullmatch(r"[0-9a-fA-F]{32,}", self.key_hex or ""):
            raise ValueError("key_hex must be the name of an environment variable, not the key")
        return self


class GreenmaskBoolean(Transformer):
    """True or false."""

    accepts: ClassVar[frozenset[TypeClass] | None] = frozenset({TypeClass.BOOLEAN, TypeClass.BYTEA})
    uniqueness: ClassVar[Uniqueness] = Uniqueness.LOSSY
    name: Literal["greenmask_boolean"]
    generator: Generator = GENERATOR


class GreenmaskChoice(Transformer):
    """One of the given texts."""

    accepts: ClassVar[frozenset[TypeClass] | None] = STRING_OR_BYTEA
    uniqueness: ClassVar[Uniqueness] = Uniqueness.LOSSY
    name: Literal["greenmask_choice"]
    choices: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] = Field(
        description="The texts."
    )
    generator: Generator = GENERATOR


class GreenmaskDate(Transformer):
    """A day between two days, both included."""

    accepts: ClassVar[frozenset[TypeClass] | None] = STRING_OR_BYTEA | {TypeClass.DATE}
    name: Literal["greenmask_date"]
    min_value: Day = Field(description="The first day, as yyyy-mm-dd.")
    max_value: Day = Field(description="The last day.")
    generator: Generator = GENERATOR

    @model_validator(mode="after")
    def _bounds(self) -> GreenmaskDate:
        ordered(self.min_value, self.max_value, ("min_value", "max_value"))
        return self


class GreenmaskFirstname(Transformer):
    """A first name."""

    accepts: ClassVar[frozenset[TypeClass] | None] = STRING_OR_BYTEA
    uniqueness: ClassVar[Uniqueness] = Uniqueness.LOSSY
    can_be_dynamic: ClassVar[frozenset[str] | None] = frozenset({"gender"})
    name: Literal["greenmask_firstname"]
    gender: Literal["Male", "Female", "Any"] = Field(
        default="Any", description="Whose names to take."
    )
    generator: Generator = GENERATOR
    dynamic_parameters: DynamicParameters = _dynamic(
        "`{gender: {column: NAME}}`: the gender as another column says it; what is neither `Male`"
        " nor `Female` counts as `Any`."
    )


class GreenmaskFloat(Transformer):
    """A number between two numbers."""

    accepts: ClassVar[frozenset[TypeClass] | None] = frozenset({TypeClass.FLOAT, TypeClass.BYTEA})
    name: Literal["greenmask_float"]
    min_value: float = Field(
        default=-3.4028234663852886e38, description="The least result; by default the least float4."
    )
    max_value: float = Field(
        default=3.4028234663852886e38, description="The greatest; by default the greatest float4."
    )
    precision: int = Field(default=2, ge=0, le=15, description="Digits after the point.")
    generator: Generator = GENERATOR

    @model_validator(mode="after")
    def _bounds(self) -> GreenmaskFloat:
        ordered(self.min_value, self.max_value, ("min_value", "max_value"))
        return self


class GreenmaskInteger(Transformer):
    """A whole number between two whole numbers."""

    accepts: ClassVar[frozenset[TypeClass] | None] = NUMBER
    name: Literal["greenmask_integer"]
    size: Literal[2, 4, 8] = Field(
        default=4, description="Bytes of the results: their range where no bounds are given."
    )
    min_value: WholeNumber | None = Field(
        default=None, description="The least result; by default what size and column can hold."
    )
    max_value: WholeNumber | None = Field(default=None, description="The greatest result.")
    generator: Generator = GENERATOR

    @model_validator(mode="after")
    def _bounds(self) -> GreenmaskInteger:
        ordered(self.min_value, self.max_value, ("min_value", "max_value"))
        return self


class GreenmaskString(Transformer):
    """Text of the given characters."""

    accepts: ClassVar[frozenset[TypeClass] | None] = STRING_OR_BYTEA
    name: Literal["greenmask_string"]
    symbols: str = Field(
        default="abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
        min_length=1,
        description="The characters to take.",
    )
    min_length: Length = Field(default=1, description="The least length.")
    max_length: Length = Field(default=100, description="The greatest length.")
    generator: Generator = GENERATOR

    @model_validator(mode="after")
    def _bounds(self) -> GreenmaskString:
        ordered(self.min_length, self.max_length, ("min_length", "max_length"))
        return self


class GreenmaskUnixTimestamp(Transformer):
    """Seconds since 1970 between two of them."""

    accepts: ClassVar[frozenset[TypeClass] | None] = NUMBER
    name: Literal["greenmask_unix_timestamp"]
    min_value: WholeNumber = Field(description="The least result; text and number are taken.")
    max_value: WholeNumber = Field(description="The greatest result.")
    generator: Generator = GENERATOR

    @model_validator(mode="after")
    def _bounds(self) -> GreenmaskUnixTimestamp:
        ordered(self.min_value, self.max_value, ("min_value", "max_value"))
        return self


TruncatePart = Literal[
    "nanosecond", "microsecond", "millisecond", "second", "minute", "hour", "day", "month", "year"
]


class GreenmaskUtcTimestamp(Transformer):
    """A time between two times, in UTC."""

    accepts: ClassVar[frozenset[TypeClass] | None] = STRING_OR_BYTEA | {TypeClass.TIMESTAMP}
    name: Literal["greenmask_utc_timestamp"]
    min_timestamp: Instant = Field(description="The first time, as 2024-01-31T00:00:00Z.")
    max_timestamp: Instant = Field(description="The last time.")
    truncate_part: TruncatePart | None = Field(
        default=None, description="Cut everything smaller off the result."
    )
    generator: Generator = GENERATOR

    @model_validator(mode="after")
    def _bounds(self) -> GreenmaskUtcTimestamp:
        first, last = map(datetime.fromisoformat, (self.min_timestamp, self.max_timestamp))
        ordered(first, last, ("min_timestamp", "max_timestamp"))
        return self


class GreenmaskUuid(Transformer):
    """A UUID of version 4, from any text."""

    accepts: ClassVar[frozenset[TypeClass] | None] = STRING_OR_BYTEA | {TypeClass.UUID}
    name: Literal["greenmask_uuid"]
    generator: Generator = GENERATOR


class _Operation(Section):
    """What operations on JSON and hstore share."""

    operation: Literal["set", "delete"] = Field(description="What to do.")
    value_template: Template | None = Field(
        default=None, description="A Jinja template for the new value."
    )
    skip_not_exist: bool | None = Field(
        default=None, description="Whether to do nothing where there is no value. By default: yes."
    )
    error_not_exist: bool = Field(
        default=False, description="Whether it is an error if there is no value."
    )

    @property
    def skips(self) -> bool:
        """Whether a missing value is passed over; an error that is asked for is not hidden."""
        return not self.error_not_exist if self.skip_not_exist is None else self.skip_not_exist

    @model_validator(mode="after")
    def _one_value(self) -> _Operation:
        given = {"value", "value_template"} & self.model_fields_set
        if self.operation == "set" and len(given) != 1:
            raise ValueError("'set' needs either value or value_template")
        if self.operation == "delete" and given:
            raise ValueError("'delete' takes no value")
        return self


class HstoreOperation(_Operation):
    """An operation on one key of an hstore."""

    key: str = Field(description="The key.")
    value: str | None = Field(default=None, description="The new value; null is NULL.")


class JsonOperation(_Operation):
    """An operation on the values at a path of a JSON document."""

    path: str = Field(
        min_length=1,
        description="Keys and places with dots between, as `user.emails.0`; `#` is every item of"
        " an array, a backslash goes before a dot of a key.",
    )
    value: Any = Field(default=None, description="The new value.")


class Hstore(Transformer):
    """Operations on single keys, one after the other."""

    accepts: ClassVar[frozenset[TypeClass] | None] = STRING_OR_BYTEA | {TypeClass.HSTORE}
    can_be_dynamic: ClassVar[frozenset[str] | None] = None
    name: Literal["hstore"]
    operations: Annotated[tuple[HstoreOperation, ...], Field(min_length=1, strict=False)] = Field(
        description="`operation` (`set`, `delete`), `key`, `value` (null is NULL) or"
        " `value_template`, `skip_not_exist` (true), `error_not_exist` (false)."
    )
    dynamic_parameters: DynamicParameters = _dynamic("Columns that templates may read.")

    @property
    def needs_key(self) -> bool:
        """As its templates do."""
        return any(needs_key(operation.value_template) for operation in self.operations)


class Json(Transformer):
    """Operations on single values, one after the other."""

    accepts: ClassVar[frozenset[TypeClass] | None] = frozenset({TypeClass.JSON})
    can_be_dynamic: ClassVar[frozenset[str] | None] = None
    name: Literal["json"]
    operations: Annotated[tuple[JsonOperation, ...], Field(min_length=1, strict=False)] = Field(
        description="`operation` (`set`, `delete`), `path` (`user.emails.0`; `#` is every item of"
        " an array), `value` or `value_template` (its result is JSON, so text goes through"
        " `| tojson`), `skip_not_exist` (true), `error_not_exist` (false)."
    )
    dynamic_parameters: DynamicParameters = _dynamic("Columns that templates may read.")

    @property
    def needs_key(self) -> bool:
        """As its templates do."""
        return any(needs_key(operation.value_template) for operation in self.operations)


class LiteralString(Keyless):
    """The same text for every value, as Postgres would print it."""

    uniqueness: ClassVar[Uniqueness] = Uniqueness.LOSSY
    name: Literal["literal_string"]
    literal: str = Field(description="The text.")


MaskingType = Literal[
    "default",
    "custom",
    "password",
    "name",
    "address",
    "email",
    "mobile",
    "tel",
    "id",
    "credit_card",
    "url",
]


class Masking(Keyless):
    """Asterisks in place of a part of the text."""

    accepts: ClassVar[frozenset[TypeClass] | None] = STRING_OR_BYTEA
    uniqueness: ClassVar[Uniqueness] = Uniqueness.LOSSY
    name: Literal["masking"]
    type: MaskingType = Field(default="default", description="What the text is; see below.")
    mask_begin: Bound | None = Field(
        default=None,
        description="Of `custom`: where asterisks begin, as a count of characters or a percentage,"
        " in quotes.",
    )
    mask_end: Bound | None = Field(default=None, description="Where they end.")
    unmask_begin: Bound | None = Field(
        default=None, description="Of `custom`, in place of the two: where the kept part begins."
    )
    unmask_end: Bound | None = Field(default=None, description="Where it ends.")

    @model_validator(mode="after")
    def _bounds(self) -> Masking:
        masks, unmasks = (self.mask_begin, self.mask_end), (self.unmask_begin, self.unmask_end)
        has_masks, has_unmasks = masks != (None, None), unmasks != (None, None)
        if (has_masks or has_unmasks) and self.type != "custom":
            raise ValueError("bounds are for type 'custom'")
        if has_masks and has_unmasks:
            raise ValueError("give bounds to mask or bounds to unmask, not both")
        begin, end = unmasks if has_unmasks else masks
        begin, end = begin or "0%", end or "100%"
        if begin == end:
            raise ValueError("begin and end are the same place")
        if has_unmasks and {_at_edge(begin), _at_edge(end)} == {"begin", "end"}:
            raise ValueError("unmasks the whole text; leave the rule out, or write noop")
        return self


def _at_edge(bound: str) -> str | None:
    """Which end of every text a bound is, if it is one."""
    number = int(bound.removesuffix("%"))
    if number <= 0:
        return "begin"
    return "end" if bound.endswith("%") and number >= 100 else None


class NeosyncEmail(Transformer):
    """An address of letters and digits, or of a name."""

    accepts: ClassVar[frozenset[TypeClass] | None] = STRING_OR_CITEXT
    name: Literal["neosync_email"]
    preserve_length: bool = Field(default=False, description="As long as the value.")
    preserve_domain: bool = Field(default=False, description="Keep the domain.")
    excluded_domains: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(),
        description="Domains that are treated the other way: kept where others are replaced, and"
        " replaced where others are kept.",
    )
    max_length: Length = Field(default=100, description="The greatest length.")
    email_type: Literal["uuidv4", "fullname", "any"] = Field(
        default="uuidv4", description="What stands before the @; `any`: one or the other."
    )
    invalid_email_action: Literal["reject", "passthrough", "null", "generate"] = Field(
        default="reject",
        description="What becomes of a value that is no address: an error, the value itself, NULL,"
        " or a new address.",
    )
    seed: int | None = Field(default=None, description="Another seed gives other results.")


class _Name(Transformer):
    """What the transformers of names share."""

    accepts: ClassVar[frozenset[TypeClass] | None] = frozenset({TypeClass.STRING})
    uniqueness: ClassVar[Uniqueness] = Uniqueness.LOSSY
    preserve_length: bool = Field(default=False, description="As long as the value.")
    max_length: Length = Field(default=100, description="The greatest length.")
    seed: int | None = Field(default=None, description="Another seed gives other results.")


class NeosyncFirstname(_Name):
    """A first name."""

    name: Literal["neosync_firstname"]


class NeosyncLastname(_Name):
    """A last name."""

    name: Literal["neosync_lastname"]


class NeosyncFullname(_Name):
    """A first and a last name."""

    name: Literal["neosync_fullname"]


class NeosyncString(Transformer):
    """Lower-case letters and digits."""

    accepts: ClassVar[frozenset[TypeClass] | None] = frozenset({TypeClass.STRING})
    name: Literal["neosync_string"]
    preserve_length: bool = Field(default=False, description="As long as the value.")
    min_length: Length = Field(default=1, description="The least length.")
    max_length: Length = Field(default=100, description="The greatest length.")
    seed: int | None = Field(default=None, description="Another seed gives other results.")

    @model_validator(mode="after")
    def _bounds(self) -> NeosyncString:
        ordered(self.min_length, self.max_length, ("min_length", "max_length"))
        return self


class PgAnonymizer(Keyless):
    """A function of PostgreSQL Anonymizer, asked of a server: one query for every value."""

    name: Literal["pg_anonymizer"]
    anon_function: Annotated[str, AfterValidator(_anon_function)] = Field(
        description="The function, such as `anon.partial`. Functions that invent a value give"
        " another one each time: they are refused for keys, and a replay differs."
    )
    postgres_url: Variable = Field(
        description="The name of the environment variable with the address of the server."
    )
    salt: str = Field(default="", description="Of `pseudo_*` and `digest`.")
    hash_algorithm: Literal["md5", "sha224", "sha256", "sha384", "sha512"] = Field(
        default="sha256", description="Of `digest`."
    )
    interval: str | None = Field(default=None, description="Of `dnoise`, such as `2 days`.")
    ratio: str | None = Field(default=None, description="Of `noise`, such as `0.2`.")
    sigma: str | None = Field(default=None, description="Of `image_blur`.")
    mask: str | None = Field(default=None, description="Of `partial`: what hides the middle.")
    mask_prefix_count: int = Field(default=0, ge=0, le=MAX_LENGTH, description="Of `partial`.")
    mask_suffix_count: int = Field(default=0, ge=0, le=MAX_LENGTH, description="Of `partial`.")
    min: str | None = Field(default=None, description="Of `random_*_between`.")
    max: str | None = Field(default=None, description="Of `random_*_between`.")
    range: str | None = Field(default=None, description="Of `random_in_*`.")
    locale: str = Field(default="en_US", description="Of `dummy_*_locale`.")
    count: int = Field(default=0, ge=0, le=MAX_LENGTH, description="Of `random_string`, `lorem_*`.")
    unit: Literal["characters", "words", "paragraphs"] = Field(
        default="paragraphs", description="Of `lorem_ipsum`."
    )
    prefix: str = Field(default="", description="Of `random_phone`.")

    @property
    def is_repeatable(self) -> bool:
        """Whether the function gives the same result each time."""
        return is_repeatable(self.anon_function)

    @model_validator(mode="after")
    def _needed(self) -> PgAnonymizer:
        function = self.anon_function.removeprefix("anon.")
        needs = {
            "digest": "salt",
            "noise": "ratio",
            "dnoise": "interval",
            "partial": "mask",
            "image_blur": "sigma",
        }
        parameter = needs.get(function)
        if parameter is not None and not getattr(self, parameter):
            raise ValueError(f"{self.anon_function} needs {parameter}")
        return self


class PhoneNumber(Transformer):
    """Digits after a prefix."""

    accepts: ClassVar[frozenset[TypeClass] | None] = STRING_OR_BYTEA
    can_be_dynamic: ClassVar[frozenset[str] | None] = frozenset({"prefix"})
    name: Literal["phone_number"]
    prefix: str = Field(default="", description="What the number begins with.")
    min_length: Length = Field(default=6, description="The least length, prefix included.")
    max_length: Length = Field(default=10, description="The greatest length.")
    generator: Generator = GENERATOR
    dynamic_parameters: DynamicParameters = _dynamic(
        "`{prefix: {column: NAME}}`: the prefix as another column says it."
    )

    @model_validator(mode="after")
    def _bounds(self) -> PhoneNumber:
        ordered(self.min_length, self.max_length, ("min_length", "max_length"))
        if len(self.prefix) > self.min_length:
            raise ValueError("prefix must not be longer than min_length")
        return self


class String(Transformer):
    """Letters, as many as the value has characters."""

    accepts: ClassVar[frozenset[TypeClass] | None] = STRING_OR_BYTEA
    name: Literal["string"]


class TemplateTransformer(Transformer):
    """What a Jinja template makes of the value."""

    accepts: ClassVar[frozenset[TypeClass] | None] = STRING_OR_BYTEA
    can_be_dynamic: ClassVar[frozenset[str] | None] = None
    name: Literal["template"]
    template: Template = Field(
        description="The template: `value`, `dynamic('NAME')`, and the functions below."
    )
    dynamic_parameters: DynamicParameters = _dynamic(
        "`{NAME: {column: COLUMN}}`: columns that the template may read."
    )

    @property
    def needs_key(self) -> bool:
        """Where the template uses a function that does."""
        return needs_key(self.template)


class Hash(Transformer):
    """
    HMAC-SHA-256 by the key of the environment.

    Equal values stay equal, and without the key a value cannot be found by trying.
    """

    accepts: ClassVar[frozenset[TypeClass] | None] = STRING_OR_BYTEA | {
        TypeClass.CITEXT,
        TypeClass.UUID,
        TypeClass.INTEGER,
    }
    name: Literal["hash"]
    length: int = Field(
        default=64,
        ge=8,
        le=64,
        description="Hexadecimal digits of the result in text. A uuid column gets a UUID, an"
        " integer column a positive number that fits it; columns that are to join need one type.",
    )


class Null(Keyless):
    """NULL in place of every value."""

    uniqueness: ClassVar[Uniqueness] = Uniqueness.LOSSY
    name: Literal["null"]


class DateShift(Transformer):
    """The date moved by up to `days` days; the time of day stays."""

    accepts: ClassVar[frozenset[TypeClass] | None] = frozenset(
        {TypeClass.DATE, TypeClass.TIMESTAMP}
    )
    can_be_dynamic: ClassVar[frozenset[str] | None] = frozenset({"entity"})
    name: Literal["date_shift"]
    days: int = Field(
        ge=1, le=36_500, description="The greatest shift, forwards or backwards; never 0 days."
    )
    dynamic_parameters: DynamicParameters = _dynamic(
        "`{entity: {column: NAME}}`: dates of one entity, such as a patient, move by the same"
        " number of days, so the time between them stays. Without it: each date for itself."
    )


KEYED_FUNCTIONS: Final = ("email", "hash", "phone_number", "string", "firstname", "lastname")
"""Functions of templates whose result depends on the key."""


def is_repeatable(anon_function: str) -> bool:
    """Whether a function of PostgreSQL Anonymizer gives the same result each time."""
    name = anon_function.removeprefix("anon.")
    return name.startswith("pseudo_") or name in _REPEATABLE


def needs_key(template: str | None) -> bool:
    """Whether a template calls a function that needs the key."""
    return bool(re.search(rf"\b({'|'.join(KEYED_FUNCTIONS)})\b", template or ""))


TRANSFORMERS: Final[tuple[type[Transformer], ...]] = (
    *(Email, EncryptedAesSiv, GreenmaskBoolean, GreenmaskChoice, GreenmaskDate),
    *(GreenmaskFirstname, GreenmaskFloat, GreenmaskInteger, GreenmaskString),
    *(GreenmaskUnixTimestamp, GreenmaskUtcTimestamp, GreenmaskUuid, Hstore, Json),
    *(LiteralString, Masking, NeosyncEmail, NeosyncFirstname, NeosyncFullname, NeosyncLastname),
    *(NeosyncString, PgAnonymizer, PhoneNumber, String, TemplateTransformer),
    *(Hash, Null, DateShift, Noop),
)
"""In the order of the reference page: pgstream's 25, then ours."""


def name_of(transformer: type[Transformer]) -> str:
    """The name by which the pipeline file knows a transformer."""
    return get_args(transformer.model_fields["name"].annotation)[0]


BY_NAME: Final = {name_of(transformer): transformer for transformer in TRANSFORMERS}


def _tag(rule: object) -> str | None:
    """The class of a rule; in brackets, by which `load` knows it from a key of the file."""
    if isinstance(rule, Transformer):
        return f"<{rule.name}>"
    keys: dict[str, Any] | None = rule if isinstance(rule, dict) else None
    if keys is None:
        return None
    name = keys.get("name") if keys else "noop"
    return f"<{name}>" if isinstance(name, str) else None


ColumnRule = Annotated[
    Annotated[Email, Tag("<email>")]
    | Annotated[EncryptedAesSiv, Tag("<encrypted_aes_siv>")]
    | Annotated[GreenmaskBoolean, Tag("<greenmask_boolean>")]
    | Annotated[GreenmaskChoice, Tag("<greenmask_choice>")]
    | Annotated[GreenmaskDate, Tag("<greenmask_date>")]
    | Annotated[GreenmaskFirstname, Tag("<greenmask_firstname>")]
    | Annotated[GreenmaskFloat, Tag("<greenmask_float>")]
    | Annotated[GreenmaskInteger, Tag("<greenmask_integer>")]
    | Annotated[GreenmaskString, Tag("<greenmask_string>")]
    | Annotated[GreenmaskUnixTimestamp, Tag("<greenmask_unix_timestamp>")]
    | Annotated[GreenmaskUtcTimestamp, Tag("<greenmask_utc_timestamp>")]
    | Annotated[GreenmaskUuid, Tag("<greenmask_uuid>")]
    | Annotated[Hstore, Tag("<hstore>")]
    | Annotated[Json, Tag("<json>")]
    | Annotated[LiteralString, Tag("<literal_string>")]
    | Annotated[Masking, Tag("<masking>")]
    | Annotated[NeosyncEmail, Tag("<neosync_email>")]
    | Annotated[NeosyncFirstname, Tag("<neosync_firstname>")]
    | Annotated[NeosyncFullname, Tag("<neosync_fullname>")]
    | Annotated[NeosyncLastname, Tag("<neosync_lastname>")]
    | Annotated[NeosyncString, Tag("<neosync_string>")]
    | Annotated[PgAnonymizer, Tag("<pg_anonymizer>")]
    | Annotated[PhoneNumber, Tag("<phone_number>")]
    | Annotated[String, Tag("<string>")]
    | Annotated[TemplateTransformer, Tag("<template>")]
    | Annotated[Hash, Tag("<hash>")]
    | Annotated[Null, Tag("<null>")]
    | Annotated[DateShift, Tag("<date_shift>")]
    | Annotated[Noop, Tag("<noop>")],
    Discriminator(_tag),
]
"""A rule for one column, by the name of its transformer."""
