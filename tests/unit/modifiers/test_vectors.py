"""The outcomes that xata's pgstream gives for its transformers, value by value."""

from __future__ import annotations

import json
import re
import uuid

import pytest
from pydantic import ValidationError

from pgstream_dagster.config.transformers import TRANSFORMERS, PhoneNumber, name_of
from pgstream_dagster.errors import InvalidSetting, MissingSetting
from pgstream_dagster.modifiers import generated
from pgstream_dagster.modifiers.unfit import Unfit
from tests.support.modifiers import rule, transformed

AES_KEY = bytes(range(64)).hex()


def test_all_of_pgstreams_transformers_are_there_by_name() -> None:
    assert {name_of(transformer) for transformer in TRANSFORMERS} == {
        *("email", "encrypted_aes_siv", "greenmask_boolean", "greenmask_choice"),
        *("greenmask_date", "greenmask_firstname", "greenmask_float", "greenmask_integer"),
        *("greenmask_string", "greenmask_unix_timestamp", "greenmask_utc_timestamp"),
        *("greenmask_uuid", "hstore", "json", "literal_string", "masking", "neosync_email"),
        *("neosync_firstname", "neosync_lastname", "neosync_fullname", "neosync_string"),
        *("pg_anonymizer", "phone_number", "string", "template"),
        *("noop", "hash", "null", "date_shift"),
    }


@pytest.mark.parametrize(
    ("kind", "value", "masked"),
    [
        ("password", "aVeryStrongPassword123", "*" * 12),
        ("default", "Sensitive Data", "*" * 14),
        ("name", "John Doe", "J**n D**e"),
        ("address", "123 Main St, Anytown, USA", "123 Ma******"),
        ("email", "john.doe@example.com", "joh****e@example.com"),
        ("mobile", "1234567890", "1234***890"),
        ("tel", "+1-23-456-789", "(+1)2345-****"),
        ("id", "123456789", "123456****"),
        ("credit_card", "4111-1111-1111-1111", "4111-1******11-1111"),
        (
            "url",
            "http://admin:mysecretpassword@localhost:1234/uri",
            "http://admin:xxxxx@localhost:1234/uri",
        ),
        # text that go-masker would leave readable
        ("tel", "+49 151 23456789", "+491512345****"),
        ("tel", "4711", "****"),
        ("tel", "12345678", "1234-****"),
        ("id", "12345", "****"),
        ("mobile", "1234", "***"),
        ("credit_card", "123", "******"),
        ("email", "jo@example.com", "****@example.com"),
        ("email", "john.doe", "joh****e"),
        ("address", "street", "******"),
        ("name", "J", "**"),
        ("name", "Jo", "J**"),
        ("default", "", ""),
        ("url", "http://localhost/uri", "http://localhost/uri"),
    ],
)
def test_masking_by_what_the_text_is(kind, value, masked) -> None:
    assert transformed(rule("masking", type=kind), value) == masked


def test_masking_is_by_default_all_asterisks_and_counts_characters() -> None:
    assert transformed(rule("masking"), "Sensitive Data") == "*" * 14
    assert transformed(rule("masking"), "Grüße") == "*" * 5


def test_a_broken_url_is_no_result() -> None:
    with pytest.raises(Unfit):
        transformed(rule("masking", type="url"), "http://user:secret@[::1/")


@pytest.mark.parametrize(
    ("bounds", "value", "masked"),
    [
        ({}, "Sensitive Data", "*" * 14),
        ({"mask_begin": "4", "mask_end": "400%"}, "Sensitive Data", "Sens**********"),
        ({"unmask_begin": "78%", "unmask_end": "-4%"}, "Sensitive Data", "Sensitive ****"),
        ({"mask_begin": "4", "mask_end": "12"}, "1234567812345678", "1234********5678"),
        ({"mask_begin": "4", "mask_end": "12"}, "sensitive", "sens*****"),
        ({"mask_begin": "15%", "mask_end": "85%"}, "1234567812345678", "12***********678"),
        ({"unmask_end": "3"}, "sensitive", "sen******"),
    ],
)
def test_masking_by_bounds(bounds, value, masked) -> None:
    assert transformed(rule("masking", type="custom", **bounds), value) == masked


