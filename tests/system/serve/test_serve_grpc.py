# SPDX-License-Identifier: Apache-2.0
"""gRPC of src/net/server against grpcio, which nobody here wrote, and against bare HTTP/2."""

import gzip
import random
import shutil
import socket
import struct
import threading
import time
import zlib

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase)

from manager_process import wait_until
from serve_process import Raw, Server, frame, make_certificates

UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
PROTO = """
syntax = "proto3";
package test;
import "google/protobuf/duration.proto";
message Words { string text = 1; google.protobuf.Duration age = 2; message Inner { int32 n = 1; } }
enum Kind { NONE = 0; }
service Echo { rpc Echo(Words) returns (Words); rpc Wait(Words) returns (Words); }
"""


@pytest.fixture(scope="module")
def descriptors(tmp_path_factory):
    from grpc_tools import protoc
    import grpc_tools
    from pathlib import Path
    folder = tmp_path_factory.mktemp("proto")
    (folder / "echo.proto").write_text(PROTO)
    include = Path(grpc_tools.__file__).parent / "_proto"
    assert protoc.main(["protoc", f"-I{folder}", f"-I{include}", "--include_imports",
                        f"--descriptor_set_out={folder}/set", f"{folder}/echo.proto"]) == 0
    return folder / "set"


@pytest.fixture(scope="module")
def server(descriptors):
    running = Server("--descriptors", descriptors, "--unhealthy", "test.Ill", "--workers", 8)
    yield running
    running.end()


@pytest.fixture()
def channel(server):
    with grpc.insecure_channel(server.target, options=UNLIMITED) as made:
        yield made


def call(channel, method, message=b"", **options):
    options.setdefault("timeout", 60)
    return channel.unary_unary(f"/test.Echo/{method}")(message, **options)


def error_of(channel, method, message=b"", **options):
    with pytest.raises(grpc.RpcError) as raised:
        call(channel, method, message, **options)
    return raised.value


