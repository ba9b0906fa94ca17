/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_STORE_CODED_CONNECTOR_PRIVATE_H
#define TIERCE_STORE_CODED_CONNECTOR_PRIVATE_H

#include "base/threads/lock.h"
#include "base/threads/threads.h"
#include "store/coded/coded_connector.h"
#include "store/coded/coded_parts.h"

#include <pthread.h>

/*
 * The coded connector from inside.
 *
 *   coded_connector.c        its operations, statistics, close
 *   coded_connector_put.c    objects that are encoded
 *   coded_connector_get.c    which objects are coded; reads
 *   coded_connector_layer.c  layers of coded objects: memory, reads, decoding
 *   coded_objects.c          the objects that are being read, or were read recently
 *
 * The lock guards every field that is not constant after open. It is not held over a call of the
 * inner connector, of alloc, of done, or of a buffer's release.
 */

#define TIERCE__CODED_CONNECTOR_MAGIC 0x434f444eu

struct tierce__coded_connector;

/* ---- puts ---- */

struct tierce__coded_upload {
    struct tierce__list node; /* among `puts`, until it is encoded */
    struct tierce__coded_connector *connector;
    struct tierce__store_req *req;     /* the caller's */
    struct tierce__store_req inner;    /* of the coded object */
    struct tierce__buf *coded;         /* NULL: it stays raw */
    uint64_t staged;                   /* of put_staging */
    const struct tierce__codec *codec; /* NULL: it is not coded */
};

/* ---- objects and gets ---- */

enum tierce__coded_layer_state {
    TIERCE__CODED_LAYER_IDLE,
    TIERCE__CODED_LAYER_READING, /* a get reads it; others wait in `parked` */
    TIERCE__CODED_LAYER_HERE
};

/* An object of the store: whether it is coded, and the coded layers that are in memory. */
struct tierce__coded_object {
    struct tierce__list node; /* among `objects`, the one used last at the end; or nowhere */
    uint64_t spread;          /* of the name */
    uint64_t known_ns;        /* when its beginning was read */
    uint32_t users;           /* gets */
    bool reading;             /* a get reads the beginning; others wait in `parked` */
    bool ready, is_coded;     /* the beginning was read */
    int status;               /* why the beginning could not be read */
    uint64_t bytes;           /* of the form that was read; only with has_forms */

    /* Of a coded one. */
    struct tierce__coded_parsed parsed;
    uint8_t *layers;         /* enum tierce__coded_layer_state */
    struct tierce__buf *buf; /* the coded object, as far as layers are here; NULL: no reader */
    uint64_t staged;         /* of get_staging */
    uint32_t readers;        /* gets that use buf or allocate it */
    bool allocating;
    bool is_late; /* a call may still write into buf: nothing more is read there */

    size_t name_bytes;
    char name[];
};

/* How long it is remembered what an object is. Another process may replace it by one of the other
 * kind, which readers notice by its sums. */
#define TIERCE__CODED_KNOWN_MS    10000u
#define TIERCE__CODED_OBJECTS_MAX 64u /* without gets */

struct tierce__coded_download {
    struct tierce__list node; /* in one of the lists of the connector, or nowhere */
    struct tierce__coded_connector *connector;
    struct tierce__store_req *req;  /* the caller's */
    struct tierce__store_req inner; /* the read in progress */
    struct tierce__coded_object *object;
    struct tierce__coded_range range; /* of a coded object */
    struct tierce__buf *head;         /* the beginning, where it is not in the caller's buffer */
    uint64_t have;                    /* bytes of the beginning that were read */
    uint64_t wanted;                  /* bytes that the header of the object asks for */
    uint64_t reserved;                /* of get_staging: it has waited, and will allocate it */
    uint32_t first, last;             /* layers that this get reads now */
    bool reads_head;
    enum tierce__coded_read kind; /* of the read in progress */
    bool has_head;                /* it has read the beginning of this object itself */
    bool is_reader;               /* one of object->readers */
    bool guesses;       /* reads its range as one of a raw object, while another reads the head */
    bool has_guessed;   /* that read is over */
    bool woken;         /* the object is known, and such a read is still in progress */
    bool was_read;      /* the store has answered its own read */
    bool link_was_late; /* to such a read, measured by the deadline */
    bool is_repeated;   /* it was restarted, because its sums or its length did not match */
};

struct tierce__coded_connector {
    struct tierce__connector base;
    uint32_t magic;

    /* ---- constant after open ---- */
    struct tierce__connector *inner;
    struct tierce__connector_ops ops;
    char name[32];
    const struct tierce__codec *codec;
    struct tierce__coded_keys *keys;
    bool encrypts;
    struct tierce__buf *(*alloc)(void *arg, uint64_t bytes);
    void *alloc_arg;
    uint64_t staging_bytes_max;
    bool no_pool;
    struct tierce__affinity affinity; /* of the threads, which the first put and get start */
    bool is_whole;                    /* the store has no ranges: each get reads the whole object */
    bool has_forms; /* TIERCE__CONNECTOR_FORMS: a range names the form of its object */
    struct tierce__coded_elements elements;

    struct tierce__lock lock;
    struct tierce__cond encode_cond, decode_cond;
    struct tierce__cond idle_cond; /* for close */

    /* ---- the lock ---- */
    bool closing;      /* no new request is accepted */
    bool inner_closes; /* the inner connector is not called any more */
    bool stop;         /* the threads return */
    bool encoder_runs, decoders_run;
    pthread_t encoder;
    struct tierce__threads decoders;
    struct tierce__pool *pool; /* for coded bytes; made when first needed, then constant */
    uint32_t passing; /* calls of the inner connector's submit that close has to wait for */

