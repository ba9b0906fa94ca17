/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_STORE_CODED_TIER_H
#define TIERCE_STORE_CODED_TIER_H

#include "core/codec/codec.h"
#include "core/device/device.h"
#include "core/key/namespaces.h"
#include "store/tier.h"

/*
 * A tier around a disk tier that encodes chunks before they are written, and decodes them when they
 * are read. Its callers see raw chunks only: lengths, ranges and bytes are those of the raw object,
 * bit by bit. The disk holds coded objects (core/chunk/coded.h) beside raw ones, and its journal
 * states which is which, so a store can hold both, and the codec can change at any time.
 *
 * Chunks may be encrypted after that (coded_keys.h), then every chunk is a coded object, with a
 * codec or without one.
 *
 * In a namespace that has chosen a lossy codec (tierce__codec_of_quantization), that codec is used
 * in place of the tier's, and callers read decoded KV: the raw object is the one whose header has
 * the sums of the decoded cells. A lossy object in another namespace is not read.
 *
 * PUT: a thread of the tier encodes chunk after chunk, so that no store waits for it, in the order
 * in which they were put. A chunk stays raw if its namespace states no known element type, if it
 * would not become shorter, if the thread is behind, or if loads would not be faster with the
 * codec (coded_speed.h).
 *
 * A PUT that recodes (store_req.h) passes unchanged: its caller has encoded the chunk. A GET
 * restarts if the chunk was compressed or uncompressed after its lookup.
 *
 * A GET that carries (store_req.h) passes unchanged too: its caller reads coded bytes.
 *
 * GET: the head of a coded object is read once for the requests that want ranges of it, then the
 * coded layers of each range, which a thread of the tier verifies and decodes. A layer that lies
 * partly in a range is decoded into separate memory. Status TIERCE_E_CHECKSUM or TIERCE_E_FORMAT:
 * the object is damaged; TIERCE_E_VERSION: this build has no such codec, or its namespace has not
 * chosen its lossy codec; TIERCE_E_NO_KEY: its key is missing or another one.
 *
 * A chunk that no key decrypts is hidden after the first GET: lookups do not find it, and a PUT
 * replaces it. When the keys have changed, all such chunks are found again that were not replaced.
 * As long as there are any, a lookup that ends at one lets the keys be read again (coded_keys.h).
 *
 * GET into the memory of a device (buf->on_device), of which tierce__coded_tier_use_device was
 * told: coded bytes are read into memory of the host and verified, and the device decodes them. A
 * chunk that is encrypted or has a lossy codec is TIERCE_E_UNSUPPORTED. So is any chunk without
 * such a device, if its decoder cannot be used, or if it was measured to be slower than the host
 * (coded_speed.h).
 *
 * Threads: one that encodes, and `decode_threads`, all started when they are first needed.
 */

struct tierce__coded_keys;

struct tierce__coded_opts {
    size_t size;                           /* sizeof(struct tierce__coded_opts) */
    struct tierce__tier *tier;             /* [transfer, on success only] a disk tier */
    const struct tierce__codec *codec;     /* for new chunks, exact; NULL: none, but coded ones are
                                              read */
    struct tierce__namespaces *namespaces; /* [borrow until close] */
    struct tierce__coded_keys *keys;       /* [borrow until close] or NULL: encrypted chunks are
                                              not read */
    bool encrypts;                         /* with these keys: new chunks are never stored as they
                                              are, and dropped if they cannot be encrypted */
    /* Memory for coded bytes that do not fit into the tier's own; NULL: there is none now. Called
     * without a lock, must not block. */
    struct tierce__buf *(*alloc)(void *arg, uint64_t bytes);
    void *alloc_arg;
    uint64_t queue_bytes_max;   /* of chunks that wait to be encoded; more are dropped */
    uint64_t staging_bytes_max; /* of coded bytes in memory, in each direction, for which the tier
                                   has its own pool; 0: 64 MiB */
    bool no_pool;               /* not its own pool: for tests */
    uint32_t decode_threads;    /* 0: 2, or 1 on a machine with one processor */
    uint64_t measured_bytes;    /* read, and decoded, before loads are compared; 0: 64 MiB */
    double load_time_max;       /* of loads with the codec, by that with raw chunks; 0: 0.95 */
};