@pytest.mark.parametrize(
    ("bounds", "problem"),
    [
        ({"mask_begin": "4", "unmask_begin": "4"}, "not both"),
        ({"mask_begin": "4", "mask_end": "4"}, "same place"),
        ({"unmask_begin": "0%", "unmask_end": "100%"}, "whole text"),
        ({"unmask_begin": "0"}, "whole text"),
        ({"mask_begin": 4}, "valid string"),
        ({"mask_begin": "four"}, "percentage"),
    ],
)
def test_bounds_that_make_no_sense_are_refused_at_load(bounds, problem) -> None:
    with pytest.raises(ValidationError, match=problem):
        rule("masking", type="custom", **bounds)


@pytest.mark.parametrize(
    ("parameters", "value", "address"),
    [
        ({"exclude_domain": "test.com"}, "hello@test.com", "hello@test.com"),
        (
            {"replacement_domain": "@nondefault.com", "exclude_domain": "excluded.com"},
            "hello@notexcluded.com",
            "BYB5liPSx6sugfg2mewc@nondefault.com",
        ),
        (
            {"replacement_domain": "@nondefaultcrypt.com", "exclude_domain": "excluded.com"},
            "{foo@bar.com,test@excluded.com}",
            "{IllJlcIkRf@nondefaultcrypt.com,test@excluded.com}",
        ),
    ],
)
def test_email_with_pgstreams_salt_is_pgstreams(parameters, value, address) -> None:
    given = rule("email", salt="defaultsalt", **parameters)
    assert transformed(given, value, key=None) == address
    if value.startswith("{"):
        assert transformed(given, value, "text[]", key=None) == address


def test_email_without_a_salt_has_the_same_shape_by_the_key() -> None:
    address = transformed(rule("email"), "hello@notexcluded.com")
    assert re.fullmatch(r"[0-9a-zA-Z]{20}@example\.com", address or "")
    assert address == transformed(rule("email"), "hello@notexcluded.com")
    assert address != transformed(rule("email"), "hello@notexcluded.com", key=b"x" * 32)
    with pytest.raises(MissingSetting, match="PGSTREAM_MODIFIER_KEY"):
        transformed(rule("email"), "a@b.c", key=None)


def test_deterministic_phone_numbers_are_pgstreams_without_a_secret() -> None:
    given = rule("phone_number", min_length=6, max_length=6, generator="deterministic")
    assert isinstance(given, PhoneNumber)
    assert generated.phone_number(b"", "12345", given, "") == "457059"
    number = transformed(given, "\\x3132333435", "bytea")
    assert re.fullmatch(r"\\x(3[0-9]){6}", number or "")  # six digits, by the key


@pytest.mark.parametrize(
    ("parameters", "dynamic", "pattern"),
    [
        ({"prefix": "(030) ", "min_length": 10, "max_length": 10}, {}, r"\(030\) [0-9]{4}"),
        ({"min_length": 12, "max_length": 12}, {"prefix": "+90"}, r"\+90[0-9]{9}"),
        ({"min_length": 12, "max_length": 12}, {"prefix": None}, r"[0-9]{12}"),
        ({}, {}, r"[0-9]{6,10}"),
        ({"min_length": 90, "max_length": 90}, {}, r"[0-9]{90}"),
    ],
)
def test_phone_numbers_have_prefix_and_length(parameters, dynamic, pattern) -> None:
    number = transformed(rule("phone_number", **parameters), "12345", dynamic=dynamic)
    assert re.fullmatch(pattern, number or "")


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"prefix": "12345678", "min_length": 6}, "prefix must not be longer"),
        ({"min_length": 10, "max_length": 8}, "must not be greater"),
        ({"dynamic_parameters": {"max_length": {"column": "a"}}}, "cannot come from a column"),
        ({"generator": "sometimes"}, "random"),
    ],
)
def test_phone_numbers_that_cannot_be_are_refused_at_load(parameters, problem) -> None:
    with pytest.raises(ValidationError, match=problem):
        rule("phone_number", **parameters)


def test_a_prefix_of_another_column_that_is_too_long_is_no_result() -> None:
    with pytest.raises(Unfit, match="prefix"):
        transformed(rule("phone_number"), "1", dynamic={"prefix": "+4930123456789"})


def test_string_has_as_many_letters() -> None:
    assert re.fullmatch("[a-zA-Z]{5}", transformed(rule("string"), "hello") or "")


