"""The entry of every seed script: one line for a wrong request or Ctrl-C, and no process left behind."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from layermark.errors import Unsupported, UserError, WorkerFailed

WRONG_REQUEST = 2
FAILED = 1
INTERRUPTED = 130
BROKEN_PIPE = 141
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""Errors of a disk that is full or broken; others of this kind may be faults of ours."""


def main(name: str, file: str, argv: Sequence[str] | None = None) -> int:
    """Run the script of this name, which lies in this file, and return its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        _end_like_interrupted()
        return _run(name, Path(file), given)
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(f"{Path(file).name}: interrupted; what was not finished is not kept", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except OSError as error:
        if error.errno not in _DISK:
            raise
        _drop_output()
        where = f" {error.filename}" if error.filename else ""
        print(f"{Path(file).name}: error: cannot write{where}: {error.strerror}; free some space", file=sys.stderr)
        return FAILED
    except SystemExit as stop:
        return int(stop.code or 0)
    except (UserError, Unsupported, WorkerFailed) as error:
        print(f"{Path(file).name}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return WRONG_REQUEST if isinstance(error, UserError) else FAILED


def _end_like_interrupted() -> None:
    """SIGTERM and a closed terminal end a program the way Ctrl-C does; a SIGHUP that nohup ignores stays ignored."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.default_int_handler)


def _drop_output() -> None:
    """Python flushes stdout once more when it ends; without this it would complain there."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(name: str, file: Path, argv: list[str]) -> int:
    if name.split("/")[0].endswith("_cnns"):
        from layermark.seeds.cnns import launch
    else:
        from layermark.seeds.layers import launch
    return launch(name, file, argv)
