"""Models that run elsewhere: an `Engine` made of SGLang servers.

A branch is ids in one HTTP request and ids in its reply. Sharing of prefixes is left to the servers' own cache, so the
branches of a problem stay with one server; what was under way on a server that dies is asked of another one.
"""
