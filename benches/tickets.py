"""Measures the tickets of two running servers, one with few and one with many, beside a queue on PostgreSQL.

    tickets.py URL KEY_FILE PID URL KEY_FILE PID SOCKETS

The first server is the one with few tickets; PID: the server, or the keeper that started it. SOCKETS: where PostgreSQL's lie.
"""

import http.client
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import urllib.parse

TICKETS = int(os.environ.get("TICKETS", "1000000"))
FEW = min(1000, TICKETS)
DEPENDENTS = int(os.environ.get("DEPENDENTS", "10000"))
AGENTS = int(os.environ.get("AGENTS", "64"))
SECONDS = int(os.environ.get("SECONDS_EACH", "10"))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
READERS = int(os.environ.get("READERS", "1000"))
BATCH = 1000
# More than any server here finishes in a second.
MOST_PAIRS = int(os.environ.get("MOST_PAIRS", "20000"))
MOST_CLAIMS = int(os.environ.get("MOST_CLAIMS", "60000"))
HERE = pathlib.Path(__file__).parent

# Taken as graphile-worker takes its jobs, and gone when done, as its and pgmq's are.
SCHEMA = """
CREATE TABLE jobs (id bigserial PRIMARY KEY, priority int NOT NULL DEFAULT 0, run_at timestamptz NOT NULL DEFAULT now(),
    attempts int NOT NULL DEFAULT 0, locked_at timestamptz, locked_by text, payload jsonb NOT NULL);
CREATE INDEX jobs_free ON jobs (priority, run_at, id) WHERE locked_at IS NULL;
"""
TAKE = """UPDATE jobs SET attempts = attempts + 1, locked_at = now(), locked_by = 'agent-' || :client_id
WHERE id IN (SELECT id FROM jobs WHERE locked_at IS NULL AND run_at <= now() ORDER BY priority, run_at, id
    FOR UPDATE SKIP LOCKED LIMIT {count}) RETURNING id"""


class Skep:
    """One connection that is kept, as clients keep theirs."""

    def __init__(self, url, key_file, pid):
        self.url, self.address = url, urllib.parse.urlsplit(url)
        self.key, self.pid = pathlib.Path(key_file).read_text().strip(), server_of(int(pid))
        self.connection = http.client.HTTPConnection(self.address.hostname, self.address.port)
        self.stock = 0

    def ask(self, method, target, body=None):
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        self.connection.request(method, target, None if body is None else json.dumps(body), headers)
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            sys.exit(f"tickets: {method} {target}: {answer.status} {text[:2000]}")
        return json.loads(text)

    def make(self, count, **fields):
        for begun in range(0, count, BATCH):
            tickets = [{"title": f"ticket {number}", **fields} for number in range(begun, min(begun + BATCH, count))]
            self.ask("POST", "/api/tickets/batch", {"tickets": tickets})

    def agents(self, most, *words):
        """Agents for a while, who take at most so many tickets a second: requests, seconds, p50_ms, p99_ms."""
        self.make(max(most * SECONDS - self.stock, 0))
        each = int(words[1]) if words[0] == "claims" else 0.5
        command = ["wrk", "-t1", f"-c{AGENTS}", f"-d{SECONDS}s", "--latency", "-s", HERE / "tickets.lua", self.url]
        environment = {**os.environ, "SKEP_API_KEY": self.key, "SKEP_BENCH": words[0]}
        out = subprocess.run([*command, "--", *words], capture_output=True, text=True, check=True, env=environment)
        result = json.loads(out.stdout.rsplit("\nresult ", 1)[1])
        # Work that ran out would make it look fast.
        left = self.ask("POST", "/api/tickets/claim", {"assignee": "rest", "count": 50})["tickets"]
        if result["failed"] or len(left) < 50:
            sys.exit(f"tickets: {result}, and {len(left)} tickets of 50 were left")
        # With those whose answers were cut off at the end.
        taken = (result["requests"] + AGENTS) * each + 50
        self.stock = max(max(self.stock, most * SECONDS) - round(taken), 0)
        return result


