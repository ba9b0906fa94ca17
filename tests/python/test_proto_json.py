# SPDX-License-Identifier: Apache-2.0
"""The manager's messages beside Google's own protobuf: wire and JSON, both ways, and what is broken.

Drives bin/proto_codec of every build folder that has one (TIERCE_TEST_SCALE multiplies the rounds,
TIERCE_TEST_SEED repeats a run).
"""

import json
import math
import os
import random
import re
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("google.protobuf")

from google.protobuf import (descriptor_pb2, descriptor_pool, json_format,  # noqa: E402
                             message_factory)

ROOT = Path(__file__).resolve().parents[2]
BUILDS = [p for p in (ROOT / "build" / n for n in ("dev", "asan")) if
          (p / "bin" / "proto_codec").exists()]
DESCRIPTORS = next((p / "generated" / "proto" / "kvcm" / "descriptors.pb" for p in BUILDS), None)
ROUNDS = 2000 * int(os.environ.get("TIERCE_TEST_SCALE", "1"))

pytestmark = pytest.mark.skipif(not BUILDS, reason="needs a build with tests (dev or asan)")


def load():
    """The message classes by the number that proto_codec knows them by, and the files."""
    files = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    requests, replies = [], []
    rows = re.findall(r"^TIERCE_RPC\((\w+), (\w+), (\w+),",
                      (ROOT / "src/proto/kvcm/rpcs.def").read_text(), re.MULTILINE)
    for package, service, name in rows:
        file = next(f for f in files.file if f.package == f"kv_cache_manager.proto.{package}")
        method = next(m for s in file.service if s.name == service
                      for m in s.method if m.name == name)
        for names, kind in ((requests, method.input_type), (replies, method.output_type)):
            names.append(message_factory.GetMessageClass(pool.FindMessageTypeByName(kind[1:])))
    assert len(rows) == sum(len(s.method) for f in files.file for s in f.service)
    return files, requests + replies


FILES, CLASSES = load() if BUILDS else (None, [])


class Codec:
    def __init__(self, build):
        # vLLM, which other tests load, preloads libraries; a sanitizer wants to be the first.
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        self.process = subprocess.Popen([build / "bin" / "proto_codec"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, env=environment)

    def __call__(self, kind, number, data):
        """(rc, bytes)"""
        self.process.stdin.write(b"%s %d %d\n" % (kind, number, len(data)) + data)
        self.process.stdin.flush()
        head = self.process.stdout.readline().split()
        assert head, "proto_codec ended"
        return int(head[0]), self.process.stdout.read(int(head[1]))

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0


@pytest.fixture(params=BUILDS, ids=lambda p: p.name)
def codec(request):
    codec = Codec(request.param)
    yield codec
    codec.close()


@pytest.fixture
def rng():
    seed = int(os.environ.get("TIERCE_TEST_SEED", time.time_ns()))
    print(f"TIERCE_TEST_SEED={seed}")
    return random.Random(seed)


INTEGERS = [0, 1, -1, 127, 128, 2**31 - 1, -2**31]
LONGS = INTEGERS + [2**31, 2**53, 2**53 + 1, -2**53 - 1, 2**63 - 1, -2**63]
# No minus zero: protobuf-c takes it for the default and does not write it.
DOUBLES = [0.0, 1.0, 0.5, 0.1, 1 / 3, 1e300, 5e-324, math.nan, math.inf, -math.inf, 123456789.125]
TEXTS = ["", "a", "tp_0", 'quote " and \\ backslash', "line\nend\ttab\r\b\f\x01\x1f\x7f", "äöü", "漢字",
         "🙂", "\u2028<>&'/", "x" * 300]


def random_value(rng, field):
    kind = field.type
    if kind == field.TYPE_INT32:
        return rng.choice(INTEGERS + [rng.randrange(-2**31, 2**31)])
    if kind == field.TYPE_INT64:
        return rng.choice(LONGS + [rng.randrange(-2**63, 2**63)])
    if kind == field.TYPE_DOUBLE:
        return rng.choice(DOUBLES + [rng.uniform(-1e6, 1e6)])
    if kind == field.TYPE_BOOL:
        return rng.random() < 0.5
    if kind == field.TYPE_ENUM:
        return rng.choice([v.number for v in field.enum_type.values] + [77, -5])
    assert kind == field.TYPE_STRING
    return rng.choice(TEXTS)


def fill(rng, message):
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.3:
            continue
        if field.is_repeated:
            values = getattr(message, field.name)
            for _ in range(rng.choice([0, 1, 2, 5, 40])):
                if field.message_type:
                    fill(rng, values.add())
                else:
                    values.append(random_value(rng, field))
        elif field.message_type:
            inner = getattr(message, field.name)
            inner.SetInParent()
            fill(rng, inner)
        else:
            setattr(message, field.name, random_value(rng, field))
    return message


def same(a, b):
    """Equal, NaN like NaN and minus zero unlike zero."""
    return a.SerializeToString(deterministic=True) == b.SerializeToString(deterministic=True)


def equal_json(a, b):
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal_json(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(equal_json, a, b))
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, float) or isinstance(b, float):
        return not isinstance(a, str) and float(a) == float(b)
    return type(a) is type(b) and a == b


