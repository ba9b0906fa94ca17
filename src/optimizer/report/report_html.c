/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text/utf8.h"
#include "optimizer/report/report.h"
#include "optimizer/report/report_page.h"
#include "base/alloc.h"
#include "base/text/utf8.h"
#include "core/key/sha256.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <tierce/version.h>

/*
 * A self-contained page. web/report/page.html has marks (<!--tierce:NAME-->) where parts are
 * inserted. A content security policy allows only its own script and style, by their hashes, even
 * if data of a trace were not escaped.
 */

struct html_page {
    FILE *file;
    const struct tierce__report *report;
    struct tierce__report_curves curves;
    int rc; /* of the data */
};

/* Text of HTML, in an element. */
static void put_html(FILE *file, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    while (*at != '\0') {
        uint32_t letter;
        at += tierce__utf8_letter(&letter, at);
        if (letter < ' ' || letter == 0x7f)
            fputc(' ', file);
        else if (letter == '<' || letter == '>' || letter == '&' || letter == '"' || letter > 0x7f)
            fprintf(file, "&#%" PRIu32 ";", letter);
        else
            fputc((int)letter, file);
    }
}

/* 'sha256-...' of a script or style that a browser may use. */
static void put_sum(FILE *file, const unsigned char *text, size_t size)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t digest[TIERCE__SHA256_BYTES + 1] = {0}; /* 33 bytes are 44 digits of base 64 */
    tierce__sha256(digest, text, size);
    fputs("'sha256-", file);
    for (size_t i = 0; i < sizeof(digest); i += 3) {
        uint32_t three = (uint32_t)digest[i] << 16 | (uint32_t)digest[i + 1] << 8 | digest[i + 2];
        fputc(letters[three >> 18], file);
        fputc(letters[three >> 12 & 63], file);
        fputc(letters[three >> 6 & 63], file);
        fputc(i + 3 < sizeof(digest) ? letters[three & 63] : '=', file);
    }
    fputc('\'', file);
}

static void put_policy(struct html_page *page)
{
    fputs("default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; script-src ",
          page->file);
    put_sum(page->file, tierce__page_script, tierce__page_script_size);
    fputs("; style-src ", page->file);
    put_sum(page->file, tierce__page_style, tierce__page_style_size);
}

/* ---- the tables, which need no script -------------------------------------------------------- */

static const struct tierce__sweep_row *row_at(const struct tierce__report_curve *curve,
                                              uint64_t capacity)
{
    for (size_t i = 0; i < curve->count; i++) {
        if (curve->rows[i]->capacity == capacity)
            return curve->rows[i];
    }
    return curve->rows[0]->cache->kind == TIERCE__CACHE_INFINITE ? curve->rows[0] : NULL;
}

/* The smallest capacity above `last` in curves of the match; 0: none. Unlimited is the last one; it
 * is skipped if only the infinite cache has it, which is shown in every row. */
static uint64_t next_capacity(const struct html_page *page, const struct tierce__report_curve *head,
                              uint64_t last)
{
    uint64_t next = 0;
    bool has_limits = false;
    for (size_t c = 0; c < page->curves.count; c++) {
        const struct tierce__report_curve *curve = &page->curves.curves[c];
        if (!tierce__report_same_match(head, curve))
            continue;
        bool everywhere = curve->rows[0]->cache->kind == TIERCE__CACHE_INFINITE;
        for (size_t i = 0; i < curve->count && !everywhere; i++) {
            uint64_t capacity = curve->rows[i]->capacity;
            has_limits = true;
            if (capacity > last && (next == 0 || capacity < next))
                next = capacity;
        }
    }
    return has_limits || last > 0 ? next : TIERCE__CAPACITY_UNLIMITED;
}

/* With a comma between thousands. */
static void put_count(FILE *file, uint64_t value)
{
    char digits[24];
    int length = snprintf(digits, sizeof(digits), "%" PRIu64, value);
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            fputc(',', file);
        fputc(digits[i], file);
    }
}

static void put_bytes(FILE *file, double value)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t unit = 0;
    while (value >= 1023.95 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1024;
        unit++;
    }
    fprintf(file, "%.*f&#160;%s", unit == 0 ? 0 : 1, value, units[unit]);
}

/* Of blocks, or bytes where capacities are bytes. */
static bool has_blocks(const struct html_page *page)
{
    return !page->report->sweep->in_bytes;
}

static bool has_sizes(const struct html_page *page)
{
    return !has_blocks(page) || page->report->block_bytes > 0;
}

