/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_STORE_CODED_SPEED_H
#define TIERCE_STORE_CODED_SPEED_H

#include "store/coded/coded_tier.h"

/*
 * Whether a codec makes loads slower: the time of recent loads is compared with the time that the
 * same loads would have taken with raw chunks. The bound of the comparison is the operator's
 * (codec.load_time): a store that is to hold more chunks may be read more slowly.
 *
 *     L  the rate of the device or link for coded chunks: bytes that were read, by the time with at
 *        least one read of a coded chunk in progress
 *     K  that rate for raw chunks, of reads beside which no coded chunk was loaded; L if it is
 *        faster, or if there were too few of these
 *     R  raw bytes of the layers that were decoded
 *     C  coded bytes of these layers
 *     A  time alone: no read of chunks was in progress, but the head of a coded object was being
 *        read, or coded bytes had arrived and were not decoded yet
 *
 *     raw chunks     R / K
 *     coded chunks   C / L + A
 *
 * Derivation. At each moment of a load with the codec, either coded bytes are being read, which
 * takes C / L in total, or none are, and the load waits for the codec: A. Decoding during reads
 * costs no time, but may take processors from the transfer, so that L is below K. With raw chunks,
 * the link is busy from the beginning to the end, for R bytes. So A has everything that does not
 * overlap: the head before the first bytes, the decoding of the last layers by one thread, and the
 * rest of the queue if the threads decode more slowly than bytes arrive. A is measured, so loads
 * count with the chunks that they have and with the threads that really run.
 *
 * Example: n parts of equal length arrive at intervals of a, and T threads decode one in s each.
 * Then C / L + A = r * a + s + q * max(T * a, s), where q = (n - 1) / T, rounded down, and
 * r = n - q * T. If decoding is fast (s <= T * a), that is n * a + s: the last part's decoding is
 * added. If it is slow and n is large, it is n * s / T: the throughput of the threads.
 *
 * If all chunks were coded, K would not be known, and how much decoding slows the transfer not be
 * seen. So while K is unknown and coded chunks are loaded, a small part of new chunks stays raw:
 * chunks one after the other, as prompts are put, because K is only measured in loads of these
 * alone. Raw chunks that are encrypted are read as coded ones: then there are no samples, and K is
 * L. The latency of a store is part of K, so R / K is too long for loads of few bytes from far
 * away.
 *
 * The times are known once `measured_bytes` were decoded, and K once as many raw bytes were read.
 * Nothing here locks.
 */

struct tierce__coded_work;

/* Recent work. All sums halve after 1 GiB, and after five minutes. */
struct tierce__coded_recent {
    double bytes, s;             /* of decoding: raw bytes, and time of all threads */
    double coded_bytes, alone_s; /* of decoding */
    uint64_t halved_ns;          /* when time has halved them last */
};

struct tierce__coded_speed {
    double measured_bytes; /* and the following: constant */
    double load_time_max;
    uint32_t decode_threads;
    uint32_t reading;     /* reads of coded chunks in progress */
    uint32_t reading_raw; /* and of raw ones */
    uint32_t delaying;    /* work in progress that raw chunks do not need */
    uint64_t since_ns;    /* of the last change of these three */
    uint64_t read_ns;     /* with coded reads, since the last read that ended */
    uint64_t raw_ns;      /* with raw reads alone, since the last of them that ended */
    uint64_t alone_ns;    /* since the last decoding that ended */
    bool raw_is_mixed;    /* beside raw reads in progress there was work of the codec */
    struct tierce__coded_recent coded_reads; /* L */
    struct tierce__coded_recent raw_reads;   /* K */
    struct tierce__coded_recent decoding;    /* without the time of decryption */
    struct tierce__coded_recent by_host;     /* of decoding: calls of the host alone */
    struct tierce__coded_recent by_device;   /* and of a device alone */
    double offered_bytes;                    /* of new chunks, since K is unknown */
    bool is_off;                             /* the codec was found to be too slow */
};

/* 0: the defaults of tierce__coded_opts. */
void tierce__coded_speed_init(struct tierce__coded_speed *speed, uint64_t measured_bytes,
                              uint32_t decode_threads, double load_time_max);

enum tierce__coded_read {
    TIERCE__CODED_READ_HEAD, /* of a coded object, without layers: a delay, whose bytes do not count
                              */
    TIERCE__CODED_READ_CODED,
    TIERCE__CODED_READ_RAW
};
/* A read starts, and ends with so many bytes; 0: it failed, and its time counts nowhere. */
void tierce__coded_speed_begin(struct tierce__coded_speed *speed, enum tierce__coded_read kind);
void tierce__coded_speed_end(struct tierce__coded_speed *speed, enum tierce__coded_read kind,
                             uint64_t bytes);

/* All coded bytes of a range have arrived; tierce__coded_speed_decoded follows. */
void tierce__coded_speed_arrived(struct tierce__coded_speed *speed);
/* Counts a call of tierce__coded_range_decode, which returned `rc` and took so long. */
void tierce__coded_speed_decoded(struct tierce__coded_speed *speed,
                                 struct tierce__coded_stats *stats,
                                 const struct tierce__coded_work *work, int rc, uint64_t took_ns);

/* Bytes a second; 0 if unknown: not enough was read or decoded recently. Device: K. Decoding: raw
 * bytes, of all threads together, each at the mean speed of a thread. */
double tierce__coded_speed_of_device(struct tierce__coded_speed *speed);
double tierce__coded_speed_of_decoding(struct tierce__coded_speed *speed);
/* The time of loads with the codec, by that with raw chunks: above 1, the codec makes them slower;
 * 0: unknown. */
double tierce__coded_speed_of_loads(struct tierce__coded_speed *speed);

/* Whether a thread of the host decodes faster than a device in a call: then ranges for the memory
 * of the device are decoded by the host. False as long as one of the two is unknown: so the device
 * is tried again when it has decoded nothing for 20 minutes. */
bool tierce__coded_speed_prefers_host(struct tierce__coded_speed *speed);

/* For the log: whether a codec is used has changed. */
struct tierce__coded_news {
    const struct tierce__codec *codec; /* NULL: it has not */
    bool is_off;
    double loads, loads_max, decode, device; /* decode, device: 0: not known */
};

/*
 * Whether new chunks are to stay raw. A codec is used until loads with it take more than
 * load_time_max of the time with raw chunks, and then not until they take 10 points less, or until
 * this is unknown again: while no coded chunk is loaded, 20 minutes. The gap is wider than such
 * measurements vary, so the answer does not alternate. `news` [in/out], zeroed by the caller,
 * receives the change.
 */
bool tierce__coded_speed_is_slow(struct tierce__coded_speed *speed, struct tierce__coded_news *news,
                                 const struct tierce__codec *codec);
/* A new chunk, which is not slow: whether it is to stay raw as a sample, to measure K. */
bool tierce__coded_speed_samples(struct tierce__coded_speed *speed, uint64_t raw_bytes);
/* Logs a change. No lock. */
void tierce__coded_log_news(const char *tier, const struct tierce__coded_news *news);

#endif
