/* SPDX-License-Identifier: Apache-2.0 */
#include "net/redis/resp_client.h"
#include "base/alloc.h"
#include "base/arena.h"
#include "base/assert.h"
#include "base/clock.h"
#include "net/channel.h"
#include "net/redis/resp_private.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#define RESP_MAGIC         0x7d16c2e9u
#define CONNECT_TIMEOUT_MS 1000u
#define CALL_TIMEOUT_MS    1000u
#define RETRY_INTERVAL_MS  100u
#define BULK_BYTES_MAX     (512ull << 20)
#define IN_BYTES_FIRST     (2 * TIERCE__RESP_LINE_BYTES_MAX) /* a whole line fits */
#define OUT_BYTES_FIRST    4096u
#define BYTES_KEPT         (1u << 20) /* a larger buffer goes after its pipeline */
#define PIECES_FIRST       16u
#define PIECES_AT_ONCE     64

/* Consecutive bytes to send: of `out` from `at` on, or the caller's. */
struct resp_piece {
    const char *borrowed;
    size_t at, bytes;
};

struct tierce__resp {
    uint32_t magic;
    struct tierce__resp_opts opts; /* with texts of its own */
    struct tierce__arena opts_arena;
    struct tierce__channel channel;
    struct tierce__tls_context *tls; /* NULL: no TLS */
    struct tierce__resp_parser *parser;
    char *in; /* received and not parsed: in[in_at .. in_end) */
    size_t in_at, in_end, in_size;
    char *out;
    size_t out_used, out_size;
    struct resp_piece *pieces;
    size_t piece_count, piece_size;
    uint64_t appended, awaited; /* commands not sent, answers not read */
    uint64_t retry_ns;          /* no attempt to connect before */
    int connect_rc;             /* how the last attempt ended */
    bool repeats;               /* the last begin returned it without an attempt */
    uint64_t connects;
    char why[TIERCE__RESP_WHY_BYTES];
};

/* ---- options --------------------------------------------------------------------------------- */

static int copy_text(struct tierce__arena *arena, const char **text)
{
    if (*text == NULL)
        return 0;
    *text = tierce__arena_copy(arena, *text, strlen(*text));
    return *text != NULL ? 0 : -ENOMEM;
}

int tierce__resp_opts_copy(struct tierce__resp_opts *out, struct tierce__arena *arena,
                           const struct tierce__resp_opts *opts)
{
    *out = (struct tierce__resp_opts){0};
    memcpy(out, opts, opts->size < sizeof(*out) ? opts->size : sizeof(*out));
    out->size = sizeof(*out);
    const char **texts[] = {&out->host,       &out->user,
                            &out->ca_file,    &out->client_certificate,
                            &out->client_key, &out->password};
    int rc = 0;
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts) && rc == 0; i++)
        rc = copy_text(arena, texts[i]);
    if (rc != 0)
        out->password = NULL; /* not ours */
    return rc;
}

void tierce__resp_opts_clear(struct tierce__resp_opts *opts, struct tierce__arena *arena)
{
    if (opts->password != NULL)
        explicit_bzero((char *)(uintptr_t)opts->password, strlen(opts->password));
    *opts = (struct tierce__resp_opts){0};
    tierce__arena_clear(arena);
}

static uint32_t number_or(uint32_t number, uint32_t otherwise)
{
    return number != 0 ? number : otherwise;
}

