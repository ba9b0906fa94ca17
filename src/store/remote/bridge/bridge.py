# SPDX-License-Identifier: Apache-2.0
"""The other end of bridge.c: a client of a store that works on the memory of its parent.

It is read from standard input, with the file of a client after it, which ends with main(Client):

    client = Client(options, pool)    # arguments of the process and options; a writable mmap
    client.exists(names)              # each of these returns a result, or a result and a text
    client.get(name, place, offset, length)
    client.put(name, place, length)
    client.delete(name)
    client.length(name)
    client.abilities()
    client.close()

Descriptor 3 says when the process is ready and ends when the parent does, 4 is the parent's pool,
and from 5 on there is a socket for each of the parent's callers. Each carries requests, one after
the other, and their answers (bridge.c has the same structures).
"""

import sys

sys.path[:] = [folder for folder in sys.path if folder]  # nothing is imported from the working folder

# Few and small ones: imports are most of the time that a start takes. (socket, threading and
# traceback took two thirds of it, 2026-12.)
import _thread  # noqa: E402
import mmap  # noqa: E402
import os  # noqa: E402
import select  # noqa: E402
import struct  # noqa: E402

MAGIC = 0x4E4F4F4D
HELLO = struct.Struct("<8sII")
ASK = struct.Struct("<IIIIQQQ")
ANSWER = struct.Struct("<IIq")
CONTROL, POOL, FIRST_SEAT = 3, 4, 5
EXISTS, GET, PUT, DELETE, LENGTH, ABILITIES = 1, 2, 3, 4, 5, 6
TEXT_BYTES = 200
LOOK_MS = 1000  # whether the parent lives


def run(client, op, names, place, offset, length):
    if op == EXISTS:
        return client.exists(names)
    if op == GET:
        return client.get(names[0], place, offset, length)
    if op == PUT:
        return client.put(names[0], place, length)
    if op == DELETE:
        return client.delete(names[0])
    if op == LENGTH:
        return client.length(names[0])
    if op == ABILITIES:
        return client.abilities()
    raise ValueError(f"operation {op}")


def serve(client, seat):
    """All requests of a caller."""
    while True:
        head = receive(seat, ASK.size)
        magic, op, count, text_bytes, place, offset, length = ASK.unpack(head)
        if magic != MAGIC:
            raise ValueError("invalid request")
        sizes = struct.unpack(f"<{count}H", receive(seat, 2 * count))
        text = receive(seat, text_bytes)
        names, at = [], 0
        for size in sizes:
            names.append(text[at : at + size])
            at += size
        result = run(client, op, names, place, offset, length)
        result, words = result if isinstance(result, tuple) else (result, "")
        words = cut(words)
        send(seat, ANSWER.pack(MAGIC, len(words), result) + words)


def cut(text):
    return text.encode(errors="replace")[:TEXT_BYTES]


def receive(seat, size):
    data = os.read(seat, size) if size > 0 else b""
    while len(data) < size:
        more = os.read(seat, size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def send(seat, data):
    while data:
        data = data[os.write(seat, data) :]


def print_traceback():
    """Of the exception that is handled."""
    import traceback

    traceback.print_exc()
    sys.stderr.flush()


def serve_or_end(client, seat):
    """A request that cannot be served ends the process, and the parent starts another one."""
    try:
        serve(client, seat)
    except (EOFError, OSError):
        return  # the parent has ended, which the main thread sees
    except BaseException:
        print_traceback()
        os._exit(1)


def say_hello(control, status, text):
    told = cut(text)
    send(control, HELLO.pack(b"tierce-1", status, len(told)) + told)


def wait_for_the_end(control, parent):
    """Children of the parent may have its sockets too, so their end alone does not tell."""
    poller = select.poll()
    poller.register(control, select.POLLIN)
    while os.getppid() == parent and not poller.poll(LOOK_MS):
        pass


def read_options(control, size):
    """Options that no other user may see, as the arguments of a process can be."""
    parts = receive(control, size).split(b"\0")[:-1]
    return dict(part.decode(errors="surrogateescape").split("=", 1) for part in parts)


def main(make_client):
    parent = os.getppid()
    arguments = dict(argument.split("=", 1) for argument in sys.argv[1:])
    try:
        arguments["options"] = read_options(CONTROL, int(arguments.get("options", 0)))
        client = make_client(arguments, mmap.mmap(POOL, 0))
    except BaseException as error:
        print_traceback()
        say_hello(CONTROL, 1, str(error) or type(error).__name__)
        os._exit(1)
    for number in range(int(arguments["seats"])):
        _thread.start_new_thread(serve_or_end, (client, FIRST_SEAT + number))
    say_hello(CONTROL, 0, "")
    wait_for_the_end(CONTROL, parent)
    client.close()
    os._exit(0)
