"""The Kubernetes API over HTTP on loopback, as far as a launcher uses it: discovery, lists, watches, writes, logs."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from tests.support.fake_cluster.store import KINDS, Key, Object, selected
from tests.support.fake_cluster.writes import RefusedError, not_found, values_of

if TYPE_CHECKING:
    from tests.support.fake_cluster import FakeCluster


class Server(ThreadingHTTPServer):
    """Remembers its connections, so that it can die like a machine does."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), Handler)

    def cut_all(self) -> None:
        """Every connection breaks."""
        for connection in list(self.connections):
            cut(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Broken connections are what these tests are about; anything else is a fault of the fake."""
        import sys

        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | BrokenPipeError | ValueError | OSError):
            self.cluster.faults_of_its_own.append(repr(error))


def cut(connection: socket.socket) -> None:
    """As if the cable were pulled."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def _length(length: int) -> bytes:
    """Of a frame that is not masked."""
    if length < 126:
        return bytes([length])
    return b"\x7e" + length.to_bytes(2) if length < 1 << 16 else b"\x7f" + length.to_bytes(8)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for the client's acknowledgement
    server: Server

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.request)

    def finish(self) -> None:
        self.server.connections.discard(self.request)
        super().finish()

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The cluster's time, which tests set."""
        return self.server.cluster.date

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._serve(self._get)

    def do_POST(self) -> None:
        self._serve(self._write)

    def do_PATCH(self) -> None:
        self._serve(self._write)

    def do_DELETE(self) -> None:
        self._serve(self._write)

    def _serve(self, work: Callable[[], None]) -> None:
        cluster = self.server.cluster
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        self.query = values_of(parse_qs(parts.query))
        self.parts = parts.path.strip("/").split("/")
        if cluster.dying:
            return self._break()
        cluster.note(self.command, self.path, self.body)
        fault = next((one for one in cluster.faults if one.fits(self.command, self.path)), None)
        if fault is not None and fault.hold is not None:
            fault.hold.wait()
        try:
            if fault is not None and fault.status:
                raise RefusedError(fault.status, fault.reason, fault.message)
            if fault is not None and fault.drop == "before":
                if fault.die:
                    cluster.die()
                return self._break()
            cluster.authorise(self.command, self.parts, self.query, self.headers.get("Authorization", ""))
            self.fault = fault
            cluster.dying |= fault is not None and fault.die
            if fault is not None and fault.drop == "after":
                self._quietly(work)
                if fault.die:
                    cluster.die()
                return self._break()
            work()
        except RefusedError as error:
            self._json(error.code, error.status, fault.headers if fault is not None else {})
        if fault is not None and fault.die:
            cluster.die()

    def _quietly(self, work: Callable[[], None]) -> None:
        out, self.wfile = self.wfile, open("/dev/null", "wb")  # noqa: SIM115
        try:
            work()
        finally:
            self.wfile.close()
            self.wfile = out

    def _break(self) -> None:
        self.close_connection = True
        cut(self.request)

    # reading

    def _get(self) -> None:
        cluster, path = self.server.cluster, "/" + "/".join(self.parts)
        if path in cluster.documents:
            return self._json(200, cluster.documents[path])
        plural, namespace, name, part = self._address()
        if part == "log":
            return self._log(namespace, name)
        if part == "exec":
            return self._exec(namespace, name)
        if name:
            obj = cluster.store.find(plural, name, namespace)
            if obj is None:
                raise not_found(Key(plural, namespace, name))
            return self._json(200, obj)
        if self.query.get("watch"):
            return self._watch(plural)
        return self._list(plural)

    def _list(self, plural: str) -> None:
        store = self.server.cluster.store
        with store.news:
            items = [one for one in store.of(plural) if selected(one, self.query)]
            version = store.version
        start, limit = int(self.query.get("continue", 0)), int(self.query.get("limit", 0)) or len(items) or 1
        metadata: Object = {"resourceVersion": str(version)}
        if start + limit < len(items):
            metadata["continue"] = str(start + limit)
        bare = [{key: value for key, value in one.items() if key not in ("apiVersion", "kind")} for one in items]
        api, kind = KINDS[plural]
        self._json(
            200, {"apiVersion": api, "kind": f"{kind}List", "metadata": metadata, "items": bare[start : start + limit]}
        )

    def _watch(self, plural: str) -> None:
        cluster = self.server.cluster
        since = int(self.query.get("resourceVersion", 0))
        if since < cluster.store.oldest:
            raise RefusedError(410, "Expired", "too old resource version")

        def is_newer(version: int) -> bool:
            return cluster.store.version > version

        def events() -> Iterator[bytes]:
            seen = since
            while True:
                with cluster.store.news:
                    if seen < cluster.store.oldest:
                        gone = RefusedError(410, "Expired", "too old resource version").status
                        yield json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n"
                        return
                    changes = cluster.store.since(seen, plural, self.query)
                    news = cluster.store.version
                for change in changes:
                    yield json.dumps({"type": change.type, "object": change.object}).encode() + b"\n"
                seen = max(seen, news)
                if not changes and not cluster.idle(partial(is_newer, seen)):
                    return

        self._stream(events())

    def _log(self, namespace: str, name: str) -> None:
        cluster = self.server.cluster
        pod = cluster.store.find("pods", name, namespace)
        if pod is None:
            raise not_found(Key("pods", namespace, name))
        instances = cluster.world.logs.get(pod["metadata"]["uid"], [])
        previous = self.query.get("previous") == "true"
        if len(instances) < (2 if previous else 1):
            raise RefusedError(400, "BadRequest", f'container "node" in pod "{name}" is waiting to start')
        instance = instances[-2 if previous else -1]
        with cluster.store.news:
            lines = list(instance.lines)
        first = len(lines) - int(self.query["tailLines"]) if "tailLines" in self.query else 0
        since = self.query.get("sinceTime", "").removesuffix("Z")
        follow = self.query.get("follow") == "true"
        cuts = cluster.world.cuts

        def has_news(position: int) -> bool:
            return len(instance.lines) > position or instance.over or cluster.world.cuts > cuts

        def text() -> Iterator[bytes]:
            position = max(0, first)
            while True:
                with cluster.store.news:
                    new, over = instance.lines[position:], instance.over
                for stamp, line in new:
                    if stamp[:19] >= since:
                        yield f"{stamp} {line}\n".encode() if self.query.get("timestamps") else f"{line}\n".encode()
                position += len(new)
                if new:
                    continue
                if not follow or over:
                    return
                if cluster.world.cuts > cuts:
                    raise ConnectionResetError
                if not cluster.idle(partial(has_news, position)):
                    return

        self._stream(text(), "text/plain")

    def _exec(self, namespace: str, name: str) -> None:
        """A WebSocket with channels, its messages cut into frames as a server is free to do."""
        cluster = self.server.cluster
        pod = cluster.store.find("pods", name, namespace)
        if pod is None:
            raise not_found(Key("pods", namespace, name))
        if pod.get("status", {}).get("phase") != "Running":
            raise RefusedError(400, "BadRequest", f"pod {name} is not running")
        if self.headers["Upgrade"] != "websocket" or self.headers["Sec-WebSocket-Protocol"] != "v4.channel.k8s.io":
            raise RefusedError(400, "BadRequest", "unable to upgrade: unknown protocol")
        asked = parse_qs(urlsplit(self.path).query)
        there = [one["name"] for one in pod["spec"]["containers"]]
        if "container" not in asked and len(there) > 1:
            words = f"a container name must be specified for pod {name}, choose one of: [{' '.join(there)}]"
            raise RefusedError(400, "BadRequest", words)
        if not {*asked.get("container", ())} <= {*there}:
            raise RefusedError(400, "BadRequest", f"container {asked['container'][0]} is not valid for pod {name}")
        self.send_response(101)
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", "websocket")
        self.end_headers()
        self.close_connection = True
        command = asked["command"]
        sent = self._sent(int(command[-1])) if "stdin" in asked else b""
        code, out, err = cluster.run(command) if cluster.feed is None else cluster.feed(name, command, sent)
        causes = {"causes": [{"reason": "ExitCode", "message": str(code)}]}
        failure = {"status": "Failure", "reason": "NonZeroExitCode", "message": f"exit code {code}", "details": causes}
        status = {"status": "Success"} if code == 0 else failure
        half = len(out) // 2
        frames = [(0x02, b"\x01" + out[:half]), (0x89, b"are you there"), (0x80, out[half:])]
        frames += [(0x82, b"\x02" + err), (0x82, b"\x03" + json.dumps(status).encode()), (0x88, b"\x03\xe8")]
        cut = self.fault is not None and self.fault.drop == "cut"
        for head, data in frames[:1] if cut else frames:
            self.wfile.write(bytes([head]) + _length(len(data)) + data)
        self.wfile.flush()
        if cut:
            return self._break()
        if cluster.takes is not None:  # what comes now is the rest of its input, which nobody reads
            return
        pong = self.rfile.read(2 + 4 + len("are you there"))
        if pong[:2] != bytes([0x8A, 0x80 | 13]) or pong[6:] != b"are you there":
            cluster.faults_of_its_own.append(f"a ping was answered by {pong!r}")

    def _sent(self, length: int) -> bytes:
        """So many bytes for the command's standard input, which end when whoever sends them says."""
        self.wfile.flush()
        own = self.server.cluster.faults_of_its_own
        found = b""
        takes = self.server.cluster.takes
        while len(found) < (length if takes is None else min(length, takes)):
            head, size = self.rfile.read(2)
            if head != 0x82 or not size & 0x80:
                own.append(f"a frame began with {head:x} {size:x}")
            more = {126: 2, 127: 8}.get(size & 0x7F)
            count = int.from_bytes(self.rfile.read(more)) if more else size & 0x7F
            mask = self.rfile.read(4)
            data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(count)))
            if data[:1] != b"\0":
                own.append(f"channel {data[:1]!r} is not standard input")
            found += data[1:]
        return found

    # writing

    def _review(self) -> None:
        """Whether the one who asks may do something; nothing changes by it."""
        cluster = self.server.cluster
        if not cluster.reviews:
            raise RefusedError(403, "Forbidden", "selfsubjectaccessreviews is forbidden")
        asked = json.loads(self.body)["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked["subresource"])))
        self._json(201, {"status": {"allowed": (asked["verb"], resource) not in cluster.forbidden}})

    def _write(self) -> None:
        cluster = self.server.cluster
        if self.parts[-1] == "selfsubjectaccessreviews":
            return self._review()
        plural, namespace, name, _ = self._address()
        body: Object = json.loads(self.body) if self.body else {}
        with cluster.store.news:
            if self.command == "DELETE":
                code, answer = cluster.writes.delete(Key(plural, namespace, name), body)
            elif self.command == "POST":
                code, answer = cluster.writes.create(Key(plural, namespace, body["metadata"]["name"]), body, self.query)
            else:
                kind = self.headers["Content-Type"]
                code, answer = cluster.writes.patch(Key(plural, namespace, name), kind, body, self.query)
        if "PartialObjectMetadata" in self.headers.get("Accept", ""):
            answer = {"kind": "PartialObjectMetadata", "metadata": answer["metadata"]}
        words = cluster.writes.warnings.get(KINDS[plural][1], "").replace('"', '\\"')
        self._json(code, answer, {"Warning": f'299 - "{words}"'} if words else {})

    def _address(self) -> tuple[str, str, str, str]:
        """plural, namespace, name, part."""
        rest = self.parts[2:] if self.parts[0] == "api" else self.parts[3:]
        namespace = rest[1] if rest[:1] == ["namespaces"] else ""
        plural, name, part = ([*rest[2:], "", ""] if namespace else [*rest, "", ""])[:3]
        version = "/".join(self.parts[1 : -len(rest)])
        if plural not in KINDS or KINDS[plural][0] != version or plural not in self.server.cluster.plurals:
            raise RefusedError(404, "NotFound", "the server could not find the requested resource")
        return plural, namespace or "", name, part

    # answering

    def _json(self, code: int, value: Object, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, chunks: Iterator[bytes], kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for number, chunk in enumerate(chunks):
                if self.fault is not None and self.fault.drop == "cut" and number == 1:
                    self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk[: len(chunk) // 2])
                    self.wfile.flush()
                    return self._break()
                self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except ConnectionResetError:
            self._break()


def kubeconfig(url: str, token: str) -> str:
    """A kubeconfig for the server."""
    user = {"name": "me", "user": {"token": token}}
    context = {"name": "fake", "context": {"cluster": "fake", "user": "me"}}
    value = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": url}}],
        "contexts": [context],
        "users": [user],
    }
    return json.dumps(value)


def plain(secret: Object) -> dict[str, str]:
    """A Secret's values."""
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


def in_thread(server: Server) -> threading.Thread:
    """Serve."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    return thread