/* Copies the caller's options and fills in defaults. */
static int take_opts(struct tierce__resp *resp, const struct tierce__resp_opts *given)
{
    struct tierce__resp_opts *opts = &resp->opts;
    int rc = tierce__resp_opts_copy(opts, &resp->opts_arena, given);
    if (opts->host == NULL)
        opts->host = "127.0.0.1";
    opts->port = opts->port != 0 ? opts->port : 6379;
    opts->connect_timeout_ms = number_or(opts->connect_timeout_ms, CONNECT_TIMEOUT_MS);
    opts->call_timeout_ms = number_or(opts->call_timeout_ms, CALL_TIMEOUT_MS);
    opts->retry_interval_ms = number_or(opts->retry_interval_ms, RETRY_INTERVAL_MS);
    opts->bulk_bytes_max = opts->bulk_bytes_max != 0 ? opts->bulk_bytes_max : BULK_BYTES_MAX;
    if (opts->answer_bytes_max == 0)
        opts->answer_bytes_max = 2 * opts->bulk_bytes_max;
    return rc;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* The TLS files, if the options ask for TLS. */
static int load_tls(struct tierce__resp *resp, char why[TIERCE__RESP_WHY_BYTES])
{
    const struct tierce__resp_opts *opts = &resp->opts;
    if (!opts->tls)
        return 0;
    return tierce__tls_client_context(&resp->tls, opts->ca_file,
                                      &(struct tierce__tls){.certificate = opts->client_certificate,
                                                            .key = opts->client_key,
                                                            .is_bare = true},
                                      why);
}

int tierce__resp_create(struct tierce__resp **out, const struct tierce__resp_opts *opts,
                        char why[TIERCE__RESP_WHY_BYTES])
{
    struct tierce__resp *resp = tierce__calloc(1, sizeof(*resp));
    snprintf(why, TIERCE__RESP_WHY_BYTES, "%s", tierce_strerror(-ENOMEM));
    if (resp == NULL)
        return -ENOMEM;
    resp->magic = RESP_MAGIC;
    resp->channel.fd = -1;
    int rc = take_opts(resp, opts);
    if (rc == 0)
        rc = load_tls(resp, why);
    if (rc != 0)
        goto fail;
    rc = -ENOMEM;
    resp->parser =
        tierce__resp_parser_create(resp->opts.bulk_bytes_max, resp->opts.answer_bytes_max);
    resp->in = tierce__alloc(IN_BYTES_FIRST);
    if (resp->parser == NULL || resp->in == NULL)
        goto fail;
    resp->in_size = IN_BYTES_FIRST;
    why[0] = '\0';
    *out = resp;
    return 0;
fail:
    tierce__resp_close(resp);
    return rc;
}

int tierce__resp_open(struct tierce__resp **out, const struct tierce__resp_opts *opts,
                      char why[TIERCE__RESP_WHY_BYTES])
{
    struct tierce__resp *resp = NULL;
    int rc = tierce__resp_create(&resp, opts, why);
    if (rc != 0)
        return rc;
    rc = tierce__resp_begin(resp);
    if (rc != 0) {
        memcpy(why, resp->why, sizeof(resp->why));
        tierce__resp_close(resp);
        return rc;
    }
    *out = resp;
    return 0;
}

void tierce__resp_close(struct tierce__resp *resp)
{
    if (resp == NULL)
        return;
    TIERCE_CHECK_MAGIC(resp, RESP_MAGIC);
    tierce__channel_close(&resp->channel);
    tierce__tls_context_destroy(resp->tls);
    tierce__resp_parser_destroy(resp->parser);
    tierce__resp_opts_clear(&resp->opts, &resp->opts_arena);
    tierce__free(resp->in);
    tierce__free(resp->out);
    tierce__free(resp->pieces);
    resp->magic = 0;
    tierce__free(resp);
}

uint64_t tierce__resp_connects(const struct tierce__resp *resp)
{
    TIERCE_CHECK_MAGIC(resp, RESP_MAGIC);
    return resp->connects;
}

bool tierce__resp_repeats(const struct tierce__resp *resp)
{
    TIERCE_CHECK_MAGIC(resp, RESP_MAGIC);
    return resp->repeats;
}

const char *tierce__resp_why(const struct tierce__resp *resp)
{
    TIERCE_CHECK_MAGIC(resp, RESP_MAGIC);
    return resp->why;
}

bool tierce__resp_is_error(const struct tierce__resp_value *value, const char *code)
{
    size_t length = strlen(code);
    return value->type == TIERCE__RESP_ERROR && strncmp(value->text, code, length) == 0 &&
           (value->text[length] == ' ' || value->text[length] == '\0');
}

size_t tierce__resp_pattern(char *out, const char *begins, size_t bytes)
{
    size_t used = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (begins[i] != '\0' && strchr("*?[]^\\-", begins[i]) != NULL)
            out[used++] = '\\';
        out[used++] = begins[i];
    }
    out[used++] = '*';
    TIERCE_DASSERT(used <= 2 * bytes + 1);
    return used;
}

