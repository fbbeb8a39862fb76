"""The entry of every seed script: one line for a wrong request or Ctrl-C, and no process left behind."""

from __future__ import annotations

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


def main(name: str, file: str, argv: Sequence[str] | None = None) -> int:
    """Run the script of this name, which lies in this file, and answer its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return _run(name, Path(file), given)
    except KeyboardInterrupt:
        print(f"{Path(file).name}: interrupted; what was not finished is not kept", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more when it ends; without this it would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except SystemExit as stop:
        return int(stop.code or 0)
    except (UserError, Unsupported, WorkerFailed) as error:
        print(f"{Path(file).name}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return WRONG_REQUEST if isinstance(error, UserError) else FAILED


def _run(name: str, file: Path, argv: list[str]) -> int:
    if name.split("/")[0].endswith("_cnns"):
        from layermark.seeds.cnns import launch
    else:
        from layermark.seeds.layers import launch
    return launch(name, file, argv)
