#!/usr/bin/env python3
"""One series of benches/forks: rounds of forks, snapshots and pauses to disk of a VM that changed memory.

    forks.py SKEP DATA_DIR CHANGED_MB ROUNDS DISK_MB

In each copy, and in the VM after each resume, memory, a file on disk and the identity are checked, which no time includes. Unless
DISK_MB is 0, rounds of forks follow after the VM changed that much of its disk, which is copied while it stands still.
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

SKEP, DATA_DIR, CHANGED, ROUNDS, DISK = *sys.argv[1:3], *map(int, sys.argv[3:6])
URL = os.environ["SKEP_URL"]
KEY = open(f"{DATA_DIR}/admin.key").read().strip()
LOG = DATA_DIR + ".log"
# Random memory, a counter, and the checksum of that memory if another program asks for it.
WORK = """
import hashlib, os, sys, time
os.chdir('/dev/shm')
memory = bytearray(int(sys.argv[1]) << 20)
for at in range(0, len(memory), 1 << 20):
    memory[at:at + (1 << 20)] = os.urandom(1 << 20)
def publish(name, text):
    open('new', 'w').write(text)
    os.rename('new', name)
count = 0
while True:
    count += 1
    publish('count', str(count))
    if os.path.exists('asked'):
        os.remove('asked')
        publish('checksum', hashlib.sha256(memory).hexdigest())
    time.sleep(0.05)
"""
# A small file, because all that is written to the disk adds to the time for which the VM stands still. A direct read is what
# the disk has: the page cache is part of the memory of a copy.
FILE, FILE_BYTES = "/root/file", 64 << 10
READ = f"sha256sum < {FILE}; dd if={FILE} bs={FILE_BYTES} iflag=direct status=none | sha256sum"
# Direct as well, so that the page cache does not add to the memory that a copy contains.
CHANGE_DISK = f"dd if=/dev/urandom of=/root/random bs=1M count={DISK} iflag=fullblock oflag=direct conv=fsync status=none"
# One line each: boot_id, id of the VM, host name, machine-id, address. A resume has to keep the last three.
IDENTITY = """cat /proc/sys/kernel/random/boot_id /run/skep/generation; hostname; cat /etc/machine-id
ip -4 -o addr show eth0 | awk '{print $4}'"""


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


def changed_memory(lines):
    """The pages that the last copy has, by the log of the keeper, in MiB."""
    found = [int(bytes) for bytes in re.findall(r" is captured .*bytes=(\d+)", "".join(lines))]
    return found[-1] / (1 << 20)


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
    run(vm, f"nohup python3 /root/work.py {CHANGED} >/dev/null 2>&1 & while [ ! -e /dev/shm/count ]; do sleep 0.1; done")
    return vm


def count(vm):
    return int(run(vm, "cat /dev/shm/count"))


def checksum(vm):
    """The checksum of the program's memory as it is now."""
    return run(vm, "cd /dev/shm; rm -f checksum; touch asked; while [ ! -e checksum ]; do sleep 0.1; done; cat checksum")


class Round:
    """Writes a new file to the disk of the parent, and collects what is wrong in its copies and after its resume."""

    def __init__(self):
        content = os.urandom(FILE_BYTES)
        body = {"vm": parent, "path": FILE, "content": content.hex(), "encoding": "hex"}
        call("POST", "/api/files/write", body)
        self.file = hashlib.sha256(content).hexdigest()
        self.identity = run(parent, IDENTITY).split()
        # No copy may have what the parent or an earlier copy has. An address is not used again soon after the end of its VM.
        self.taken = set(self.identity)
        self.wrong = set()

    def expect(self, kind, is_right):
        if not is_right:
            self.wrong.add(kind)

    def check_content(self, vm):
        self.expect("memory", checksum(vm) == right)
        self.expect("file", run(vm, READ).split() == [self.file, "-"] * 2)

    def check_copy(self, vm):
        self.check_content(vm)
        identity = run(vm, IDENTITY).split()
        self.expect("identity", len(identity) == 5 and self.taken.isdisjoint(identity))
        self.taken.update(identity)

    def check_resumed(self, count_before, count_after):
        self.check_content(parent)
        self.expect("memory", count_after >= count_before)
        self.expect("identity", run(parent, IDENTITY).split()[-3:] == self.identity[-3:])


def fork(current):
    """Forks the parent. Returns the time of the request in ms, its lines of the log, and the child's private memory in MiB."""
    position = os.path.getsize(LOG)
    took, answer = timed(lambda: call("POST", f"/api/swarm/vm/{parent}/fork", {}))
    lines = log_from(position)
    child = answer["vms"][0]["id"]
    memory = private_memory(child)
    current.check_copy(child)
    call("DELETE", f"/api/swarm/vm/{child}")
    return took, lines, memory


