"""Whether UPDATEs and DELETEs work, and carry what identifies their row. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from pgstream_dagster.source import publication as publications
from pgstream_dagster.source.preflight.facts import Facts, Member, Scope, Server
from pgstream_dagster.source.preflight.finding import Finding, Severity, error, warning


def identity_findings(facts: Facts) -> Iterator[Finding]:
    """
    A warning for each table, or leaf of one, that has no replica identity.

    One that is not published yet is left out. They are errors where no other table is left.
    """
    without = facts.without_identity
    ids = {member.relation_id for member in without}
    is_all = ids == {member.relation_id for member in facts.members}
    for member in without:
        is_published = member.relation_id in facts.scope.published
        fact, remedy = _no_identity(member)
        consequence = (
            "and is published: its UPDATEs and DELETEs fail in your application"
            if is_published
            else "and is left out: its UPDATEs and DELETEs would fail in your application"
        )
        yield Finding(
            "replica_identity",
            Severity.ERROR if is_all else Severity.WARNING,
            f"{fact} {consequence}",
            remedy,
            None if is_published else member.relation_id,
        )


def member_findings(member: Member, root: Member, facts: Facts) -> Iterator[Finding]:
    """Whether the old images of a table, or of a leaf of `root`, identify the row."""
    if not facts.scope.needs_identity or member.kind == "f" or member.key is None:
        return
    existing = facts.scope.existing.get(root.relation_id)
    generated = _unsent_generated(member, root, facts)
    left_out = set(member.key) - set(existing.columns) if existing is not None else set[str]()
    if missing := sorted(left_out - generated):
        yield error(
            "column_list",
            f"table {member.member_name!r}: the publication leaves out {', '.join(missing)} of its"
            " replica identity: its UPDATEs and DELETEs would fail in your application",
            "add them to the publication's column list",
        )
    if member.identity == "f":
        yield from _full_identity(member, facts.scope, facts.server)
    elif generated:
        yield _generated_key(member, generated, facts.server)
    elif member.unvalidated_key:
        yield _nullable_key(member)
    elif not member.is_root and root.key is not None and not _agrees(member, root):
        yield _other_identity(member, root)
    elif existing is not None and existing.row_filter is not None and member.has_toast:
        yield error(
            "row_filter",
            f"table {member.member_name!r} has a row filter and columns that may be stored out of"
            " line: a row that an UPDATE moves into the filter would come without them",
            f"run alter table {member.member_sql} replica identity full",
        )


def _no_identity(member: Member) -> tuple[str, str]:
    """What is wrong, and the statement that helps."""
    full = f"run alter table {member.member_sql} replica identity full"
    table = f"table {member.member_name!r}"
    if member.key is not None:
        return (
            f"{table} has replica identity FULL and virtual generated columns",
            f"add a primary key and run alter table {member.member_sql} replica identity default",
        )
    if member.identity == "d" and member.is_deferrable:
        return f"{table} has a deferrable primary key, no replica identity", full
    if member.identity in ("n", "i"):
        what = "NOTHING" if member.identity == "n" else "an index that is gone or deferrable"
        return (
            f"{table} has replica identity {what}",
            f"{full}, or default where it has a primary key",
        )
    return f"{table} has no replica identity", f"add a primary key, or {full}"


def _full_identity(member: Member, scope: Scope, server: Server) -> Iterator[Finding]:
    """Where FULL makes UPDATEs fail in the application: 18 requires every column published."""
    are_published = scope.state is None or scope.state.has_generated_columns
    if server.version < publications.HAS_GENERATED or are_published:
        return
    if member.has_stored_columns and not member.has_virtual_columns:
        yield error(
            "generated_columns",
            f"table {member.member_name!r} has replica identity FULL and generated columns that"
            " are not published: its UPDATEs and DELETEs would fail in your application",
            f"run alter publication {server.publication_sql} set"
            " (publish_generated_columns = stored)",
        )


def _unsent_generated(member: Member, root: Member, facts: Facts) -> set[str]:
    """The generated columns of the key that are not sent; from 18 on our publications have them."""
    scope, generated = facts.scope, set(member.generated_key)
    if facts.server.version < publications.HAS_GENERATED:
        return generated
    if scope.state is None or scope.state.has_generated_columns:
        return set()  # a column list may leave them out, like any other column
    existing = scope.existing.get(root.relation_id)
    return generated if existing is None else generated - set(existing.columns)


def _generated_key(member: Member, generated: set[str], server: Server) -> Finding:
    fact = (
        f"table {member.member_name!r}: {', '.join(sorted(generated))} of its key is generated and"
        " not published"
    )
    if server.version < publications.HAS_GENERATED:
        return error(
            "replica_identity",
            f"{fact}: the rows that its UPDATEs and DELETEs change could not be identified",
            f"run alter table {member.member_sql} replica identity full",
        )
    return error(
        "replica_identity",
        f"{fact}: its UPDATEs and DELETEs would fail in your application",
        f"run alter publication {server.publication_sql} set (publish_generated_columns = stored)",
    )


def _nullable_key(member: Member) -> Finding:
    validated = ", ".join(f"validate constraint {name}" for name in member.unvalidated_key)
    return error(
        "replica_identity",
        f"table {member.member_name!r}: a column of its replica identity index may be NULL, for its"
        " NOT NULL is not valid: the rows that its UPDATEs and DELETEs change could not be"
        " identified",
        f"replace the NULLs and run alter table {member.member_sql} {validated}, or where they stay"
        f" run alter table {member.member_sql} replica identity full",
    )


def _agrees(leaf: Member, root: Member) -> bool:
    """
    Whether a leaf's old image has what its root's description promises.

    pgoutput describes the root and sends what the leaf logged. CREATE TABLE ... PARTITION OF does
    not pass the identity on.
    """
    return root.identity != "f" and leaf.key == root.key


def _other_identity(member: Member, root: Member) -> Finding:
    if member.key and member.key == root.key:
        return warning(
            "partition_identity",
            f"partition {member.member_name!r} logs the key of {root.table_name!r} only, which has"
            " replica identity FULL: old rows of the whole table come with the key only",
            f"run alter table {member.member_sql} replica identity full",
        )
    return error(
        "partition_identity",
        f"partition {member.member_name!r} has another replica identity than {root.table_name!r},"
        " under whose name its changes are sent: the rows that its UPDATEs and DELETEs change"
        " could not be identified",
        f"run alter table {member.member_sql} replica identity full, or give both the same",
    )
