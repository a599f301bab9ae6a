"""What the tests of a Python program do, by one process and then by two. Prints the seconds of both as JSON.

Usage: suite.py SCALE
"""

import hashlib
import io
import json
import multiprocessing
import re
import sys
import time
import unittest


class Tests(unittest.TestCase):
    def test_json(self):
        value = {"items": [{"id": number, "name": f"item {number}", "tags": ["a", "b"]} for number in range(300)]}
        for _ in range(20):
            self.assertEqual(json.loads(json.dumps(value)), value)

    def test_text(self):
        line = re.compile(r"(?P<key>\w+)\s*=\s*(?P<value>\d+)")
        text = "\n".join(f"key{number} = {number}" for number in range(2000))
        for _ in range(5):
            self.assertEqual(sum(int(found["value"]) for found in line.finditer(text)), 1999000)

    def test_objects(self):
        class Node:
            def __init__(self, value, following):
                self.value, self.following = value, following

        node = None
        for value in range(20000):
            node = Node(value, node)
        total = 0
        while node:
            total, node = total + node.value, node.following
        self.assertEqual(total, 199990000)

    def test_order(self):
        values = [(number * 7919) % 30011 for number in range(30011)]
        self.assertEqual(sorted(values, key=lambda value: -value)[0], 30010)

    def test_bytes(self):
        digest = hashlib.sha256()
        for _ in range(200):
            digest.update(bytes(4096))
        self.assertEqual(len(digest.hexdigest()), 64)


def run(scale):
    for _ in range(scale):
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(Tests)
        if not unittest.TextTestRunner(stream=io.StringIO()).run(suite).wasSuccessful():
            sys.exit("suite: a test failed")


def timed(work):
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def two(scale):
    processes = [multiprocessing.Process(target=run, args=(scale,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            sys.exit("suite: a process failed")


def main():
    scale = int(sys.argv[1])
    times = {"one": timed(lambda: run(scale)), "two": timed(lambda: two(scale))}
    print(json.dumps({**times, "together": sum(times.values())}))


if __name__ == "__main__":
    main()