    struct tierce__list puts; /* that wait to be encoded */
    uint64_t put_staging;     /* coded bytes that the inner connector has */
    uint64_t put_count;       /* puts in memory */
    uint64_t put_deadline;    /* a lower bound of the deadlines of `puts` */

    struct tierce__list objects;
    uint32_t object_count;       /* of these without gets */
    bool sees_coded;             /* the last object that was read was coded */
    bool sees_longer;            /* it was longer than its raw object; only if is_whole */
    uint64_t asked, needed;      /* of the last read of a beginning: raw bytes, and coded ones */
    struct tierce__list parked;  /* gets that wait for another's read */
    struct tierce__list waiting; /* gets that wait for memory */
    struct tierce__list resumed; /* gets that continue, those that have waited for memory with it */
    struct tierce__list ready;   /* gets that wait to be decoded */
    uint64_t get_staging;
    uint64_t pending_gets;  /* gets that were not answered */
    uint64_t next_deadline; /* a lower bound of the deadlines in these lists */

    struct tierce__coded_stats stats;
    struct tierce__coded_speed speed;
};

/* ---- coded_connector.c ---- */

/* Answers a read with its bytes, unless the store has invalidated them: then it is a miss. No lock.
 */
void tierce__coded_connector_give(struct tierce__coded_connector *c, struct tierce__store_req *req,
                                  const struct tierce__store_guard *guard);
/* Calls the inner connector, which close waits for. False: the connector closes. */
bool tierce__coded_connector_pass(struct tierce__coded_connector *c,
                                  struct tierce__store_req *inner);
/* Makes the pool for coded bytes. Under the lock. Errors: those of a pool. */
TIERCE_MUSTUSE int tierce__coded_connector_pool(struct tierce__coded_connector *c);
/* Allocates memory for coded bytes. Returns NULL if there is none. The pool exists. No lock. */
struct tierce__buf *tierce__coded_connector_alloc(struct tierce__coded_connector *c,
                                                  uint64_t bytes);
/* Close looks again. Under the lock. */
void tierce__coded_connector_tell_idle(struct tierce__coded_connector *c);

/* ---- coded_connector_put.c ---- */

/* Takes a put; false: the inner connector is to be given it as it is. */
bool tierce__coded_connector_put(struct tierce__coded_connector *c, struct tierce__store_req *req);
/* Answers the puts that wait to be encoded. No lock. */
void tierce__coded_connector_cancel_puts(struct tierce__coded_connector *c);

/* ---- coded_connector_get.c ---- */

void tierce__coded_connector_get(struct tierce__coded_connector *c, struct tierce__store_req *req);
/* Starts the threads that decode and that answer at deadlines. Under the lock. */
bool tierce__coded_connector_start_decoders(struct tierce__coded_connector *c);
/* Restarts a get whose object has proved to be another one. */
void tierce__coded_download_repeat(struct tierce__coded_download *g);
/* Answers a get. No lock. */
void tierce__coded_download_finish(struct tierce__coded_download *g, int status);
/* Answers a get that was taken off the lists, also one that reads the head. No lock. */
void tierce__coded_download_fail(struct tierce__coded_download *g, int status);
/* Puts a get in a list whose deadlines are observed. Under the lock. */
void tierce__coded_download_wait(struct tierce__coded_download *g, struct tierce__list *list);
/* Submits g->inner as a GET of [offset, offset + length) into `buf`. */
void tierce__coded_download_read(struct tierce__coded_download *g, struct tierce__buf *buf,
                                 uint64_t offset, uint64_t length, tierce__store_done_fn *done);
/* Whether a read ended behind the end of an object that was known: perhaps another process has
 * replaced it by a shorter one, or the store has it in its other form now. It is to be repeated,
 * once. */
bool tierce__coded_download_is_shorter(const struct tierce__coded_download *g, int status);
/* For the `done` of such a read. */
void tierce__coded_download_note(struct tierce__coded_download *g);
struct tierce__coded_download *tierce__coded_download_of(struct tierce__list *node);

/* ---- coded_connector_layer.c ---- */

/* The object is known to be coded. Continues until the get is answered or waits. No lock. */
void tierce__coded_download_layers(struct tierce__coded_download *g);
/* Returns the memory of a get that ends or is restarted. No lock. */
void tierce__coded_download_release(struct tierce__coded_download *g);
/* Verifies and decodes, and answers. */
void tierce__coded_download_decode(struct tierce__coded_download *g);

/* ---- coded_objects.c: under the lock ---- */

/* The object of a name, made if it is new, with one more user. NULL: no memory. */
struct tierce__coded_object *tierce__coded_object_take(struct tierce__coded_connector *c,
                                                       const struct tierce_plugin_name *name);
/* The same without a name, for one get alone. */
struct tierce__coded_object *tierce__coded_object_make(void);
void tierce__coded_object_leave(struct tierce__coded_connector *c,
                                struct tierce__coded_object *object);
/* Nothing is known any more of the objects of a name: a later get reads its beginning again. */
void tierce__coded_object_forget(struct tierce__coded_connector *c,
                                 const struct tierce_plugin_name *name);
void tierce__coded_object_hide(struct tierce__coded_connector *c,
                               struct tierce__coded_object *object);
void tierce__coded_objects_free(struct tierce__coded_connector *c);

#endif
