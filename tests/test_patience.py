"""What may pass is waited out, within bounds; all else is told at once."""

import errno
import logging

import pytest

from agentrl.patience import is_full, patiently


def failing(*errors: Exception):
    """Raises these, by turns, and returns its number of tries after that."""
    tries: list[int] = []

    def write() -> int:
        tries.append(1)
        if len(tries) <= len(errors):
            raise errors[len(tries) - 1]
        return len(tries)

    return write


FULL = OSError(errno.ENOSPC, "No space left on device")
QUOTA = OSError(errno.EDQUOT, "Disk quota exceeded")


def test_it_is_tried_until_it_works_and_said_once(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        assert patiently(failing(FULL, QUOTA), passes=is_full, limit_s=30) == 3
    assert caplog.messages == ["[Errno 28] No space left on device; it is tried again for 30 s"]


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "no"), ValueError("no")])
def test_what_does_not_pass_is_raised_at_once(error: Exception):
    write = failing(error, FULL)
    with pytest.raises(type(error)):
        patiently(write, passes=is_full, limit_s=30)
    with pytest.raises(OSError, match="No space left"):
        write()


def test_the_last_error_is_raised_when_the_time_is_over():
    with pytest.raises(OSError, match="quota exceeded"):
        patiently(failing(QUOTA), passes=is_full, limit_s=0)
