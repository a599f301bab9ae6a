#!/usr/bin/env python3
"""QEMU's own `savevm` and `loadvm` of the guest of a template, beside the figures of forks.py.

    savevm.py ARGUMENTS CHANGED_MB ROUNDS

ARGUMENTS is what `plain_qemu --arguments` printed: a JSON array. The VM has 1 GiB of memory, of which this program changes
CHANGED_MB after the boot. `savevm` writes all of the memory that is not zero, and a VM stands still meanwhile.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ARGUMENTS, CHANGED, ROUNDS = json.loads(open(sys.argv[1]).read()), int(sys.argv[2]), int(sys.argv[3])
MEMORY = 1024 << 20
BOOT_TIMEOUT = 90
READY_LINE = "skep-agent: ready"


class Monitor:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.lines = self.socket.makefile("r")
        self.lines.readline()
        self.call("qmp_capabilities")

    def call(self, command, **arguments):
        request = {"execute": command, "arguments": arguments}
        self.socket.sendall(json.dumps(request).encode() + b"\n")
        for line in self.lines:
            answer = json.loads(line)
            if "error" in answer:
                sys.exit(f"savevm.py: QEMU refuses {command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]
        sys.exit("savevm.py: QEMU ended")

    def human(self, line):
        """Runs a command of the human monitor, and returns how long it took in ms."""
        begun = time.monotonic()
        text = self.call("human-monitor-command", **{"command-line": line})
        if text:
            sys.exit(f"savevm.py: {line}: {text}")
        return (time.monotonic() - begun) * 1000


def wait_for(path, text):
    """Waits until a file has this text."""
    until = time.monotonic() + BOOT_TIMEOUT
    while time.monotonic() < until:
        if os.path.exists(path) and text in open(path, errors="replace").read():
            return
        time.sleep(0.05)
    sys.exit(f"savevm.py: no `{text}` in {BOOT_TIMEOUT} s")


def change(memory):
    """Writes to the middle of the memory of a guest that has stopped for good: its kernel takes free pages for zeros."""
    with open(memory, "r+b") as file:
        file.seek(MEMORY // 4)
        for _ in range(CHANGED):
            file.write(os.urandom(1 << 20))


def measure(folder):
    memory, monitor, console = (os.path.join(folder, name) for name in ("memory", "monitor", "console"))
    command = ["qemu-system-x86_64", *ARGUMENTS, "-qmp", f"unix:{monitor},server=on,wait=off"]
    command[command.index("-serial") + 1] = f"file:{console}"
    machine = command.index("-machine") + 1
    command[machine] += ",memory-backend=ram"
    command += ["-object", f"memory-backend-file,id=ram,size={MEMORY},mem-path={memory},share=on"]
    vmm = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        wait_for(console, READY_LINE)
        qemu = Monitor(monitor)
        qemu.call("stop")
        change(memory)
        saved, loaded = [], []
        for _ in range(ROUNDS):
            saved.append(qemu.human("savevm round"))
            loaded.append(qemu.human("loadvm round"))
            qemu.human("delvm round")
        return saved, loaded
    finally:
        vmm.kill()
        vmm.wait()


with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
    saved, loaded = measure(folder)
print(f"       beside it, savevm of plain QEMU, for which a VM stands still: p50 {statistics.median(saved):.0f} ms")
print(f"       beside it, loadvm of plain QEMU: p50 {statistics.median(loaded):.0f} ms")