const char *tierce__resp_words(const struct tierce__resp_value *error)
{
    TIERCE_DASSERT(error->type == TIERCE__RESP_ERROR);
    return error->repeats_password ? "an error that repeats the password" : error->text;
}

static bool is_connected(const struct tierce__resp *resp)
{
    return resp->channel.fd >= 0;
}

bool tierce__resp_is_connected(const struct tierce__resp *resp)
{
    TIERCE_CHECK_MAGIC(resp, RESP_MAGIC);
    return is_connected(resp);
}

bool tierce__resp_is_ready(struct tierce__resp *resp)
{
    TIERCE_CHECK_MAGIC(resp, RESP_MAGIC);
    TIERCE_DASSERT(resp->in_at <= resp->in_end);
    return is_connected(resp) && resp->awaited == 0 && resp->in_at == resp->in_end &&
           tierce__channel_is_quiet(&resp->channel);
}

/* Closes the connection, because its answers can no longer be matched. */
static int fail(struct tierce__resp *resp, int rc, const char *what)
{
    TIERCE_DASSERT(rc < 0);
    tierce__channel_close(&resp->channel);
    resp->awaited = resp->appended = 0;
    snprintf(resp->why, sizeof(resp->why), "%.180s: %s: %s", resp->opts.host, what,
             tierce_strerror(rc));
    return rc;
}

static uint64_t deadline_of(const struct tierce__resp *resp, uint64_t deadline_ns)
{
    return deadline_ns != 0 ? deadline_ns : tierce__deadline_in_ms(resp->opts.call_timeout_ms);
}

/* ---- sending --------------------------------------------------------------------------------- */

static int add_piece(struct tierce__resp *resp, struct resp_piece piece)
{
    TIERCE_DASSERT(piece.bytes > 0);
    struct resp_piece *last = resp->piece_count > 0 ? &resp->pieces[resp->piece_count - 1] : NULL;
    if (piece.borrowed == NULL && last != NULL && last->borrowed == NULL) {
        TIERCE_DASSERT(last->at + last->bytes == piece.at);
        last->bytes += piece.bytes;
        return 0;
    }
    int rc = TIERCE__GROW(resp->pieces, resp->piece_size, resp->piece_count + 1, PIECES_FIRST);
    if (rc != 0)
        return rc;
    TIERCE_ASSERT(resp->pieces != NULL);
    resp->pieces[resp->piece_count++] = piece;
    return 0;
}

static int add_bytes(struct tierce__resp *resp, const void *bytes, size_t count)
{
    if (count > SIZE_MAX / 4 - resp->out_used)
        return -ENOMEM;
    int rc = TIERCE__GROW(resp->out, resp->out_size, resp->out_used + count, OUT_BYTES_FIRST);
    if (rc == 0 && count > 0)
        rc = add_piece(resp, (struct resp_piece){.at = resp->out_used, .bytes = count});
    if (rc != 0)
        return rc;
    TIERCE_DASSERT(resp->out_used + count <= resp->out_size);
    if (count > 0)
        memcpy(resp->out + resp->out_used, bytes, count);
    resp->out_used += count;
    return 0;
}

static int add_head(struct tierce__resp *resp, char kind, size_t number)
{
    char head[32];
    int length = snprintf(head, sizeof(head), "%c%zu\r\n", kind, number);
    TIERCE_DASSERT(length > 0 && (size_t)length < sizeof(head));
    return add_bytes(resp, head, (size_t)length);
}

