"""Runs one program and then its tests under limits: the child process of `programs.py`.

Run as a file in a process of its own, so it imports nothing of ours. What it runs was written by a model: it may do
whatever the user may do. The limits are against accidents, not against intent.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
import types


def main() -> None:
    """Reads a job from the input; writes one line to the output: why the program failed, or the job's password."""
    job = json.loads(sys.stdin.readline())
    report = os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # what a program prints is not read as a report
        os.dup2(nothing, descriptor)
    limit_resources(job["memory_bytes"], job["seconds"])
    report.write(json.dumps(run_tests(job["parts"], job["password"])))
    report.flush()
    os._exit(0)  # threads that the program began end here


def limit_resources(memory_bytes: int, seconds: int) -> None:
    """Limits memory, processor time and the size of files of this process and its children, each by itself."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 24, 1 << 24))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def run_tests(parts: dict[str, str], password: str) -> dict[str, str]:
    """Runs the parts in one module, in order; their names are shown in errors.

    Returns `passed` with the password, which a program that ends the process does not reach; else `failed`.
    """
    module = sys.modules["candidate"] = types.ModuleType("candidate")  # dataclasses look up the module of a class
    try:
        for name, text in parts.items():
            # this file has `annotations` from `__future__`, a program only where it says so
            exec(compile(text, name, "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:  # SystemExit too: leaving is not passing
        return {"failed": describe_error(error, parts)}
    return {"passed": password}


def describe_error(error: BaseException, parts: dict[str, str]) -> str:
    """Returns the kind of an error, its text, and the last line of these parts in which it was raised."""
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in parts]
    place = f" ({places[-1].filename}, line {places[-1].lineno})" if places else ""
    text = str(error).partition("\n")[0][:200]
    return f"{type(error).__name__}{': ' if text else ''}{text}{place}"


if __name__ == "__main__":
    main()
