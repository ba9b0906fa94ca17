/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_S3_PRIVATE_H
#define TIERCE_CONNECTOR_S3_PRIVATE_H

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "base/threads/lock.h"
#include "store/remote/s3/aws_login.h"
#include "store/remote/connector_private.h"

/* ---- address and credentials (s3_config.c) ---- */

#define TIERCE__S3_CONNECTIONS_MAX 256u
#define TIERCE__S3_PREFIX_MAX      256u
#define TIERCE__S3_REGION_MAX      64u

struct tierce__s3_config {
    char origin[320]; /* "https://bucket.s3.eu-central-1.amazonaws.com" */
    char host[300];   /* value of the header "Host" */
    char bucket[72];  /* the path of the bucket: "/bucket", or "" where the host names it */
    char prefix[TIERCE__S3_PREFIX_MAX + 1]; /* of keys; ends with '/' or is "" */
    char region[TIERCE__S3_REGION_MAX + 1];
    char *ca_file;          /* owned, or NULL */
    char *credentials_file; /* owned; NULL: they came from the URL or the environment */
    char profile[65];
    struct tierce__s3_credentials credentials;
    struct tierce__aws_login *login; /* owned; NULL: the credentials do not expire */
    uint64_t expires_s;              /* end of the fetched credentials; 0: never */
    uint64_t connections, part_bytes, retries, connect_ms, remember_ms;
    bool is_plain;      /* http:// */
    bool has_paths;     /* names=path: an object's key is the prefix and its name */
    bool signs_payload; /* bodies are hashed too */
};

/* Errors, with `why` set without credentials: TIERCE_E_CONFIG, -ENOMEM; the caller must pass
 * *config to tierce__s3_config_clear even then. */
TIERCE_MUSTUSE int tierce__s3_configure(struct tierce__s3_config *config,
                                        const struct tierce__url *url,
                                        char why[TIERCE__CONNECTOR_WHY_BYTES]);
void tierce__s3_config_clear(struct tierce__s3_config *config);

/* Reads the file of credentials again. True: they have changed. */
bool tierce__s3_renew_credentials(struct tierce__s3_config *config);

/* ---- names (s3_key.c) ---- */

/*
 * The key of an object is PREFIX + its name as file_name.c writes it, with '!' for '%', which some
 * stores decode once too often. S3 and stores that keep objects as files accept such keys. If the
 * result is longer than LONG_BYTES, the name is written as '~' and base64url, divided by '/'.
 *
 * With `has_paths` the key is PREFIX + the name. Names that tierce__s3_is_path rejects have no key.
 */
#define TIERCE__S3_LONG_BYTES 700u
#define TIERCE__S3_KEY_BYTES  1025u /* the longest key, and its end */

void tierce__s3_key(char key[TIERCE__S3_KEY_BYTES], const char *prefix, bool has_paths,
                    const struct tierce_plugin_name *name);

/* Whether a name can be a path: letters, digits and -_.:@+,=~! in components that are not empty,
 * '.' or '..'. */
bool tierce__s3_is_path(const struct tierce_plugin_name *name);

/* The name of a key; false if no object is called so. `name` has TIERCE__CONNECTOR_NAME_MAX. */
bool tierce__s3_name(char *name, size_t *bytes, const char *prefix, bool has_paths,
                     const char *key);

/* The common beginning of the keys of all names that begin with `begins`: of plainly written names,
 * or of those in base64url, which exist only without `has_paths`. False: there are none. */
bool tierce__s3_key_prefix(char key[TIERCE__S3_KEY_BYTES], const struct tierce__s3_config *config,
                           const struct tierce_plugin_name *begins, bool of_long_ones);

/* Percent-encodes as signatures require it; '/' only without `keeps_slash`. Returns the number of
 * bytes written, truncated to the room; the text is terminated. */
size_t tierce__s3_encode(char *out, size_t room, const char *text, bool keeps_slash);

/* ---- the connector (s3.c, s3_job.c, s3_transfer.c, s3_answer.c) ---- */

