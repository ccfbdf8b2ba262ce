-- The version of the outbox. One row.
select v.version
from pgstream.outbox_version as v