def test_out(codec, rng):
    """Wire to JSON: what Google prints with its defaults on, without white space."""
    for _ in range(ROUNDS):
        number = rng.randrange(len(CLASSES))
        message = fill(rng, CLASSES[number]())
        rc, text = codec(b"w", number, message.SerializeToString())
        assert rc == 0, text
        want = json_format.MessageToDict(message, preserving_proto_field_name=True,
                                         always_print_fields_with_no_presence=True)
        assert equal_json(json.loads(text), want), (text, want)


def camel(name):
    parts = name.split("_")
    return parts[0] + "".join(p[:1].upper() + p[1:] for p in parts[1:])


class Writer:
    """A message as JSON, spelt in one of the ways that are allowed."""

    def __init__(self, rng):
        self.rng = rng

    def space(self):
        return self.rng.choice(["", "", "", " ", "\n\t", "\r\n"])

    def text(self, value):
        if self.rng.random() < 0.5:
            return json.dumps(value)
        out = json.dumps(value, ensure_ascii=False)
        return out.replace("/", "\\/") if self.rng.random() < 0.5 else out

    def number(self, value):
        spelt = self.rng.choice(["plain", "plain", "text", "point"])
        if spelt == "text":
            return f'"{value}"'
        if spelt == "point" and abs(value) < 2**53:
            return self.rng.choice([f"{value}.0", f"{value}e0", f"{value * 10}E-1", f"{value}.00e+00"])
        return str(value)

    def value(self, field, value):
        if field.message_type:
            return self.message(value)
        if field.type in (field.TYPE_INT32, field.TYPE_INT64):
            return self.number(value)
        if field.type == field.TYPE_DOUBLE:
            text = ("NaN" if math.isnan(value) else
                    repr(value) if math.isfinite(value) else
                    "Infinity" if value > 0 else "-Infinity")
            return f'"{text}"' if not math.isfinite(value) or self.rng.random() < 0.3 else text
        if field.type == field.TYPE_BOOL:
            return "true" if value else "false"
        if field.type == field.TYPE_ENUM:
            known = field.enum_type.values_by_number.get(value)
            return f'"{known.name}"' if known and self.rng.random() < 0.7 else str(value)
        return self.text(value)

    def message(self, message):
        members = []
        for field, value in message.ListFields():
            name = field.name if self.rng.random() < 0.5 else camel(field.name)
            if field.is_repeated:
                value = ("[" + self.space() + ("," + self.space()).join(
                    self.value(field, v) for v in value) + "]")
            else:
                value = self.value(field, value)
            members.append(f'{self.text(name)}{self.space()}:{self.space()}{value}')
        if self.rng.random() < 0.3:
            members.append('"no_such_field":' + self.rng.choice(
                ["1", "null", "[[[{}]]]", '{"a":[1,{"b":"c"}]}', "1e999", '"\\ud83d\\ude00"']))
        for field in message.DESCRIPTOR.fields:
            oneof = field.containing_oneof
            unset = not message.WhichOneof(oneof.name) if oneof else not any(
                f is field for f, _ in message.ListFields())
            if unset and self.rng.random() < 0.1:
                members.append(f'"{field.name}":null')
            elif unset and field.enum_type and not field.is_repeated and self.rng.random() < 0.3:
                members.append(f'"{field.name}":"NO_SUCH_NAME"')
        self.rng.shuffle(members)
        return ("{" + self.space() + (self.space() + "," + self.space()).join(members) +
                self.space() + "}")


def test_in(codec, rng):
    """JSON in every spelling to wire, read by Google."""
    for _ in range(ROUNDS):
        number = rng.randrange(len(CLASSES))
        message = fill(rng, CLASSES[number]())
        text = (Writer(rng).message(message)).encode()
        rc, wire = codec(b"j", number, text)
        assert rc == 0, (wire, text)
        assert same(CLASSES[number].FromString(wire), message), text


