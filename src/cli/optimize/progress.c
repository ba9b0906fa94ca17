/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/optimize/progress.h"
#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#define BAR_WIDTH   30
#define BAR_EVERY   (100 * TIERCE__MS_NS)
#define LINE_EVERY  (5000 * TIERCE__MS_NS)
#define SECOND_NS   1000000000ULL
#define LINE_LENGTH 120

void tierce__human_bytes(char *text, size_t size, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof(units) / sizeof(*units)) {
        value /= 1024;
        unit++;
    }
    snprintf(text, size, unit > 0 && value < 10 ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

void tierce__human_seconds(char *text, size_t size, uint64_t seconds)
{
    if (seconds >= 2 * 86400)
        snprintf(text, size, "%llu days", (unsigned long long)(seconds / 86400));
    else if (seconds >= 2 * 3600)
        snprintf(text, size, "%llu h", (unsigned long long)(seconds / 3600));
    else if (seconds >= 2 * 60)
        snprintf(text, size, "%llu min", (unsigned long long)(seconds / 60));
    else
        snprintf(text, size, "%llu s", (unsigned long long)seconds);
}

void tierce__progress_begin(struct tierce__progress *progress, const char *name, uint64_t total)
{
    uint64_t now = tierce__now_ns();
    *progress = (struct tierce__progress){.name = name,
                                          .total = total,
                                          .started_ns = now,
                                          .printed_ns = now,
                                          .terminal = isatty(STDERR_FILENO) == 1};
}

static void format_amount(char *text, size_t size, const struct tierce__progress *progress,
                          uint64_t amount)
{
    if (progress->unit == NULL)
        tierce__human_bytes(text, size, amount);
    else if (amount < 1000000)
        snprintf(text, size, "%" PRIu64, amount);
    else
        snprintf(text, size, "%.3g million", (double)amount / 1e6);
}

/* Omits the estimate of the end if there is none. */
static void format_line(char line[256], const struct tierce__progress *progress, double seconds)
{
    char done[32], total[32], rate[32], left[32];
    const char *unit = progress->unit != NULL ? progress->unit : "";
    double speed = seconds > 0 ? (double)progress->done / seconds : 0;
    uint64_t rest = progress->total > progress->done ? progress->total - progress->done : 0;
    format_amount(done, sizeof(done), progress, progress->done);
    format_amount(total, sizeof(total), progress, progress->total);
    format_amount(rate, sizeof(rate), progress, (uint64_t)speed);
    tierce__human_seconds(left, sizeof(left), speed > 0 ? (uint64_t)((double)rest / speed) : 0);
    if (progress->total > 0)
        snprintf(line, 256, "%s of %s%s%s, %s/s, %s left", done, total, unit[0] != '\0' ? " " : "",
                 unit, rate, left);
    else
        snprintf(line, 256, "%s%s%s, %s/s", done, unit[0] != '\0' ? " " : "", unit, rate);
}

static void print(const struct tierce__progress *progress, uint64_t now)
{
    char bar[BAR_WIDTH + 1], line[256], share[16] = "";
    bool is_known = progress->total > 0;
    double part = is_known ? (double)progress->done / (double)progress->total : 0;
    part = part > 1 ? 1 : part;
    for (int i = 0; i < BAR_WIDTH; i++)
        bar[i] = i < (int)(part * BAR_WIDTH) ? '#' : '.';
    bar[BAR_WIDTH] = '\0';
    format_line(line, progress, (double)(now - progress->started_ns) / (double)SECOND_NS);
    if (is_known)
        snprintf(share, sizeof(share), "%3.0f %%", part * 100);
    if (progress->terminal)
        fprintf(stderr, "\r%s [%s] %s  %-56.56s", progress->name, bar, share, line);
    else
        fprintf(stderr, "%s: %s%s%s\n", progress->name, share, is_known ? ", " : "", line);
}

void tierce__progress_add(struct tierce__progress *progress, uint64_t amount)
{
    uint64_t now = tierce__now_ns();
    progress->done += amount;
    if (now - progress->printed_ns < (progress->terminal ? BAR_EVERY : LINE_EVERY))
        return;
    print(progress, now);
    progress->printed_ns = now;
    progress->printed = true;
}

void tierce__progress_tell(void *progress, uint64_t done, uint64_t total)
{
    struct tierce__progress *out = progress;
    out->total = total;
    if (done > out->done)
        tierce__progress_add(out, done - out->done);
}

void tierce__progress_end(struct tierce__progress *progress)
{
    if (progress->printed && progress->terminal)
        fprintf(stderr, "\r%*s\r", LINE_LENGTH, "");
    progress->printed = false;
}