def test_literal_string_is_the_literal_and_needs_one() -> None:
    assert transformed(rule("literal_string", literal="x"), "anything", "int4") == "x"
    with pytest.raises(ValidationError, match="literal"):
        rule("literal_string")


@pytest.mark.parametrize(
    ("associated_data", "token"),
    [
        ("", "Hc5d96xIxu2ute1RbFuenEftGxw-P__m1Vv_"),
        ("public.orders.file_path", "AsC2hoq-Y9V0iqK6JmNIxq0Fsr3SFPo27QNq"),
    ],
)
def test_encryption_gives_pgstreams_tokens(associated_data, token) -> None:
    given = rule("encrypted_aes_siv", key_hex="SIV", associated_data=associated_data)
    environment = {"SIV": AES_KEY}
    assert transformed(given, "hello world", environment=environment, key=None) == token
    value = "\\x" + b"hello world".hex()
    encrypted = transformed(given, value, "bytea", environment=environment, key=None)
    assert encrypted == "\\x" + token.encode().hex()


def test_encryption_takes_empty_text_and_any_bytes_and_needs_a_good_key() -> None:
    given = rule("encrypted_aes_siv", key_hex="SIV")
    tokens = [
        transformed(given, text, "bytea", environment={"SIV": AES_KEY})
        for text in ("\\x", "\\xff00fe", "\\xff")
    ]
    assert len(set(tokens)) == 3
    with pytest.raises(InvalidSetting) as short:
        transformed(given, "x", environment={"SIV": "ab" * 32})
    assert "abab" not in str(short.value)
    with pytest.raises(MissingSetting, match="SIV"):
        transformed(given, "x")
    assert len(transformed(rule("encrypted_aes_siv"), "x") or "") == 23
    with pytest.raises(ValidationError, match="not the key"):
        rule("encrypted_aes_siv", key_hex="ab" * 64)


OPERATIONS = [
    {"operation": "set", "path": "greeting", "value": "hello world"},
    {"operation": "delete", "path": "farewell"},
]


@pytest.mark.parametrize(
    ("operations", "value", "result"),
    [
        (OPERATIONS, '{"greeting": "hello", "farewell": "goodbye"}', {"greeting": "hello world"}),
        (OPERATIONS, "{}", {}),
        (OPERATIONS, "[1]", [1]),
        (OPERATIONS, "7", 7),
        (
            [{"operation": "set", "path": "#.x", "value": 0}],
            '[{"x": 1}, {"y": 2}, {"x": 3}]',
            [{"x": 0}, {"y": 2}, {"x": 0}],
        ),
        (
            [{"operation": "set", "path": "purchases.#.item", "value": "-"}],
            '{"purchases": [{"item": "book", "price": 10}, {"item": "pen", "price": 2}]}',
            {"purchases": [{"item": "-", "price": 10}, {"item": "-", "price": 2}]},
        ),
        (
            [
                {"operation": "set", "path": "0.greeting", "value": "hi"},
                {
                    "operation": "set",
                    "path": "1.greeting",
                    "value": "again",
                    "skip_not_exist": False,
                },
                {"operation": "delete", "path": "0.farewell", "error_not_exist": True},
            ],
            '[{"greeting": "hello", "farewell": "goodbye"}]',
            [{"greeting": "hi"}, {"greeting": "again"}],
        ),
        ([{"operation": "set", "path": r"a\.b", "value": None}], '{"a.b": 1}', {"a.b": None}),
        ([{"operation": "delete", "path": "#"}], "[1, 2]", []),
        (
            [{"operation": "set", "path": "a.0.b", "value": 1, "skip_not_exist": False}],
            "{}",
            {"a": [{"b": 1}]},
        ),
    ],
)
def test_json_operations(operations, value, result) -> None:
    changed = transformed(rule("json", operations=operations), value, "jsonb")
    assert json.loads(changed or "") == result


def test_json_keeps_every_digit_of_what_it_does_not_touch() -> None:
    given = rule("json", operations=[{"operation": "set", "path": "a.b", "value": 1}])
    value = '{"n": 12345678901234567890.10, "a": {"b": 2, "c": 1.0e400}}'
    assert transformed(given, value, "json") == (
        '{"n":12345678901234567890.10,"a":{"b":1,"c":1.0e400}}'
    )


