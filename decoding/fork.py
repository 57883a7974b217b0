"""Refuses, in a forked process, what runs in threads of its parent.

A fork copies all memory but only the thread that forks. In the copy no worker thread answers, and a lock that another
thread held stays locked: waiting for either would never end.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class ForkGuard:
    """Tells the process whose threads an object uses from forks of it.

    The process is the one of the first `claim_process`: an object that has started no thread may be used in a fork.
    """

    def __init__(self) -> None:
        self._pid: int | None = None

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one with the threads."""
        return self._pid is not None and self._pid != os.getpid()

    def claim_process(self) -> None:
        """Makes this process the one with the threads, unless one is. Called before the first lock is taken.

        *Mutates*. Raises: RuntimeError in a fork of that process.
        """
        if self.is_forked:
            raise RuntimeError(
                f"this solver or engine runs in threads of process {self._pid}, and this is process {os.getpid()}, "
                "a fork of it: threads do not survive a fork. Open a solver here, or start the process with "
                "multiprocessing's 'spawn' method"
            )
        self._pid = os.getpid()


class LazyProperty(Generic[T]):
    """Computes an attribute when it is first read, as `functools.cached_property` does, but without a lock.

    That of Python 3.11 is one for all instances: in a fork made while another thread computes, it stays taken. Threads
    that read at once may both compute. *Mutates* the instance: its `__dict__` has the value from then on.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._function(instance)
        return value
