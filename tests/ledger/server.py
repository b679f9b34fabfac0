"""A private PostgreSQL server in a temporary folder; nothing is installed."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def find_binaries() -> Path | None:
    """Return the folder of the PostgreSQL server programs, or None if they are not installed."""
    folders = [
        *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True),
        *map(Path, os.environ.get("PATH", "").split(os.pathsep)),
    ]
    needed = ("initdb", "pg_ctl", "createdb")
    return next(
        (folder for folder in folders if all((folder / name).exists() for name in needed)), None
    )


class Server:
    """A PostgreSQL server that starts on construction.

    If the tests run as root, the server runs as `postgres`, because initdb refuses root.
    """

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
        self._prefix = []
        if os.geteuid() == 0:
            pwd.getpwnam("postgres")
            shutil.chown(self._folder, "postgres")
            self._prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._run("initdb", "-D", "data", "-A", "trust", "-U", "holdfast", "--no-sync")
        self.start()

    def start(self) -> None:
        options = f"-p {self._port} -k {self._folder} -c listen_addresses=127.0.0.1"
        self._run("pg_ctl", "-D", "data", "-w", "-t", "60", "-l", "log", "-o", options, "start")

    def crash(self) -> None:
        """Stop immediately without saving anything; committed data must survive."""
        self._run("pg_ctl", "-D", "data", "-m", "immediate", "stop")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", "data", "-m", "fast", "stop")
        shutil.rmtree(self._folder)

    def use_tls(self, certificate: Path, key: Path) -> None:
        """Restart with TLS, by this certificate."""
        for source, name in ((certificate, "server.crt"), (key, "server.key")):
            target = self._folder / "data" / name
            shutil.copy(source, target)
            target.chmod(0o600)
            if self._prefix:
                shutil.chown(target, "postgres", "postgres")
        self.crash()
        with (self._folder / "data" / "postgresql.conf").open("a") as settings:
            settings.write("ssl = on\n")
        self.start()

    def database(self, name: str) -> str:
        """Create an empty database and return its address."""
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self._port), "-U", "holdfast", name)
        return f"postgresql://holdfast@127.0.0.1:{self._port}/{name}"

    def restored_from_dump(self, address: str, name: str) -> str:
        """Dump a database, restore the dump into a new one, and return its address."""
        copy = self.database(name)
        dump = f"{self._folder}/{name}.dump"
        self._run("pg_dump", "--format=custom", f"--file={dump}", f"--dbname={address}")
        self._run("pg_restore", f"--dbname={copy}", dump)
        return copy

    @contextmanager
    def standby(self) -> Iterator[int]:
        """Run a standby of this server, and yield its port."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        primary = ("-h", "127.0.0.1", "-p", str(self._port), "-U", "holdfast")
        self._run("pg_basebackup", "-D", "standby", "-R", "-c", "fast", "--no-sync", *primary)
        options = f"-p {port} -k {self._folder} -c listen_addresses=127.0.0.1"
        self._run("pg_ctl", "-D", "standby", "-w", "-l", "standby.log", "-o", options, "start")
        try:
            yield port
        finally:
            self._run("pg_ctl", "-D", "standby", "-m", "immediate", "stop")
            shutil.rmtree(self._folder / "standby")

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._prefix, str(self._binaries / program), *arguments]
        done = subprocess.run(
            command,
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stdout}")
