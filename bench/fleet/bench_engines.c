/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/fleet/bench_engines.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The arguments are the kind, the number of objects and their bytes. The process with the word
 * `holder` behind them owns the memory that the first one reads. */
static const char script[] =
    "import base64, ctypes, mmap, os, signal, subprocess, sys, time\n"
    "os.environ.update(GLOG_minloglevel='3', NIXL_LOG_LEVEL='ERROR', UCX_TLS='tcp,self')\n"
    "out = os.fdopen(os.dup(1), 'w', buffering=1)\n"
    "for fd in 1, 2:\n"
    "    os.dup2(os.open(os.devnull, os.O_WRONLY), fd)\n"
    "kind, count, size = sys.argv[1].split()[:3]\n"
    "count, size, is_holder = int(count), int(size), sys.argv[1].endswith('holder')\n"
    "memory = mmap.mmap(-1, count * size)\n"
    "base = ctypes.addressof(ctypes.c_char.from_buffer(memory))\n"
    "own = [base + size * i for i in range(count)]\n"
    "class Mooncake:\n"
    "    def __init__(self):\n"
    "        from mooncake.engine import TransferEngine\n"
    "        self.engine = TransferEngine()\n"
    "        assert self.engine.initialize('127.0.0.1', 'P2PHANDSHAKE', 'tcp', '') == 0\n"
    "        assert self.engine.register_memory(base, len(memory)) == 0\n"
    "    def address(self):\n"
    "        return str(self.engine.get_rpc_port())\n"
    "    def connect(self, address, other):\n"
    "        self.peer = '127.0.0.1:' + address, other\n"
    "    def read(self):\n"
    "        host, other = self.peer\n"
    "        return self.engine.batch_transfer_sync_read(host, own, other, [size] * count) == 0\n"
    "class Nixl:\n"
    "    def __init__(self):\n"
    "        from nixl_cu12._api import nixl_agent, nixl_agent_config\n"
    "        self.agent = nixl_agent('holder' if is_holder else 'reader',\n"
    "                                nixl_agent_config(backends=['UCX']))\n"
    "        area = [(base, len(memory), 0, '')]\n"
    "        assert self.agent.register_memory(self.agent.get_reg_descs(area, 'DRAM'))\n"
    "    def address(self):\n"
    "        return base64.b64encode(self.agent.get_agent_metadata()).decode()\n"
    "    def connect(self, address, other):\n"
    "        peer = self.agent.add_remote_agent(base64.b64decode(address))\n"
    "        into, source = (self.agent.get_xfer_descs([(at, size, 0) for at in places], 'DRAM')\n"
    "                        for places in (own, other))\n"
    "        self.work = self.agent.initialize_xfer('READ', into, source, peer)\n"
    "    def read(self):\n"
    "        state = self.agent.transfer(self.work)\n"
    "        while state == 'PROC':\n"
    "            state = self.agent.check_xfer_state(self.work)\n"
    "        return state == 'DONE'\n"
    "try:\n"
    "    engine = {'mooncake': Mooncake, 'nixl': Nixl}[kind]()\n"
    "except Exception as error:\n"
    "    print('missing', repr(error), file=out)\n"
    "    os._exit(1)\n"
    "if is_holder:\n"
    "    memory[:] = b'm' * len(memory)\n"
    "    print(engine.address(), base, file=out)\n"
    "    sys.stdin.read()\n"
    "    os._exit(0)\n"
    "def end_with_parent():\n"
    "    ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "holder = subprocess.Popen([*sys.orig_argv[:3], sys.argv[1] + ' holder'], text=True,\n"
    "                          stdin=subprocess.PIPE, stdout=subprocess.PIPE,\n"
    "                          preexec_fn=end_with_parent)\n"
    "address, other = holder.stdout.readline().split()\n"
    "engine.connect(address, [int(other) + size * i for i in range(count)])\n"
    "good = engine.read() and memory[:] == b'm' * len(memory)\n"
    "print('ready' if good else 'wrong', file=out)\n"
    "for line in sys.stdin:\n"
    "    start = time.perf_counter_ns()\n"
    "    good = engine.read()\n"
    "    print(time.perf_counter_ns() - start if good else -1, file=out)\n"
    "holder.stdin.close()\n"
    "holder.wait()\n"
    "os._exit(0)\n"; /* engines of C++ may not end with their interpreter */

int tierce__bench_engine_start(struct tierce__bench_engine *engine,
                               const struct tierce__bench *bench,
                               enum tierce__bench_engine_kind kind, size_t count, uint64_t bytes)
{
    static const struct {
        const char *word, *name;
    } kinds[TIERCE__BENCH_ENGINES] = {
        [TIERCE__BENCH_ENGINE_MOONCAKE] = {"mooncake", "Mooncake's engine"},
        [TIERCE__BENCH_ENGINE_NIXL] = {"nixl", "NIXL over UCX"},
    };
    const char *python = bench->python != NULL ? bench->python : "python3";
    char argument[64], line[256] = "";
    *engine = (struct tierce__bench_engine){.bench = bench, .name = kinds[kind].name};
    snprintf(argument, sizeof(argument), "%s %zu %llu", kinds[kind].word, count,
             (unsigned long long)bytes);
    int rc = tierce__bench_peer_start(&engine->peer, python, script, argument);
    if (rc == 0 && fgets(line, sizeof(line), engine->peer.answer) != NULL &&
        strcmp(line, "ready\n") == 0)
        return 0;
    if (strcmp(line, "wrong\n") == 0)
        return tierce__bench_fail(bench, "%s: wrong bytes", engine->name);
    fprintf(stderr, "tierce bench: %s: %s left out, %s cannot run it; --python names another\n%s",
            bench->name, engine->name, python, line);
    return -ENOTSUP;
}

void tierce__bench_engine_end(struct tierce__bench_engine *engine)
{
    tierce__bench_peer_end(&engine->peer);
}

int64_t tierce__bench_engine_read(void *arg)
{
    struct tierce__bench_engine *engine = arg;
    char line[64];
    long long ns = -1;
    if (fputs("read\n", engine->peer.ask) < 0 || fflush(engine->peer.ask) != 0 ||
        fgets(line, sizeof(line), engine->peer.answer) == NULL || sscanf(line, "%lld", &ns) != 1 ||
        ns < 0)
        return tierce__bench_fail(engine->bench, "%s fails", engine->name);
    return ns;
}
