/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_STORE_CODED_PARTS_H
#define TIERCE_STORE_CODED_PARTS_H

#include "core/chunk/coded.h"
#include "store/coded/coded_keys.h"
#include "store/coded/coded_speed.h"
#include "store/coded/coded_tier.h"

/*
 * The parts that a tier and a connector with coded objects share: the kind of a namespace, the
 * head of a coded object, and the coded bytes of a range. coded_speed.h has the measured times.
 *
 * Nothing here locks. A caller that shares one of these between threads has a lock for it, except
 * for the elements, which any thread may use.
 */

/* ---- the element and the lossy codec of a namespace (coded_element.c) ---- */

struct tierce__coded_elements {
    struct tierce__namespaces *namespaces; /* [borrow] */
    _Atomic uint8_t *noted;                /* by namespace: 0: unknown, or its kind */
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__coded_elements_init(struct tierce__coded_elements *elements,
                                               struct tierce__namespaces *namespaces);
void tierce__coded_elements_fini(struct tierce__coded_elements *elements);

/* How chunks of a namespace are encoded. */
struct tierce__coded_kind {
    /* RAW: the namespace states no known element type, or its text is not known yet. */
    enum tierce__element element;
    /* The codec that the namespace has chosen, used in place of the tier's; NULL: KV is exact, also
     * if the codec cannot encode such cells. */
    const struct tierce__codec *lossy;
};
struct tierce__coded_kind tierce__coded_kind_of(struct tierce__coded_elements *elements,
                                                uint32_t ns);
/* Reads layers and order from the text of the namespace. False: the text is not known, or states
 * none. */
bool tierce__coded_choice_of(struct tierce__codec_choice *out,
                             struct tierce__coded_elements *elements, uint32_t ns);
/* Whether the namespace of an object allows its codec: a lossy one only if it was chosen. */
bool tierce__coded_may_be(struct tierce__coded_elements *elements,
                          const struct tierce__coded_info *info);

/* ---- the head of a coded object (coded_range.c) ---- */

/* A parsed head. Its bytes are a copy, so that they stay those that were parsed. Zeroed: none. */
struct tierce__coded_parsed {
    struct tierce__coded_info info;
    uint8_t *bytes;      /* [info.head_bytes] */
    uint8_t *raw_header; /* [header_bytes] of the raw object; in the memory of `bytes` */
};

/* Fills in a head from the first bytes of an object, from anywhere. Errors: those of
 * tierce__coded_parse, where TIERCE_E_LIMIT sets *bytes to the length that is needed, which is more
 * than `available`; TIERCE_E_FULL: no memory; TIERCE_E_VERSION: also a lossy codec that the
 * object's namespace has not chosen. */
TIERCE_MUSTUSE int tierce__coded_parsed_fill(struct tierce__coded_parsed *out,
                                             struct tierce__coded_elements *elements,
                                             const uint8_t *object, uint64_t available,
                                             uint64_t *bytes);
/* Whether a device decodes the object: it is lossless and not encrypted. */
bool tierce__coded_may_be_on_device(const struct tierce__coded_info *info);
void tierce__coded_parsed_fini(struct tierce__coded_parsed *parsed);

/* ---- encoding (coded_form.c) ---- */

/* A chunk in memory, and how it is to be stored. */
struct tierce__coded_making {
    const uint8_t *object;
    const struct tierce__chunk_info *info;
    const struct tierce__codec *codec; /* NULL, only with keys: none */
    enum tierce__element element;
    struct tierce__coded_elements *elements; /* of the chunk's namespace */
    struct tierce__coded_keys *keys;         /* NULL: it is not encrypted */
};

/* As tierce__coded_encode_as, with the newest key of the chunk's namespace. 0: the chunk is to be
 * stored as it is, which is never returned with keys. Errors: also TIERCE_E_VERSION: there is no
 * key, which is logged. */
int64_t tierce__coded_make(uint8_t *dst, uint64_t room, const struct tierce__coded_making *making);

/* Counts a chunk of `raw_bytes` that tierce__coded_make has made. */
void tierce__coded_count_made(struct tierce__coded_stats *stats,
                              const struct tierce__coded_making *making, uint64_t raw_bytes,
                              uint64_t length);

/* ---- a range of a raw object that is coded (coded_range.c) ---- */

struct tierce__coded_range {
    uint32_t first, last; /* layers [first, last) lie in the range, at least in part */
    uint64_t from, to;    /* the coded bytes of them, in whole pages; equal if there is no layer */
};

void tierce__coded_range_plan(struct tierce__coded_range *out,
                              const struct tierce__coded_parsed *parsed, uint64_t offset,
                              uint64_t length);

/*
 * Verifies and decodes the range of a GET into its buffer, after its layers were decrypted if they
 * are encrypted. `coded` holds the coded bytes from range->from on, and does not overlap the range
 * in the buffer. Errors: TIERCE_E_CHECKSUM, TIERCE_E_FORMAT: the bytes are damaged; TIERCE_E_FULL:
 * no memory for a layer that lies partly in the range, or that is encrypted; TIERCE_E_NO_KEY: the
 * key is missing or another one, which is logged: it may come, so the object stays. With a device,
 * for objects of tierce__coded_may_be_on_device: TIERCE_E_UNSUPPORTED: it has failed to decode this
 * one (work->device_error); TIERCE_E_DEADLINE.
 */
struct tierce__coded_work {
    struct tierce__coded_keys *keys; /* NULL: none */
    /* The device whose memory the buffer of the GET is; NULL: it is memory of the host. */
    const struct tierce__coded_device *device;
    const char *tier;                /* in the log */
    uint64_t raw_bytes, coded_bytes; /* [out] of the layers that a codec made */
    uint64_t device_raw_bytes;       /* [out] of raw_bytes: by the device */
    uint64_t decrypt_ns;             /* [out] the part of the time that went into the key and into
                                        decryption */
    bool is_lossy;                   /* [out] that codec */
    bool is_locked;                  /* [out] the key is missing or another one */
    bool is_wrong_key;               /* [out] it is another one */
    int device_error;                /* [out] of the device; 0: none */
};
TIERCE_MUSTUSE int tierce__coded_range_decode(const struct tierce__coded_range *range,
                                              const struct tierce__coded_parsed *parsed,
                                              const struct tierce__store_req *req,
                                              const uint8_t *coded,
                                              struct tierce__coded_work *work);

#endif
