"""What holds for all tests."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Generator

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """What a runner's shell ignores for programs in the background is not ignored by the programs under test."""
    config.addinivalue_line("markers", "alone: no test of another worker runs beside it")
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Tests run beside those of other workers, and wait while one that is marked `alone` runs or wants to run.

    Around pytest-timeout's own: time that is spent waiting does not count.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    run = item.config._tmp_path_factory.getbasetemp().parent  # type: ignore[attr-defined]
    with (run / "door").open("w") as door, (run / "room").open("w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)  # who waits to be alone keeps others from entering
        fcntl.flock(room, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        return (yield)
