/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/kvcm/rpcs.h"
#include "base/alloc.h"
#include "proto/kvcm/proto_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/*
 * The codec for tests/python/test_proto_json.py. Reads "KIND RPC BYTES\n" and so many bytes, again
 * and again; writes "RC BYTES\n" and so many bytes. The message is the request of the RPC with
 * that number, or from TIERCE__RPC_COUNT on the reply. KIND is j (JSON to wire), w (wire to JSON),
 * or r (JSON to JSON).
 *
 * With the argument "bench" it says how fast the codec is instead.
 */

static const ProtobufCMessageDescriptor *descriptor_of(unsigned long rpc)
{
    if (rpc >= 2 * TIERCE__RPC_COUNT)
        exit(2);
    return rpc < TIERCE__RPC_COUNT ? tierce__rpcs[rpc].request
                                   : tierce__rpcs[rpc - TIERCE__RPC_COUNT].reply;
}

static void answer(int rc, const void *bytes, size_t count)
{
    printf("%d %zu\n", rc, count);
    fwrite(bytes, 1, count, stdout);
    fflush(stdout);
}

static void run(char kind, const ProtobufCMessageDescriptor *descriptor, const char *in,
                size_t bytes)
{
    ProtobufCMessage *message = NULL;
    char why[TIERCE__PROTO_WHY_BYTES] = "";
    void *wire = NULL;
    char *text = NULL;
    size_t out = 0;
    int rc = kind == 'w' ? tierce__proto_unpack(&message, descriptor, in, bytes, why)
                         : tierce__proto_json_parse(&message, descriptor, in, bytes, why);
    if (rc == 0)
        rc = kind == 'j' ? tierce__proto_pack(&wire, &out, message)
                         : tierce__proto_json_print(&text, &out, message);
    if (rc != 0)
        answer(rc, why, strlen(why));
    else
        answer(0, kind == 'j' ? wire : text, out);
    tierce__proto_free(message);
    tierce__free(wire);
    tierce__free(text);
}

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* GetCacheLocation of 1,024 keys, and its reply. */
static void bench(void)
{
    char *text = malloc(1 << 20), why[TIERCE__PROTO_WHY_BYTES];
    const struct tierce__rpc *rpc = &tierce__rpcs[TIERCE__RPC_meta_get_cache_location];
    for (int reply = 0; text != NULL && reply < 2; reply++) {
        const ProtobufCMessageDescriptor *descriptor = reply ? rpc->reply : rpc->request;
        size_t used = (size_t)sprintf(text, reply ? "{\"locations\":[" : "{\"block_keys\":[");
        for (uint64_t i = 0; i < 1024; i++)
            used += (size_t)sprintf(
                text + used,
                reply ? "%s{\"type\":\"ST_NFS\",\"spec_size\":1,\"location_specs\":[{\"name\":"
                        "\"tp0\",\"uri\":\"file://nfs_01/tmp/nfs/i/tp0/%" PRIx64
                        "?blkid=1&size=4096\"}]}"
                      : "%s\"%" PRIi64 "\"",
                i > 0 ? "," : "", i * 0x9e3779b97f4a7c15u);
        memcpy(text + used, "]}", 3);
        used += 2;
        double took[4] = {0};
        enum { ROUNDS = 500 };
        size_t bytes = 0, json = 0;
        for (int i = 0; i < ROUNDS; i++) {
            ProtobufCMessage *message = NULL, *again = NULL;
            char *printed = NULL;
            void *wire = NULL;
            double t0 = now_us();
            int rc = tierce__proto_json_parse(&message, descriptor, text, used, why);
            double t1 = now_us();
            rc = rc == 0 ? tierce__proto_json_print(&printed, &json, message) : rc;
            double t2 = now_us();
            rc = rc == 0 ? tierce__proto_pack(&wire, &bytes, message) : rc;
            double t3 = now_us();
            rc = rc == 0 ? tierce__proto_unpack(&again, descriptor, wire, bytes, why) : rc;
            double t4 = now_us();
            if (rc != 0)
                exit(1);
            took[0] += t1 - t0, took[1] += t2 - t1, took[2] += t3 - t2, took[3] += t4 - t3;
            tierce__proto_free(message);
            tierce__proto_free(again);
            tierce__free(printed);
            tierce__free(wire);
        }
        printf("%s: JSON %zu bytes, parse %.1f us, print %.1f us; wire %zu bytes, pack %.1f us, "
               "unpack %.1f us\n",
               descriptor->short_name, json, took[0] / ROUNDS, took[1] / ROUNDS, bytes,
               took[2] / ROUNDS, took[3] / ROUNDS);
    }
    free(text);
}

int main(int argc, char **argv)
{
    char kind;
    unsigned long rpc;
    size_t bytes;
    if (argc > 1 && strcmp(argv[1], "bench") == 0) {
        bench();
        return EXIT_SUCCESS;
    }
    while (scanf("%c %lu %zu", &kind, &rpc, &bytes) == 3 && getchar() == '\n') {
        char *in = malloc(bytes > 0 ? bytes : 1); /* exactly, so that a read beyond it is seen */
        if (in == NULL || fread(in, 1, bytes, stdin) != bytes)
            return EXIT_FAILURE;
        run(kind, descriptor_of(rpc), in, bytes);
        free(in);
    }
    return EXIT_SUCCESS;
}
