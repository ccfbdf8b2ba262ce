"""Changes after their modifiers: a masked value is nowhere, and what was not sent stays so."""

from __future__ import annotations

import pytest

from pgstream_dagster.errors import (
    MissingSetting,
    NewColumn,
    NoSuchModifier,
    RulesRefused,
    TransformFailed,
)
from pgstream_dagster.modifiers import Modifiers
from pgstream_dagster.schema.changes import Op
from pgstream_dagster.schema.table import ReplicaIdentity
from tests.support.modifiers import (
    KEY,
    change,
    column,
    masking_table,
    modifiers,
    table,
    transformed,
)
from tests.support.modifiers import rule as rule_of

CUSTOMERS = table("id", "email", "phone", "note")
MASKED = {"email": {"name": "masking", "type": "email"}, "phone": {"name": "masking"}}


def test_every_image_is_transformed_and_the_rest_stays() -> None:
    given = change(
        CUSTOMERS,
        key=("1",),
        before={"id": "1", "email": "john@a.b", "phone": "12", "note": "n"},
        after={"id": "1", "email": "jane@a.b", "phone": "34", "note": "n"},
        xid=7,
    )
    result = masking_table(MASKED, CUSTOMERS).change(given)
    assert result is not None
    assert result.before == {"id": "1", "email": "joh****@a.b", "phone": "**", "note": "n"}
    assert result.after == {"id": "1", "email": "jan****@a.b", "phone": "**", "note": "n"}
    assert (result.event_id, result.key, result.xid) == (given.event_id, ("1",), 7)


def test_what_was_not_sent_is_not_there_and_null_is_null() -> None:
    given = change(CUSTOMERS, key=("1",), before=None, after={"id": "1", "phone": None})
    result = masking_table(MASKED, CUSTOMERS).change(given)
    assert result is not None
    assert result.before is None
    assert result.after == {"id": "1", "phone": None}


def test_keys_are_transformed_as_the_columns_they_are_made_of() -> None:
    schema = table("email", "id", "note", key=("id", "email"))
    rules = {"email": {"name": "encrypted_aes_siv"}, "id": {"name": "hash"}}
    given = change(
        schema,
        key=("2", "new@a.b"),
        old_key=("1", "old@a.b"),
        before={"id": "1", "email": "old@a.b"},
        after={"id": "2", "email": "new@a.b", "note": "n"},
    )
    result = masking_table(rules, schema).change(given)
    assert result is not None
    assert result.after is not None
    assert result.before is not None
    assert result.key == (result.after["id"], result.after["email"])
    assert result.old_key == (result.before["id"], result.before["email"])
    assert result.after["id"] == transformed(rule_of("hash"), "2")


def test_a_key_that_a_lossy_rule_makes_equal_did_not_change() -> None:
    rules = {"id": {"name": "masking", "allow_uniqueness_loss": True}}
    given = change(CUSTOMERS, key=("2",), old_key=("1",), after={"id": "2"})
    result = masking_table(rules, CUSTOMERS).change(given)
    assert result is not None
    assert (result.key, result.old_key) == (("*",), None)


def test_joins_still_join_across_tables_and_types() -> None:
    orders = table(column("customer", "varchar"), "id", name="orders")
    chain = modifiers(
        {
            "transform": {
                "public.customers": {"id": {"name": "hash"}},
                "public.orders": {"customer": {"name": "hash"}},
            }
        }
    )
    customer = chain.change(change(CUSTOMERS, "insert", key=("7",), after={"id": "7"}))
    order = chain.change(change(orders, "insert", key=("1",), after={"id": "1", "customer": "7"}))
    assert customer is not None
    assert order is not None
    assert customer.after is not None
    assert order.after is not None
    assert customer.after["id"] == order.after["customer"] != "7"


def test_markers_and_truncates_pass_with_the_schema_that_comes_out() -> None:
    chain = masking_table(MASKED, CUSTOMERS, drop={"public.*": ["note"]})
    for op in (Op.COPY, Op.GAP, Op.TRUNCATE):
        result = chain.change(change(CUSTOMERS, op))
        assert result is not None
        assert (result.op, result.before, result.after, result.key) == (op, None, None, None)
        assert result.schema is not None
        assert [c.name for c in result.schema.columns] == ["id", "email", "phone"]


def test_texts_that_may_hold_a_value_do_not_pass() -> None:
    chain = masking_table(MASKED, CUSTOMERS)
    ddl = chain.change(change(CUSTOMERS, Op.DDL, payload="alter table ... default 'a@b.c'"))
    assert ddl is not None
    assert ddl.payload is None
    assert chain.change(change(None, Op.MESSAGE, payload="a@b.c")) is None


