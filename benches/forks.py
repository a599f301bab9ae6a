#!/usr/bin/env python3
"""One series of benches/forks: rounds of forks, snapshots and pauses to disk of a VM that changed memory.

    forks.py SKEP DATA_DIR CHANGED_MB ROUNDS
"""

import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request

from figures import figure

SKEP, DATA_DIR, CHANGED, ROUNDS = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
URL = os.environ["SKEP_URL"]
KEY = open(f"{DATA_DIR}/admin.key").read().strip()
LOG = DATA_DIR + ".log"
# Memory whose checksum is written beside it, and a counter.
WORK = """
import hashlib, os, sys, time
memory = b''.join(os.urandom(1 << 20) for _ in range(int(sys.argv[1])))
count = 0
while True:
    count += 1
    text = f'{count} {hashlib.sha256(memory).hexdigest() if count % 20 == 1 else sum_}'
    sum_ = text.split()[1]
    open('/dev/shm/new', 'w').write(text)
    os.rename('/dev/shm/new', '/dev/shm/state')
    time.sleep(0.05)
"""


def call(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    request = urllib.request.Request(URL + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def run(vm, command):
    ran = call("POST", f"/api/swarm/vm/{vm}/exec", {"command": command})
    assert ran["exit_code"] == 0, ran
    return ran["stdout"].strip()


def timed(action):
    begun = time.monotonic()
    value = action()
    return (time.monotonic() - begun) * 1000, value


def p50(values):
    return statistics.median(values)


def stand_still(lines):
    """The time between stop and cont of the last copy, by the log of the server, in ms."""
    times = {}
    for line in lines:
        at = re.match(r"\d+-\d+-\d+T(\d+):(\d+):([\d.]+)Z", line)
        if not at:
            continue
        moment = (int(at[1]) * 60 + int(at[2])) * 60 + float(at[3])
        for name in ("are frozen", "are stopped for a copy", "processors of VM", "programs of VM"):
            if name in line and (name.startswith("are") or "run again" in line):
                times[name] = moment
    stopped = (times["processors of VM"] - times["are stopped for a copy"]) * 1000
    frozen = (times["programs of VM"] - times["are frozen"]) * 1000
    return stopped, frozen


def private_memory(vm):
    """Pages of the guest's memory that a VM does not share with its template, in MiB."""
    pid = call("GET", f"/api/swarm/vm/{vm}")["pid"]
    kib, is_guest = 0, False
    for line in open(f"/proc/{pid}/smaps"):
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_guest = "/memfd:skep-" in line
        elif is_guest and line.startswith("Anonymous:"):
            kib += int(line.split()[1])
    return kib / 1024


def log_from(position):
    with open(LOG) as log:
        log.seek(position)
        return log.readlines()


def boot():
    vm = call("POST", "/api/swarm/boot", {})["vms"][0]["id"]
    call("POST", "/api/files/write", {"vm": vm, "path": "/root/work.py", "content": WORK})
    run(vm, f"nohup python3 /root/work.py {CHANGED} >/dev/null 2>&1 & while [ ! -e /dev/shm/state ]; do sleep 0.1; done")
    return vm


def state(vm):
    count, checksum = run(vm, "cat /dev/shm/state").split()
    return int(count), checksum


wrong = 0
parent = boot()
checksum = state(parent)[1]
forks, private, stops, freezes, snapshots, stored, pauses, resumes = ([] for _ in range(8))
for number in range(ROUNDS):
    position = os.path.getsize(LOG)
    took, answer = timed(lambda: call("POST", f"/api/swarm/vm/{parent}/fork", {}))
    forks.append(took)
    stopped, frozen = stand_still(log_from(position))
    stops.append(stopped)
    freezes.append(frozen - stopped)
    child = answer["vms"][0]["id"]
    private.append(private_memory(child))
    wrong += state(child)[1] != checksum
    call("DELETE", f"/api/swarm/vm/{child}")

    took, template = timed(lambda: call("POST", f"/api/swarm/vm/{parent}/snapshot", {"name": f"round-{number}"}))
    snapshots.append(took)
    stored.append(template["own_bytes"] / (1 << 20))
    call("DELETE", f"/api/templates/{template['id']}")

    took, _ = timed(lambda: call("POST", f"/api/swarm/vm/{parent}/pause", {"to": "disk"}))
    pauses.append(took)
    took, (count, found) = timed(lambda: (call("POST", f"/api/swarm/vm/{parent}/resume", {}), state(parent))[1])
    resumes.append(took)
    wrong += found != checksum
# Ten copies of a program that works would keep all processors busy, while the VMs of a cold boot do nothing.
run(parent, "pkill -STOP python3")
one = p50([timed(lambda: call("POST", f"/api/swarm/vm/{parent}/fork", {}))[0] for _ in range(3)])
ten, answer = timed(lambda: call("POST", f"/api/swarm/vm/{parent}/fork", {"count": 10}))
wrong += sum(state(vm["id"])[1] != checksum for vm in answer["vms"])
call("POST", "/api/swarm/cleanup", {})
one_cold, ten_cold = (
    p50([timed(lambda: call("POST", "/api/swarm/boot", {"count": count}))[0] for _ in range(2)]) for count in (1, 10)
)
call("POST", "/api/swarm/cleanup", {})

print(f"{CHANGED} MiB changed by a program, {ROUNDS} rounds")
limits = (40, 80) if CHANGED <= 50 else (150, 150)
figure("QEMU stop to cont, p50", p50(stops), limits[0], " ms")
figure("QEMU stop to cont, max", max(stops), limits[1], " ms")
print(f"       freeze and thaw beside it: p50 {p50(freezes):.1f} ms, max {max(freezes):.1f} ms")
figure("one fork, request to answer, p50", p50(forks), 250, " ms")
figure("memory private to a new child, p50", p50(private), 15, " MiB")
further, further_cold = ((all_ten - first) / 9 for all_ten, first in ((ten, one), (ten_cold, one_cold)))
figure("each further fork of ten in one request, beside each further VM of a cold boot", further, further_cold, " ms")
print(f"       snapshot, request to answer, p50 {p50(snapshots):.0f} ms; it takes {p50(stored):.0f} MiB of disk for itself")
figure("pause to disk, p50", p50(pauses), 250 + 1.5 * CHANGED, " ms")
figure("resume to the first answer, p50", p50(resumes), 300 + CHANGED, " ms")
figure("rounds with wrong memory", wrong, 0)