def google(cls, text):
    """Google's reading, or None."""
    message = cls()
    try:
        # Not json_format.Parse, which rejects unknown fields that come twice.
        json_format.ParseDict(json.loads(text.decode()), message, ignore_unknown_fields=True)
        message.SerializeToString()
    except (json_format.ParseError, UnicodeError, ValueError, RecursionError):
        return None
    return message


PIECES = [b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"null", b"true", b"NaN", b"-", b"1e400",
          b"9223372036854775808", b"-9223372036854775809", b"2147483648", b"\xff", b"\xc0\x80",
          b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"0", b"1.5", b" ", b"{}", b"[1]", b'""',
          b'"9007199254740993"', b"\x00"]


def mutate(rng, text):
    text = bytearray(text)
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(text) + 1)
        what = rng.randrange(4)
        if what == 0:
            del text[at:]
        elif what == 1:
            del text[at:at + rng.randrange(1, 5)]
        elif what == 2:
            text[at:at] = rng.choice(PIECES)
        else:
            end = rng.randrange(at, len(text) + 1)
            text[at:at] = text[at:min(end, at + 40)]
    return bytes(text)


def test_broken(codec, rng):
    """Google accepts every accepted text too, with the same values."""
    taken = 0
    for _ in range(ROUNDS):
        number = rng.randrange(len(CLASSES))
        message = fill(rng, CLASSES[number]())
        text = mutate(rng, Writer(rng).message(message).encode())
        if b"\\u0000" in text:  # Google's parser takes "name\0" for "name"
            continue
        rc, wire = codec(b"j", number, text)
        assert rc in (0, -5004), (rc, wire)
        if rc == 0:
            taken += 1
            want = google(CLASSES[number], text)
            assert want is not None, text
            assert same(CLASSES[number].FromString(wire), want), text
        else:
            assert wire, "no reason"
    assert taken > ROUNDS / 100


def test_broken_wire(codec, rng):
    """Wire bytes that are broken are rejected or read, and never more."""
    for _ in range(ROUNDS):
        number = rng.randrange(len(CLASSES))
        wire = bytearray(fill(rng, CLASSES[number]()).SerializeToString())
        for _ in range(rng.choice([1, 2, 8])):
            at = rng.randrange(len(wire) + 1)
            if rng.random() < 0.3:
                del wire[at:]
            elif at < len(wire):
                wire[at] = rng.randrange(256)
        rc, text = codec(b"w", number, bytes(wire))
        assert rc in (0, -5004, -5012), (rc, text)
        if rc == 0:
            json.loads(text)


ACCEPTED = 0
FORMAT, LIMIT = -5004, -5012
WRITE = '{"trace_id":"t","block_keys":%s}'
FIXED = [
    ('{}', ACCEPTED), (' {} ', ACCEPTED), ('', FORMAT), ('[]', FORMAT), ('null', FORMAT),
    ('{', FORMAT), ('{}x', FORMAT), ('{"trace_id"}', FORMAT), ('{"trace_id":1}', FORMAT),
    ('{"trace_id":"\\u0000"}', FORMAT), ('{"trace_id":"\\ud800"}', FORMAT),
    ('{"trace_id":"a","trace_id":"b"}', FORMAT), ('{"trace_id":"a","traceId":"b"}', FORMAT),
    ('{"block_mask":{"offset":1,"bool_masks":{}}}', FORMAT),
    ('{"block_mask":{"offset":1,"bool_masks":null}}', ACCEPTED),
    ('{"block_mask":{"bool_masks":{"values":[1]}}}', FORMAT),
    ('{"block_mask":{"bool_masks":{"values":["true"]}}}', FORMAT),
    (WRITE % '[9223372036854775807,"-9223372036854775808"]', ACCEPTED),
    (WRITE % '[9223372036854775808]', FORMAT), (WRITE % '[-9223372036854775809]', FORMAT),
    (WRITE % '[NaN]', FORMAT), (WRITE % '[null]', FORMAT), (WRITE % '[1,]', FORMAT),
    (WRITE % '[1.5]', FORMAT), (WRITE % '["1 "]', FORMAT), (WRITE % '[""]', FORMAT),
    (WRITE % '[true]', FORMAT), (WRITE % '{}', FORMAT), (WRITE % '1', FORMAT),
    (WRITE % '[01]', FORMAT), (WRITE % '[1e999999999]', FORMAT), (WRITE % ('[' * 65), FORMAT),
    ('{"x":%s%s}' % ('[' * 63, ']' * 63), ACCEPTED),
    ('{"x":%s%s}' % ('[' * 100000, ']' * 100000), FORMAT),
    ('{"write_timeout_seconds":2147483648}', FORMAT),
    ('{"write_timeout_seconds":"-2147483648"}', ACCEPTED),
]


