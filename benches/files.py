"""Measures the files of a running server, each figure beside what a user would pick instead, in turns.

    files.py URL KEY_FILE PID        PID: the server, or the keeper that started it
"""

import http.client
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse

from http_client import KeepAliveClient

TREE_FILES = int(os.environ.get("TREE_FILES", "100000"))
LARGE_MIB = int(os.environ.get("LARGE_MIB", "1024"))
ROUNDS = int(os.environ.get("ROUNDS", "9"))
RAW = {"Accept": "application/octet-stream"}
PIECE = 1 << 18


class Skep:
    """One connection that is kept, as clients keep theirs."""

    def __init__(self, url, key):
        self.address = urllib.parse.urlsplit(url)
        self.key = key
        self.connection = http.client.HTTPConnection(self.address.hostname, self.address.port)

    def ask(self, method, route, /, body=None, headers=None, **query):
        query = {name: value for name, value in query.items() if value is not None}
        target = f"{route}?{urllib.parse.urlencode(query)}" if query else route
        headers = {"Authorization": f"Bearer {self.key}", **(headers or {})}
        if isinstance(body, dict):
            body, headers["Content-Type"] = json.dumps(body), "application/json"
        self.connection.request(method, target, body, headers)
        answer = self.connection.getresponse()
        if answer.status >= 300:
            sys.exit(f"files: {method} {target}: {answer.status} {answer.read(2000)}")
        return answer

    def json(self, method, route, /, body=None, **query):
        return json.loads(self.ask(method, route, body, **query).read())

    def drain(self, answer):
        size = 0
        while piece := answer.read(PIECE):
            size += len(piece)
        return size


