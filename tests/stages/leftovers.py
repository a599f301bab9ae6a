"""Finds and removes what a stage of tests left behind."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from results import Test

STOP_SECONDS = 60


def remove(temporary, target):
    """Removes each folder that tests left, with the server that still runs on it, and returns a failure for each."""
    left = sorted([*filter(is_of_test, temporary.iterdir()), *target.glob("skep-test-*")])
    contents = [(path, content_of(path)) for path in left]
    return [
        Test(f"left behind: {path.name}", 0.0, "failed", remove_one(path, content))
        for path, content in contents
        if content is not None
    ]


def is_of_test(path):
    # The folder of all workers of a user stays. Chromium leaves files of its own.
    is_shared = path.name.startswith("skep-tickets") and not any(path.iterdir())
    return not is_shared and not path.name.startswith(".org.chromium.")


def content_of(path):
    """What is there, or None where a test that was interrupted has removed it meanwhile."""
    try:
        if path.is_dir():
            return ", ".join(sorted(entry.name for entry in path.iterdir()))
        return f"{path.lstat().st_size} bytes"
    except FileNotFoundError:
        return None


def remove_one(path, content):
    """Returns what was there."""
    stopped = stop_processes(path)
    cleaned = ""
    if path.is_dir():
        binary = os.environ.get("SKEP_BINARY", Path(__file__).resolve().parents[2] / "target/release/skep")
        doctor = [binary, "doctor", "--clean", "--data-dir", path, "--image-dir", path]
        ran = subprocess.run(doctor, capture_output=True, text=True, check=False)
        cleaned = (ran.stdout + ran.stderr).strip()
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    return f"it held: {content}\nprocesses: {stopped or 'none'}\ndoctor --clean: {cleaned or 'nothing'}"


def stop_processes(path):
    """Interrupts the processes whose command line names the path, kills those that do not end, and returns their lines."""
    first = processes(path)
    for chosen, wait in [(signal.SIGINT, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)]:
        for pid in processes(path):
            try:
                os.kill(pid, chosen)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + wait
        while processes(path) and time.monotonic() < deadline:
            time.sleep(0.1)
    return "; ".join(f"{pid} {line}" for pid, line in first.items())


def processes(path):
    """The processes whose command line names the path, by their ids."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            if str(path) in line:
                found[int(entry.name)] = line[:200]
    return found