@pytest.mark.parametrize("text,want", FIXED, ids=lambda v: str(v)[:40])
def test_fixed(codec, text, want):
    name = "RemoveCacheRequest" if "block_mask" in text else "StartWriteCacheRequest"
    number = next(i for i, c in enumerate(CLASSES) if c.DESCRIPTOR.name == name)
    rc, out = codec(b"j", number, text.encode())
    assert rc == want, out


def test_64_bits(codec):
    """Integers beyond 2^53 as numbers stay what they are."""
    number = next(i for i, c in enumerate(CLASSES)
                  if c.DESCRIPTOR.name == "StartWriteCacheRequest")
    keys = [2**53 + 1, -2**53 - 1, 2**63 - 1, -2**63]
    rc, wire = codec(b"j", number, json.dumps({"blockKeys": keys}).encode())
    assert rc == 0
    assert list(CLASSES[number].FromString(wire).block_keys) == keys


def test_unknown_enum_names_in_arrays(codec):
    number = next(i for i, c in enumerate(CLASSES)
                  if c.DESCRIPTOR.full_name.endswith("debug.InjectFaultRequest"))
    rc, text = codec(b"r", number, b'{"fault_type":"NO_SUCH","api_name":"x"}')
    assert rc == 0
    assert json.loads(text)["fault_type"] == "FT_INTERNAL_ERROR"


def test_wire_strings(codec):
    """Texts that protobuf-c alone would accept: not UTF-8, or with text after a NUL."""
    number = next(i for i, c in enumerate(CLASSES) if c.DESCRIPTOR.name == "GetInstanceInfoRequest")
    for text, want in ((b"ok", 0), (b"\xff", FORMAT), (b"a\0b", FORMAT), (b"\xed\xa0\x80", FORMAT)):
        assert codec(b"w", number, b"\x0a" + bytes([len(text)]) + text)[0] == want


def test_memory_is_bounded(codec):
    """Two bytes of wire each become a message: rejected where that would grow without a measure."""
    number = next(i for i, c in enumerate(CLASSES) if c.DESCRIPTOR.name == "FinishWriteCacheRequest")
    assert codec(b"w", number, b"\x2a\x00" * 5000)[0] == 0
    assert codec(b"w", number, b"\x2a\x00" * 500000)[0] == LIMIT
    assert codec(b"j", number, b'{"locations":[' + b",".join([b"{}"] * 5000) + b"]}")[0] == 0


def test_table():
    """Packages, messages, names and numbers below 100 are what clients were built with."""
    lines = []
    for file in FILES.file:
        package = file.package.removeprefix("kv_cache_manager.proto.")
        for enum in file.enum_type:
            if enum.name in ("ReportReason", "NodeMedium", "NodePartState", "ScrubAction",
                             "MoveKind", "MoveResult", "DrainAction", "ReportKind",
                             "ReportAnswer", "WorkerAction", "CommandState"):  # Tierce's own
                continue
            own = 99 if enum.name == "StorageType" else 0 if enum.name == "FaultType" else 2**31
            lines += [f"{package}.{enum.name} {v.number} {v.name}" for v in enum.value
                      if v.number <= own and not v.name.startswith(("WRITE_SESSION_", "NAMESPACE_"))]
        for message in file.message_type:
            for field in message.field:
                if field.number < 100:
                    kind = (field.type_name.rsplit(".", 1)[-1] or
                            descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)[5:].lower())
                    lines.append(f"{package}.{message.name} {field.number} "
                                 f"{'repeated ' * (field.label == 3)}{kind} {field.name}" +
                                 (f" oneof {message.oneof_decl[field.oneof_index].name}"
                                  if field.HasField("oneof_index") else ""))
        own = {m.name for m in file.message_type
               if m.field and all(f.number >= 100 for f in m.field)}
        for service in file.service:
            lines += [f"{package}.{service.name}/{m.name} "
                      f"{m.input_type.rsplit('.', 1)[1]} {m.output_type.rsplit('.', 1)[1]}"
                      for m in service.method if m.input_type.rsplit(".", 1)[1] not in own]
    table = Path(__file__).with_name("kvcm_messages.txt")
    assert sorted(lines) == [x for x in table.read_text().splitlines() if not x.startswith("#")]
