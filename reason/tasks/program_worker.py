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


def main() -> None:
    """Reads a job from the input; writes one line to the output: why the program failed, or the job's password."""
    job = json.loads(sys.stdin.readline())
    report = os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # what a program prints is not read as a report
        os.dup2(nothing, descriptor)
    limit_resources(job["memory_bytes"], job["seconds"])
    report.write(json.dumps(run_tests(job["program"], job["tests"], job["password"])))
    report.flush()
    os._exit(0)  # threads that the program began end here


def limit_resources(memory_bytes: int, seconds: int) -> None:
    """Limits memory, processor time and the size of files of this process and its children, each by itself."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 24, 1 << 24))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def run_tests(program: str, tests: str, password: str) -> dict[str, str]:
    """Returns `passed` with the password, which a program that ends the process does not reach; else `failed`."""
    names: dict[str, object] = {"__name__": "candidate"}
    try:
        for part, text in (("program", program), ("tests", tests)):
            exec(compile(text, part, "exec"), names)
    except BaseException as error:  # SystemExit too: leaving is not passing
        return {"failed": describe_error(error)}
    return {"passed": password}


def describe_error(error: BaseException) -> str:
    """Returns the kind of an error, its text, and the last line of program or tests in which it was raised."""
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in ("program", "tests")]
    place = f" ({places[-1].filename}, line {places[-1].lineno})" if places else ""
    text = str(error).partition("\n")[0][:200]
    return f"{type(error).__name__}{': ' if text else ''}{text}{place}"


if __name__ == "__main__":
    main()
