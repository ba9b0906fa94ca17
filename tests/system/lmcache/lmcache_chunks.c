/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores or loads the chunks of a prompt as one that shares with LMCache; test_lmcache_layout.py
 * compares with what LMCache itself reads and writes.
 *
 *     lmcache_chunks store|load URL SEED BLOCKS      prints how many blocks
 */
#include "lmcache_fixture.h"

#include <inttypes.h>

static struct lmcache_fixture fx;

int main(int argc, char **argv)
{
    if (argc != 5 || lf_open(&fx, argv[2], LF_LAYOUT, "00") != 0)
        return 2;
    unsigned seed = (unsigned)atoi(argv[3]), blocks = (unsigned)atoi(argv[4]);
    if (blocks > LF_BLOCKS)
        return 2;
    int64_t rc = strcmp(argv[1], "store") == 0 ? lf_store(&fx, seed, blocks, NULL)
                                               : lf_load(&fx, seed, blocks, NULL);
    printf("%" PRId64 "\n", rc);
    lf_close(&fx);
    return 0;
}