static void put_capacity(const struct html_page *page, uint64_t capacity)
{
    uint64_t each = has_blocks(page) ? page->report->block_bytes : 1;
    if (capacity == TIERCE__CAPACITY_UNLIMITED) {
        fputs("<tr data-capacity=\"null\"><th scope=\"row\">unlimited</th>", page->file);
        if (has_blocks(page) && has_sizes(page))
            fputs("<td></td>", page->file);
        return;
    }
    fprintf(page->file, "<tr data-capacity=\"%" PRIu64 "\"><th scope=\"row\">", capacity);
    if (has_blocks(page)) {
        put_count(page->file, capacity);
        fputs(has_sizes(page) ? "</th><td>" : "</th>", page->file);
    }
    if (has_sizes(page)) {
        put_bytes(page->file, (double)capacity * (double)each);
        fputs(has_blocks(page) ? "</td>" : "</th>", page->file);
    }
}

static void put_row(const struct html_page *page, const struct tierce__report_curve *head,
                    uint64_t capacity)
{
    put_capacity(page, capacity);
    for (size_t c = 0; c < page->curves.count; c++) {
        const struct tierce__report_curve *curve = &page->curves.curves[c];
        if (!tierce__report_same_match(head, curve))
            continue;
        const struct tierce__sweep_row *row = row_at(curve, capacity);
        if (row == NULL)
            fputs("<td>&#8211;</td>", page->file);
        else
            fprintf(page->file, "<td>%.2f&#160;%%</td>", 100 * tierce__sweep_rate(row));
    }
    fputs("</tr>\n", page->file);
}

static void put_table(const struct html_page *page, size_t first)
{
    const struct tierce__report_curve *head = &page->curves.curves[first];
    char match[TIERCE__MATCH_TEXT_BYTES], label[TIERCE__REPORT_LABEL_BYTES];
    tierce__match_print(&head->rows[0]->match, match);
    fprintf(
        page->file,
        "<div class=\"scroll more\" tabindex=\"0\" role=\"region\" aria-label=\"Hit rates, match "
        "%s\"><table class=\"rates\" data-match=\"%s\">\n<caption>Hits (%s), of the blocks "
        "looked up, by policy and capacity</caption>\n<thead><tr>",
        match, match, match);
    if (has_blocks(page))
        fputs("<th scope=\"col\">Blocks</th>", page->file);
    if (has_sizes(page))
        fputs("<th scope=\"col\">Size</th>", page->file);
    for (size_t c = first; c < page->curves.count; c++) {
        if (!tierce__report_same_match(head, &page->curves.curves[c]))
            continue;
        tierce__report_label(label, &page->curves, c);
        fputs("<th scope=\"col\">", page->file);
        put_html(page->file, label);
        fputs("</th>", page->file);
    }
    fputs("</tr></thead>\n<tbody>\n", page->file);
    for (uint64_t capacity = next_capacity(page, head, 0); capacity > 0;
         capacity = next_capacity(page, head, capacity)) {
        put_row(page, head, capacity);
        if (capacity == TIERCE__CAPACITY_UNLIMITED)
            break;
    }
    fputs("</tbody></table></div>\n", page->file);
}

static void put_tables(struct html_page *page)
{
    for (size_t c = 0; c < page->curves.count; c++) {
        bool first = true;
        for (size_t i = 0; i < c && first; i++)
            first = !tierce__report_same_match(&page->curves.curves[i], &page->curves.curves[c]);
        if (first)
            put_table(page, c);
    }
}

/* ---- the parts ------------------------------------------------------------------------------- */

static void put_name(struct html_page *page)
{
    put_html(page->file, page->report->name);
}

static void put_version(struct html_page *page)
{
    fputs("version " TIERCE_VERSION, page->file);
}

static void put_style(struct html_page *page)
{
    fwrite(tierce__page_style, 1, tierce__page_style_size, page->file);
}

static void put_script(struct html_page *page)
{
    fwrite(tierce__page_script, 1, tierce__page_script_size, page->file);
}

static void put_data(struct html_page *page)
{
    page->rc = tierce__report_json(page->file, page->report);
}

static void put_part(struct html_page *page, const char *name, size_t length)
{
    static const struct {
        const char *name;
        void (*put)(struct html_page *page);
    } parts[] = {
        {"policy", put_policy}, {"name", put_name},       {"style", put_style},
        {"tables", put_tables}, {"version", put_version}, {"data", put_data},
        {"script", put_script},
    };
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (strlen(parts[i].name) == length && memcmp(parts[i].name, name, length) == 0)
            parts[i].put(page);
    }
}

int tierce__report_html(FILE *file, const struct tierce__report *report)
{
    static const char mark[] = "<!--tierce:", end[] = "-->";
    struct html_page page = {.file = file, .report = report};
    int rc = tierce__report_curves(&page.curves, report->sweep);
    if (rc < 0)
        return rc;
    const char *at = (const char *)tierce__page_html, *next;
    while ((next = strstr(at, mark)) != NULL) {
        const char *name = next + strlen(mark), *stop = strstr(name, end);
        if (stop == NULL)
            break;
        fwrite(at, 1, (size_t)(next - at), file);
        put_part(&page, name, (size_t)(stop - name));
        at = stop + strlen(end);
    }
    fputs(at, file);
    tierce__report_curves_clear(&page.curves);
    return page.rc;
}