#define TIERCE__S3_PATH_BYTES  4096u
#define TIERCE__S3_QUERY_BYTES 8192u
#define TIERCE__S3_URL_BYTES   (TIERCE__S3_PATH_BYTES + TIERCE__S3_QUERY_BYTES + 512u)
#define TIERCE__S3_ETAG_BYTES  132u
#define TIERCE__S3_TOKEN_BYTES 1025u /* of uploads and of pages */
#define TIERCE__S3_MARKS       64u
#define TIERCE__S3_SIZES       16384u
#define TIERCE__S3_BINS        256u

struct tierce__s3;
struct tierce__s3_job;

/* The purpose of an HTTP request. */
enum tierce__s3_call {
    TIERCE__S3_HEAD,
    TIERCE__S3_GET,
    TIERCE__S3_PUT,
    TIERCE__S3_BEGIN, /* CreateMultipartUpload */
    TIERCE__S3_PART,
    TIERCE__S3_COMPLETE,
    TIERCE__S3_ABORT,
    TIERCE__S3_DELETE,
    TIERCE__S3_DELETE_MANY, /* DeleteObjects */
    TIERCE__S3_LIST,
    TIERCE__S3_PING,
};

/* One HTTP request in progress; one per connection, reused. */
struct tierce__s3_transfer {
    struct tierce__s3 *s3;
    CURL *easy;
    struct tierce__s3_job *job; /* NULL: free */
    struct tierce__list riders; /* of a joined transfer: its unanswered jobs (s3_join.c) */
    enum tierce__s3_call call;
    uint64_t item;                  /* of its job: which name, which piece */
    char key[TIERCE__S3_KEY_BYTES]; /* key of the object; LIST: the prefix of keys */
    bool is_running;                /* curl has it; otherwise it waits until again_ns */
    uint64_t again_ns;              /* 0: not waiting */
    uint32_t tries;
    bool corrected_clock, renewed_credentials;
    bool takes_fresh; /* a connection that was not used before */

    /* The request. */
    char url[TIERCE__S3_URL_BYTES];
    struct curl_slist *headers;
    const uint8_t *body; /* bytes to send */
    char *own_body;      /* the body, if the transfer owns it */
    uint64_t body_bytes, body_sent;
    uint64_t offset; /* GET: the range */
    uint8_t *into;
    uint64_t wanted, got;
    uint64_t signed_s; /* when */

    /* The answer. */
    long http;
    bool is_wrong; /* the answer is not the requested one: the rest is not read */
    bool no_memory;
    char etag[TIERCE__S3_ETAG_BYTES];
    char bucket_region[TIERCE__S3_REGION_MAX + 1]; /* that the answer names, or "" */
    bool has_range;
    uint64_t range_first, range_last;
    uint64_t object_bytes; /* of the whole object; 0: not given */
    int64_t date_s;        /* 0: not given */
    char *text;            /* the body of an answer that is not an object */
    size_t text_bytes, text_room;
    char error[CURL_ERROR_SIZE];
};

enum tierce__s3_step {
    TIERCE__S3_WHOLE, /* all parts of the job at once */
    TIERCE__S3_BEGINNING,
    TIERCE__S3_PARTS,
    TIERCE__S3_COMPLETING,
    TIERCE__S3_ABORTING, /* after the answer */
    TIERCE__S3_DRAINING, /* answered; its transfers continue, to keep their connections */
};