def test_the_schema_shows_no_default_and_no_value_of_older_rows() -> None:
    schema = table(
        "id",
        column("email", missing="a@b.c", default="'a@b.c'::text"),
        column("note", missing="n", default="'n'::text"),
    )
    result = masking_table(MASKED, schema).schema(schema)
    email, note = result.columns[1:]
    assert (email.missing, email.default) == ("****@b.c", None)
    assert (note.missing, note.default) == ("n", "'n'::text")


def test_a_table_without_rules_passes_as_it_is() -> None:
    orders = table("id", name="orders")
    given = change(orders, "insert", key=("1",), after={"id": "1"}, payload="p")
    chain = masking_table(MASKED, CUSTOMERS)
    assert chain.change(given) is given
    assert chain.schema(orders) is orders


def test_no_modifiers_let_everything_pass() -> None:
    message = change(None, Op.MESSAGE, payload="m")
    assert Modifiers({}, []).change(message) is message


def test_modifiers_run_in_the_order_of_the_sink() -> None:
    made = modifiers({"drop": {"public.customers": ["note"]}})
    configs = {
        "first": {
            "transform": {"public.customers": {"note": {"name": "literal_string", "literal": "x"}}}
        },
        "second": {"transform": {"public.customers": {"note": {"name": "masking"}}}},
    }
    configs = {name: type(made._configs["m"]).model_validate(c) for name, c in configs.items()}
    given = change(CUSTOMERS, "insert", key=("1",), after={"id": "1", "note": "hello"})
    for names, note in ((["first", "second"], "*"), (["second", "first"], "x")):
        result = Modifiers(configs, names, KEY).change(given)
        assert result is not None
        assert result.after == {"id": "1", "note": note}
    with pytest.raises(NoSuchModifier, match="first, second"):
        Modifiers(configs, ["third"], KEY)


PHONE = {
    "name": "phone_number",
    "min_length": 12,
    "max_length": 12,
    "dynamic_parameters": {"prefix": {"column": "note"}},
}


def test_another_column_is_read_from_the_same_image_before_its_own_rule() -> None:
    chain = masking_table({"phone": PHONE, "note": {"name": "masking"}}, CUSTOMERS)
    result = chain.change(
        change(
            CUSTOMERS,
            key=("1",),
            before={"id": "1", "phone": "1", "note": "+1"},
            after={"id": "1", "phone": "1", "note": "+49"},
        )
    )
    assert result is not None
    assert result.before is not None
    assert result.after is not None
    assert (result.before["phone"] or "").startswith("+1")
    assert (result.after["phone"] or "").startswith("+49")
    assert result.after["note"] == "***"


def test_a_column_that_was_not_sent_is_an_error_whatever_the_policy_and_never_a_guess() -> None:
    given = change(CUSTOMERS, key=("1",), after={"id": "1", "phone": "555"})
    for policy in ("fail", "null", "pass-through"):
        with pytest.raises(TransformFailed, match="REPLICA IDENTITY FULL") as failed:
            masking_table({"phone": PHONE}, CUSTOMERS, on_error=policy).change(given)
        assert "555" not in str(failed.value)


def test_an_unchanged_column_is_read_from_the_old_row_where_that_has_it() -> None:
    schema = table("id", "phone", "note", identity=ReplicaIdentity.FULL)
    result = masking_table({"phone": PHONE}, schema).change(
        change(
            schema,
            key=("1",),
            before={"id": "1", "phone": "1", "note": "+1"},
            after={"id": "1", "phone": "2"},
        )
    )
    assert result is not None
    assert result.after is not None
    assert (result.after["phone"] or "").startswith("+1")
    assert "note" not in result.after


JSON = {"note": {"name": "json", "operations": [{"operation": "delete", "path": "a"}]}}


@pytest.mark.parametrize(("policy", "value"), [("null", None), ("pass-through", "no json")])
def test_a_value_that_cannot_be_transformed_is_what_the_policy_says(policy, value) -> None:
    schema = table("id", column("note", "json"))
    given = change(schema, "insert", key=("1",), after={"id": "1", "note": "no json"})
    result = masking_table(JSON, schema, on_error=policy).change(given)
    assert result is not None
    assert result.after == {"id": "1", "note": value}


def test_by_default_it_is_an_error_that_does_not_hold_the_value() -> None:
    schema = table("id", column("note", "json"))
    given = change(schema, "insert", key=("1",), after={"id": "1", "note": "the secret"})
    with pytest.raises(TransformFailed) as failed:
        masking_table(JSON, schema).change(given)
    assert "secret" not in str(failed.value)
    assert "secret" not in str(failed.value.facts)
    assert failed.value.__cause__ is None
    assert failed.value.__suppress_context__


def test_a_rule_follows_its_column_through_renames() -> None:
    first = table("id", "email")
    renamed = table("id", column("mail", attnum=2))
    given = change(renamed, "insert", key=("1",), after={"id": "1", "mail": "john@a.b"})
    chain = masking_table(MASKED, first)
    for _ in range(2):  # the version is remembered, whether it was given or seen
        chain.change(change(first, "insert", key=("1",), after={"id": "1"}))
        result = chain.change(given)
        assert result is not None
        assert result.after == {"id": "1", "mail": "joh****@a.b"}
        chain = masking_table(MASKED, first, versions=[first, renamed])


