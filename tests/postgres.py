"""A PostgreSQL server of the tests' own: in a temporary folder, on a socket there, without TCP."""

import glob
import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

USER = "postgres"


def program(name):
    """The path of one of the server's programs, or None; Debian keeps them off the path."""
    kept = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), key=lambda path: float(Path(path).parts[-3]))
    return shutil.which(name) or (kept[-1] if kept else None)


@contextmanager
def server():
    """A running server; gives the folder of its socket. It refuses to run as root, so root lends it a user."""
    owner = pwd.getpwnam(USER) if os.getuid() == 0 else pwd.getpwuid(os.getuid())
    # Not the tests' own folder: the path of a socket must be short, and the folders above readable for that user.
    folder = Path(tempfile.mkdtemp(prefix="lm-pg-"))
    os.chown(folder, owner.pw_uid, owner.pw_gid)
    try:
        # Nothing here outlives the tests, so it need not reach the disk.
        options = f"-c listen_addresses= -c fsync=off -c unix_socket_directories={folder}"
        tell(owner, "initdb", "-D", folder / "data", "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync")
        tell(owner, "pg_ctl", "-D", folder / "data", "-w", "-l", folder / "log", "-o", options, "start")
        try:
            yield folder
        finally:
            tell(owner, "pg_ctl", "-D", folder / "data", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


def tell(owner, name, *arguments):
    """Run one of the server's programs as its owner."""
    command = [program(name), *map(str, arguments)]
    identity = {"user": owner.pw_uid, "group": owner.pw_gid} if os.getuid() == 0 else {}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/", **identity
    )
    assert done.returncode == 0, done.stderr.decode()
