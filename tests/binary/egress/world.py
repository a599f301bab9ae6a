"""The internet of the test: web servers that name themselves, a name server, also over HTTP, files over TLS, and a server
of bytes.

Arguments: the server's name; a folder with certificate.pem, key.pem and the files of public/, or nothing; and names as
NAME=ADDRESS, NAME=ADDRESS/ADDRESS (each answer has the next one) or NAME=@OTHER (an alias of another name).
"""
import collections, functools, http.server, socket, socketserver, ssl, struct, sys, threading, time

NAMES = {name: value.split("/") for name, value in (pair.split("=") for pair in sys.argv[3:])}
ME, FOLDER = sys.argv[1:3]
# What the last guest sent to a server of bytes that had ended its own direction.
COUNTED = 0
# How often each name was looked up.
LOOK_UPS = collections.Counter()


class Web(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"tick\n")
                    self.wfile.flush()
                    time.sleep(0.1)
            except OSError:
                self.close_connection = True
                return
        if self.path.startswith("/dns-query?name="):
            body = NAMES[self.path.partition("=")[2]][0].encode()
        elif self.path.startswith("/look-ups?name="):
            body = b"%d" % LOOK_UPS[self.path.partition("=")[2]]
        elif self.path == "/address":
            body = self.connection.getsockname()[0].encode()
        elif self.path == "/counted":
            body = b"%d" % COUNTED
        else:
            body = f"{ME} {self.headers['Host']}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Bytes(socketserver.BaseRequestHandler):
    """The first byte says what follows."""

    def handle(self):
        global COUNTED
        kind = self.request.recv(1)
        if kind == b"e":
            self.request.sendall(b"echo")
        elif kind == b"c":
            self.request.sendall(b"%d" % self.count())
        elif kind == b"h":
            self.request.sendall(b"bye")
            self.request.shutdown(socket.SHUT_WR)
            COUNTED = self.count()
        elif kind == b"n":
            # Never reads. The end of the program ends it.
            threading.Event().wait()

    def count(self):
        """The bytes until the guest ends its direction."""
        received = 0
        while data := self.request.recv(1 << 16):
            received += len(data)
        return received


class ByteServer(socketserver.ThreadingTCPServer):
    request_queue_size = 1024
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, *_):
        """A guest resets its connection."""


def answer(query):
    name, at = [], 12
    while query[at]:
        name.append(query[at + 1:at + 1 + query[at]].decode())
        at += 1 + query[at]
    kind, = struct.unpack(">H", query[at + 1:at + 3])
    name = ".".join(name).lower()
    records = answers(b"\xc0\x0c", name) if kind == 1 and name in NAMES else []
    code = 0x8180 if name in NAMES else 0x8183
    return query[:2] + struct.pack(">HHHHH", code, 1, len(records), 0, 0) + query[12:at + 5] + b"".join(records)


def answers(owner, name):
    """The records of a name, of class IN, for a second."""
    LOOK_UPS[name] += 1
    value = NAMES[name][0]
    NAMES[name].append(NAMES[name].pop(0))
    if not value.startswith("@"):
        return [owner + struct.pack(">HHIH", 1, 1, 1, 4) + socket.inet_aton(value)]
    alias = b"".join(bytes([len(label)]) + label.encode() for label in value[1:].split(".")) + b"\0"
    return [owner + struct.pack(">HHIH", 5, 1, 1, len(alias)) + alias] + answers(alias, value[1:])


def name_server():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    # Answers must come from the address that was asked.
    server.bind(("203.0.113.53", 53))
    while True:
        query, source = server.recvfrom(1500)
        server.sendto(answer(query), source)


def name_server_over_tcp():
    server = socket.create_server(("203.0.113.53", 53))
    while True:
        connection, _ = server.accept()
        with connection, connection.makefile("rwb") as stream:
            length, = struct.unpack(">H", stream.read(2))
            reply = answer(stream.read(length))
            stream.write(struct.pack(">H", len(reply)) + reply)


class Files(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass


def files():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{FOLDER}/certificate.pem", f"{FOLDER}/key.pem")
    server = http.server.ThreadingHTTPServer(("0.0.0.0", 443), functools.partial(Files, directory=f"{FOLDER}/public"))
    # The handshake is left to the thread of the connection.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return server


web = [http.server.ThreadingHTTPServer(("0.0.0.0", port), Web) for port in (80, 8000)]
web.append(ByteServer(("0.0.0.0", 7000), Bytes))
if FOLDER:
    web.append(files())
for one in web:
    threading.Thread(target=one.serve_forever, daemon=True).start()
if NAMES:
    threading.Thread(target=name_server, daemon=True).start()
    threading.Thread(target=name_server_over_tcp, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