def test_json_templates_see_the_value_and_other_columns() -> None:
    given = rule(
        "json",
        operations=[
            {"operation": "set", "path": "lastname", "value_template": "{{ dynamic('l')|tojson }}"},
            {
                "operation": "set",
                "path": "email",
                "value_template": "\"{{ email(value, '@crypt.com', 'x.com', 'asaltvalue') }}\"",
            },
            {
                "operation": "set",
                "path": "city",
                "value_template": "{{ masking('default', value)|tojson }}",
            },
        ],
        dynamic_parameters={"l": {"column": "lastname"}},
    )
    value = '{"lastname": "unknown", "email": "scrambleme@gmail.com", "city": "some city"}'
    changed = transformed(given, value, "jsonb", dynamic={"l": "doe"})
    assert json.loads(changed or "") == {
        "lastname": "doe",
        "email": "S7iVt9DKRtZn7gKwVhu@crypt.com",
        "city": "*********",
    }


@pytest.mark.parametrize(
    ("operation", "value", "problem"),
    [
        ({"operation": "set", "path": "a", "value": 1, "error_not_exist": True}, "{}", "no value"),
        ({"operation": "delete", "path": "1.a", "error_not_exist": True}, "[{}]", "no value"),
        ({"operation": "set", "path": "a", "value": 1}, "{not json", "no JSON"),
        ({"operation": "set", "path": "a", "value_template": "x"}, '{"a": 1}', "tojson"),
        ({"operation": "set", "path": "a", "value_template": "{{ b }}"}, '{"a": 1}', "template"),
    ],
)
def test_json_that_cannot_be_changed_is_no_result(operation, value, problem) -> None:
    with pytest.raises(Unfit, match=problem):
        transformed(rule("json", operations=[operation]), value, "jsonb")


@pytest.mark.parametrize(
    "operation",
    [
        {"operation": "set", "path": "a"},
        {"operation": "set", "path": "a", "value": 1, "value_template": "x"},
        {"operation": "delete", "path": "a", "value": 1},
        {"operation": "move", "path": "a", "value": 1},
        {"operation": "set", "path": 3, "value": 1},
        {"operation": "set", "path": "a", "value_template": "{{ invalid"},
        {"operation": "set", "value": 1},
    ],
)
def test_json_operations_that_are_incomplete_are_refused_at_load(operation) -> None:
    with pytest.raises(ValidationError):
        rule("json", operations=[operation])
    with pytest.raises(ValidationError):
        rule("json", operations=[])


@pytest.mark.parametrize(
    ("operations", "value", "result"),
    [
        ([{"operation": "delete", "key": "a"}], '"a"=>"1", "b"=>"2"', '"b"=>"2"'),
        ([{"operation": "delete", "key": "c"}], '"a"=>"1"', '"a"=>"1"'),
        ([{"operation": "set", "key": "a", "value": None}], '"a"=>"1"', '"a"=>NULL'),
        ([{"operation": "set", "key": "c", "value": "3"}], '"a"=>"1"', '"a"=>"1"'),
        (
            [{"operation": "set", "key": "c", "value": "3", "skip_not_exist": False}],
            '"a"=>"1"',
            '"a"=>"1", "c"=>"3"',
        ),
        (
            [{"operation": "set", "key": "a", "value_template": "{{ dynamic('o') }}"}],
            '"a"=>"1"',
            '"a"=>"other"',
        ),
        (
            [
                {
                    "operation": "set",
                    "key": "c",
                    "value_template": "{{ value }}",
                    "skip_not_exist": False,
                }
            ],
            '"a"=>"1"',
            '"a"=>"1", "c"=>NULL',
        ),
        (
            [{"operation": "set", "key": "e", "value_template": "{{ masking('email', value) }}"}],
            '"e"=>"testing@xata.io"',
            '"e"=>"tes****@xata.io"',
        ),
        ([{"operation": "delete", "key": "a"}], r'"q\"\\"=>"=>, \"", "a"=>NULL', None),
    ],
)
def test_hstore_operations(operations, value, result) -> None:
    given = rule("hstore", operations=operations, dynamic_parameters={"o": {"column": "other"}})
    changed = transformed(given, value, "hstore", dynamic={"o": "other"})
    assert changed == (result or r'"q\"\\"=>"=>, \""')


