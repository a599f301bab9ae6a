"""A client that costs little beside what is measured: one connection that is kept, requests made before the clock runs."""

import json
import re
import socket
import sys
import urllib.parse

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class KeepAliveClient:
    def __init__(self, url, key):
        address = urllib.parse.urlsplit(url)
        self.host, self.key = address.netloc, key
        self.socket = socket.create_connection((address.hostname, address.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def request(self, method, route, /, body=None, **query):
        target = f"{route}?{urllib.parse.urlencode(query)}" if query else route
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {target} HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: Bearer {self.key}\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        return f"{head}\r\n".encode() + content

    def send(self, request):
        """The body of the answer."""
        self.socket.sendall(request)
        text = b""
        while (end := text.find(b"\r\n\r\n")) < 0:
            text += self.more()
        head, pieces = text[:end], [text[end + 4 :]]
        length = LENGTH.search(head)
        if length is None or not head.startswith(b"HTTP/1.1 2"):
            sys.exit(f"bench: {request[:200]} was answered {text[:2000]}")
        left = int(length[1]) - len(pieces[0])
        while left > 0:
            pieces.append(self.more())
            left -= len(pieces[-1])
        return b"".join(pieces)

    def more(self):
        piece = self.socket.recv(1 << 20)
        if not piece:
            sys.exit("bench: the server hung up")
        return piece
