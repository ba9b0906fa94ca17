/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/progress.h"
#include "base/clock.h"

#include <stdio.h>
#include <unistd.h>

#define BAR_WIDTH   30
#define BAR_EVERY   (100 * TIERCE__MS_NS)
#define LINE_EVERY  (5000 * TIERCE__MS_NS)
#define SECOND_NS   1000000000ULL
#define LINE_LENGTH 100

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

static void print(const struct tierce__progress *progress, uint64_t now)
{
    char done[32], total[32], rate[32], left[32], bar[BAR_WIDTH + 1], line[256];
    double seconds = (double)(now - progress->started_ns) / (double)SECOND_NS;
    double part = progress->total > 0 ? (double)progress->done / (double)progress->total : 1;
    double speed = seconds > 0 ? (double)progress->done / seconds : 0;
    uint64_t rest = progress->total > progress->done ? progress->total - progress->done : 0;

    part = part > 1 ? 1 : part;
    for (int i = 0; i < BAR_WIDTH; i++)
        bar[i] = i < (int)(part * BAR_WIDTH) ? '#' : '.';
    bar[BAR_WIDTH] = '\0';
    tierce__human_bytes(done, sizeof(done), progress->done);
    tierce__human_bytes(total, sizeof(total), progress->total);
    tierce__human_bytes(rate, sizeof(rate), (uint64_t)speed);
    tierce__human_seconds(left, sizeof(left), speed > 0 ? (uint64_t)((double)rest / speed) : 0);
    snprintf(line, sizeof(line), "%s of %s, %s/s, %s left", done, total, rate, left);
    if (progress->terminal)
        fprintf(stderr, "\r%s [%s] %3.0f %%  %-48.48s", progress->name, bar, part * 100, line);
    else
        fprintf(stderr, "%s: %.0f %%, %s\n", progress->name, part * 100, line);
}

void tierce__progress_add(struct tierce__progress *progress, uint64_t bytes)
{
    uint64_t now = tierce__now_ns();
    progress->done += bytes;
    if (now - progress->printed_ns < (progress->terminal ? BAR_EVERY : LINE_EVERY))
        return;
    print(progress, now);
    progress->printed_ns = now;
    progress->printed = true;
}

void tierce__progress_end(struct tierce__progress *progress)
{
    if (progress->printed && progress->terminal)
        fprintf(stderr, "\r%*s\r", LINE_LENGTH, "");
    progress->printed = false;
}
