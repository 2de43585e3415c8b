"""A gate with something behind it, a site that may call it, and sockets for those who may not."""

import resource
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
from hospitals import free_port

from tacit.apps import keys
from tacit.apps.gateway import Gate
from tacit.apps.signing import Signer

PATH = "/v1/fleet/pull-messages"
NAME = "hospital-a"


class Upstream(BaseHTTPRequestHandler):
    """Stands for Flower: answers all, and remembers it; what was prepared for a call first."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append((self.path, body))
        prepared = self.server.prepared.get(self.path)
        status, content = prepared.pop(0) if prepared else (200, self.server.usual)
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


class Door:
    """A gate on loopback, with TLS and one registered site."""

    def __init__(self, folder, **more):
        self.folder = folder
        keys.make_authority(folder / "keys", [])
        private = keys.make_site_key(folder, NAME)
        keys.register(folder / "keys", NAME, private.with_suffix(".pub"))
        self.ca = folder / "keys" / "ca.crt"
        self.signer = Signer(keys.read_private(private), keys.authority_of(self.ca.read_bytes()))
        self.inside = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
        self.inside.daemon_threads = True
        self.inside.got = []
        self.inside.prepared = {}  # lists of status and content, by path
        self.inside.usual = b"ok"
        threading.Thread(target=self.inside.serve_forever, args=(0.05,), daemon=True).start()
        self.port = free_port()
        inside = f"http://127.0.0.1:{self.inside.server_address[1]}"
        self.gate = Gate(inside, keys=folder / "keys", **more)
        self.gate.serve("127.0.0.1", self.port)

    def close(self):
        self.gate.close()
        self.inside.shutdown()
        self.inside.server_close()

    def tls(self):
        return ssl.create_default_context(cafile=str(self.ca))

    def client(self):
        """Return a client as a site has it."""
        url = f"https://127.0.0.1:{self.port}"
        return httpx.Client(base_url=url, verify=self.tls(), trust_env=False, timeout=10.0)

    def call(self, body=b"anything", path=PATH, client=None, **change):
        """Call as the registered site, with some headers changed; return the answer."""
        headers = self.signer.headers("POST", path, body) | change
        if client is not None:
            return client.post(path, content=body, headers=headers)
        with self.client() as made:
            return made.post(path, content=body, headers=headers)

    def head(self, body=b"", path=PATH, size=None, **change):
        """Return the head of a signed request, as it is on the wire."""
        told = self.signer.headers("POST", path, body) | change
        told["content-length"] = str(len(body) if size is None else size)
        lines = [f"POST {path} HTTP/1.1", "host: x", *(f"{k}: {v}" for k, v in told.items())]
        return "\r\n".join([*lines, "", ""]).encode()

    def bare(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)

    def raw(self):
        """Return a connection that has done its TLS handshake."""
        return self.tls().wrap_socket(self.bare(), server_hostname="127.0.0.1")


def ended(sock):
    """Wait for the other side to close; tell whether it did, within the socket's time."""
    try:
        while sock.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def files():
    """Return how many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def memory():
    """Return the most memory that this process ever held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
