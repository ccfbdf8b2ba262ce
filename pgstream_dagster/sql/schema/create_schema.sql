-- Make the schema of the objects; the outbox may have made it. No row.
create schema pgstream
