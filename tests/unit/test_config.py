"""The pipeline file: every mistake named with its path, all at once."""

from __future__ import annotations

from pathlib import Path

import pydantic
import pytest

from pgstream_dagster.config import PipelineConfig, load, parse, reference
from pgstream_dagster.errors import InvalidPipeline


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidPipeline) as caught:
        parse(text)
    return caught.value.problems


def test_a_name_is_enough() -> None:
    config = parse("pipeline: shop")
    assert config.source.slot == config.source.publication == "pgstream_shop"
    assert config.source.tables == "all"
    assert config.capture.flush_seconds == 0.5


def test_what_is_written_is_taken() -> None:
    config = parse(
        "pipeline: shop\n"
        "source: {slot: s1, publication: Orders, tables: [public.orders, shop.*]}\n"
        "capture: {flush_seconds: 2, flush_rows: 10}\n"
        "copy: {ranges: 3, parallel: 1}\n"
    )
    assert config.source.slot == "s1"
    assert config.source.publication == "Orders"
    assert config.source.tables == ("public.orders", "shop.*")
    assert config.capture.flush_seconds == 2.0
    assert (config.copying.ranges, config.copying.parallel) == (3, 1)


@pytest.mark.parametrize("pattern", ["*.*", "*.users", "shop.*", "users"])
def test_the_source_takes_wildcards_for_schema_and_table(pattern: str) -> None:
    assert parse(f"pipeline: shop\nsource: {{tables: ['{pattern}']}}").source.tables == (pattern,)


def test_all_problems_are_reported_at_once_with_their_paths() -> None:
    assert problems(
        "pipeline: Shop\n"
        "sorce: {}\n"
        "capture: {flush_rows: '8', flsh_bytes: 3, memory_bytes: 1, flush_seconds: .inf}\n"
        "source: {tables: [a.b.c, 7, fine], slot: UP}\n"
        "copy: 5\n"
    ) == [
        "capture.flsh_bytes: unknown key; did you mean 'flush_bytes'?",
        "capture.flush_rows: must be a whole number",
        "capture.flush_seconds: must be a finite number",
        "capture.memory_bytes: must be at least 134,217,728",
        "copy: must be keys and values",
        "pipeline: must be 1 to 40 lower-case letters, digits or _, beginning with a letter",
        "sorce: unknown key; did you mean 'source'?",
        "source.slot: must be 1 to 52 lower-case letters, digits or _",
        (
            "source.tables[0]: 'a.b.c' is no table pattern; write namespace.table, with * and ? as"
            ' wildcards and "double quotes" around parts with dots or blanks'
        ),
        "source.tables[1]: must be text",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must be keys and values, beginning with 'pipeline: <name>'"),
        ("- pipeline", "must be keys and values, beginning with 'pipeline: <name>'"),
        ("source: {}", "pipeline: is required"),
        ("pipeline: no", "pipeline: must be text"),
        ("pipeline: a\npipeline: b", "pipeline: given twice, in lines 1 and 2"),
        (
            "pipeline: a\ncapture:\n  flush_rows: 1\n  flush_rows: 1",
            "capture.flush_rows: given twice, in lines 3 and 4",
        ),
        (
            "pipeline: a\nsource: {tables: some}",
            "source.tables: must be 'all' or a list of patterns",
        ),
        ("pipeline: a\nsource: {tables: []}", "source.tables: must have at least one entry"),
        (
            "pipeline: a\nsource: {slot: ''}",
            "source.slot: must be 1 to 52 lower-case letters, digits or _",
        ),
        ("pipeline: a\ncapture: {flush_rows: true}", "capture.flush_rows: must be a whole number"),
        ("pipeline: a\ncapture: {flush_rows: 1.5}", "capture.flush_rows: must be a whole number"),
        ("pipeline: a\ncopy: {ranges: 1025}", "copy.ranges: must be at most 1,024"),
        ("pipeline: a\ncopying: {ranges: 1}", "copying: unknown key; did you mean 'copy'?"),
        ("pipeline: [", "line 1, column 12: expected the node content, but found '<stream end>'"),
        ("pipeline: a\nx: !!python/object:os.system {}", None),
    ],
)
def test_problem_is_named(text: str, problem: str | None) -> None:
    """P79: of a file that is no YAML with its line and column."""
    listed = problems(text)
    assert listed == [problem] if problem else len(listed) == 1


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """P79."""
    missing = tmp_path / "nope.yaml"
    with pytest.raises(InvalidPipeline, match=r"nope.yaml: .*\n.*cannot be read: No such file"):
        load(missing)


def test_a_file_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "pgstream.yaml"
    path.write_text("pipeline: shop\n")
    assert load(path) == parse("pipeline: shop")


def test_a_loaded_pipeline_cannot_be_changed() -> None:
    with pytest.raises(pydantic.ValidationError):
        parse("pipeline: shop").pipeline = "other"  # pyright: ignore[reportAttributeAccessIssue]


