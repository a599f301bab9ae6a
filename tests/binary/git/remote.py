"""Serves the repositories of a folder by `git http-backend` on a free port of loopback, which it prints.

    remote.py FOLDER [AUTHORIZATION]

The second argument is the header without which requests are refused.
"""

import http.server
import os
import subprocess
import sys
import urllib.parse


class Remote(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if sys.argv[2:] not in ([], [self.headers.get("Authorization")]):
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="test"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        parts = urllib.parse.urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        env = dict(
            os.environ,
            GIT_PROJECT_ROOT=sys.argv[1],
            GIT_HTTP_EXPORT_ALL="1",
            GIT_CONFIG_COUNT="2",
            GIT_CONFIG_KEY_0="safe.directory",
            GIT_CONFIG_VALUE_0="*",
            GIT_CONFIG_KEY_1="http.receivepack",
            GIT_CONFIG_VALUE_1="true",
            REMOTE_USER="tester",
            REQUEST_METHOD=self.command,
            PATH_INFO=parts.path,
            QUERY_STRING=parts.query,
            CONTENT_TYPE=self.headers.get("Content-Type", ""),
            CONTENT_LENGTH=str(length),
            HTTP_CONTENT_ENCODING=self.headers.get("Content-Encoding", ""),
            GIT_PROTOCOL=self.headers.get("Git-Protocol", ""),
        )
        result = subprocess.run(["git", "http-backend"], env=env, input=self.rfile.read(length), capture_output=True)
        head, _, body = result.stdout.partition(b"\r\n\r\n")
        lines = [line.split(": ", 1) for line in head.decode().split("\r\n") if line]
        self.send_response(next((int(value[:3]) for name, value in lines if name == "Status"), 200))
        for name, value in lines:
            if name != "Status":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Remote)
print(server.server_address[1], flush=True)
server.serve_forever()
