"""A Docker engine of a script's own, which may be killed: in a network namespace of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from killing import PATIENCE, wait_until

from vf.sandbox.container.address import Address
from vf.sandbox.container.docker_engine import Engine

LOG_LINES = 30  # of one that does not start
PANIC = "libnetwork.(*controller).reservePools"


class Dockerd:
    """A dockerd with a socket and files of its own; needs root.

    Args:
        folder: For its files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = Address(f"unix://{folder}/docker.sock")
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, again where it ends at once (as systemd would), and wait until it answers.

        Docker 20.10 does not start again after it was killed while it made a network: its record
        of that is half-written, and it panics in libnetwork's `reservePools`. An administrator has
        to remove the records, and so does this.

        Raises:
            AssertionError: It does not answer in time; with the end of its log.
        """
        deadline = time.monotonic() + PATIENCE
        self._launch()
        while not self.answers():
            if self.process is None or self.process.poll() is not None:
                if PANIC in self._log.read_text(errors="replace"):
                    shutil.rmtree(self.folder / "data" / "network", ignore_errors=True)
                self._launch()
            if time.monotonic() > deadline:
                log = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
                raise AssertionError("\n".join(["the engine does not answer; its log:", *log]))
            time.sleep(0.2)

    @property
    def _log(self) -> Path:
        return self.folder / "dockerd.log"

    def _launch(self) -> None:
        # Its containerd ended with it, and may be a zombie that still has its number.
        for name in ("pid", "exec/containerd/containerd.pid"):
            (self.folder / name).unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    # In a network of its own: without a bridge it would remove the machine's.
                    *("unshare", "--net", "dockerd"),
                    *("--host", str(self.address), "--data-root", f"{self.folder}/data"),
                    *("--exec-root", f"{self.folder}/exec", "--pidfile", f"{self.folder}/pid"),
                    *("--bridge", "none", "--iptables=false", "--ip-masq=false"),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def answers(self) -> bool:
        """Return whether it does."""
        with contextlib.suppress(Exception), self.connected():
            return True
        return False

    @contextlib.contextmanager
    def connected(self) -> Iterator[Engine]:
        """Connect to it."""
        engine = Engine.connect(self.address)
        try:
            yield engine
        finally:
            engine.close()

    def kill(self, *, alone: bool) -> None:
        """Kill it alone, or with all that it runs, as a machine that loses power would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        if not alone:
            wait_until(self._nothing_runs, "all that the engine ran is gone")
            self._unmount()
            shutil.rmtree(self.folder / "exec", ignore_errors=True)  # /run, after a restart

    def _nothing_runs(self) -> bool:
        left = self.processes()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    def _unmount(self) -> None:
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            place = line.split()[1]
            if place.startswith(str(self.folder)):
                subprocess.run(["umount", "--lazy", place], check=False)

    def processes(self) -> list[int]:
        """Return what it has started, containers too."""
        lines: dict[int, str] = {}
        parents: dict[int, int] = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    pid = int(folder.name)
                    lines[pid] = (folder / "cmdline").read_bytes().decode(errors="replace")
                    stat = (folder / "stat").read_text().rpartition(")")[2].split()
                    parents[pid] = int(stat[1]) if stat[0] not in "ZX" else 0
        ours = {
            pid
            for pid, line in lines.items()
            if str(self.folder) in line and ("containerd" in line or "dockerd" in line)
        }
        while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
            ours |= more
        return [pid for pid in ours if parents[pid] and pid != os.getpid()]

    def holds(self) -> dict[str, list[str]]:
        """Return the names of what it holds."""
        with self.connected() as engine:
            images = engine.call_now("images")
            volumes = engine.call_now("volumes").get("Volumes") or []
            containers = engine.call_now("containers", all=True)
            return {
                # One that the engine lost halfway, when it was killed, has no name any more.
                "containers": [(each.get("Names") or [each["Id"]])[0] for each in containers],
                "networks": sorted(n["Name"] for n in engine.call_now("networks")),
                "volumes": sorted(v["Name"] for v in volumes),
                "images": sorted(tag for i in images for tag in i["RepoTags"] or [i["Id"]]),
            }