/* A request of the connector. */
struct tierce__s3_job {
    struct tierce__list node;      /* `ready`: something of it can be begun; or `busy` */
    struct tierce__store_req *req; /* NULL: answered */
    enum tierce__connector_urgency urgency;
    enum tierce__s3_step step;
    uint64_t deadline_ns;
    bool has_begun;
    uint64_t next, count; /* items of this step */
    uint32_t in_flight;
    uint64_t missing;    /* EXISTS: the first absent name */
    uint64_t name_count; /* EXISTS */
    uint64_t certain;    /* EXISTS: leading names known to exist */
    uint8_t *there;      /* EXISTS: for each name, whether it is known to exist */
    int status;          /* the first failure */
    uint32_t restarts;   /* GET: pieces of two versions */
    bool has_version;
    bool is_mixed;
    uint64_t version; /* hash of the pieces' ETag */
    char key[TIERCE__S3_KEY_BYTES];
    char token[TIERCE__S3_TOKEN_BYTES];   /* of the upload; LIST: of the page; "" for none */
    char (*etags)[TIERCE__S3_ETAG_BYTES]; /* of the parts */
    bool of_long_ones;                    /* LIST */

    /* GET of one piece, DELETE (s3_join.c). */
    struct tierce__list bin, ride; /* in `bins` while it waits; among the riders of its transfer */
    struct tierce__s3_transfer *transfer; /* its own, or the joined one; NULL: none */
    bool is_alone;                        /* must not be joined again */
};

/* The position where a listing continues. */
struct tierce__s3_mark {
    uint64_t cursor; /* 0: free */
    bool of_long_ones;
    char *token; /* NULL: from the start */
};

struct tierce__s3 {
    struct tierce__connector base;
    uint32_t magic;
    int socket_error; /* why the last socket was not made; 0 */
    struct tierce__s3_config config;
    pthread_t thread;
    CURLM *multi;

    /* The thread's alone. */
    struct tierce__list ready[TIERCE__CONNECTOR_URGENCIES], busy;
    struct tierce__list bins[TIERCE__S3_BINS]; /* GETs that may be joined, by buffer and offset */
    struct tierce__s3_transfer *transfers;
    uint32_t free_count;
    uint64_t look_ns; /* no deadline is before it */
    int64_t skew_s;   /* of the store's clock against ours */
    uint64_t random, marks_made;
    struct tierce__s3_mark marks[TIERCE__S3_MARKS];
    struct tierce__s3_size {
        uint64_t name; /* its hash; 0: none */
        uint64_t bytes, at_ns;
    } * sizes; /* of objects that were found; NULL: not kept */

    bool deletes_alone;             /* the store has no DeleteObjects */
    bool is_logged_in;              /* credentials are available */
    struct tierce__s3_login *login; /* NULL: credentials do not expire */

    _Atomic uint64_t waiting, connections, connects;
    struct tierce__lock lock;
    /* Under the lock. */
    struct tierce__list arrived;
    bool closing;
    uint64_t close_ns;
    char store_name[128];
    char why[TIERCE__CONNECTOR_WHY_BYTES];
};

/* Whether this is the connector's thread, which owns jobs and transfers. For assertions. */
static inline bool tierce__s3_is_own(const struct tierce__s3 *s3)
{
    return pthread_equal(pthread_self(), s3->thread) != 0;
}

