"""Opens many connections to a server, asks one thing on each, and prints what each costs the server in memory.

    connections.py URL COUNT KEY PID        PID: the server, or the keeper that started it
"""

import pathlib
import socket
import ssl
import statistics
import sys
import time
import urllib.parse


def server_of(pid):
    """The process that serves: the child of that one, where it has one."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else pid


def resident_kib(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def main():
    url, count = urllib.parse.urlsplit(sys.argv[1]), int(sys.argv[2])
    key, pid = sys.argv[3].strip(), server_of(int(sys.argv[4]))
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    ask = f"GET /api/whoami HTTP/1.1\r\nHost: {url.netloc}\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
    kept, took = [], []

    def open_one():
        begun = time.perf_counter()
        plain = socket.create_connection((url.hostname, url.port))
        connection = tls.wrap_socket(plain, server_hostname=url.hostname) if url.scheme == "https" else plain
        took.append(time.perf_counter() - begun)
        connection.sendall(ask)
        if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
            sys.exit("connections: an answer was no 200")
        kept.append(connection)

    for _ in range(100):
        open_one()
    before = resident_kib(pid)
    for _ in range(count - 100):
        open_one()
    after = resident_kib(pid)
    each = (after - before) / (count - 100)
    print(f"{count} connections: {each:.1f} KiB each ({before} to {after} KiB); "
          f"connect and handshake p50 {statistics.median(took) * 1000:.2f} ms")


main()
