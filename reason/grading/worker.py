"""Compares pairs of answers with math-verify, one JSON line in, one out: the child process of `process.py`.

Run as a file in a process of its own, so it imports nothing of ours. It may hang, run out of memory or
crash on any pair; the parent process then kills it and starts another. The limits below hold if the parent
no longer exists.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable

MEMORY_BYTES = 2 << 30


def main() -> None:
    """Writes one `ready` line, then replies until its input ends."""
    sys.path.extend(json.loads(sys.argv[1]))
    alarm_s = int(sys.argv[2])
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # parsers print; their output must not be read as a reply

    def write_reply(**reply: object) -> None:
        replies.write(json.dumps(reply) + "\n")

    try:
        equal = load_math_verify()
    except Exception as error:
        write_reply(error=f"{type(error).__name__}: {error}")
        return
    limit_memory()
    write_reply(ready=True)
    for line in sys.stdin:
        gold, answer = json.loads(line)
        set_alarm(alarm_s)  # not handled, so the kernel ends us even inside a C call
        try:
            same = equal(gold, answer)
        except Exception as error:
            write_reply(error=f"{type(error).__name__} in math-verify")
        else:
            set_alarm(0)
            if not same and peak_bytes() > MEMORY_BYTES // 2:  # math-verify takes MemoryError for "not equal"
                write_reply(error="the comparison needed too much memory")
            else:
                write_reply(equal=same)
        set_alarm(0)
        if peak_bytes() > MEMORY_BYTES // 2:
            return


def load_math_verify() -> Callable[[str, str], bool]:
    """Returns the comparison, with warm grammars and caches; its time limits are off, since the parent has one."""
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)

    def equal(gold: str, answer: str) -> bool:
        parsed = [parse(f"${side}$", parsing_timeout=None) for side in (gold, answer)]
        return bool(verify(*parsed, timeout_seconds=None))  # not symmetric: gold comes first

    equal(r"\frac{\sqrt{2}}{2}", "1/2")
    return equal


def set_alarm(seconds: int) -> None:
    """Ends this process after so many seconds; 0 cancels. Does nothing where the system has no alarms."""
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


def limit_memory() -> None:
    """Makes huge allocations fail in this process instead of exhausting the machine."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    except (ImportError, ValueError, OSError):
        return


def peak_bytes() -> int:
    """Returns the peak memory of this process, 0 where unknown."""
    try:
        with open("/proc/self/status") as status:  # `getrusage` would start with the peak of the parent
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main()
