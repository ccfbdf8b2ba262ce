-- Make all that is generated what the subscriptions say. One row.
select pgstream.repair()