static int add_argument(struct tierce__resp *resp, const char *bytes, size_t count, bool borrowed)
{
    int rc = add_head(resp, '$', count);
    if (rc == 0 && borrowed && count > 0)
        rc = add_piece(resp, (struct resp_piece){.borrowed = bytes, .bytes = count});
    else if (rc == 0)
        rc = add_bytes(resp, bytes, count);
    return rc == 0 ? add_bytes(resp, "\r\n", 2) : rc;
}

static int append(struct tierce__resp *resp, const char *const *arguments, const size_t *bytes,
                  size_t count, bool borrow_last)
{
    TIERCE_CHECK_MAGIC(resp, RESP_MAGIC);
    TIERCE_ASSERT(count > 0);
    if (!is_connected(resp))
        return -ENOTCONN;
    int rc = add_head(resp, '*', count);
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = add_argument(resp, arguments[i], bytes[i], borrow_last && i + 1 == count);
    if (rc != 0)
        return fail(resp, rc, "a command"); /* half of one must not be sent */
    resp->appended++;
    return 0;
}

int tierce__resp_append(struct tierce__resp *resp, const char *const *arguments,
                        const size_t *bytes, size_t count)
{
    return append(resp, arguments, bytes, count, false);
}

int tierce__resp_append_borrowed(struct tierce__resp *resp, const char *const *arguments,
                                 const size_t *bytes, size_t count)
{
    return append(resp, arguments, bytes, count, true);
}

/* Three quarters of the remaining time, so that the answer arrives in time. */
int tierce__resp_append_wait(struct tierce__resp *resp, uint32_t replicas, uint64_t deadline_ns)
{
    TIERCE_DASSERT(replicas > 0);
    uint64_t now_ns = tierce__now_ns();
    uint64_t left_ms = deadline_ns > now_ns ? (deadline_ns - now_ns) / TIERCE__MS_NS : 0;
    char count[12], wait_ms[24];
    int count_bytes = snprintf(count, sizeof(count), "%" PRIu32, replicas);
    /* 0 would be for ever. */
    int ms_bytes = snprintf(wait_ms, sizeof(wait_ms), "%" PRIu64, left_ms / 4 * 3 + 1);
    return tierce__resp_append(resp, (const char *[]){"WAIT", count, wait_ms},
                               (size_t[]){4, (size_t)count_bytes, (size_t)ms_bytes}, 3);
}

/* Makes room for a whole line after the unparsed bytes. */
static int make_room(struct tierce__resp *resp)
{
    TIERCE_DASSERT(resp->in_at <= resp->in_end && resp->in_end <= resp->in_size);
    if (resp->in_at > 0) {
        memmove(resp->in, resp->in + resp->in_at, resp->in_end - resp->in_at);
        resp->in_end -= resp->in_at;
        resp->in_at = 0;
    }
    if (resp->in_size - resp->in_end >= TIERCE__RESP_LINE_BYTES_MAX)
        return 0;
    int rc = TIERCE__GROW(resp->in, resp->in_size, resp->in_size + 1, IN_BYTES_FIRST);
    TIERCE_DASSERT(rc != 0 || resp->in_size - resp->in_end >= TIERCE__RESP_LINE_BYTES_MAX);
    return rc;
}

/* Reads the available bytes, into a bulk string in progress or into the buffer. */
static int receive(struct tierce__resp *resp)
{
    size_t room_bytes = 0, done = 0;
    int rc = make_room(resp);
    if (rc != 0)
        return rc;
    /* Bytes in the buffer come first. */
    char *room =
        resp->in_at == resp->in_end ? tierce__resp_parser_room(resp->parser, &room_bytes) : NULL;
    struct iovec pieces[2] = {{room, room_bytes},
                              {resp->in + resp->in_end, resp->in_size - resp->in_end}};
    rc = room != NULL ? tierce__channel_read(&resp->channel, pieces, 2, &done)
                      : tierce__channel_read(&resp->channel, pieces + 1, 1, &done);
    if (rc != 0)
        return rc;
    TIERCE_DASSERT(done > 0);
    size_t filled = done < room_bytes ? done : room_bytes;
    if (filled > 0)
        tierce__resp_parser_filled(resp->parser, filled);
    resp->in_end += done - filled;
    TIERCE_DASSERT(resp->in_end <= resp->in_size);
    return 0;
}