@pytest.mark.parametrize("size", [0, 1, 4, 1000, 16383, 16384, 1 << 20, 60 << 20])
def test_comes_back_as_it_was_sent(channel, size):
    message = random.Random(size).randbytes(size)
    assert call(channel, "Echo", message) == message


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
@pytest.mark.parametrize("size", [0, 1, 100000, 5 << 20])
def test_compressed_requests(channel, compression, size):
    message = b"tierce " * (size // 7) + b"x" * (size % 7)
    assert call(channel, "Echo", message, compression=compression) == message


def test_a_large_answer(channel):
    assert call(channel, "Big", metadata=[("x-bytes", str(64 << 20))]) == b"b" * (64 << 20)


def test_a_large_answer_through_a_small_window(server):
    raw = Raw(server.grpc, window=1000)
    answer = raw.call("/test.Echo/Big", headers=[("x-bytes", "300000")])
    assert answer.status == 0 and answer.data == frame(b"b" * 300000)
    raw.close()


def test_workers_and_other_threads_answer(channel):
    assert call(channel, "Wait", b"from a worker") == b"from a worker"
    assert call(channel, "Late", b"from a thread") == b"from a thread"


def test_what_the_handler_knows(channel):
    told = call(channel, "Info", metadata=[("x-test", "value")], timeout=5).decode().split("|")
    assert told[:3] == ["POST", "/test.Echo/Info", ""]
    assert told[3].startswith("127.0.0.1:") and told[4:] == ["-", "value", "1"]
    assert channel.unary_unary("/any/thing")(b"", timeout=60).startswith(b"POST|/any/thing|")


def test_ipv6():
    server = Server("--host", "::")
    for host in "[::1]", "127.0.0.1":
        with grpc.insecure_channel(f"{host}:{server.grpc}") as channel:
            assert call(channel, "Info").decode().split("|")[3].startswith(host + ":")
    server.end()


def test_errors_carry_status_and_text(channel):
    error = error_of(channel, "Fail", metadata=[("x-status", "5")])
    assert error.code() == grpc.StatusCode.NOT_FOUND
    assert error.details() == "fünf % und\nmehr"


def test_unknown_methods(channel):
    assert error_of(channel, "Nothing").code() == grpc.StatusCode.UNIMPLEMENTED
    with pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary("/no.Service/Echo")(b"", timeout=60)
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_deadline_is_kept_by_the_client(channel):
    error = error_of(channel, "Wait", metadata=[("x-wait-ms", "20000")], timeout=0.2)
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_deadline_is_kept_by_the_server(server, channel):
    """This client has no timer: the answer can only be the server's."""
    before = int(call(channel, "Over"))
    raw = Raw(server.grpc)
    begun = time.monotonic()
    answer = raw.call("/test.Echo/Wait", headers=[("grpc-timeout", "300m"), ("x-wait-ms", "30000")])
    assert answer.status == 4 and 0.3 <= time.monotonic() - begun < 15
    wait_until(lambda: int(call(channel, "Over")) != before)  # and the handler learns of it
    # Nor does the request have to be whole.
    stream = raw.begin("/test.Echo/Echo", [("grpc-timeout", "100m")])
    assert raw.wait(stream).status == 4
    # One that is over from the beginning never reaches a handler.
    assert raw.call("/test.Echo/Echo", headers=[("grpc-timeout", "0n")]).status == 4
    # The connection is as good as before.
    assert raw.call("/test.Echo/Echo", b"on").data == frame(b"on")
    raw.close()


def test_a_late_answer_is_dropped(server, channel):
    """The handler's thread answers when the client has long been told."""
    before = int(call(channel, "Answered"))
    raw = Raw(server.grpc)
    headers = [("grpc-timeout", "50m"), ("x-wait-ms", "300")]
    assert raw.call("/test.Echo/Late", b"late", headers).status == 4
    wait_until(lambda: int(call(channel, "Answered")) == before + 1)
    answer = raw.call("/test.Echo/Echo", b"next")
    assert answer.status == 0 and answer.data == frame(b"next")
    raw.close()


def test_a_message_that_is_too_long():
    server = Server("--message-max", 1000)
    with grpc.insecure_channel(server.target, options=UNLIMITED) as channel:
        assert len(call(channel, "Echo", b"x" * 1000)) == 1000
        for size in 1001, 70 << 20:
            error = error_of(channel, "Echo", b"x" * size)
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        bomb = error_of(channel, "Echo", b"x" * 1001, compression=grpc.Compression.Gzip)
        assert bomb.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert call(channel, "Echo", b"after") == b"after"
    server.end()


def test_a_gzip_bomb(server):
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(256)) + packer.flush()
    raw = Raw(server.grpc)
    raw.send()
    stream = raw.begin("/test.Echo/Echo", [("grpc-encoding", "gzip")])
    rest = frame(bomb, 1)
    while rest:
        n = min(len(rest), raw.h2.max_outbound_frame_size,
                raw.h2.local_flow_control_window(stream))
        if n == 0:
            raw.take()
            continue
        raw.h2.send_data(stream, rest[:n], end_stream=n == len(rest))
        raw.send()
        rest = rest[n:]
    assert raw.wait(stream).status == 8
    raw.close()


def test_held_bytes_have_a_limit():
    server = Server("--held-max", 1 << 20)
    raw = Raw(server.grpc)
    stream = raw.begin("/test.Echo/Echo", [("grpc-encoding", "gzip")])
    raw.h2.send_data(stream, frame(gzip.compress(bytes(8 << 20)), 1), end_stream=True)
    assert raw.wait(stream).status == 8
    assert raw.call("/test.Echo/Big", headers=[("x-bytes", str(2 << 20))]).status == 8
    # Unread answers reach the limit, and are freed with their connection.
    deaf = Raw(server.grpc, window=0)
    streams = [deaf.begin("/test.Echo/Big", [("x-bytes", str(300 << 10))]) for _ in range(8)]
    for stream in streams:
        deaf.h2.send_data(stream, frame(b""), end_stream=True)
    assert deaf.wait(streams[-1]).status == 8
    assert raw.call("/test.Echo/Big", headers=[("x-bytes", str(512 << 10))]).status == 8
    deaf.close()
    wait_until(lambda: raw.call("/test.Echo/Big", headers=[("x-bytes", str(512 << 10))]).status == 0)
    raw.close()
    server.end()


