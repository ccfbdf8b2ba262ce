-- A UUID of version 7: the time in milliseconds, then random bits. No row. Before Postgres 18: a
-- random UUID whose first 48 bits are replaced; bits 52 and 53 turn its version 4 into 7. Without
-- `set`, so that the planner puts the expression in the place of the call.
create or replace function pgstream.uuid_v7() returns uuid
language sql volatile parallel safe
return pg_catalog.encode(
    pg_catalog.set_bit(
        pg_catalog.set_bit(
            pg_catalog.overlay(
                pg_catalog.uuid_send(pg_catalog.gen_random_uuid()),
                pg_catalog.substring(
                    pg_catalog.int8send(
                        (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::bigint
                    ),
                    3
                ),
                1, 6
            ),
            52, 1
        ),
        53, 1
    ),
    'hex'
)::uuid
