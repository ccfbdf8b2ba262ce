"""
From the change log to HTTP endpoints: each subscription is a reader of its own.

Batches of changes go in; signed POST requests (Standard Webhooks) go out, in order. Subscriptions
come from the pipeline file, or from a table on the source that a small server writes. May import
`source` (for the table) and `readers`. Read `subscription`, `signing`, `addresses`, `redaction`,
`transport`, `answers`, `order`, `history`, `delivery`; then `subscriptions` and `server`.
"""
