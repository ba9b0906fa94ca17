# SPDX-License-Identifier: Apache-2.0
"""Hosts of a test's own: each is a network namespace with a device for each link, and this process is the switch
between those of a link. It can delay, lose, reorder and damage frames, and cut hosts and links off, by a seed."""

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time

import pytest

CLONE_NEWNET, TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x40000000, 0x400454CA, 0x0002, 0x1000
MTU = 9000
TCP, IPV4 = 6, 0x0800


def payload_of(frame):
    """Where the bytes behind the TCP header begin; None: they are none."""
    if struct.unpack_from(">H", frame, 12)[0] != IPV4 or frame[23] != TCP:
        return None
    begin = 14 + 4 * (frame[14] & 15)
    begin += 4 * (frame[begin + 12] >> 4)
    end = 14 + struct.unpack_from(">H", frame, 16)[0]
    return begin if begin < end <= len(frame) else None


def damage(frame, begin):
    """Swaps two pairs of bytes, which TCP's checksum does not notice. None: there are no two that differ."""
    words = (len(frame) - begin) // 2
    for first in range(words // 4, words // 2):  # behind the head of a reply
        a, b = begin + 2 * first, begin + 2 * (first + words // 2)
        if frame[a:a + 2] != frame[b:b + 2]:
            return frame[:a] + frame[b:b + 2] + frame[a + 2:b] + frame[a:a + 2] + frame[b + 2:]
    return None


class Host:
    def __init__(self, number, links):
        self.number, self.links = number, links
        self.addresses = [f"10.77.{link}.{number + 1}" for link in range(links)]
        self.address = self.addresses[0]
        failures = []
        maker = threading.Thread(target=self.make, args=(failures,))  # the namespace of a thread
        maker.start()
        maker.join()
        if failures:
            pytest.skip(f"no network namespaces: {failures[0]}")

    def make(self, failures):
        try:
            if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "unshare")
            self.namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
            self.taps, commands = [], ["link set lo up"]
            for link, address in enumerate(self.addresses):
                tap, name = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK), f"eth{link}"
                fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
                commands += [f"link set {name} address 02:00:00:00:{link:02x}:{self.number:02x} mtu {MTU} up",
                             f"address add {address}/24 dev {name}"]
                self.taps.append(tap)
            subprocess.run(["ip", "-batch", "-"], check=True, text=True, input="\n".join(commands), capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            failures.append(error)

    def own_boot_id(self, folder):
        """A command before those of this host, so that engines of different hosts do not take them for one host."""
        file = folder / f"boot_id{self.number}"
        file.write_text(f"{self.number:032x}\n")
        boot_id = "/proc/sys/kernel/random/boot_id"
        command = ["unshare", "--mount", "sh", "-c", f'mount --bind {file} {boot_id} && exec "$@"', "sh"]
        if subprocess.run([*command, "true"], capture_output=True).returncode != 0:
            pytest.skip("no mount namespaces")
        return command

    def send_little_ahead(self):
        """The kernel takes few bytes of a process before it has sent them: what it has taken arrives although the process was
        killed."""
        write = self.start("sh", "-c", "echo 4096 16384 65536 >/proc/sys/net/ipv4/tcp_wmem")
        assert write.wait() == 0

    def start(self, *command, **options):
        return subprocess.Popen(["nsenter", f"--net=/proc/self/fd/{self.namespace}", *map(str, command)],
                                pass_fds=[self.namespace], **options)

    def close(self):
        for fd in [*self.taps, self.namespace]:
            os.close(fd)


class Network:
    """The hosts and the switch. Its attributes can be changed at any time; `heal` ends all faults."""

    def __init__(self, hosts, seed, links=1):
        self.hosts = [Host(number, links) for number in range(hosts)]
        self.carried = [0] * links  # bytes over each link
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.heal()
        self.late, self.count = [], 0  # frames that wait: (time, number, tap, frame)
        self.wake, self.waker = os.pipe()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def heal(self):
        with self.lock:
            self.delay = 0.0  # seconds of each frame
            self.lost = self.reordered = self.damaged = 0.0  # shares of the frames; of those with many bytes for damage
            self.off = set()  # pairs (from, to) of hosts whose frames are dropped
            self.links_off = set()
            self.cuts = {}    # (from, to): bytes of TCP that still pass, then both directions are off

    def cut_off(self, host):
        with self.lock:
            others = [h.number for h in self.hosts if h.number != host.number]
            self.off |= {(host.number, o) for o in others} | {(o, host.number) for o in others}

    def cut_after(self, sender, receiver, count):
        with self.lock:
            self.cuts[sender.number, receiver.number] = count

    def has_cut(self, sender, receiver):
        with self.lock:
            return (sender.number, receiver.number) in self.off

    def passes(self, way, frame):
        """The frame, or the part of its fate that is a loss: None. With the lock."""
        begin = payload_of(frame)
        if way in self.off or self.random.random() < self.lost:
            return None
        if begin is not None and way in self.cuts:
            self.cuts[way] -= len(frame) - begin
            if self.cuts[way] < 0:
                del self.cuts[way]
                self.off |= {way, way[::-1]}
                return None
        if begin is not None and len(frame) - begin > 1000 and self.random.random() < self.damaged:
            return damage(frame, begin) or frame
        return frame

    def take(self, host, link, frame):
        number = frame[5]
        others = [h for h in self.hosts if h is not host]
        to = others if frame[0] & 1 else [h for h in others if h.number == number]
        now = time.monotonic()
        with self.lock:
            for other in to:
                passed = self.passes((host.number, other.number), frame)
                if passed is None or link in self.links_off:
                    continue
                self.carried[link] += len(frame)
                wait = self.delay + (self.random.uniform(0.001, 0.01) if self.random.random() < self.reordered else 0)
                heapq.heappush(self.late, (now + wait, self.count, other.taps[link], passed))
                self.count += 1

    def send_due(self):
        while self.late and self.late[0][0] <= time.monotonic():
            _, _, tap, frame = heapq.heappop(self.late)
            try:
                os.write(tap, frame)
            except OSError:  # its queue is full, as that of a switch
                pass

    def run(self):
        taps = {tap: (host, link) for host in self.hosts for link, tap in enumerate(host.taps)}
        poll = select.poll()
        for fd in [*taps, self.wake]:
            poll.register(fd, select.POLLIN)
        while True:
            wait = 1000 * (self.late[0][0] - time.monotonic()) if self.late else None
            for fd, _ in poll.poll(None if wait is None else max(wait, 0)):
                if fd == self.wake:
                    return
                try:
                    self.take(*taps[fd], os.read(fd, MTU + 64))
                except BlockingIOError:
                    pass
            self.send_due()

    def close(self):
        os.write(self.waker, b"x")
        self.thread.join()
        os.close(self.wake)
        os.close(self.waker)
        for host in self.hosts:
            host.close()
