"""Finds and removes what a stage of tests left behind."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from results import Test

STOP_SECONDS = 60
# Namespaces and control groups of tests: the names have the process ids of the tests.
OF_TEST = re.compile(r"skep-test-(\d+)-")


def remove(temporary, target):
    """Removes what tests left, with the processes that still use it, and returns a failure for each."""
    left = sorted([*filter(is_of_test, temporary.iterdir()), *target.glob("skep-test-*")])
    contents = [(path, content_of(path)) for path in left]
    folders = [(path, remove_one(path, content)) for path, content in contents if content is not None]
    outside = remove_outside() if os.geteuid() == 0 else []
    return [Test(f"left behind: {path}", 0.0, "failed", text) for path, text in folders + outside]


def remove_outside():
    """Removes what only root's tests make outside of their folders."""
    namespaces = [path for path in Path("/run/netns").glob("skep-test-*") if has_ended(path)]
    groups = [path for path in Path("/sys/fs/cgroup").glob("**/skep-test-*") if has_ended(path)]
    return [(path, remove_namespace(path)) for path in namespaces] + [(path, remove_group(path)) for path in groups]


def is_of_test(path):
    # The folder of all workers of a user stays. Chromium leaves files of its own.
    is_shared = path.name.startswith("skep-tickets") and not any(path.iterdir())
    return not is_shared and not path.name.startswith(".org.chromium.")


def has_ended(path):
    """Whether it is of a test that has ended."""
    match = OF_TEST.match(path.name)
    return match is not None and not Path("/proc", match[1]).exists()


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
        cleaned = "".join(clean(folder) for folder in folders_with_resources(path)).strip()
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    return f"it held: {content}\nprocesses: {stopped or 'none'}\ndoctor --clean: {cleaned or 'nothing'}"


def folders_with_resources(path):
    """The folder, and each data directory or image directory below it. An image directory has a lock."""
    below = (Path(folder) for folder, folders, files in os.walk(path) if "keeper" in folders or ".lock" in files)
    return {path, *below}


def clean(folder):
    """Removes what a server or a bake with this folder left elsewhere on the machine."""
    binary = os.environ.get("SKEP_BINARY", Path(__file__).resolve().parents[2] / "target/release/skep")
    doctor = [binary, "doctor", "--clean", "--data-dir", folder, "--image-dir", folder]
    ran = subprocess.run(doctor, capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr


def remove_namespace(path):
    listed = subprocess.run(["ip", "netns", "pids", path.name], capture_output=True, text=True, check=False)
    pids = listed.stdout.split()
    kill(pids)
    subprocess.run(["ip", "netns", "delete", path.name], check=False)
    return f"processes: {', '.join(pids) or 'none'}"


def remove_group(path):
    pids = [pid for procs in path.glob("**/cgroup.procs") for pid in procs.read_text().split()]
    kill(pids)
    for _ in range(STOP_SECONDS * 10):
        for folder, _, _ in os.walk(path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        if not path.exists():
            break
        time.sleep(0.1)
    return f"processes: {', '.join(pids) or 'none'}"


def kill(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def stop_processes(path):
    """Interrupts the processes whose command line names the path, kills those that do not end, and returns their lines."""
    first = processes(path)
    for chosen, wait in [(signal.SIGINT, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)]:
        for pid in processes(path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, chosen)
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