def test_who_does_not_read_or_end_holds_memory_for_a_while_only():
    """All share it: clients without a deadline would keep the others out for ever."""
    server = Server("--held-max", 1 << 20, "--transfer", 1000)
    deaf, raw = Raw(server.grpc, window=0), Raw(server.grpc)
    streams = [deaf.begin("/test.Echo/Big", [("x-bytes", str(300 << 10))]) for _ in range(3)]
    for stream in streams:
        deaf.h2.send_data(stream, frame(b""), end_stream=True)
    slow = raw.begin("/test.Echo/Echo")
    raw.h2.send_data(slow, frame(b"never all of it")[:-1])
    raw.send()
    deaf.send()
    assert raw.wait(slow).status == 4
    wait_until(lambda: raw.call("/test.Echo/Big", headers=[("x-bytes", str(900 << 10))]).status == 0)
    stream = raw.begin("/test.Echo/Wait", [("x-wait-ms", "2000")])
    raw.h2.send_data(stream, frame(b"handlers take their time"), end_stream=True)
    assert raw.wait(stream).status == 0
    for connection in (deaf, raw):
        connection.close()
    server.end()


def test_who_reads_or_asks_slowly_is_cut_off():
    """By bytes of TCP, below what HTTP/2 says of windows and streams."""
    server = Server("--held-max", 24 << 20, "--transfer", 1500)
    slow = Raw(server.grpc, window=(1 << 31) - 1)
    slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.h2.increment_flow_control_window((1 << 30))
    stream = slow.begin("/test.Echo/Big", [("x-bytes", str(18 << 20))])
    slow.h2.send_data(stream, frame(b""), end_stream=True)
    slow.send()
    raw, until = Raw(server.grpc), time.monotonic() + 60
    big = [("x-bytes", str(10 << 20))]
    while raw.call("/test.Echo/Big", headers=big).headers.get("grpc-status") == "8":
        assert slow.socket.recv(1 << 14) and time.monotonic() < until
    # Headers in several frames, of which the last does not come.
    stream = raw.begin("/test.Echo/Echo")
    headers = bytearray(raw.h2.data_to_send())
    assert headers[3:5] == b"\x01\x04"  # HEADERS, END_HEADERS
    headers[4] = 0
    raw.socket.sendall(headers)
    assert raw.wait(stream).status == 4
    for connection in (slow, raw):
        connection.close()
    server.end()


@pytest.mark.parametrize("given, body, status", [
    ([], frame(b"a") + frame(b"b"), 12),
    ([], b"", 12),
    ([], frame(b"cut off")[:-1], 13),
    ([], b"\x00\x00", 13),
    ([], b"\x07" + frame(b"x")[1:], 13),
    ([], frame(gzip.compress(b"x", mtime=0), 1), 13),
    ([("grpc-encoding", "gzip")], frame(b"no gzip", 1), 13),
    ([("grpc-encoding", "gzip")], frame(gzip.compress(b"x" * 99, mtime=0)[:-9], 1), 13),
    ([("grpc-encoding", "gzip")], frame(gzip.compress(b"x", mtime=0) + b"more", 1), 13),
    ([("grpc-encoding", "gzip")], frame(b"", 1), 13),
    ([("grpc-encoding", "snappy")], frame(b"x", 1), 12),
    ([("grpc-timeout", "soon")], frame(b"x"), 13),
    ([("grpc-timeout", "123456789S")], frame(b"x"), 13),
    ([("grpc-encoding", "gzip")], frame(b"plain all the same"), 0),
    ([("grpc-encoding", "identity")], frame(b"x"), 0),
    ([("grpc-timeout", "99999999H")], frame(b"x"), 0),
])
def test_broken_and_odd_requests(server, given, body, status):
    raw = Raw(server.grpc)
    answer = raw.call("/test.Echo/Echo", headers=given, body=body)
    assert answer.headers[":status"] == "200" and answer.status == status
    assert "gzip" in answer.headers["grpc-accept-encoding"]
    assert raw.call("/test.Echo/Echo", b"on").data == frame(b"on")
    raw.close()


