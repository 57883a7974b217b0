"""What both engines made of HTTP servers share: connections, retries, the choice of a server, counters and settings.

A 429 is recognised in `client.py` (`classify_status`) and retried in `retry_policy.py` (`RetryPolicy`).
"""