def test_hstore_that_cannot_be_changed_is_no_result() -> None:
    given = rule(
        "hstore", operations=[{"operation": "delete", "key": "b", "error_not_exist": True}]
    )
    with pytest.raises(Unfit, match="does not exist"):
        transformed(given, '"a"=>"1"', "hstore")
    with pytest.raises(Unfit, match="no hstore"):
        transformed(given, "a=1", "hstore")


@pytest.mark.parametrize(
    ("template", "value", "result"),
    [
        ("hello world", "hello", "hello world"),
        ("{% if value == 'hello' %}first{% else %}second{% endif %}", "hello", "first"),
        ("{% if value == 'hello' %}first{% else %}second{% endif %}", "world", "second"),
        ("{{ dynamic('value1') or dynamic('value2') }}", "x", "john.doe@xata.io"),
        ("{{ masking(value, dynamic('value2')) }}", "email", "joh****e@xata.io"),
        ("{{ dynamic('value1') }}", "x", None),
        ("<{{ dynamic('value1') }}>", "x", "<>"),
        ("{{ value | upper }}", "x", "X"),
    ],
)
def test_templates(template, value, result) -> None:
    given = rule(
        "template",
        template=template,
        dynamic_parameters={"value1": {"column": "a"}, "value2": {"column": "b"}},
    )
    dynamic = {"value1": None, "value2": "john.doe@xata.io"}
    assert transformed(given, value, dynamic=dynamic, key=None) == result


@pytest.mark.parametrize(
    "template",
    [
        "{{ dynamic('missing') }}",
        "{{ nothing }}",
        "{{ lipsum() }}",
        "{{ value.__class__.__mro__ }}",
        "{{ masking('nonsense', value) }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_fails_is_no_result_and_its_reason_has_no_value(template) -> None:
    with pytest.raises(Unfit) as failed:
        transformed(rule("template", template=template), "the secret value")
    assert "secret" not in failed.value.reason
    assert failed.value.__cause__ is None


def test_a_template_that_is_none_is_refused_at_load() -> None:
    with pytest.raises(ValidationError, match="Jinja"):
        rule("template", template="{% if value")
    with pytest.raises(ValidationError, match="Jinja"):
        rule("template", template="{{ value | random }}")
    with pytest.raises(ValidationError, match="template"):
        rule("template")


def test_a_template_needs_the_key_if_one_of_its_functions_does() -> None:
    given = rule("template", template="{{ hash(value) }}")
    assert transformed(given, "x") == transformed(given, "x")
    with pytest.raises(MissingSetting, match="PGSTREAM_MODIFIER_KEY"):
        transformed(given, "x", key=None)


GREENMASK = [
    ("greenmask_boolean", {}, "bool", r"[tf]"),
    ("greenmask_boolean", {}, "bytea", r"\\x(74727565|66616c7365)"),
    ("greenmask_choice", {"choices": ["a", "b"]}, "text", r"a|b"),
    ("greenmask_date", {"min_value": "2020-01-01", "max_value": "2020-12-31"}, "date", r"2020-.*"),
    ("greenmask_firstname", {"gender": "Female"}, "text", r"[A-Z][a-z]+"),
    ("greenmask_float", {"min_value": 1.0, "max_value": 2.0}, "float8", r"1(\.\d{1,2})?|2"),
    ("greenmask_integer", {"min_value": 3, "max_value": 5}, "int4", r"[345]"),
    ("greenmask_integer", {"size": 2, "min_value": 0}, "int8", r"\d{1,5}"),
    ("greenmask_string", {"symbols": "xy", "min_length": 2, "max_length": 3}, "text", r"[xy]{2,3}"),
    ("greenmask_unix_timestamp", {"min_value": "10", "max_value": "99"}, "int8", r"\d\d"),
    ("greenmask_uuid", {}, "text", r"[0-9a-f]{8}-[0-9a-f]{4}-4.*"),
    ("greenmask_uuid", {}, "uuid", r"[0-9a-f]{8}-[0-9a-f]{4}-4.*"),
]


@pytest.mark.parametrize(("name", "parameters", "value_type", "pattern"), GREENMASK)
@pytest.mark.parametrize("generator", ["random", "deterministic"])
def test_greenmask_stays_within_its_bounds_and_repeats(
    name, parameters, value_type, pattern, generator
) -> None:
    given = rule(name, generator=generator, **parameters)
    values = ["\\x00", "\\xff"] if value_type == "bytea" else ["hello", "1", "2024-01-01", ""]
    for value in values:
        result = transformed(given, value, value_type)
        assert re.fullmatch(pattern, result or "")
        assert result == transformed(given, value, value_type)


def test_a_uuid_follows_from_any_text() -> None:
    assert uuid.UUID(transformed(rule("greenmask_uuid"), "no uuid at all")).version == 4


TIMES = {"min_timestamp": "2020-01-01T00:00:00Z", "max_timestamp": "2020-12-31T23:59:59Z"}


@pytest.mark.parametrize(
    ("value_type", "part", "pattern"),
    [
        ("timestamp", None, r"2020-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?"),
        ("timestamptz", "second", r"2020-\d\d-\d\d \d\d:\d\d:\d\d\+00"),
        ("text", "day", r"2020-\d\d-\d\dT00:00:00Z"),
        ("timestamp", "month", r"2020-\d\d-01 00:00:00"),
        ("timestamp", "year", r"2020-01-01 00:00:00"),
        ("timestamp", "hour", r"2020-\d\d-\d\d \d\d:00:00"),
        ("timestamp", "millisecond", r"2020-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,3})?"),
    ],
)
def test_times_are_within_their_bounds_and_printed_as_the_type_is(
    value_type, part, pattern
) -> None:
    given = rule("greenmask_utc_timestamp", truncate_part=part, **TIMES)
    assert re.fullmatch(pattern, transformed(given, "2024-01-01 00:00:00", value_type) or "")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("greenmask_integer", {"min_value": 5, "max_value": 3}),
        ("greenmask_integer", {"size": 9}),
        ("greenmask_integer", {"min_value": "invalid"}),
        ("greenmask_float", {"min_value": 5.0, "max_value": 3.0}),
        ("greenmask_string", {"min_length": 5, "max_length": 3}),
        ("greenmask_date", {"min_value": "2020-01-01"}),
        ("greenmask_date", {"min_value": "2020-02-30", "max_value": "2020-03-01"}),
        ("greenmask_date", {"min_value": "2021-01-01", "max_value": "2020-01-01"}),
        ("greenmask_unix_timestamp", {"max_value": "3"}),
        ("greenmask_utc_timestamp", {**TIMES, "max_timestamp": "2019-01-01T00:00:00Z"}),
        ("greenmask_utc_timestamp", {**TIMES, "max_timestamp": "2021-01-01"}),
        ("greenmask_choice", {"choices": []}),
        ("greenmask_boolean", {"generator": "invalid"}),
    ],
)
def test_bounds_of_greenmask_are_checked_at_load(name, parameters) -> None:
    with pytest.raises(ValidationError):
        rule(name, **parameters)