def server_of(pid):
    """The process that serves: the child of the keeper that was begun with it."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else pid


def resident_mib(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def took_ms(work):
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1000


def beside(title, ours, theirs, rounds=ROUNDS, unit="ms"):
    """In turns, so that whatever else the machine does meets both."""
    ours(), theirs()
    pairs = [(took_ms(ours), took_ms(theirs)) for _ in range(rounds)]
    our, their = (statistics.median(column) for column in zip(*pairs))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"{title:<44} {our:9.2f} {unit}   beside {their:9.2f} {unit}   x {ratio:.2f}", flush=True)


def own_as(path, like):
    """Gives what was made to whom the workspace belongs."""
    owner = os.stat(like)
    for folder, _, files in os.walk(path):
        os.chown(folder, owner.st_uid, owner.st_gid)
        for file in files:
            os.chown(os.path.join(folder, file), owner.st_uid, owner.st_gid)


def make_tree(root):
    numbers = random.Random(1)
    words = [f"word{number}" for number in range(2000)]
    for number in range(TREE_FILES):
        folder = root / f"part{number % 100:02}" / f"unit{number // 100 % 20:02}"
        if number < 2000:
            folder.mkdir(parents=True, exist_ok=True)
        ending = "toml" if number % 200 == 7 else "rs"
        lines = [" ".join(numbers.choices(words, k=8)) for _ in range(30)]
        if number % 500 == 3:
            lines[17] = "the needle_in_it is here"
        (folder / f"file{number}.{ending}").write_text("\n".join(lines) + "\n")


def searches(skep, root):
    print(f"\n==> {TREE_FILES} files", flush=True)
    tree = root / "tree"
    make_tree(tree)
    own_as(tree, root)

    def run(*words):
        subprocess.run(words, stdout=subprocess.DEVNULL, check=True)

    def search(pattern):
        found = skep.json("GET", "/api/files/search", path=tree, pattern=pattern, limit=1000)
        assert not found["truncated"] and len(found["matches"]) == TREE_FILES // 200, len(found["matches"])

    def grep(pattern):
        found = skep.json("GET", "/api/files/grep", path=tree, pattern=pattern, limit=1000)
        assert not found["truncated"] and len(found["matches"]) == TREE_FILES // 500, len(found["matches"])

    beside("search *.toml, beside fd", lambda: search("*.toml"),
           lambda: run("fdfind", "--unrestricted", "--glob", "*.toml", tree))
    beside("search _?\\.toml$, beside fd", lambda: search(r"\d\.toml$"),
           lambda: run("fdfind", "--unrestricted", r"\d\.toml$", tree))
    beside("grep a word, beside rg", lambda: grep("needle_in_it"),
           lambda: run("rg", "-uu", "--line-number", "needle_in_it", tree))
    beside("grep a regex, beside rg", lambda: grep(r"needle_\w+ is"),
           lambda: run("rg", "-uu", "--line-number", r"needle_\w+ is", tree))
    shutil.rmtree(tree)


def large_reads(skep, root, pid):
    print(f"\n==> one file of {LARGE_MIB} MiB, raw", flush=True)
    large = root / "large"
    with large.open("wb") as file:
        for _ in range(LARGE_MIB):
            file.write(os.urandom(1 << 20))
    os.chmod(large, 0o644)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        port = 17700 + os.getpid() % 1000
        config = pathlib.Path(folder) / "nginx.conf"
        config.write_text(
            f"daemon off; pid {folder}/pid; error_log {folder}/error; worker_processes auto;\n"
            f"events {{}} http {{ access_log off; sendfile on; server {{ listen 127.0.0.1:{port}; "
            f"location / {{ root {root}; }} }} }}\nuser root;\n")
        nginx = subprocess.Popen(["nginx", "-p", folder, "-c", config])
        try:
            wait_for(port)
            address = f"http://{skep.address.netloc}/api/files/read?" + urllib.parse.urlencode({"path": large})
            curl = ["curl", "-sf", "-o", "/dev/null"]
            key = ["-H", f"Authorization: Bearer {skep.key}", "-H", "Accept: application/octet-stream"]
            before = resident_mib(pid)
            beside("one reader, beside nginx",
                   lambda: subprocess.run([*curl, *key, address], check=True),
                   lambda: subprocess.run([*curl, f"http://127.0.0.1:{port}/large"], check=True), rounds=5)
            print(f"memory of the server: {before:.1f} MiB before, {resident_mib(pid):.1f} MiB after", flush=True)
        finally:
            nginx.terminate()
            nginx.wait()
    large.unlink()


def wait_for(port):
    for _ in range(100):
        try:
            http.client.HTTPConnection("127.0.0.1", port, timeout=1).connect()
            return
        except OSError:
            time.sleep(0.05)
    sys.exit("files: nginx did not start")


def small_reads(skep, root):
    print("\n==> small reads, 1 KiB", flush=True)
    (root / "small").write_bytes(b"x" * 1023 + b"\n")
    os.chmod(root / "small", 0o644)
    address = f"http://{skep.address.netloc}/api/files/read?" + urllib.parse.urlencode({"path": root / "small"})
    for title, more in [("as JSON", []), ("raw", ["-H", "Accept: application/octet-stream"])]:
        words = ["wrk", "-t1", "-c32", "-d5s", "-H", f"Authorization: Bearer {skep.key}", *more, address]
        out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        lines = [line.strip() for line in out.splitlines() if "Requests/sec" in line or "Non-2xx" in line]
        print(f"{title:<44} {'; '.join(lines)} (load beside it)", flush=True)


def durable_writes(kept, root):
    print("\n==> durable writes, 4 KiB each, 100 a round", flush=True)
    content = "y" * 4095 + "\n"
    bare = root / "bare"
    bare.mkdir()
    bodies = [{"path": f"{root}/ours/{number}", "content": content} for number in range(100)]
    requests = [kept.request("POST", "/api/files/write", body) for body in bodies]

    def ours():
        for request in requests:
            kept.send(request)

    def theirs():
        for number in range(100):
            with open(bare / "new", "wb") as file:
                file.write(content.encode())
                file.flush()
                os.fsync(file.fileno())
            os.rename(bare / "new", bare / str(number))
            folder = os.open(bare, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)

    beside("POST /api/files/write, beside a bare loop", ours, theirs)


def in_a_vm(skep, kept, root):
    print("\n==> in a VM", flush=True)
    vm = skep.json("POST", "/api/swarm/boot", {})["vms"][0]["id"]
    skep.json("POST", "/api/files/write", {"vm": vm, "path": "/root/small", "content": "x" * 1024})
    request = kept.request("GET", "/api/files/read", path="/root/small", vm=vm)
    reads = [took_ms(lambda: kept.send(request)) for _ in range(300)]
    later = statistics.quantiles(reads[100:], n=100)
    print(f"read 1 KiB: p50 {later[49]:.2f} ms, p95 {later[94]:.2f} ms", flush=True)
    content = os.urandom(100 << 20)
    query = {"path": "/root/large", "vm": vm}
    into = took_ms(lambda: skep.ask("PUT", "/api/files/raw", content, **query).read())
    back = took_ms(lambda: skep.drain(skep.ask("GET", "/api/files/read", headers=RAW, **query)))
    print(f"100 MiB into it: {100_000 / into:.1f} MiB/s; out of it: {100_000 / back:.1f} MiB/s", flush=True)
    skep.json("DELETE", f"/api/swarm/vm/{vm}")


def main():
    url, key_file, pid = sys.argv[1:]
    key = pathlib.Path(key_file).read_text().strip()
    skep = Skep(url, key)
    root = pathlib.Path(skep.json("GET", "/api/whoami")["roots"][0])
    searches(skep, root)
    large_reads(skep, root, server_of(int(pid)))
    small_reads(skep, root)
    kept = KeepAliveClient(url, key)
    durable_writes(kept, root)
    in_a_vm(skep, kept, root)


main()