/* Up to PIECES_AT_ONCE pieces from `first` on, without the `skip` bytes of it that were sent. */
static int gather(const struct tierce__resp *resp, size_t first, size_t skip,
                  struct iovec pieces[PIECES_AT_ONCE])
{
    TIERCE_DASSERT(first < resp->piece_count);
    TIERCE_DASSERT(skip < resp->pieces[first].bytes);
    int count = 0;
    for (size_t i = first; i < resp->piece_count && count < PIECES_AT_ONCE; i++, skip = 0) {
        const struct resp_piece *piece = &resp->pieces[i];
        const char *bytes = piece->borrowed != NULL ? piece->borrowed : resp->out + piece->at;
        pieces[count++] = (struct iovec){(void *)(uintptr_t)(bytes + skip), piece->bytes - skip};
    }
    TIERCE_DASSERT(count > 0);
    return count;
}

/* Waits until more can be sent; takes answers meanwhile, so that a server that stops reading until
 * it has written cannot stop us. */
static int wait_to_send(struct tierce__resp *resp, uint64_t deadline_ns)
{
    TIERCE_DASSERT(resp->in_at <= resp->in_end);
    short got = 0;
    bool takes = resp->in_end - resp->in_at < resp->opts.answer_bytes_max;
    short events = (short)(resp->channel.wants | (takes ? POLLIN : 0));
    int rc = tierce__channel_wait(&resp->channel, events, &got, deadline_ns);
    if (rc != 0 || !takes || (got & POLLIN) == 0)
        return rc;
    rc = receive(resp);
    return rc == -EAGAIN ? 0 : rc;
}