def test_what_is_no_grpc(server):
    raw = Raw(server.grpc)
    assert raw.call("/test.Echo/Echo", type="application/json").headers[":status"] == "415"
    assert raw.call("/test.Echo/Echo", type="application/grpcx").headers[":status"] == "415"
    assert raw.call("/test.Echo/Echo", type=None).headers[":status"] == "415"
    assert raw.call("/test.Echo/Echo", method="PUT").headers[":status"] == "405"
    assert raw.call("/test.Echo/Echo", type="application/grpc+proto").status == 0
    raw.close()


def test_headers_that_are_too_long(server):
    raw = Raw(server.grpc)
    long = [(f"x-{i}", "v" * 1000) for i in range(20)]
    assert raw.call("/test.Echo/Echo", headers=long).status == 8
    assert raw.call("/test.Echo/Echo", headers=long[:10]).status == 0
    raw.close()


def test_frames_cut_anywhere(server):
    raw = Raw(server.grpc)
    stream = raw.begin("/test.Echo/Echo")
    for byte in frame(b"in pieces"):
        raw.h2.send_data(stream, bytes([byte]))
        raw.send()
    raw.h2.send_data(stream, b"", end_stream=True)
    assert raw.wait(stream).data == frame(b"in pieces")
    # The bytes themselves, one a packet, and many calls in one.
    raw.h2.send_headers(101, [(":method", "POST"), (":scheme", "http"), (":authority", "t"),
                              (":path", "/test.Echo/Echo"), ("content-type", "application/grpc")])
    raw.h2.send_data(101, frame(b"slow"), end_stream=True)
    raw.answers[101] = type(raw.answers[stream])()
    for byte in raw.h2.data_to_send():
        raw.socket.sendall(bytes([byte]))
    assert raw.wait(101).data == frame(b"slow")
    streams = []
    for i in range(50):
        stream = raw.begin("/test.Echo/Echo")
        raw.h2.send_data(stream, frame(b"%d" % i), end_stream=True)
        streams.append(stream)
    for i, stream in enumerate(streams):
        assert raw.wait(stream).data == frame(b"%d" % i)
    raw.close()


def test_pings_at_any_time(server):
    raw = Raw(server.grpc)
    for _ in range(500):
        raw.h2.ping(b"keepaliv")
        raw.send()
    while raw.pongs < 500:
        assert raw.take()
    assert raw.goaway is None and raw.call("/test.Echo/Echo", b"on").status == 0
    raw.close()


def test_keepalive_without_calls(server):
    options = [("grpc.keepalive_time_ms", 20), ("grpc.keepalive_timeout_ms", 20000),
               ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0),
               ("grpc.http2.min_time_between_pings_ms", 20)]
    states = []
    with grpc.insecure_channel(server.target, options=options) as channel:
        assert call(channel, "Echo", b"a") == b"a"
        channel.subscribe(states.append)
        time.sleep(1)  # some fifty pings, of which none breaks the connection
        assert call(channel, "Echo", b"b") == b"b"
    assert grpc.ChannelConnectivity.TRANSIENT_FAILURE not in states


def test_2000_calls_at_once():
    """The server holds each for three seconds, so that they are all there together."""
    server = Server("--workers", 2)
    with grpc.insecure_channel(server.target, options=UNLIMITED) as channel:
        method = channel.unary_unary("/test.Echo/Late")
        calls = [method.future(b"%d" % i, metadata=[("x-wait-ms", "3000")], timeout=120)
                 for i in range(2000)]
        assert [c.result() for c in calls] == [b"%d" % i for i in range(2000)]
    server.end()