class Queue:
    """A queue on PostgreSQL."""

    def __init__(self, sockets):
        self.sockets = sockets
        self.sql(SCHEMA)

    def run(self, *words, text=None):
        become = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups", "--"]
        command = [*become, words[0], "-h", self.sockets, *words[1:]]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout

    def sql(self, text):
        return self.run("psql", "-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", "postgres", text=text).strip()

    def fill(self, count):
        self.sql(f"""TRUNCATE jobs; INSERT INTO jobs (payload)
            SELECT jsonb_build_object('title', 'ticket ' || n) FROM generate_series(1, {count}) AS n; VACUUM ANALYZE jobs;""")

    def pgbench(self, script):
        path = pathlib.Path(self.sockets) / "script.sql"
        path.write_text(script)
        os.chmod(path, 0o644)
        self.run("pgbench", "-n", "-f", str(path), "-c", str(AGENTS), "-j", "2", "-T", str(SECONDS), "-D", "id=0", "postgres")

    def pairs(self):
        """Jobs a second that were taken and done."""
        self.fill(MOST_PAIRS * SECONDS)
        self.pgbench(f"{TAKE.format(count=1)} \\aset\nDELETE FROM jobs WHERE id = :id;\n")
        return self.gone("SELECT count(*) FROM jobs", MOST_PAIRS)

    def claims(self, count):
        """Jobs a second that were taken, so many at once."""
        self.fill(MOST_CLAIMS * SECONDS)
        self.pgbench(f"{TAKE.format(count=count)};\n")
        return self.gone("SELECT count(*) FROM jobs WHERE locked_at IS NULL", MOST_CLAIMS)

    def gone(self, query, most):
        left = int(self.sql(query))
        if left == 0:
            sys.exit("tickets: the queue ran out of jobs")
        return (most * SECONDS - left) / SECONDS


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


def beside(title, ours, theirs, unit):
    """Medians of rounds in turns, and of their ratios."""
    pairs = [(ours(), theirs()) for _ in range(ROUNDS)]
    our, their = (statistics.median(column) for column in zip(*pairs))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"{title:<46} {our:10.2f} {unit}   beside {their:10.2f} {unit}   x {ratio:.2f}", flush=True)


def lists(few, many):
    print(f"\n==> {FEW} tickets, beside {TICKETS}", flush=True)
    before = resident_mib(many.pid)
    few.make(FEW, labels=["all"])
    took = took_ms(lambda: many.make(TICKETS, labels=["all"]))
    for skep in (few, many):
        skep.make(1, labels=["all", "rare"])
    print(f"made {BATCH} at a time: {TICKETS * 1000 / took:.0f} a second", flush=True)
    print(f"memory of the server with {TICKETS}: {before:.1f} MiB before, {resident_mib(many.pid):.1f} MiB after", flush=True)
    # Every ticket has the one label, and a single one has both.
    labels = ["?label=all", "?label=all&sort=-updated_at", "?label=all,rare"]
    for query in ["", *labels, "?sort=priority", "?sort=-updated_at", "?ready=true", "?status=pending&priority=medium,high"]:
        pages = [lambda skep=skep: took_ms(lambda: skep.ask("GET", f"/api/tickets{query}")) for skep in (many, few)]
        for _ in range(3):
            pages[0](), pages[1]()
        beside(f"a page of {min(FEW, 500)}: {query or 'all'}, many beside few", *pages, "ms")


def dependents(few, many):
    print(f"\n==> a ticket that {DEPENDENTS} wait for", flush=True)

    def complete(skep):
        first = skep.ask("POST", "/api/tickets", {"title": "first"})["id"]
        skep.make(DEPENDENTS, dependencies=[first])
        return took_ms(lambda: skep.ask("PATCH", f"/api/tickets/{first}", {"status": "completed"}))

    beside(f"completed, among {TICKETS} beside few", lambda: complete(many), lambda: complete(few), "ms")


def agents(skep, queue):
    print(f"\n==> {AGENTS} agents, {SECONDS} s a round, the load beside it", flush=True)
    latencies = []

    def pairs():
        result = skep.agents(MOST_PAIRS, "pairs")
        latencies.append(result["p99_ms"])
        return result["requests"] / 2 / result["seconds"]

    def claims(count):
        result = skep.agents(MOST_CLAIMS if count > 1 else MOST_PAIRS, "claims", str(count))
        latencies.append(result["p99_ms"])
        return result["requests"] * count / result["seconds"]

    beside("claim and completion, beside PostgreSQL", pairs, queue.pairs, "/s")
    print(f"p99 of both kinds of call: {statistics.median(latencies):.2f} ms", flush=True)
    latencies.clear()
    beside("claims alone, beside PostgreSQL", lambda: claims(1), lambda: queue.claims(1), "/s")
    print(f"p99 of a claim: {statistics.median(latencies):.2f} ms", flush=True)
    beside("tickets by claims of 50, beside PostgreSQL", lambda: claims(50), lambda: queue.claims(50), "/s")


def followers(skep, key_file):
    for readers, rate in [(READERS, 50), (max(READERS // 20, 1), 1000)]:
        print(f"\n==> {readers} readers at {rate} events a second", flush=True)
        before = resident_mib(skep.pid)
        subprocess.run([sys.executable, HERE / "followers.py", skep.url, key_file, str(readers), str(rate),
                        str(2 * SECONDS)], check=True)
        print(f"memory of the server: {before:.1f} MiB before, {resident_mib(skep.pid):.1f} MiB after", flush=True)


def main():
    few_at, many_at, sockets = sys.argv[1:4], sys.argv[4:7], sys.argv[7]
    few, many, queue = Skep(*few_at), Skep(*many_at), Queue(sockets)
    lists(few, many)
    dependents(few, many)
    agents(few, queue)
    followers(few, few_at[1])


main()