int tierce__resp_flush(struct tierce__resp *resp, uint64_t deadline_ns)
{
    TIERCE_CHECK_MAGIC(resp, RESP_MAGIC);
    size_t at = 0, skip = 0;
    if (!is_connected(resp))
        return -ENOTCONN;
    deadline_ns = deadline_of(resp, deadline_ns);
    while (at < resp->piece_count) {
        struct iovec pieces[PIECES_AT_ONCE];
        size_t done = 0;
        int count = gather(resp, at, skip, pieces);
        int rc = tierce__channel_write(&resp->channel, pieces, count, &done);
        if (rc == -EAGAIN)
            rc = wait_to_send(resp, deadline_ns);
        if (rc != 0)
            return fail(resp, rc, "sending");
        for (done += skip, skip = 0; done > 0;) {
            TIERCE_DASSERT(at < resp->piece_count);
            if (done < resp->pieces[at].bytes) {
                skip = done;
                break;
            }
            done -= resp->pieces[at++].bytes;
        }
    }
    TIERCE_DASSERT(skip == 0 && at == resp->piece_count);
    resp->awaited += resp->appended;
    resp->appended = resp->piece_count = resp->out_used = 0;
    return 0;
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* A server that lies may say the password, an honest one have it among its words by chance. */
static bool repeats_password(const struct tierce__resp *resp,
                             const struct tierce__resp_value *value)
{
    const char *password = resp->opts.password;
    return value->type == TIERCE__RESP_ERROR && password != NULL && password[0] != '\0' &&
           memmem(value->text, value->bytes, password, strlen(password)) != NULL;
}

int tierce__resp_read(struct tierce__resp *resp, struct tierce__resp_value *out,
                      uint64_t deadline_ns)
{
    TIERCE_CHECK_MAGIC(resp, RESP_MAGIC);
    if (!is_connected(resp))
        return -ENOTCONN;
    if (resp->awaited == 0)
        return TIERCE_E_ARGUMENT;
    deadline_ns = deadline_of(resp, deadline_ns);
    for (;;) {
        size_t used = 0;
        int rc = tierce__resp_parser_feed(resp->parser, resp->in + resp->in_at,
                                          resp->in_end - resp->in_at, &used, out);
        resp->in_at += used;
        TIERCE_DASSERT(resp->in_at <= resp->in_end && resp->awaited > 0);
        TIERCE_DASSERT(used <= resp->in_end);
        if (rc == 1) {
            resp->awaited--;
            out->repeats_password = repeats_password(resp, out);
            return 0;
        }
        if (rc == 0)
            rc = receive(resp);
        if (rc == -EAGAIN) {
            size_t bytes = 0;
            (void)tierce__resp_parser_room(resp->parser, &bytes);
            tierce__channel_expect(&resp->channel, bytes);
            rc = tierce__channel_wait(&resp->channel, resp->channel.wants, NULL, deadline_ns);
        }
        if (rc != 0)
            return fail(resp, rc, "receiving");
    }
}

int tierce__resp_read_into(struct tierce__resp *resp, void *memory, size_t capacity,
                           struct tierce__resp_value *out, uint64_t deadline_ns)
{
    TIERCE_CHECK_MAGIC(resp, RESP_MAGIC);
    if (is_connected(resp) && resp->awaited > 0)
        tierce__resp_parser_into(resp->parser, memory, capacity);
    return tierce__resp_read(resp, out, deadline_ns);
}

int tierce__resp_call(struct tierce__resp *resp, const char *const *arguments, const size_t *bytes,
                      size_t count, struct tierce__resp_value *out, uint64_t deadline_ns)
{
    int rc = tierce__resp_begin(resp);
    if (rc == 0)
        rc = tierce__resp_append(resp, arguments, bytes, count);
    if (rc == 0)
        rc = tierce__resp_flush(resp, deadline_ns);
    return rc == 0 ? tierce__resp_read(resp, out, deadline_ns) : rc;
}

/* ---- connecting ------------------------------------------------------------------------------ */

static void forget(struct tierce__resp *resp)
{
    TIERCE_DASSERT(resp->in_at <= resp->in_end);
    tierce__resp_parser_reset(resp->parser);
    resp->appended = resp->piece_count = resp->out_used = 0;
    if (resp->out_size > BYTES_KEPT) {
        tierce__free(resp->out);
        resp->out = NULL;
        resp->out_size = 0;
    }
    char *in = resp->in_size > BYTES_KEPT && resp->in_at == resp->in_end
                   ? tierce__realloc(resp->in, IN_BYTES_FIRST)
                   : NULL;
    if (in != NULL) {
        resp->in = in;
        resp->in_size = IN_BYTES_FIRST;
        resp->in_at = resp->in_end = 0;
    }
}

static int append_texts(struct tierce__resp *resp, const char *a, const char *b, const char *c)
{
    const char *arguments[] = {a, b, c};
    size_t bytes[3] = {0}, count = 0;
    for (; count < 3 && arguments[count] != NULL; count++)
        bytes[count] = strlen(arguments[count]);
    TIERCE_DASSERT(count > 0);
    return tierce__resp_append(resp, arguments, bytes, count);
}

/* Reads the answer to a command of the greeting; `what` must not fail. Messages repeat only the
 * first word of the server's error, its code. */
static int read_greeting(struct tierce__resp *resp, const char *what, uint64_t deadline_ns)
{
    struct tierce__resp_value value;
    int rc = tierce__resp_read(resp, &value, deadline_ns);
    if (rc != 0 || value.type != TIERCE__RESP_ERROR)
        return rc;
    bool is_auth = strcmp(what, "AUTH") == 0;
    bool is_ping = strcmp(what, "PING") == 0;
    if (is_ping && !tierce__resp_is_error(&value, "NOAUTH"))
        return 0; /* loading, say: the commands to come will tell */
    const char *words = tierce__resp_words(&value);
    char code[40];
    snprintf(code, sizeof(code), "%.*s",
             value.repeats_password ? (int)strlen(words) : (int)strcspn(words, " "), words);
    rc = is_auth || is_ping ? -EACCES : -EPROTO;
    fail(resp, rc, what);
    snprintf(resp->why, sizeof(resp->why), "%.150s refuses %s%s%.60s: %s", resp->opts.host, what,
             is_auth && resp->opts.user != NULL ? " of user " : "",
             is_auth && resp->opts.user != NULL ? resp->opts.user : "", code);
    return rc;
}

/* AUTH, SELECT and PING in one pipeline. */
static int greet(struct tierce__resp *resp, uint64_t deadline_ns)
{
    TIERCE_DASSERT(resp->appended == 0 && resp->awaited == 0);
    const struct tierce__resp_opts *opts = &resp->opts;
    bool auth = opts->password != NULL, select = opts->database != 0;
    char database[16];
    int rc = 0;
    snprintf(database, sizeof(database), "%u", (unsigned)opts->database);
    if (auth)
        rc = opts->user != NULL ? append_texts(resp, "AUTH", opts->user, opts->password)
                                : append_texts(resp, "AUTH", opts->password, NULL);
    if (rc == 0 && select)
        rc = append_texts(resp, "SELECT", database, NULL);
    if (rc == 0)
        rc = append_texts(resp, "PING", NULL, NULL);
    if (rc == 0)
        rc = tierce__resp_flush(resp, deadline_ns);
    if (resp->out != NULL)
        explicit_bzero(resp->out, resp->out_size);
    if (rc == 0 && auth)
        rc = read_greeting(resp, "AUTH", deadline_ns);
    if (rc == 0 && select)
        rc = read_greeting(resp, "SELECT", deadline_ns);
    return rc == 0 ? read_greeting(resp, "PING", deadline_ns) : rc;
}

static int reconnect(struct tierce__resp *resp)
{
    TIERCE_DASSERT(!is_connected(resp));
    uint64_t now = tierce__now_ns();
    resp->repeats = now < resp->retry_ns;
    if (resp->repeats)
        return resp->connect_rc;
    uint64_t deadline_ns = now + resp->opts.connect_timeout_ms * TIERCE__MS_NS;
    resp->awaited = 0;
    resp->in_at = resp->in_end = 0;
    forget(resp);
    int rc = tierce__channel_connect(&resp->channel, resp->opts.host, resp->opts.port, resp->tls,
                                     deadline_ns, resp->why);
    if (rc == -ENOENT) /* no error above: there are fewer servers, or no value */
        rc = -ECONNREFUSED;
    if (rc == 0) {
        rc = greet(resp, deadline_ns);
        if (rc == TIERCE_E_DEADLINE)
            snprintf(resp->why, sizeof(resp->why),
                     "%.180s: connected, but no answer within %u ms (timeout_ms)", resp->opts.host,
                     (unsigned)resp->opts.connect_timeout_ms);
    }
    resp->connect_rc = rc;
    resp->retry_ns = rc == 0 ? 0 : tierce__now_ns() + resp->opts.retry_interval_ms * TIERCE__MS_NS;
    if (rc == 0) {
        resp->connects++;
        resp->why[0] = '\0';
        forget(resp);
    }
    TIERCE_DASSERT(rc != 0 || (is_connected(resp) && resp->awaited == 0 && resp->appended == 0));
    return rc;
}

int tierce__resp_begin(struct tierce__resp *resp)
{
    TIERCE_CHECK_MAGIC(resp, RESP_MAGIC);
    forget(resp);
    resp->repeats = false;
    if (tierce__resp_is_ready(resp))
        return 0;
    tierce__channel_close(&resp->channel);
    return reconnect(resp);
}

void tierce__resp_leave(struct tierce__resp *resp, const char *why)
{
    TIERCE_CHECK_MAGIC(resp, RESP_MAGIC);
    tierce__channel_close(&resp->channel);
    snprintf(resp->why, sizeof(resp->why), "%.100s: %.150s", resp->opts.host, why);
    resp->connect_rc = TIERCE_E_DOWN;
    resp->retry_ns = tierce__now_ns() + resp->opts.retry_interval_ms * TIERCE__MS_NS;
}
