"""Measures the Git API of a running server beside the command `git`, in turns, on a large repository and a small one.

    git.py URL KEY_FILE
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from http_client import KeepAliveClient

FILES = int(os.environ.get("REPOSITORY_FILES", "50000"))
COMMITS = int(os.environ.get("REPOSITORY_COMMITS", "5000"))
ROUNDS = int(os.environ.get("ROUNDS", "9"))


def took_ms(work, times):
    """One time of a row of them."""
    begun = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - begun) * 1000 / times


def make_repository(path, files, commits):
    """All files with the first commit; each later one changes ten of them. Made by fast-import, in seconds."""
    subprocess.run(["git", "init", "-q", "-b", "main", path], check=True)
    stream = subprocess.Popen(["git", "-C", path, "fast-import", "--quiet"], stdin=subprocess.PIPE)

    def say(text):
        stream.stdin.write(text.encode())

    def commit(number, changed):
        message = f"Change {number}\n\nThe reason of change {number}.\n"
        say(f"commit refs/heads/main\ncommitter A Person <person@example.org> {1_600_000_000 + number} +0000\n")
        say(f"data {len(message)}\n{message}\n")
        for file in changed:
            text = f"file {file}\nchange {number}\n" + "line\n" * (file % 40)
            say(f"M 100644 inline d{file % 250}/f{file}.txt\ndata {len(text)}\n{text}\n")

    commit(0, range(files))
    for number in range(1, commits):
        commit(number, [(number * 10 + step) % files for step in range(10)])
    stream.stdin.close()
    if stream.wait() != 0:
        sys.exit("git: the repository could not be made")
    subprocess.run(["git", "-C", path, "checkout", "-q", "-f", "main"], check=True)
    for number in range(20):
        (path / f"d{number % min(250, files)}" / f"f{number}.txt").write_text("changed in the work tree\n")
    (path / "untracked.txt").write_text("new\n")
    subprocess.run(["git", "-C", path, "branch", "other"], check=True)


def touch_files(path):
    """Gives all files a new time, so that git has to read each."""
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name != ".git"]
        for name in names:
            os.utime(os.path.join(folder, name))


def give_to_owner(path, root):
    owner = os.stat(root)
    for folder, _, names in os.walk(path):
        for name in [folder, *(os.path.join(folder, name) for name in names)]:
            os.chown(name, owner.st_uid, owner.st_gid)


def main():
    skep = KeepAliveClient(sys.argv[1], pathlib.Path(sys.argv[2]).read_text().strip())
    root = pathlib.Path(json.loads(skep.send(skep.request("GET", "/api/whoami")))["roots"][0])

    def git(path, *words):
        # As skep runs it: a reading git does not write the index.
        words = ["git", "--no-optional-locks", "-c", "safe.directory=*", "-C", path, *words]
        subprocess.run(words, stdout=subprocess.DEVNULL, check=True)

    for name, files, commits, times in [("large", FILES, COMMITS, 1), ("small", 20, 20, 20)]:
        path = root / name
        make_repository(path, files, commits)
        give_to_owner(path, root)
        git(path, "update-index", "-q", "--refresh")
        print(f"\n==> {files} files, {commits} commits, {times} calls a turn", flush=True)
        status = ("status", "--porcelain=v2", "--branch", "--untracked-files=all")
        for title, ours, theirs, prepare in [
            ("log, 50", ("log", {"limit": 50}), ("log", "-50", "--format=fuller"), None),
            ("branch", ("branch", {}), ("branch", "-vv"), None),
            ("diff", ("diff", {}), ("diff",), None),
            ("status", ("status", {}), status, None),
            ("diff, all files touched", ("diff", {}), ("diff",), touch_files),
            ("status, all files touched", ("status", {}), status, touch_files),
        ]:
            request = skep.request("GET", f"/api/git/{ours[0]}", path=path, **ours[1])
            calls = [lambda: skep.send(request), lambda: git(path, *theirs)]
            pairs = []
            # The first turn only fills caches.
            for _ in range(ROUNDS + 1):
                pair = []
                for call in calls:
                    if prepare:
                        prepare(path)
                    pair.append(took_ms(call, times))
                pairs.append(pair)
            pairs = pairs[1:]
            our, their = (statistics.median(column) for column in zip(*pairs))
            ratio = statistics.median(a / b for a, b in pairs)
            print(f"{title:<26} {our:8.2f} ms   beside git {their:8.2f} ms   x {ratio:.2f}", flush=True)


main()
