/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/bench_cachegen.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "bench/remote/bench_peer.h"
#include "core/codec/codec.h"

struct tierce__bench_cachegen {
    struct tierce__bench_peer process;
    const struct tierce__bench *bench;
    char name[40];
    uint64_t run_bytes, sample_bytes;
};

/* sys.argv[1]: element, runs, bytes of a run, rows of a part, elements of a row, layers. The values
 * follow on the standard input, then commands. A group has the runs g, g + groups, ..., so that
 * every group has runs of all layers. */
static const char script[] =
    "import os, sys, time\n"
    "os.environ.update(LMCACHE_TRACK_USAGE='false', LMCACHE_DISABLE_BANNER='1',\n"
    "                  LMCACHE_LOG_LEVEL='ERROR')\n"
    "out = os.fdopen(os.dup(1), 'wb')\n"
    "os.dup2(2, 1)\n"
    "def tell(*words):\n"
    "    out.write((' '.join(map(str, words)) + '\\n').encode())\n"
    "    out.flush()\n"
    "sys.modules['vllm'] = None\n" /* LMCache needs none of it here */
    "try:\n"
    "    from importlib.metadata import version\n"
    "    import torch\n"
    "    from lmcache.storage_backend.serde import cachegen_basics, cachegen_decoder\n"
    "    from lmcache.storage_backend.serde.cachegen_encoder import encode_function\n"
    "    name = version('lmcache')\n"
    "except Exception as error:\n"
    "    tell('missing', repr(error).replace('\\n', ' '))\n"
    "    sys.exit()\n"
    "torch.set_num_threads(1)\n"
    "element, *numbers = sys.argv[1].split()\n"
    "runs, run_bytes, rows, row, layers = map(int, numbers)\n"
    "dtype = torch.bfloat16 if element == 'bf16' else torch.float16\n"
    "cells = run_bytes // (4 * rows * row)\n"
    "raw = torch.frombuffer(bytearray(sys.stdin.buffer.read(runs * run_bytes)), dtype=dtype)\n"
    "kv = raw.reshape(runs, cells, 2, rows, row).transpose(1, 2)\n"
    "kv = kv.reshape(runs, 2, cells * rows, 1, row)\n"
    "def bins(fine):\n"
    "    few = layers < 10\n"
    "    return torch.tensor([32.0 if few or i * layers // runs < fine else 16.0\n"
    "                         for i in range(runs)])\n"
    "key_bins, value_bins = bins(10), bins(2)\n"
    "groups = max(1, runs // layers)\n"
    "def encode(group):\n"
    "    part = slice(group, None, groups)\n"
    "    return encode_function(kv[part], None, key_bins[part], value_bins[part],\n"
    "                           cells * rows).to_bytes()\n"
    "def decode(group, data):\n"
    "    part = slice(group, None, groups)\n"
    "    coded = cachegen_basics.CacheGenGPUEncoderOutput.from_bytes(data)\n"
    "    count, tokens = coded.max_tensors_key.shape[:2]\n"
    "    room = torch.zeros((tokens, 2 * count * row), dtype=torch.uint8)\n"
    "    keys, values = cachegen_decoder.decode_function_gpu(coded.cdf, coded.data_chunks, count,\n"
    "                                                        tokens, room)\n"
    "    undo = cachegen_decoder.do_dequantize\n"
    "    return torch.stack([undo(keys, key_bins[part], coded.max_tensors_key),\n"
    "                        undo(values, value_bins[part], coded.max_tensors_value)],\n"
    "                       1).to(dtype)\n"
    "def restore():\n"
    "    back, stored = torch.empty(kv.shape[:3] + (row,), dtype=dtype), 0\n"
    "    for group in range(groups):\n"
    "        data = encode(group)\n"
    "        stored += len(data)\n"
    "        back[group::groups] = decode(group, data)\n"
    "    tell(stored)\n"
    "    back = back.reshape(runs, 2, cells, rows, row).transpose(1, 2).contiguous()\n"
    "    out.write(back.view(torch.uint8).numpy().tobytes())\n"
    "    out.flush()\n"
    "tell('ready', name, len(range(0, runs, groups)))\n"
    "for line in sys.stdin.buffer:\n"
    "    start = time.process_time_ns()\n"
    "    if line == b'restore\\n':\n"
    "        restore()\n"
    "        continue\n"
    "    if line == b'encode\\n':\n"
    "        data = encode(0)\n"
    "    else:\n"
    "        decode(0, data)\n"
    "    tell(time.process_time_ns() - start)\n";

