/* SPDX-License-Identifier: Apache-2.0 */
/* A lease from a node is accepted only if each leased chunk belongs to the sequence. */
#include "base/alloc.h"
#include "check_main.h"
#include "engine/load/scatter.h"
#include "engine_fixture.h"

#define FROM   2u
#define BLOCKS 14u /* three chunks and half of one */
#define CHUNKS 4u

static struct fixture fx;
static struct tierce_chain *chain;
static struct tierce__leased leased[CHUNKS];
static int32_t ids[BLOCKS];

/* Blocks [2, 14), as a node lends them. */
static void begin(void)
{
    fx_open(&fx, false, NULL);
    chain = fx_chain(&fx, 1, BLOCKS, 0);
    struct tierce__shape tail = tierce__shape_of(fx.view, 2);
    for (size_t i = 0; i < CHUNKS; i++)
        leased[i] = (struct tierce__leased){.index = i,
                                            .kind = TIERCE__LEASED_FULL,
                                            .block_count = FX_CHUNK_BLOCKS,
                                            .from = i == 0 ? FROM : 0,
                                            .to = FX_CHUNK_BLOCKS,
                                            .bytes = fx.view->full.extent.object_bytes};
    leased[3].kind = TIERCE__LEASED_TAIL;
    leased[3].block_count = leased[3].to = 2;
    leased[3].bytes = tail.extent.object_bytes;
    for (int32_t b = 0; b < (int32_t)BLOCKS; b++)
        ids[b] = b;
}

static void end(void)
{
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static int try_all(void)
{
    struct tierce__scatter scatter;
    struct tierce_transfer_opts what = fx_what(&fx, chain, FROM, BLOCKS, ids);
    struct tierce__load_lease lease = {.view = fx.view,
                                       .count = CHUNKS,
                                       .leased = leased,
                                       .hashes = tierce_chain_hash(chain, 0),
                                       .hash_count = BLOCKS};
    if (!tierce__scatter_fits(&lease, FROM, BLOCKS))
        return TIERCE_E_ARGUMENT;
    int rc = tierce__scatter_init(&scatter, &what, &lease);
    if (rc == 0)
        tierce__scatter_fini(&scatter);
    return rc;
}

/* With one of the chunks as it is said to be. */
static int try_with(size_t i, struct tierce__leased said)
{
    struct tierce__leased truth = leased[i];
    leased[i] = said;
    int rc = try_all();
    leased[i] = truth;
    return rc;
}

#define REFUSED(i, field, value)                                                                   \
    do {                                                                                           \
        struct tierce__leased said = leased[i];                                                    \
        said.field = value;                                                                        \
        ck_assert_int_eq(try_with(i, said), TIERCE_E_ARGUMENT);                                    \
    } while (0)

START_TEST(what_is_not_of_the_sequence_is_refused)
{
    begin();
    ck_assert_int_eq(try_all(), 0);
    REFUSED(2, index, 1); /* twice */
    REFUSED(2, index, 0); /* backwards */
    REFUSED(3, index, 4); /* behind the end */
    REFUSED(3, index, SIZE_MAX);
    REFUSED(1, kind, TIERCE__LEASED_TAIL);
    REFUSED(3, kind, TIERCE__LEASED_FULL);
    REFUSED(1, kind, (enum tierce__leased_kind)17);
    REFUSED(1, block_count, 0);
    REFUSED(1, block_count, FX_CHUNK_BLOCKS - 1);
    REFUSED(1, block_count, FX_CHUNK_BLOCKS + 1);
    REFUSED(3, block_count, 1);
    REFUSED(1, from, FX_CHUNK_BLOCKS + 1);
    REFUSED(1, to, FX_CHUNK_BLOCKS + 1);
    REFUSED(1, to, UINT32_MAX);
    REFUSED(0, from, FROM - 1); /* before what is wanted */
    REFUSED(3, to, 3);          /* behind it */
    REFUSED(1, bytes, leased[1].bytes - 1);
    REFUSED(1, bytes, leased[1].bytes + 1);
    REFUSED(3, bytes, leased[1].bytes);
    end();
}
END_TEST

/* One chunk may stand for another, as far as the two are the same. */
START_TEST(one_sibling_of_at_most_a_chunk)
{
    begin();
    struct tierce__leased sibling = leased[3];
    sibling.kind = TIERCE__LEASED_SIBLING;
    ck_assert_int_eq(try_with(3, sibling), 0);
    sibling.block_count = FX_CHUNK_BLOCKS; /* of which two are wanted */
    sibling.bytes = leased[0].bytes;
    ck_assert_int_eq(try_with(3, sibling), 0);
    sibling.to = 3;
    ck_assert_int_eq(try_with(3, sibling), TIERCE_E_ARGUMENT);
    sibling.to = 2;
    sibling.block_count = FX_CHUNK_BLOCKS + 1;
    ck_assert_int_eq(try_with(3, sibling), TIERCE_E_ARGUMENT);
    leased[3].failed = true; /* and may be of any length */
    leased[3].bytes = 0;
    ck_assert_int_eq(try_all(), 0);
    leased[2].kind = leased[1].kind = TIERCE__LEASED_SIBLING;
    ck_assert_int_eq(try_all(), TIERCE_E_ARGUMENT);
    end();
}
END_TEST

CHECK_MAIN("scatter",
           .tests = {what_is_not_of_the_sequence_is_refused, one_sibling_of_at_most_a_chunk})