def test_reference_names_every_key() -> None:
    text = reference()
    for name, field in PipelineConfig.model_fields.items():
        assert f"| `{field.alias or name}` |" in text
        section = field.annotation
        if isinstance(section, type) and issubclass(section, pydantic.BaseModel):
            for key in section.model_fields:
                assert f"| `{field.alias or name}.{key}` |" in text
    assert "None" not in text


def test_the_page_says_what_the_code_says() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"
    assert page.read_text(encoding="utf-8") == reference(), (
        "write it again: python -c 'from pgstream_dagster.config import reference;"
        f' print(reference(), end="")\' > {page.name}'
    )


def test_an_index_is_a_table_behind_an_alias() -> None:
    config = parse(
        "pipeline: shop\n"
        "search:\n"
        "  orders: {table: orders}\n"
        "  bag: {table: shop.bag, id: [a, b], keep: 0, reindex: manual, mapping: {a: {type: ip}}}\n"
    )
    assert config.search["orders"].table == "public.orders"
    assert config.search["orders"].id is None
    assert config.search["bag"].id == ("a", "b")
    assert config.search["bag"].mapping == {"a": {"type": "ip"}}


def test_what_is_wrong_with_an_index_is_named_with_its_path() -> None:
    assert problems(
        "pipeline: shop\n"
        "search:\n"
        "  Orders: {table: public.orders}\n"
        "  a: {tabel: public.orders}\n"
        "  b: {table: shop.*, keep: -1, reindex: never}\n"
    ) == [
        (
            "search.Orders: must be 1 to 200 lower-case letters, digits, _, . or -, beginning with"
            " a letter or digit"
        ),
        "search.a.tabel: unknown key; did you mean 'table'?",
        "search.a.table: is required",
        "search.b.keep: must be at least 0",
        "search.b.reindex: must be 'auto' or 'manual'",
        "search.b.table: must name one table: wildcards are not for an index",
    ]


def test_modifiers_and_the_sinks_that_name_them() -> None:
    config = parse(
        "pipeline: shop\n"
        "modifiers:\n"
        "  mask-people:\n"
        "    transform: {public.customers: {id: , email: {name: email}}}\n"
        "    on_error: null\n"
        "sinks: {out: {stdout: {}, modifiers: [mask-people]}}\n"
    )
    modifier = config.modifiers["mask-people"]
    rules = modifier.transform["public.customers"]
    assert [rule.name for rule in rules.values()] == ["noop", "email"]
    assert (modifier.on_error, modifier.new_columns) == ("null", "pass")
    assert config.sinks["out"].modifiers == ("mask-people",)


def test_every_problem_of_a_rule_has_its_path_and_no_value() -> None:
    found_problems = problems(
        "pipeline: shop\n"
        "modifiers:\n"
        "  mask-people:\n"
        "    new_columns: halt\n"
        "    transform:\n"
        "      public.customers:\n"
        "        a: 3\n"
        "        b: {type: tel}\n"
        "        c: {name: emal}\n"
        "        d: {name: email, salz: s3cret}\n"
        "        e: {name: masking, type: tell, mask_begin: 4}\n"
        "        f: {name: hstore, operations: [{operation: set}]}\n"
        "        g: {name: hash, length: 3}\n"
        f"        h: {{name: encrypted_aes_siv, key_hex: {'ab' * 64}}}\n"
        "  empty: {}\n"
        "sinks: {to-file: {stdout: {}, modifiers: [mask_people], start: never}}\n"
    )
    rules = "modifiers.mask-people.transform.public.customers"
    assert found_problems == [
        (
            "sinks.to-file.modifiers: no modifier 'mask_people' under 'modifiers';"
            " there are mask-people, empty"
        ),
        "modifiers.empty: must have 'transform' or 'drop'",
        "modifiers.mask-people.new_columns: must be 'pass', 'drop' or 'stop'",
        f"{rules}.a: must have a 'name', that of its transformer",
        f"{rules}.b: must have a 'name', that of its transformer",
        f"{rules}.c.name: no transformer 'emal'; did you mean 'email'?",
        f"{rules}.d.salz: unknown key; did you mean 'salt'?",
        f"{rules}.e.mask_begin: must be text",
        (
            f"{rules}.e.type: must be 'default', 'custom', 'password', 'name', 'address', 'email',"
            " 'mobile', 'tel', 'id', 'credit_card' or 'url'"
        ),
        f"{rules}.f.operations[0].key: is required",
        f"{rules}.g.length: must be at least 8",
        f"{rules}.h: key_hex must be the name of an environment variable, not the key",
        "sinks.to-file.start: must be 'copy' or 'now'",
    ]
    assert not [problem for problem in found_problems if "s3cret" in problem]


def test_the_marker_of_a_copy_without_its_rows_is_refused() -> None:
    sink = "{stdout: {}, copies: rows, operations: [insert, update]}"
    [problem] = problems(f"pipeline: shop\nsinks: {{out: {sink}}}\n")
    assert problem.startswith("sinks.out: `copies: rows` needs `read` among its operations")
