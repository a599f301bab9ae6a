"""Measures the egress process beside the network that it is in: a guest (a network namespace that stands for a VM) connects
through it to a host outside, and the machine connects to the same host without it.

    egress.py SKEP

The namespaces are made and removed here. Nothing leaves them. A namespace in place of a VM shows the process rather than
the guest's kernel, which is emulated on many machines.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

from figures import figure

libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
SOURCE, SINK, ECHO = 7001, 7002, 7003
WORLD, RESOLVER = "203.0.113.7", "203.0.113.53"
GUESTS = {"guest": "10.99.0.2", "neighbour": "10.99.0.3"}
BYTES = 1 << 30
CHUNK = 1 << 18
NEW, OPEN, ASKED = 5_000, 5_000, 400
# Of the neighbour, which is to be at its limit; the guest has none that it would reach.
SMALL_MBIT = 250


def run(*command):
    subprocess.run(command, check=True)


@contextlib.contextmanager
def namespaces():
    """One for the host outside, one for the machine, one for the VMs' bridge, and one for each guest."""
    names = {name: f"skep-bench-{os.getpid()}-{name}" for name in ["world", "machine", "vms", *GUESTS]}
    try:
        for name in names.values():
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")

        def link(one, address, other, opposite):
            run("ip", "-n", names[one], "link", "add", other, "type", "veth", "peer", "name", one, "netns", names[other])
            for side, peer, own in [(one, other, address), (other, one, opposite)]:
                run("ip", "-n", names[side], "address", "add", own, "dev", peer)
                run("ip", "-n", names[side], "link", "set", peer, "up")

        link("machine", "203.0.113.1/24", "world", f"{WORLD}/24")
        run("ip", "-n", names["world"], "address", "add", f"{RESOLVER}/24", "dev", "machine")
        for guest, address in GUESTS.items():
            link("vms", f"10.99.0.1/32", guest, f"{address}/24")
            run("ip", "-n", names["vms"], "route", "add", f"{address}/32", "dev", guest)
            run("ip", "-n", names[guest], "route", "add", "default", "via", "10.99.0.1")
        rules = "add table ip t; add chain ip t p { type nat hook prerouting priority -100; }; " \
            "add rule ip t p ip daddr != 10.99.0.1 tcp dport != 53 redirect to :15001"
        run("ip", "netns", "exec", names["vms"], "nft", rules)
        yield names
    finally:
        for name in names.values():
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def inside(name):
    """Sockets that this thread makes belong to the namespace."""
    with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{name}") as there:
        if libc.setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        try:
            yield
        finally:
            libc.setns(home.fileno(), CLONE_NEWNET)


def listen(address, port):
    listener = socket.create_server((address, port), backlog=4096)
    return listener


def serve_world(name):
    """A process with what the guests connect to, so that it shares no lock with what measures."""
    ready, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        os.read(ready, 1)
        return child
    with inside(name):
        listeners = {kind: listen("0.0.0.0", kind) for kind in [SOURCE, SINK, ECHO]}
        resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        resolver.bind((RESOLVER, 53))
    os.write(write, b"1")
    threading.Thread(target=answer_names, args=[resolver], daemon=True).start()
    chooser = selectors.DefaultSelector()
    for kind, listener in listeners.items():
        chooser.register(listener, selectors.EVENT_READ, kind)
    while True:
        for key, _ in chooser.select():
            if key.data == "echo":
                with contextlib.suppress(OSError):
                    if data := key.fileobj.recv(100):
                        key.fileobj.send(data)
                        continue
                chooser.unregister(key.fileobj)
                key.fileobj.close()
                continue
            connection, _ = key.fileobj.accept()
            if key.data == ECHO:
                chooser.register(connection, selectors.EVENT_READ, "echo")
            else:
                threading.Thread(target=transfer, args=[key.data, connection], daemon=True).start()


def transfer(kind, connection):
    chunk = bytes(CHUNK)
    with contextlib.suppress(OSError), connection:
        while connection.send(chunk) if kind == SOURCE else connection.recv(CHUNK):
            pass


def answer_names(resolver):
    """Each name has the address of the host."""
    while True:
        query, source = resolver.recvfrom(1500)
        end = query.index(b"\0", 12) + 5
        of_type_a = query[end - 4:end - 2] == b"\0\1"
        head = query[:2] + struct.pack(">HHHHH", 0x8180, 1, int(of_type_a), 0, 0) + query[12:end]
        record = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton(WORLD) if of_type_a else b""
        resolver.sendto(head + record, source)


class Egress:
    """The process, with this program in place of the keeper."""

    def __init__(self, skep, names, folder, mbit):
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.bind(f"{folder}/{mbit}.sock")
        control.listen()
        with inside(names["vms"]):
            proxy = listen("0.0.0.0", 15001)
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            udp.bind(("10.99.0.1", 53))
            tcp = listen("10.99.0.1", 53)
        table = open(f"{folder}/names", "w+")
        options = ["--public", "203.0.113.0/24", "--egress-mbit", str(mbit), "--egress-new-connections", "1000000",
                   "--egress-connections", "20000", "--egress-connections-of-all", "20000"]
        handles = [fcntl.fcntl(file.fileno(), fcntl.F_DUPFD, 100) for file in [control, proxy, udp, tcp, table]]
        self.pid = os.fork()
        if not self.pid:
            with inside(names["machine"]):
                for number, handle in enumerate(handles, 3):
                    os.dup2(handle, number)
                os.closerange(8, 200)
                os.execv(skep, [skep, "egress-process", *options])
        for handle in handles:
            os.close(handle)
        self.files = [control, proxy, udp, tcp, table]
        self.keeper = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.keeper.connect(f"{folder}/{mbit}.sock")
        self.ask({"name_servers": {"servers": [f"{RESOLVER}:53"]}})
        for address in GUESTS.values():
            self.ask({"set": {"vm": address, "policy": "all"}})
        self.ask("serve")

    def ask(self, body):
        self.keeper.send(json.dumps({"id": 1, "body": body}).encode())
        answer = json.loads(self.keeper.recv(1 << 20))
        assert answer["body"] == "done", answer

    def resident_mib(self):
        lines = pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024

    def end(self):
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        for file in [*self.files, self.keeper]:
            file.close()


