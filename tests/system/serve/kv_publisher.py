# SPDX-License-Identifier: Apache-2.0
"""A publisher of KV events, of pyzmq and msgspec: as vLLM's, and with a snapshot as Tierce's."""

import http.server
import threading
import time

import msgspec
import zmq

END = b"\xff" * 8
MEDIA = ("GPU", "CPU", "DISK")


class Publisher:
    def __init__(self, replay=True, snapshot=False, arrays=False):
        self.context = zmq.Context()
        self.arrays, self.ports = arrays, {}
        self.lock = threading.Lock()
        self.has_replay, self.http = replay, None
        self.shown = []  # the Authorization of each request for a snapshot
        self.held = {}  # hash -> (media, parent, tokens)
        self.sequence, self.log, self.pub = 0, [], None
        if snapshot:
            self.serve_snapshots()
        self.start()

    # ---- life ----

    def start(self):
        """With the same ports as before, if there was a life before."""
        self.held, self.log, self.stopped = {}, [], threading.Event()
        self.sequence = 0 if self.http is None else self.sequence + (1 << 20)
        self.pub = self.context.socket(zmq.PUB)
        self.pub.setsockopt(zmq.LINGER, 0)
        self.endpoint = self.bind(self.pub, "pub")
        self.thread, self.replay_endpoint = None, None
        if self.has_replay:
            self.router = self.context.socket(zmq.ROUTER)
            self.router.setsockopt(zmq.LINGER, 0)
            self.replay_endpoint = self.bind(self.router, "replay")
            self.thread = threading.Thread(target=self.serve_replays, daemon=True)
            self.thread.start()

    def bind(self, socket, name):
        port = self.ports.get(name, 0)
        while True:
            try:
                socket.bind(f"tcp://127.0.0.1:{port or '*'}")
                break
            except zmq.ZMQError as e:  # of the life before: ZMQ closes it in the background
                if e.errno != zmq.EADDRINUSE or not port:
                    raise
        endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.ports[name] = endpoint.rsplit(":", 1)[1]
        return endpoint

    def kill(self):
        self.stopped.set()
        if self.thread is not None:
            self.thread.join()
            self.router.close()
        self.pub.close()

    def close(self):
        self.kill()
        if self.http is not None:
            self.http.shutdown()
            self.http.server_close()
        self.context.term()

    # ---- events ----

    def event(self, kind, **fields):
        if not self.arrays:
            return {"type": kind, **fields}
        return [kind, *fields.values()]

    def store(self, hashes, parent, tokens, medium="GPU", block_size=4):
        for i, h in enumerate(hashes):
            media = self.held.get(h, (set(),))[0] | {medium}
            self.held[h] = (media, parent if i == 0 else hashes[i - 1],
                            tokens[i * block_size:(i + 1) * block_size])
        return self.event("BlockStored", block_hashes=hashes, parent_block_hash=parent,
                          token_ids=tokens, block_size=block_size, lora_id=None, medium=medium,
                          lora_name=None)

    def remove(self, hashes, medium="GPU"):
        for h in hashes:
            self.held[h][0].discard(medium)
            if not self.held[h][0]:
                del self.held[h]
        return self.event("BlockRemoved", block_hashes=hashes, medium=medium)

    def clear(self):
        self.held = {}
        return self.event("AllBlocksCleared")

    def send(self, *events, lost=False):
        batch = msgspec.msgpack.encode([time.time(), list(events), 0])
        with self.lock:
            number = self.sequence.to_bytes(8, "big")
            self.log.append((number, batch))
            self.sequence += 1
        if not lost:
            self.pub.send_multipart([b"kv", number, batch])

    # ---- recovery ----

    def serve_replays(self):
        while not self.stopped.is_set():
            if not self.router.poll(20):
                continue
            client, _, first = self.router.recv_multipart()
            with self.lock:
                log = list(self.log)
            for number, batch in log:
                if number >= first:
                    self.router.send_multipart([client, b"", b"kv", number, batch])
            self.router.send_multipart([client, b"", b"", END, b""])

    def snapshot(self):
        with self.lock:
            encode = msgspec.msgpack.encode
            out = [encode({"version": 1, "instance": 7, "sequence": self.sequence - 1,
                           "topic": "kv", "dp_rank": 0})]
            count = 0
            order = []  # parents first, as a reader needs them
            for h in self.held:
                chain = []
                while h in self.held and h not in order:
                    chain.append(h)
                    h = self.held[h][1]
                order += reversed(chain)
            for h in order:
                media, parent, tokens = self.held[h]
                for medium in sorted(media):
                    event = {"type": "BlockStored", "block_hashes": [h],
                             "parent_block_hash": parent, "token_ids": tokens, "block_size": 4,
                             "medium": medium}
                    out.append(encode([0.0, [event], 0]))
                    count += 1
            return b"".join(out) + encode({"end": count})

    def serve_snapshots(self):
        publisher = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                publisher.shown.append(self.headers["Authorization"])
                body = publisher.snapshot()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.snapshot_url = f"http://127.0.0.1:{self.http.server_port}/kv_events/snapshot"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