def test_a_full_queue_refuses():
    server = Server("--workers", 1, "--queue-max", 4)
    with grpc.insecure_channel(server.target) as channel:
        method = channel.unary_unary("/test.Echo/Wait")
        calls = [method.future(b"x", metadata=[("x-wait-ms", "300")], timeout=60)
                 for _ in range(40)]
        codes = [c.code() for c in calls]
    assert codes.count(grpc.StatusCode.OK) >= 4
    assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
    server.end()


def test_cancelled_calls_are_over(server, channel):
    begun, before = int(call(channel, "Begun")), int(call(channel, "Over"))
    method = channel.unary_unary("/test.Echo/Wait")
    calls = [method.future(b"x", metadata=[("x-wait-ms", "30000")], timeout=60) for _ in range(4)]
    wait_until(lambda: int(call(channel, "Begun")) == begun + 4)
    for c in calls:
        c.cancel()
    wait_until(lambda: int(call(channel, "Over")) >= before + 4)


def test_a_client_that_vanishes(server, channel):
    begun, before = int(call(channel, "Begun")), int(call(channel, "Over"))
    raw = Raw(server.grpc)
    stream = raw.begin("/test.Echo/Wait", [("x-wait-ms", "30000")])
    raw.h2.send_data(stream, frame(b"x"), end_stream=True)
    raw.send()
    wait_until(lambda: int(call(channel, "Begun")) != begun)
    raw.close()
    wait_until(lambda: int(call(channel, "Over")) != before)


def test_rapid_resets_cost_the_connection(server, channel):
    """Calls that are begun and reset without end: written as bytes, faster than any rate allows."""
    def http2(kind, flags, stream, payload):
        return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload

    given = [(":method", "POST"), (":scheme", "http"), (":path", "/test.Echo/Echo"),
             (":authority", "t"), ("content-type", "application/grpc")]
    block = b"".join(bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
                     for name, value in given)
    flood = b"".join(http2(1, 4, stream, block) + http2(3, 0, stream, struct.pack(">I", 8))
                     for stream in range(1, 100000, 2))
    with socket.create_connection(("127.0.0.1", server.grpc), 60) as s:
        try:
            s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2(4, 0, 0, b"") + flood)
            while s.recv(1 << 16):
                pass
        except ConnectionError:
            pass
    assert call(channel, "Echo", b"others go on") == b"others go on"


def test_health(server, channel):
    stub = health_pb2_grpc.HealthStub(channel)
    check = lambda name: stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=60).status
    assert check("") == check("test.Echo") == health_pb2.HealthCheckResponse.SERVING
    assert check("test.Ill") == health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(grpc.RpcError) as raised:
        next(stub.Watch(health_pb2.HealthCheckRequest(), timeout=60))
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_reflection(channel):
    database = ProtoReflectionDescriptorDatabase(channel)
    assert "test.Echo" in database.get_services()
    from google.protobuf.descriptor_pool import DescriptorPool
    pool = DescriptorPool(database)
    service = pool.FindServiceByName("test.Echo")
    assert [m.name for m in service.methods] == ["Echo", "Wait"]
    assert service.methods[0].input_type.fields_by_name["age"].message_type.full_name == \
        "google.protobuf.Duration"
    assert pool.FindMessageTypeByName("test.Words.Inner").fields[0].name == "n"
    assert pool.FindEnumTypeByName("test.Kind").values[0].name == "NONE"
    with pytest.raises(KeyError):
        pool.FindMessageTypeByName("test.Nothing")