parent = boot()
right = checksum(parent)
rounds = []
forks, private, changes, stops, freezes, snapshots, stored, pauses, resumes = ([] for _ in range(9))
for number in range(ROUNDS):
    rounds.append(current := Round())
    took, lines, memory = fork(current)
    forks.append(took)
    private.append(memory)
    changes.append(changed_memory(lines))
    stopped, frozen = stand_still(lines)
    stops.append(stopped)
    freezes.append(frozen - stopped)

    took, template = timed(lambda: call("POST", f"/api/swarm/vm/{parent}/snapshot", {"name": f"round-{number}"}))
    snapshots.append(took)
    stored.append(template["own_bytes"] / (1 << 20))
    restored = call("POST", "/api/swarm/boot", {"template": template["name"]})["vms"][0]["id"]
    current.check_copy(restored)
    call("DELETE", f"/api/swarm/vm/{restored}")
    call("DELETE", f"/api/templates/{template['id']}")

    before = count(parent)
    took, _ = timed(lambda: call("POST", f"/api/swarm/vm/{parent}/pause", {"to": "disk"}))
    pauses.append(took)
    took, after = timed(lambda: (call("POST", f"/api/swarm/vm/{parent}/resume", {}), count(parent))[1])
    resumes.append(took)
    current.check_resumed(before, after)
rounds.append(current := Round())
# Ten copies of a program that works would keep the processors busy, while the VMs of a cold boot do nothing.
run(parent, "pkill -STOP python3")
ones = [timed(lambda: call("POST", f"/api/swarm/vm/{parent}/fork", {})) for _ in range(3)]
one = p50([took for took, _ in ones])
ten, answer = timed(lambda: call("POST", f"/api/swarm/vm/{parent}/fork", {"count": 10}))
for vm in [single["vms"][0] for _, single in ones] + answer["vms"]:
    run(vm["id"], "pkill -CONT python3")
    current.check_copy(vm["id"])
    call("DELETE", f"/api/swarm/vm/{vm['id']}")
disk_forks, disk_stops = [], []
if DISK:
    run(parent, f"pkill -CONT python3; {CHANGE_DISK}")
    for _ in range(ROUNDS):
        rounds.append(current := Round())
        took, lines, _ = fork(current)
        disk_forks.append(took)
        disk_stops.append(stand_still(lines)[0])
call("POST", "/api/swarm/cleanup", {})
one_cold, ten_cold = (
    p50([timed(lambda: call("POST", "/api/swarm/boot", {"count": count}))[0] for _ in range(2)]) for count in (1, 10)
)
call("POST", "/api/swarm/cleanup", {})

print(f"{CHANGED} MiB changed by a program, {p50(changes):.0f} MiB of pages in a copy, {ROUNDS} rounds")
is_small = CHANGED <= 50
figure("QEMU stop to cont, p50", p50(stops), 40 if is_small else 150, " ms")
figure("QEMU stop to cont, max", max(stops), 80 if is_small else 150, " ms")
print(f"       freeze and thaw beside it: p50 {p50(freezes):.1f} ms, max {max(freezes):.1f} ms")
for name, times, most in (("one fork", forks, 250), ("snapshot", snapshots, 120)):
    if is_small:
        figure(f"{name}, request to answer, p50", p50(times), most, " ms")
    else:
        print(f"       {name}, request to answer: p50 {p50(times):.0f} ms")
if DISK:
    for name, *both in (("QEMU stop to cont", disk_stops, stops), ("one fork, request to answer", disk_forks, forks)):
        changed, unchanged = (f"p50 {p50(times):.1f} ms, max {max(times):.1f} ms" for times in both)
        print(f"       {name}, with {DISK} MiB changed on disk: {changed}; without: {unchanged}")
figure("memory private to a new child, p50", p50(private), 15, " MiB")
further, further_cold = ((all_ten - first) / 9 for all_ten, first in ((ten, one), (ten_cold, one_cold)))
figure("each further fork of ten in one request, beside each further VM of a cold boot", further, further_cold, " ms")
figure("snapshot, its own part of the disk", p50(stored), p50(changes) * 1.05, " MiB")
figure("pause to disk, p50", p50(pauses), 250 + 1.5 * CHANGED, " ms")
figure("resume to the first answer, p50", p50(resumes), 300 + CHANGED, " ms")
kinds = ", ".join(f"{kind} {sum(kind in each.wrong for each in rounds)}" for kind in ("memory", "file", "identity"))
figure(f"wrong of {len(rounds)} rounds, of which the ten forks are one ({kinds})", sum(bool(each.wrong) for each in rounds), 0)
