"""The internet of the test: web servers that name themselves, and a name server."""
import http.server, socket, struct, sys, threading, time

NAMES = dict(pair.split("=") for pair in sys.argv[2:])
ME = sys.argv[1]


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
        body = f"{ME} {self.headers['Host']}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def answer(query):
    name, at = [], 12
    while query[at]:
        name.append(query[at + 1:at + 1 + query[at]].decode())
        at += 1 + query[at]
    kind, = struct.unpack(">H", query[at + 1:at + 3])
    address = NAMES.get(".".join(name).lower()) if kind == 1 else None
    code = 0x8180 if ".".join(name).lower() in NAMES else 0x8183
    head = query[:2] + struct.pack(">HHHHH", code, 1, 1 if address else 0, 0, 0) + query[12:at + 5]
    record = b"\xc0\x0c\0\1\0\1\0\0\0\x01\0\4" + socket.inet_aton(address) if address else b""
    return head + record


def name_server():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    # Answers must come from the address that was asked.
    server.bind(("203.0.113.53", 53))
    while True:
        query, source = server.recvfrom(1500)
        server.sendto(answer(query), source)


web = [http.server.ThreadingHTTPServer(("0.0.0.0", port), Web) for port in (80, 8000)]
for one in web:
    threading.Thread(target=one.serve_forever, daemon=True).start()
if NAMES:
    threading.Thread(target=name_server, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