def test_reflection_is_a_conversation(channel):
    """Questions and answers in turn on one stream, and both names of the service."""
    request = reflection_pb2.ServerReflectionRequest
    questions = [request(list_services=""), request(file_containing_symbol="test.Echo.Wait"),
                 request(file_by_filename="nothing.proto"), request(host="x"),
                 request(all_extension_numbers_of_type="test.Words"),
                 request(file_containing_extension={"containing_type": "test.Words",
                                                    "extension_number": 5})]
    for version in "v1alpha", "v1":
        method = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=request.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString)
        turn = threading.Semaphore(1)

        def ask():
            for question in questions:
                turn.acquire()
                yield question

        answers = []
        for answer in method(ask(), timeout=60):
            answers.append(answer)
            turn.release()
        kinds = [a.WhichOneof("message_response") for a in answers]
        assert kinds == ["list_services_response", "file_descriptor_response", "error_response",
                         "error_response", "all_extension_numbers_response", "error_response"]
        assert [a.original_request for a in answers] == questions
        assert [a.error_response.error_code for a in answers] == [
            0, 0, grpc.StatusCode.NOT_FOUND.value[0], grpc.StatusCode.INVALID_ARGUMENT.value[0],
            0, grpc.StatusCode.NOT_FOUND.value[0]]
        # The file itself and the one that it imports.
        assert len(answers[1].file_descriptor_response.file_descriptor_proto) == 2


def test_random_bytes(server, channel):
    source = random.Random(7)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    for i in range(300):
        with socket.create_connection(("127.0.0.1", server.grpc)) as s:
            try:
                s.sendall((preface if i % 2 else b"") + source.randbytes(source.randrange(1, 4096)))
                if i % 3 == 0:
                    s.shutdown(socket.SHUT_WR)
                    while s.recv(4096):
                        pass
            except ConnectionError:
                pass
    assert call(channel, "Echo", b"well") == b"well"


def test_connections_without_calls_make_room():
    """A client that opens all connections of a port, and sends no call, does not keep others out."""
    server = Server("--connections-max", 4, "--transfer", 300)
    raws = [Raw(server.grpc) for _ in range(4)]
    busy, silent = raws[0], raws[1:]
    assert silent[0].call("/test.Echo/Echo").status == 0
    stream = busy.begin("/test.Echo/Wait", [("x-wait-ms", "3000")])
    busy.h2.send_data(stream, frame(b""), end_stream=True)
    busy.send()
    # Three of four are as many as a port accepts without looking for those that are not used.
    wait_until(lambda: sum(raw.closed or not raw.take(0.01) and raw.closed for raw in silent) >= 2)
    assert all(raw.goaway is not None for raw in silent if raw.closed)
    assert Raw(server.grpc).call("/test.Echo/Echo").status == 0
    assert busy.wait(stream).status == 0
    for raw in raws:
        raw.close()
    server.end()


def test_connections_have_a_limit():
    server = Server("--connections-max", 3)
    held = [Raw(server.grpc) for _ in range(3)]
    for raw in held:
        assert raw.call("/test.Echo/Echo").status == 0
    refused = Raw(server.grpc)
    refused.take()
    assert refused.closed or not refused.take()
    held[0].close()
    until = time.monotonic() + 30
    while True:
        raw = Raw(server.grpc)
        try:
            raw.take()
            if not raw.closed and raw.call("/test.Echo/Echo").status == 0:
                break
        except (ConnectionError, KeyError):
            pass
        assert time.monotonic() < until
        raw.close()
    for made in (raw, refused, *held):
        made.close()
    server.end()


def test_connections_of_one_address_have_a_limit():
    server = Server("--connections-per-address", 2)

    def connect(source):
        """A connection that was let in, or None."""
        made = Raw.__new__(Raw)
        begin = socket.create_connection
        try:
            socket.create_connection = lambda to, seconds: begin(to, seconds, (source, 0))
            made.__init__(server.grpc)
            if made.call("/test.Echo/Echo").headers:
                return made
        except ConnectionError:
            pass
        finally:
            socket.create_connection = begin
        made.close()

    held = [connect(f"127.0.0.{i}") for i in (1, 1, 2, 2)]
    assert all(held) and connect("127.0.0.1") is None and connect("127.0.0.2") is None
    held.pop(0).close()
    until = time.monotonic() + 60
    while (again := connect("127.0.0.1")) is None:
        assert time.monotonic() < until
    assert connect("127.0.0.2") is None
    for made in (again, *held):
        made.close()
    server.end()


