/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "optimizer/live/live_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define LIVE_MAGIC 0x4c495631u

static const struct {
    const char *scheme;
    const struct tierce__live_ops *ops;
} schemes[] = {
    {"tcp://", &tierce__live_zmq_ops},
    {"ipc://", &tierce__live_zmq_ops},
    {"http://", &tierce__live_http_ops},
    {"https://", &tierce__live_http_ops},
};

static const struct tierce__live_ops *find_ops(const char *url)
{
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        if (strncmp(url, schemes[i].scheme, strlen(schemes[i].scheme)) == 0)
            return schemes[i].ops;
    }
    return strstr(url, "://") == NULL ? &tierce__live_file_ops : NULL;
}

static ssize_t read_or_wait(void *arg, void *out, size_t size, char why[TIERCE__TRACE_WHY_BYTES])
{
    struct tierce__live_source *source = arg;
    TIERCE_CHECK_MAGIC(source, LIVE_MAGIC);
    while (source->opts.stop == NULL ||
           !atomic_load_explicit(source->opts.stop, memory_order_relaxed)) {
        ssize_t n = source->ops->read(source, out, size, why);
        TIERCE_DASSERT(n <= (ssize_t)size);
        if (n != -EAGAIN)
            return n;
    }
    return 0;
}

int tierce__live_open(struct tierce__live_source **out, const char *url,
                      const struct tierce__live_opts *opts, char why[TIERCE__TRACE_WHY_BYTES])
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    const struct tierce__live_ops *ops = find_ops(url);
    if (ops == NULL) {
        snprintf(why, TIERCE__TRACE_WHY_BYTES,
                 "is not a source; sources are tcp:// and ipc:// (vLLM's KV events), http:// and "
                 "https:// (lines), and files");
        return TIERCE_E_ARGUMENT;
    }
    struct tierce__live_source *source;
    int rc = ops->open(&source, url, why);
    if (rc < 0)
        return rc;
    source->magic = LIVE_MAGIC;
    source->ops = ops;
    source->opts = *opts;
    source->trace_source = (struct tierce__trace_source){.read = read_or_wait, .arg = source};
    *out = source;
    return 0;
}

const struct tierce__trace_source *
tierce__live_trace_source(const struct tierce__live_source *source)
{
    TIERCE_CHECK_MAGIC(source, LIVE_MAGIC);
    return &source->trace_source;
}

const char *tierce__live_format(const struct tierce__live_source *source)
{
    TIERCE_CHECK_MAGIC(source, LIVE_MAGIC);
    return source->ops->format;
}

const struct tierce__live_counts *tierce__live_counts(const struct tierce__live_source *source)
{
    TIERCE_CHECK_MAGIC(source, LIVE_MAGIC);
    return &source->counts;
}

void tierce__live_close(struct tierce__live_source *source)
{
    if (source == NULL)
        return;
    TIERCE_CHECK_MAGIC(source, LIVE_MAGIC);
    source->magic = 0;
    source->ops->close(source);
}
