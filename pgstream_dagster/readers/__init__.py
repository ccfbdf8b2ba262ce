"""
What everything that follows the change log shares.

A position in the log goes in; batches of whole transactions come out, from the tail near the end
of the log and by a Spark job far behind it. Knows no target. May import `changelog` and below.
Read `log_reader`.
"""
