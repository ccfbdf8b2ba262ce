"""Any change through any rules: the same bytes again, no masked value, nothing added or lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pgstream_dagster.modifiers import arrays, documents
from pgstream_dagster.modifiers.unfit import Unfit
from pgstream_dagster.readers.change import Change
from tests.support.modifiers import change, masking_table, table, transformed
from tests.support.modifiers import rule as rule_of

RULES = (
    {"name": "email"},
    {"name": "encrypted_aes_siv"},
    {"name": "greenmask_choice", "choices": ["a", "b"]},
    {"name": "greenmask_date", "min_value": "2020-01-01", "max_value": "2021-01-01"},
    {"name": "greenmask_firstname"},
    {"name": "greenmask_string"},
    {"name": "greenmask_uuid"},
    {"name": "hash"},
    {"name": "literal_string", "literal": "x"},
    {"name": "masking"},
    {"name": "masking", "type": "password"},
    {"name": "neosync_email", "invalid_email_action": "generate"},
    {"name": "neosync_firstname"},
    {"name": "neosync_fullname"},
    {"name": "neosync_lastname"},
    {"name": "neosync_string"},
    {"name": "null"},
    {"name": "phone_number"},
    {"name": "string"},
    {"name": "template", "template": "{{ hash(value) }}"},
)
MARK = "\u2603"  # in every value that is masked, and in no result

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=70)
VALUES = st.none() | TEXT.map(lambda text: f"{MARK}{text}")
IMAGES = st.none() | st.dictionaries(st.sampled_from(["id", "masked"]), VALUES)
SCHEMA = table("id", "masked")


@st.composite
def changes(draw: st.DrawFn) -> Change:
    return change(
        SCHEMA,
        key=draw(st.none() | st.tuples(VALUES)),
        old_key=draw(st.none() | st.tuples(VALUES)),
        before=draw(IMAGES),
        after=draw(IMAGES),
    )


def rules_with(rule: dict[str, object]) -> dict[str, object]:
    """The rule for both columns; a key cannot be NULL."""
    of_key = {"name": "hash"} if rule["name"] == "null" else rule
    return {"id": {**of_key, "allow_uniqueness_loss": True}, "masked": rule}


@given(changes(), st.sampled_from(RULES))
def test_a_masked_value_is_nowhere_and_the_shape_stays(given_change, rule) -> None:
    rules = rules_with(rule)
    result = masking_table(rules, SCHEMA).change(given_change)
    assert result is not None
    assert MARK not in repr(result)
    for before, after in (
        (given_change.before, result.before),
        (given_change.after, result.after),
    ):
        assert (before is None) == (after is None)
        if before is not None and after is not None:
            assert list(before) == list(after)
            for name, value in before.items():
                is_null = value is None or (rule["name"] == "null" and name == "masked")
                assert (after[name] is None) == is_null
    assert (result.key is None) == (given_change.key is None)
    again = masking_table(rules, SCHEMA).change(given_change)
    assert repr(again) == repr(result)


@given(changes(), st.sampled_from(RULES))
def test_equal_values_stay_equal_in_every_place(given_change, rule) -> None:
    result = masking_table(rules_with(rule), SCHEMA).change(given_change)
    assert result is not None
    pairs = {
        (name if rule["name"] == "null" else "", value, changed)
        for image, modified in (
            (given_change.before, result.before),
            (given_change.after, result.after),
        )
        for (name, value), changed in zip(
            (image or {}).items(), (modified or {}).values(), strict=True
        )
    }
    pairs |= {
        ("id" if rule["name"] == "null" else "", value, changed)
        for value, changed in zip(given_change.key or (), result.key or (), strict=True)
    }
    assert len(pairs) == len({(name, value) for name, value, _ in pairs})


OPERATION = {"operation": "set", "path": "a.#.b", "value": None}
ANYTHING = (
    *((rule, value_type) for rule in RULES for value_type in ("text", "text[]", "bytea")),
    *(({"name": "masking", "type": kind}, "text") for kind in ("name", "email", "tel", "url")),
    ({"name": "masking", "type": "custom", "mask_begin": "1", "mask_end": "50%"}, "text"),
    ({"name": "neosync_email", "preserve_length": True, "preserve_domain": True}, "text"),
    ({"name": "neosync_email", "email_type": "any", "max_length": 5}, "citext"),
    ({"name": "neosync_fullname", "preserve_length": True}, "text"),
    ({"name": "greenmask_float"}, "float8"),
    ({"name": "greenmask_integer"}, "int2"),
    ({"name": "date_shift", "days": 9}, "timestamp"),
    ({"name": "json", "operations": [OPERATION]}, "jsonb"),
    ({"name": "hstore", "operations": [{"operation": "delete", "key": "a"}]}, "hstore"),
    ({"name": "template", "template": "{{ masking('url', value) | tojson }}"}, "text"),
)


@given(st.sampled_from(ANYTHING), TEXT)
def test_any_text_has_a_result_or_is_unfit_and_the_reason_does_not_hold_it(
    given_rule, text
) -> None:
    rule, value_type = given_rule
    result, reason = None, ""
    try:
        result = transformed(rule_of(**rule), MARK + text, value_type)
    except Unfit as unfit:
        reason = unfit.reason
    assert MARK not in reason
    assert result is None or "\x00" not in result


@given(st.dictionaries(TEXT, st.none() | TEXT))
def test_an_hstore_survives_its_way_through_text(pairs) -> None:
    assert documents.parsed_hstore(documents.hstore_text(pairs)) == pairs


@given(st.lists(st.none() | TEXT))
def test_every_element_of_an_array_is_reached_and_read_back(elements) -> None:
    written = "{" + ",".join(arrays.written(element) for element in elements) + "}"
    seen: list[str] = []

    def note(element: str) -> str:
        seen.append(element)
        return element

    assert arrays.mapped(written, note) == written
    assert seen == [element for element in elements if element is not None]