/* Errors: -ENOMEM, TIERCE_E_ARGUMENT. */
TIERCE_MUSTUSE int tierce__coded_tier_open(struct tierce__tier **out,
                                           const struct tierce__coded_opts *opts);

/* A device with memory into which chunks are read. */
struct tierce__coded_device {
    const struct tierce__device_ops *ops;
    struct tierce__device *device; /* [borrow until the tier is closed] */
};

/* From now on chunks may be read into the memory of this device. Once. `tier` is from
 * tierce__coded_tier_open. Thread: any. */
void tierce__coded_tier_use_device(struct tierce__tier *tier,
                                   const struct tierce__coded_device *device);

/* Why a chunk was stored raw while a codec was set. */
enum tierce__coded_raw {
    TIERCE__CODED_RAW_ELEMENT, /* no known element type */
    TIERCE__CODED_RAW_LONGER,  /* it would not become shorter, or is no chunk */
    TIERCE__CODED_RAW_BEHIND,  /* the thread that encodes is behind */
    TIERCE__CODED_RAW_MEMORY,  /* there was no memory to encode */
    TIERCE__CODED_RAW_SLOW,    /* loads would not be faster with the codec */
    TIERCE__CODED_RAW_SAMPLE,  /* to measure loads without the codec */
    TIERCE__CODED_RAW_KEY,     /* there is no key to encrypt it; counted only by order */
    TIERCE__CODED_RAWS
};

/* A raw chunk in memory. */
struct tierce__coded_source {
    const struct tierce__buf *raw;
    uint64_t object_bytes;
    uint32_t ns;
    const struct tierce__codec *codec;
};

/* Encodes a chunk for a PUT that recodes, on this thread. Returns the coded bytes, which are in
 * *coded [transfer], or 0 and why the chunk stays raw. `tier` is from tierce__coded_tier_open.
 * Thread: any. */
uint64_t tierce__coded_tier_encode(struct tierce__tier *tier, struct tierce__buf **coded,
                                   const struct tierce__coded_source *source,
                                   enum tierce__coded_raw *why);

/* Whether the namespace names an element type that the codec knows: without one, its chunks stay
 * raw. Thread: any. */
bool tierce__coded_tier_has_element(struct tierce__tier *tier, uint32_t ns);

/* Whether new chunks are encrypted. Thread: any. */
bool tierce__coded_tier_encrypts(struct tierce__tier *tier);

/* *coded_bytes: the length of the chunk's object as it is stored, or 0 if it is raw. Errors:
 * TIERCE_E_MISS, TIERCE_E_CLOSED, those of a lookup. Thread: any. */
TIERCE_MUSTUSE int tierce__coded_tier_form(struct tierce__tier *tier, const struct tierce__key *key,
                                           uint64_t *coded_bytes);

struct tierce__coded_stats {
    const struct tierce__codec *codec; /* for new chunks of exact namespaces, or NULL */
    uint64_t encoded_chunks;
    uint64_t lossy_chunks; /* of these: by a lossy codec, which their namespace has chosen */
    uint64_t encoded_raw_bytes, encoded_bytes; /* before and after */
    uint64_t encode_ns;                        /* also of chunks that would not become shorter */
    uint64_t decoded_raw_bytes, decoded_bytes; /* after and before */
    uint64_t decode_ns;                        /* of all threads together */
    uint64_t lossy_decoded_raw_bytes;          /* of decoded_raw_bytes: by a lossy codec */
    uint64_t device_decoded_raw_bytes;         /* of decoded_raw_bytes: by a device */
    uint64_t raw_chunks[TIERCE__CODED_RAWS];
    bool encrypts;             /* new chunks */
    uint64_t encrypted_chunks; /* whether they were coded or not */
    uint64_t refused_chunks;   /* not stored, because they could not be encrypted */
    uint64_t locked_reads;     /* of chunks whose key is missing or another one */
    uint64_t wrong_key_reads;  /* of these: another one */
    double device_bytes_per_s; /* how fast the device reads; 0: not known */
    double decode_bytes_per_s; /* raw bytes of all threads; 0: not known */
    double load_time;          /* of loads with the codec, by that with raw chunks; 0: not known */
    double load_time_max;      /* its bound, above which new chunks stay raw */
};

/* `tier` is from tierce__coded_tier_open. Thread: any. */
void tierce__coded_tier_stats(struct tierce__tier *tier, struct tierce__coded_stats *out);

#endif
