"""What both engines made of HTTP servers share: connections, limits, retries, the choice of a server, counters.

Every reply is read in `bounded_http.py`. A 429 is recognised in `client.py` (`classify_status`) and retried in
`retry_policy.py` (`RetryPolicy`).
"""