def test_sigterm_lets_calls_end():
    server = Server("--drain", 30000)
    with grpc.insecure_channel(server.target) as channel:
        slow = channel.unary_unary("/test.Echo/Wait").future(
            b"in flight", metadata=[("x-wait-ms", "2000")], timeout=60)
        wait_until(lambda: call(channel, "Begun") == b"1")
        server.ask_to_end()
        assert slow.result() == b"in flight"
        with pytest.raises(grpc.RpcError) as raised:
            wait_until(lambda: call(channel, "Echo", timeout=60) != b"")
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
    server.end()


def test_sigterm_does_not_wait_for_ever():
    server = Server("--drain", 300)
    with grpc.insecure_channel(server.target) as channel:
        slow = channel.unary_unary("/test.Echo/Wait").future(
            b"x", metadata=[("x-wait-ms", "30000")], timeout=60)
        wait_until(lambda: call(channel, "Begun") == b"1")
        begun = time.monotonic()
        server.ask_to_end()
        assert slow.code() == grpc.StatusCode.UNAVAILABLE
        assert slow.details() == "the server is shutting down"
        server.end()
        assert time.monotonic() - begun < 20


def test_an_idle_server_ends_at_once():
    server = Server()
    with grpc.insecure_channel(server.target) as channel:
        assert call(channel, "Echo", b"x") == b"x"
        begun = time.monotonic()
        server.end()
        assert time.monotonic() - begun < 5


# ---- TLS -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def secure(server, folder, name=None, options=UNLIMITED):
    read = lambda file: (folder / file).read_bytes()
    own = (read(f"{name}.key"), read(f"{name}.pem")) if name else (None, None)
    return grpc.secure_channel(f"localhost:{server.grpc}",
                               grpc.ssl_channel_credentials(read("ca.pem"), *own), options)


def test_tls(certificates):
    server = Server("--cert", certificates / "server.pem", "--key", certificates / "server.key")
    with secure(server, certificates) as channel:
        assert call(channel, "Echo", b"x" * (5 << 20)) == b"x" * (5 << 20)
        assert call(channel, "Info").decode().split("|")[4] == "-"
        calls = [channel.unary_unary("/test.Echo/Wait").future(b"%d" % i, timeout=60)
                 for i in range(100)]
        assert [c.result() for c in calls] == [b"%d" % i for i in range(100)]
    with grpc.insecure_channel(server.target) as channel:
        assert error_of(channel, "Echo", timeout=5).code() in (
            grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    source = random.Random(8)
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", server.grpc)) as s:
            s.sendall(source.randbytes(500))
    with secure(server, certificates) as channel:
        assert call(channel, "Echo", b"well") == b"well"
    server.end()


def test_mutual_tls(certificates):
    server = Server("--cert", certificates / "server.pem", "--key", certificates / "server.key",
                    "--ca", certificates / "ca.pem")
    with secure(server, certificates, "alice") as channel:
        assert call(channel, "Info").decode().split("|")[4] == "alice"
    for name in None, "mallory":
        with secure(server, certificates, name) as channel:
            assert error_of(channel, "Echo", timeout=5).code() in (
                grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    server.end()


def test_certificates_are_read_again(tmp_path):
    first, second, used = (tmp_path / name for name in ("first", "second", "used"))
    for folder in (first, second):
        folder.mkdir()
        make_certificates(folder)
    shutil.copytree(first, used)
    server = Server("--cert", used / "server.pem", "--key", used / "server.key", "--ca",
                    used / "ca.pem")

    def let_in(folder):
        with secure(server, folder, "alice") as channel:
            try:
                return call(channel, "Echo", b"x", timeout=5) == b"x"
            except grpc.RpcError:
                return False

    with secure(server, first, "alice") as kept:
        assert call(kept, "Echo", b"x") == b"x"
        assert let_in(first) and not let_in(second)
        shutil.copy(second / "server.pem", used)  # without its key
        assert "TLS" in server.read_again() and let_in(first)
        for file in ("server.key", "ca.pem"):
            shutil.copy(second / file, used)
        assert server.read_again() == "read"
        assert let_in(second) and not let_in(first)
        assert call(kept, "Echo", b"y") == b"y"
    server.end()
