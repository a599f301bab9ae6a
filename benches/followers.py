"""Follows the events of a server with many readers while it writes some, and tells whether each reader saw each one once.

    followers.py URL KEY_FILE READERS EVENTS_A_SECOND SECONDS
"""

import http.client
import json
import multiprocessing
import pathlib
import re
import selectors
import socket
import sys
import time
import urllib.parse

PROCESSES = 2
# How often something is written.
PERIOD = 0.2
# How long the last ones may take.
PATIENCE = 60
# Not the place that a comment of a silent stream names.
EVENT = re.compile(rb"id: evt_[0-9a-f]{16}_([0-9]+)\nevent: ")


class Reader:
    def __init__(self, address, key, begun):
        self.socket = socket.create_connection((address.hostname, address.port))
        ask = f"GET /api/events?after={begun} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {key}\r\n\r\n"
        self.socket.sendall(ask.encode())
        self.rest, self.last, self.wrong = b"", sequence(begun), 0

    def read(self):
        """Whether the stream goes on."""
        piece = self.socket.recv(1 << 18)
        whole, cut, self.rest = (self.rest + piece).rpartition(b"\n\n")
        numbers = [int(number) for number in EVENT.findall(whole + cut)]
        # Nobody else writes: each is one more than the one before.
        if numbers != list(range(self.last + 1, self.last + 1 + len(numbers))):
            self.wrong += 1
        self.last = max([self.last, *numbers])
        return bool(piece)


def sequence(event):
    return int(event.rsplit("_", 1)[1])


def follow(address, key, begun, count, ready, end, results):
    readers = [Reader(address, key, begun) for _ in range(count)]
    selector = selectors.DefaultSelector()
    for reader in readers:
        selector.register(reader.socket, selectors.EVENT_READ, reader)
    with ready.get_lock():
        ready.value += count
    cut, late = 0, None
    while True:
        for key_of, _ in selector.select(0.1):
            if not key_of.data.read():
                cut += 1
                selector.unregister(key_of.fileobj)
        if end.value:
            late = late or time.monotonic() + PATIENCE
            if all(reader.last >= end.value for reader in readers) or time.monotonic() > late:
                break
    behind = sum(reader.last < end.value for reader in readers)
    results.put((cut, behind, sum(reader.wrong > 0 for reader in readers)))


def main():
    address, key = urllib.parse.urlsplit(sys.argv[1]), pathlib.Path(sys.argv[2]).read_text().strip()
    readers, rate, seconds = map(int, sys.argv[3:])
    connection = http.client.HTTPConnection(address.hostname, address.port)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def newest():
        other = http.client.HTTPConnection(address.hostname, address.port)
        other.request("GET", "/api/events", headers=headers)
        place = other.getresponse().headers["skep-event-id"]
        other.close()
        return place

    begun = newest()
    ready, end = multiprocessing.Value("q", 0), multiprocessing.Value("q", 0)
    results = multiprocessing.Queue()
    shares = [readers * (one + 1) // PROCESSES - readers * one // PROCESSES for one in range(PROCESSES)]
    words = [(address, key, begun, share, ready, end, results) for share in shares]
    processes = [multiprocessing.Process(target=follow, args=each, daemon=True) for each in words]
    for process in processes:
        process.start()
    while ready.value < readers:
        time.sleep(0.01)
    # A ticket that is made and ready is two events.
    batch = json.dumps({"tickets": [{"title": f"event {number}"} for number in range(max(round(rate * PERIOD / 2), 1))]})
    start, rounds = time.monotonic(), round(seconds / PERIOD)
    for number in range(rounds):
        time.sleep(max(start + number * PERIOD - time.monotonic(), 0))
        connection.request("POST", "/api/tickets/batch", batch, headers)
        answer = connection.getresponse()
        if answer.status != 201:
            sys.exit(f"followers: {answer.status} {answer.read(2000)}")
        answer.read()
    took, written = time.monotonic() - start, time.monotonic()
    end.value = sequence(newest())
    cut, behind, wrong = (sum(column) for column in zip(*(results.get() for _ in processes)))
    total = end.value - sequence(begun)
    print(f"{total} events in {took:.1f} s, {total / took:.0f} a second; {cut} readers were cut off, {behind} lack some, "
          f"{wrong} saw one missing or twice; all was read {(time.monotonic() - written) * 1000:.0f} ms after the last write")
    if cut or behind or wrong:
        sys.exit("followers: not every reader saw every event once")


main()
