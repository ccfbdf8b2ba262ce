"""
What all readers of the change log share.

A position in the log goes in; batches of whole transactions come out: from the tail near the end
of the log, from a Spark job far behind it. Knows no target. May import `changelog` and below.
Read `unread`, `log_reader`, then `change_reader`.
"""
