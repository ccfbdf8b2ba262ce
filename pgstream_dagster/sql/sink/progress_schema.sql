-- Makes the schema of what sinks keep in their target; run where sink/progress_exists says so.
create schema if not exists pgstream