def connect(name, address, port):
    with inside(name):
        connection = socket.create_connection((address, port), 30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def rate(name):
    """Gbit/s of a connection that receives."""
    buffer, received = bytearray(CHUNK), 0
    with connect(name, WORLD, SOURCE) as connection:
        begun = time.perf_counter()
        while received < BYTES:
            received += connection.recv_into(buffer)
        return received * 8 / (time.perf_counter() - begun) / 1e9


def new_connections(name):
    """Connections a second, each with a byte there and back."""
    begun = time.perf_counter()
    for _ in range(NEW):
        with connect(name, WORLD, ECHO) as connection:
            connection.send(b"x")
            assert connection.recv(1) == b"x"
    return NEW / (time.perf_counter() - begun)


def p99_of_answers(name):
    """Milliseconds from a byte to its echo."""
    with connect(name, WORLD, ECHO) as connection:
        times = []
        for _ in range(ASKED):
            begun = time.perf_counter()
            connection.send(b"x")
            assert connection.recv(1) == b"x"
            times.append((time.perf_counter() - begun) * 1000)
            time.sleep(0.005)
    return statistics.quantiles(times, n=100)[98]


def look_up(name, server, host):
    query = b"\0\1\1\0\0\1\0\0\0\0\0\0" + b"".join(bytes([len(part)]) + part.encode() for part in host.split("."))
    with inside(name):
        asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with asked:
        asked.connect((server, 53))
        asked.send(query + b"\0\0\1\0\1")
        return socket.inet_ntoa(asked.recv(500)[-4:])


def first_use(name, server, prefix):
    """Milliseconds from the first look-up of a name to its first echo, at the median."""
    times = []
    for number in range(200):
        begun = time.perf_counter()
        with connect(name, look_up(name, server, f"{prefix}{number}.example.test"), ECHO) as connection:
            connection.send(b"x")
            assert connection.recv(1) == b"x"
        times.append((time.perf_counter() - begun) * 1000)
        time.sleep(0.006)
    return statistics.median(times)


def beside_a_busy_neighbour(names):
    """What the neighbour takes is limited to its rate; it has many connections as well."""
    stopping = threading.Event()

    def take():
        buffer = bytearray(CHUNK)
        with connect(names["neighbour"], WORLD, SOURCE) as connection:
            while not stopping.is_set():
                connection.recv_into(buffer)

    takers = [threading.Thread(target=take) for _ in range(4)]
    for taker in takers:
        taker.start()
    time.sleep(1)
    try:
        return p99_of_answers(names["guest"])
    finally:
        stopping.set()
        for taker in takers:
            taker.join()


def measure(skep, names, folder):
    guest, machine = names["guest"], names["machine"]
    egress = Egress(skep, names, folder, 1_000_000)
    try:
        rates = [(rate(machine), rate(guest)) for _ in range(3)]
        bare, through = (statistics.median(column) for column in zip(*rates))
        print(f"one connection: {bare:.1f} Gbit/s between two namespaces, {through:.1f} Gbit/s through the process")
        figure("rate between two namespaces, times that through the process", bare / through, 1 / 0.4)
        bare, through = new_connections(machine), new_connections(guest)
        print(f"new connections: {bare:.0f}/s between two namespaces, {through:.0f}/s through the process")
        figure("time of a thousand new connections", 1000 / through, 1, " s")
        bare, through = first_use(machine, RESOLVER, "a"), first_use(guest, "10.99.0.1", "b")
        print(f"a name's first connection: {bare:.2f} ms by the name server, {through:.2f} ms through the process")
        figure("what the process adds to it", through - bare, 2, " ms")
        before, kept = egress.resident_mib(), []
        for _ in range(OPEN):
            kept.append(connect(guest, WORLD, ECHO))
            kept[-1].send(b"x")
            assert kept[-1].recv(1) == b"x"
        figure(f"memory with {OPEN} open connections ({before:.1f} MiB before)", egress.resident_mib(), 150, " MiB")
        for connection in kept:
            connection.close()
    finally:
        egress.end()
    egress = Egress(skep, names, folder, SMALL_MBIT)
    try:
        quiet, beside = p99_of_answers(guest), beside_a_busy_neighbour(names)
        print(f"p99 of an answer: {quiet:.2f} ms alone, {beside:.2f} ms beside a VM at its {SMALL_MBIT} Mbit/s")
        figure("p99 beside a busy VM, times that alone", beside / quiet, 3)
    finally:
        egress.end()


def main():
    with tempfile.TemporaryDirectory() as folder, namespaces() as names:
        world = serve_world(names["world"])
        try:
            measure(sys.argv[1], names, folder)
        finally:
            os.kill(world, 9)
            os.waitpid(world, 0)


main()