/* Thread: any. By printf rules, with the store's name before it. */
void tierce__s3_set_why(struct tierce__s3 *s3, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- s3_login.c: on the connector's thread, or while it does not run ---- */

/* Starts the thread that renews credentials, if they expire. Errors: -ENOMEM, -EAGAIN (no thread).
 */
TIERCE_MUSTUSE int tierce__s3_login_start(struct tierce__s3 *s3);
/* Stops that thread. */
void tierce__s3_login_stop(struct tierce__s3 *s3);
/* Takes new credentials, if available. Returns 0 if credentials are available or being fetched;
 * else the error of the last fetch: TIERCE_E_REFUSED, TIERCE_E_DOWN, -ENOMEM. */
int tierce__s3_login_take(struct tierce__s3 *s3);
/* Call when the store rejected the credentials: requests new ones, unless these are new. Returns
 * false if no new ones can be obtained. */
bool tierce__s3_login_ask(struct tierce__s3 *s3);

/* ---- s3_job.c: thread of the connector ---- */

#define TIERCE__S3_ABORT_MS 10000u /* for an aborted upload, after the answer */
#define TIERCE__S3_DRAIN_MS 5000u  /* for lookups answered after their deadline */

/* A request becomes a job, or is answered. */
void tierce__s3_job_begin(struct tierce__s3 *s3, struct tierce__store_req *req);
/* Begins as many jobs as there are connections for. */
void tierce__s3_jobs_go_on(struct tierce__s3 *s3);
/* Answers all jobs that have not begun with `status`. */
void tierce__s3_jobs_refuse(struct tierce__s3 *s3, int status);
/* A transfer of it is over. */
void tierce__s3_job_note(struct tierce__s3_transfer *transfer, int status);
/* Answers jobs past their deadline, and determines the next deadline. */
void tierce__s3_jobs_expire(struct tierce__s3 *s3, uint64_t now);
/* Close: cancels jobs that have not begun, or all. */
void tierce__s3_jobs_cancel(struct tierce__s3 *s3, bool all);
bool tierce__s3_has_jobs(const struct tierce__s3 *s3);

/* For s3_join.c: a waiting job begins, is answered, is freed. */
void tierce__s3_job_is_begun(struct tierce__s3 *s3, struct tierce__s3_job *job);
void tierce__s3_job_answer(struct tierce__s3_job *job, int status);
void tierce__s3_job_free(struct tierce__s3_job *job);

/* ---- s3_pages.c: thread of the connector ---- */

/* Finds the beginning of the page. Errors: TIERCE_E_ARGUMENT (no listing has the cursor). */
TIERCE_MUSTUSE int tierce__s3_page_begin(struct tierce__s3 *s3, struct tierce__s3_job *job);
/* Tells the names of the page in the answer, and sets the cursor of the next one. Errors:
 * TIERCE_E_FORMAT (an invalid answer), -ENOMEM. */
TIERCE_MUSTUSE int tierce__s3_page_end(struct tierce__s3 *s3, struct tierce__s3_job *job,
                                       const struct tierce__s3_transfer *transfer);

/* ---- s3_join.c: thread of the connector ---- */

/* Registers a new job. A GET of one piece may be joined while it is in `bins`. */
void tierce__s3_join_await(struct tierce__s3 *s3, struct tierce__s3_job *job);
/* Call before a transfer begins: joins waiting jobs for adjacent ranges to it. */
void tierce__s3_join(struct tierce__s3_transfer *transfer);
/* Answers the jobs whose ranges have arrived. */
void tierce__s3_join_deliver(struct tierce__s3 *s3);
/* Splits a joined transfer: each unanswered job gets a request of its own. */
void tierce__s3_join_part(struct tierce__s3_transfer *transfer);
/* Call when a transfer has ended. Returns true if it was joined and has been split; it is free
 * then. */
bool tierce__s3_join_end(struct tierce__s3_transfer *transfer, int status);

/* ---- s3_transfer.c: thread of the connector ---- */

/* Begins a request whose job, call, item, key, body or range are filled in. tierce__s3_job_note
 * reports its end, perhaps before this returns. */
void tierce__s3_transfer_begin(struct tierce__s3_transfer *transfer);
/* curl is done with it. */
void tierce__s3_transfer_end(struct tierce__s3_transfer *transfer, CURLcode code);
/* Takes it from curl, which touches nothing of it any more, and makes it free. */
void tierce__s3_transfer_free(struct tierce__s3_transfer *transfer);
/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__s3_transfers_create(struct tierce__s3 *s3);
void tierce__s3_transfers_destroy(struct tierce__s3 *s3);

/* ---- s3_answer.c ---- */

/* The status of an answer: 0, or a status of connector.h. Sets *again if the store asks for a retry
 * later. Sets why. */
int tierce__s3_answer(struct tierce__s3_transfer *transfer, CURLcode code, bool *again);

/* Remembers the size of an object; `bytes` 0: it does not exist. */
void tierce__s3_learn(struct tierce__s3 *s3, const char *key, uint64_t bytes);
/* 0: not known. */
uint64_t tierce__s3_known(const struct tierce__s3 *s3, const char *key);

#endif