@pytest.mark.parametrize(
    ("name", "parameters", "value", "pattern"),
    [
        ("neosync_firstname", {}, "x", r"[A-Z][a-z]+"),
        ("neosync_firstname", {"preserve_length": True}, "Robert", r"[A-Z][a-z]{5}"),
        ("neosync_firstname", {"preserve_length": True}, "x" * 40, r"[A-Z][a-z]{39}"),
        ("neosync_lastname", {"max_length": 4}, "x", r"[A-Z][a-z]{0,3}"),
        ("neosync_fullname", {}, "x", r"\S+ .+"),
        ("neosync_fullname", {"preserve_length": True}, "John Doe", r".{8}"),
        ("neosync_fullname", {"preserve_length": True}, "Jo", r".{2}"),
        ("neosync_fullname", {"max_length": 3}, "x", r".{1,3}"),
        ("neosync_string", {"preserve_length": True}, "hello", r"[a-z0-9]{5}"),
        ("neosync_string", {"min_length": 3, "max_length": 4}, "hello", r"[a-z0-9]{3,4}"),
        ("neosync_email", {}, "john@xata.io", r"[0-9a-f]{32}@[a-z]+\.example"),
        ("neosync_email", {"preserve_domain": True}, "john@xata.io", r"[0-9a-f]{32}@xata\.io"),
        (
            "neosync_email",
            {"preserve_domain": True, "excluded_domains": ["xata.io"]},
            "john@xata.io",
            r"[0-9a-f]{32}@[a-z]+\.example",
        ),
        ("neosync_email", {"excluded_domains": ["xata.io"]}, "john@xata.io", r".{32}@xata\.io"),
        (
            "neosync_email",
            {"email_type": "fullname", "preserve_domain": True, "preserve_length": True},
            "john.doe@xata.io",
            r"[a-z.'0-9]{8}@xata\.io",
        ),
        ("neosync_email", {"preserve_length": True}, "john.doe@xata.io", r".{16}"),
        ("neosync_email", {"invalid_email_action": "passthrough"}, "none", r"none"),
        ("neosync_email", {"invalid_email_action": "generate"}, "none", r".{32}@[a-z]+\.example"),
    ],
)
def test_neosync(name, parameters, value, pattern) -> None:
    given = rule(name, **parameters)
    result = transformed(given, value)
    assert re.fullmatch(pattern, result or "")
    assert result == transformed(given, value)


