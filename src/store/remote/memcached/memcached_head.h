/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_MEMCACHED_HEAD_H
#define TIERCE_CONNECTOR_MEMCACHED_HEAD_H

#include "store/remote/connector.h"
#include "proto/memcached/memcached.h"

/*
 * How an object lies in memcached (docs/inside/format/memcached.md): a head under a key derived
 * from its name, and parts under keys derived from the generation, a random number of each PUT. So
 * parts of two PUTs are never mixed, and a PUT is visible when its head is. Thread: any.
 */

#define TIERCE__MEMCACHED_PREFIX_BYTES 64u
#define TIERCE__MEMCACHED_GENERATION   16u
#define TIERCE__MEMCACHED_PARTS_MAX    65536u
#define TIERCE__MEMCACHED_HEAD_FIXED   40u
#define TIERCE__MEMCACHED_HEAD_BYTES   (TIERCE__MEMCACHED_HEAD_FIXED + TIERCE__CONNECTOR_NAME_MAX)

struct tierce__memcached_key {
    char text[TIERCE__MEMCACHED_KEY_BYTES + 1]; /* and a NUL */
    size_t bytes;
};

struct tierce__memcached_head {
    uint8_t generation[TIERCE__MEMCACHED_GENERATION];
    uint64_t length; /* of the object, not 0 */
    uint32_t part_bytes;
    uint32_t parts; /* length / part_bytes, rounded up */
    struct tierce_plugin_name name;
};

/* Whether keys can begin with it: no spaces, no control characters, not too long. */
bool tierce__memcached_prefix_is_sane(const char *prefix);

void tierce__memcached_head_key(struct tierce__memcached_key *out, const char *prefix,
                                const struct tierce_plugin_name *name);
void tierce__memcached_part_key(struct tierce__memcached_key *out, const char *prefix,
                                const struct tierce__memcached_head *head, uint32_t part);

/* Bytes of one part; the last one may be shorter. */
uint32_t tierce__memcached_part_size(const struct tierce__memcached_head *head, uint32_t part);

/* Returns its length. */
size_t tierce__memcached_head_encode(uint8_t out[TIERCE__MEMCACHED_HEAD_BYTES],
                                     const struct tierce__memcached_head *head);

/* out->name borrows the bytes. Errors: TIERCE_E_FORMAT, *out untouched. */
TIERCE_MUSTUSE int tierce__memcached_head_decode(struct tierce__memcached_head *out,
                                                 const uint8_t *bytes, size_t count);

#endif