def test_a_rule_follows_its_table_through_renames() -> None:
    first = table("id", "email")
    renamed = table("id", "email", name="clients")
    given = change(renamed, "insert", key=("1",), after={"id": "1", "email": "john@a.b"})
    for versions in ([], [first, renamed], [first, renamed, first]):
        chain = masking_table(MASKED, first, versions=versions)
        chain.change(change(first, "insert", key=("1",), after={"id": "1"}))
        result = chain.change(given)
        assert result is not None
        assert result.after == {"id": "1", "email": "joh****@a.b"}


def test_a_table_that_gets_the_name_of_a_rule_is_masked_from_then_on() -> None:
    staging = table("id", "email", name="staging")
    customers = table("id", "email")
    chain = masking_table(MASKED, customers, versions=[staging])
    masked = "joh****@a.b"
    for schema, email in ((staging, "john@a.b"), (customers, masked), (staging, masked)):
        result = chain.change(change(schema, "insert", key=("1",), after={"email": "john@a.b"}))
        assert result is not None
        assert result.after == {"email": email}


@pytest.mark.parametrize(
    ("former", "present"),
    [
        (table("id", column("plain", attnum=2)), table("id", column("email", attnum=2))),
        (table("id", "email", name="clients"), table("id", "email")),
    ],
    ids=["column", "table"],
)
def test_a_rule_with_the_present_name_masks_what_came_under_a_former_one(former, present) -> None:
    chain = masking_table(MASKED, present, versions=[former, present])
    masked = former.columns[1].name
    given = change(former, "insert", key=("1",), after={"id": "1", masked: "john@a.b"})
    result = chain.change(given)
    assert result is not None
    assert result.after == {"id": "1", masked: "joh****@a.b"}


@pytest.mark.parametrize(
    ("policy", "after"),
    [
        ("pass", {"id": "1", "email": "joh****@a.b", "new": "n"}),
        ("drop", {"id": "1", "email": "joh****@a.b"}),
    ],
)
def test_columns_that_no_rule_names_pass_or_are_left_out(policy, after) -> None:
    schema = table("id", "email", "new")
    rules = {"id": {}, "email": MASKED["email"]}
    given = change(schema, "insert", key=("1",), after={"id": "1", "email": "john@a.b", "new": "n"})
    chain = masking_table(rules, schema, new_columns=policy)
    result = chain.change(given)
    assert result is not None
    assert result.after == after
    assert result.schema is not None
    assert [c.name for c in result.schema.columns] == list(after)


def test_columns_that_no_rule_names_stop_the_sink() -> None:
    schema = table("id", "email", "new")
    chain = masking_table({"id": {}, **MASKED}, schema, new_columns="stop")
    with pytest.raises(NewColumn, match="'new'"):
        chain.change(change(schema, "insert", key=("1",), after={"id": "1"}))


def test_a_tables_own_rules_go_over_those_of_patterns() -> None:
    chain = modifiers(
        {
            "transform": {
                "public.*": {"email": {"name": "masking"}, "phone": {"name": "masking"}},
                "customers": {"email": {"name": "masking", "type": "password"}},
            }
        }
    )
    after = {"id": "1", "email": "john", "phone": "12"}
    result = chain.change(change(CUSTOMERS, "insert", key=("1",), after=after))
    assert result is not None
    assert result.after == {"id": "1", "email": "*" * 12, "phone": "**"}


def test_rules_that_do_not_fit_let_nothing_of_the_table_through() -> None:
    chain = masking_table({"id": {"name": "masking"}}, CUSTOMERS)
    for _ in range(2):
        with pytest.raises(RulesRefused, match="part of the key"):
            chain.change(change(CUSTOMERS, "truncate"))


def test_without_the_key_nothing_passes_and_what_needs_none_works() -> None:
    given = change(CUSTOMERS, "insert", key=("1",), after={"email": "john@a.b"})
    with pytest.raises(MissingSetting, match="PGSTREAM_MODIFIER_KEY"):
        masking_table({"email": {"name": "hash"}}, CUSTOMERS, key=None).change(given)
    assert masking_table(MASKED, CUSTOMERS, key=None).change(given) is not None


def test_a_key_never_becomes_null() -> None:
    rule = {"name": "neosync_email", "allow_uniqueness_loss": True}
    given = change(CUSTOMERS, "delete", key=("no address",), before={"id": "no address"})
    for more in ({"on_error": "null"}, {"on_error": "fail"}):
        with pytest.raises(TransformFailed) as failed:
            masking_table({"id": rule}, CUSTOMERS, **more).change(given)
        assert "no address" not in str(failed.value).replace("no address of mail", "")
