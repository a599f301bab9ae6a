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


def give_to_owner(path, root):
    owner = os.stat(root)
    for folder, _, names in os.walk(path):
        for name in [folder, *(os.path.join(folder, name) for name in names)]:
            os.chown(name, owner.st_uid, owner.st_gid)


def main():
    skep = KeepAliveClient(sys.argv[1], pathlib.Path(sys.argv[2]).read_text().strip())
    root = pathlib.Path(json.loads(skep.send(skep.request("GET", "/api/whoami")))["roots"][0])

    def git(path, *words):
        words = ["git", "-c", "safe.directory=*", "-C", path, *words]
        subprocess.run(words, stdout=subprocess.DEVNULL, check=True)

    for name, files, commits, times in [("large", FILES, COMMITS, 1), ("small", 20, 20, 20)]:
        path = root / name
        make_repository(path, files, commits)
        give_to_owner(path, root)
        git(path, "status")
        print(f"\n==> {files} files, {commits} commits, {times} calls a turn", flush=True)
        for title, ours, theirs in [
            ("log, 50", ("log", {"limit": 50}), ("log", "-50", "--format=fuller")),
            ("branch", ("branch", {}), ("branch", "-vv")),
            ("diff", ("diff", {}), ("diff",)),
            ("status", ("status", {}), ("status", "--porcelain=v2", "--branch", "--untracked-files=all")),
        ]:
            request = skep.request("GET", f"/api/git/{ours[0]}", path=path, **ours[1])
            call = lambda: skep.send(request)
            command = lambda: git(path, *theirs)
            call(), command()
            pairs = [(took_ms(call, times), took_ms(command, times)) for _ in range(ROUNDS)]
            our, their = (statistics.median(column) for column in zip(*pairs))
            ratio = statistics.median(a / b for a, b in pairs)
            print(f"{title:<10} {our:8.2f} ms   beside git {their:8.2f} ms   x {ratio:.2f}", flush=True)


main()