def test_what_is_no_address_is_refused_or_null() -> None:
    with pytest.raises(Unfit, match="no address"):
        transformed(rule("neosync_email"), "none")
    assert transformed(rule("neosync_email", invalid_email_action="null"), "none") is None


def test_a_seed_gives_other_results() -> None:
    first = transformed(rule("neosync_string", seed=1), "hello")
    assert first != transformed(rule("neosync_string", seed=2), "hello")
    assert first == transformed(rule("neosync_string", seed=1), "hello")


def test_hash_is_by_the_key_and_fits_the_type() -> None:
    digest = transformed(rule("hash"), "secret")
    assert re.fullmatch("[0-9a-f]{64}", digest or "")
    assert digest == transformed(rule("hash"), "secret", "varchar")
    assert digest == transformed(rule("hash"), "secret  ", "bpchar")  # as char(n) compares
    assert digest == transformed(rule("hash"), "Secret", "citext")  # as citext compares
    assert digest != transformed(rule("hash"), "secret", key=b"x" * 32)
    assert transformed(rule("hash", length=8), "secret") == (digest or "")[:8]
    assert uuid.UUID(transformed(rule("hash"), str(uuid.UUID(int=1)), "uuid"))
    assert 0 <= int(transformed(rule("hash"), "42", "int4") or "") < 1 << 31


def test_null_is_null() -> None:
    assert transformed(rule("null"), "x", "numeric") is None


@pytest.mark.parametrize("value", ["2024-02-29", "2024-02-29 12:00:00.5", "2024-02-29 12:00:00+00"])
def test_dates_of_one_entity_move_together_and_keep_their_time(value) -> None:
    given = rule("date_shift", days=30, dynamic_parameters={"entity": {"column": "patient"}})
    moved = transformed(given, value, "timestamp", dynamic={"entity": "7"}) or ""
    assert moved[10:] == value[10:]
    assert moved[:10] != "2024-02-29"
    assert moved[:10] == (transformed(given, "2024-02-29", "date", dynamic={"entity": "7"}))


def test_infinite_dates_stay_and_dates_out_of_reach_are_no_result() -> None:
    given = rule("date_shift", days=3)
    assert transformed(given, "-infinity", "date") == "-infinity"
    for value in ("0044-03-15 BC", "10000-01-01", "9999-12-31 BC"):
        with pytest.raises(Unfit):
            transformed(given, value, "date")


@pytest.mark.parametrize(
    ("value", "masked"),
    [
        ("{}", "{}"),
        ("{hello,NULL}", "{*****,NULL}"),
        ('{"hello, you",""}', '{**********,""}'),
        (r'{"a\"b\\c"}', "{*****}"),
        ("[2:3]={ab,c}", "[2:3]={**,*}"),
        ("{{ab,c},{d,e}}", "{{**,*},{*,*}}"),
    ],
)
def test_the_elements_of_an_array_are_transformed(value, masked) -> None:
    assert transformed(rule("masking"), value, "text[]") == masked
    assert transformed(rule("noop"), value, "text[]") == value


def test_elements_are_quoted_where_postgres_quotes_them() -> None:
    given = rule("template", template="{{ value }} {{ value }}")
    assert transformed(given, '{a,"b\\"c"}', "text[]") == r'{"a a","b\"c b\"c"}'
    assert transformed(rule("template", template="NULL"), "{a}", "text[]") == '{"NULL"}'