static int start(struct tierce__bench_cachegen *peer,
                 const struct tierce__bench_cachegen_runs *runs)
{
    const char *python = peer->bench->python != NULL ? peer->bench->python : "python3";
    char argument[128], line[256] = "", version[24];
    unsigned long long sample;
    uint64_t bytes = runs->count * runs->run_bytes;
    snprintf(argument, sizeof(argument), "%s %llu %llu %u %u %u",
             tierce__element_name(runs->element), (unsigned long long)runs->count,
             (unsigned long long)runs->run_bytes, runs->part_rows, runs->row_elements,
             runs->layers);
    int rc = tierce__bench_peer_start(&peer->process, python, script, argument);
    if (rc == 0) { /* a process without the package has ended, or ends, without reading them */
        (void)fwrite(runs->values, 1, bytes, peer->process.ask);
        (void)fflush(peer->process.ask);
    }
    if (rc < 0 || fgets(line, sizeof(line), peer->process.answer) == NULL ||
        sscanf(line, "ready %23s %llu", version, &sample) != 2) {
        line[strcspn(line, "\n")] = '\0';
        fprintf(stderr,
                "tierce bench: %s: rows beside LMCache are left out, %s has no package lmcache "
                "that runs; --python names another%s%s\n",
                peer->bench->name, python, line[0] != '\0' ? ": " : "", line);
        return -ENOTSUP;
    }
    snprintf(peer->name, sizeof(peer->name), "LMCache %s", version);
    peer->sample_bytes = sample * runs->run_bytes;
    return 0;
}

int tierce__bench_cachegen_open(struct tierce__bench_cachegen **out,
                                const struct tierce__bench *bench,
                                const struct tierce__bench_cachegen_runs *runs)
{
    struct tierce__bench_cachegen *peer = tierce__calloc(1, sizeof(*peer));
    if (peer == NULL)
        return -ENOMEM;
    peer->bench = bench;
    peer->run_bytes = runs->run_bytes;
    int rc = start(peer, runs);
    if (rc < 0)
        tierce__bench_cachegen_close(peer);
    else
        *out = peer;
    return rc;
}

const char *tierce__bench_cachegen_name(const struct tierce__bench_cachegen *peer)
{
    return peer->name;
}

uint64_t tierce__bench_cachegen_sample_bytes(const struct tierce__bench_cachegen *peer)
{
    return peer->sample_bytes;
}

/* The number that the process answers a command with. */
static int64_t ask(struct tierce__bench_cachegen *peer, const char *command)
{
    char line[64];
    long long answer;
    if (fprintf(peer->process.ask, "%s\n", command) < 0 || fflush(peer->process.ask) != 0)
        return -EPIPE;
    if (fgets(line, sizeof(line), peer->process.answer) == NULL ||
        sscanf(line, "%lld", &answer) != 1 || answer < 0)
        return tierce__bench_fail(peer->bench, "LMCache's coder fails");
    return answer;
}

int64_t tierce__bench_cachegen_encode(struct tierce__bench_cachegen *peer)
{
    return ask(peer, "encode");
}

int64_t tierce__bench_cachegen_decode(struct tierce__bench_cachegen *peer)
{
    return ask(peer, "decode");
}

int tierce__bench_cachegen_restore(struct tierce__bench_cachegen *peer, uint64_t *coded_bytes)
{
    int64_t answer = ask(peer, "restore");
    if (answer < 0)
        return (int)answer;
    *coded_bytes = (uint64_t)answer;
    return 0;
}

int tierce__bench_cachegen_read_run(struct tierce__bench_cachegen *peer, uint8_t *run)
{
    return fread(run, 1, peer->run_bytes, peer->process.answer) == peer->run_bytes ? 0 : -EPROTO;
}

void tierce__bench_cachegen_close(struct tierce__bench_cachegen *peer)
{
    if (peer == NULL)
        return;
    tierce__bench_peer_end(&peer->process);
    tierce__free(peer);
}
