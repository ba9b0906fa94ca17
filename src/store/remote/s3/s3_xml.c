/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/s3/s3_xml.h"
#include "base/assert.h"

#include <stdint.h>
#include <string.h>

#define PATH_BYTES 256u

struct xml_reader {
    const char *at, *end;
    tierce__s3_xml_leaf_fn *leaf;
    tierce__s3_xml_end_fn *end_group; /* or NULL */
    void *arg;
    char path[PATH_BYTES];
    size_t path_bytes;
    unsigned depth;
    bool is_leaf; /* nothing but text since the last start tag */
    bool has_root;
    char text[TIERCE__S3_XML_TEXT_MAX + 1];
};

static bool starts(const struct xml_reader *reader, const char *with)
{
    TIERCE_DASSERT(reader->at <= reader->end);
    size_t bytes = strlen(with);
    return (size_t)(reader->end - reader->at) >= bytes && memcmp(reader->at, with, bytes) == 0;
}

/* Moves behind the next `end`; false if there is none. */
static bool skip_behind(struct xml_reader *reader, const char *end)
{
    TIERCE_DASSERT(reader->at <= reader->end);
    size_t bytes = strlen(end);
    const char *found = memmem(reader->at, (size_t)(reader->end - reader->at), end, bytes);
    if (found == NULL)
        return false;
    reader->at = found + bytes;
    return true;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || c == ':';
}

/* ---- texts ----------------------------------------------------------------------------------- */

static bool take_number(uint32_t *out, const char *text, size_t bytes)
{
    uint32_t base = 10, code = 0;
    if (bytes > 0 && text[0] == 'x') {
        base = 16;
        text++;
        bytes--;
    }
    if (bytes == 0 || bytes > 7)
        return false;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a') + 10
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A') + 10
                                                : 99;
        if (digit >= base)
            return false;
        code = code * base + digit;
    }
    *out = code;
    return code > 0 && code < 0x80;
}

/* Decodes the text between '&' and ';'. It must be ASCII, like all text that we search for. */
static bool take_entity(char *out, const char *name, size_t bytes)
{
    static const struct {
        const char *name;
        char c;
    } entities[] = {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
    uint32_t code;
    for (size_t i = 0; i < sizeof(entities) / sizeof(*entities); i++) {
        if (bytes == strlen(entities[i].name) && memcmp(name, entities[i].name, bytes) == 0) {
            *out = entities[i].c;
            return true;
        }
    }
    if (bytes < 2 || name[0] != '#' || !take_number(&code, name + 1, bytes - 1))
        return false;
    *out = (char)code;
    return true;
}

/* The text [from, to) with its entities replaced; false if one is invalid, or the text does not
 * fit. */
static bool take_text(struct xml_reader *reader, const char *from, const char *to, size_t *out)
{
    TIERCE_DASSERT(from <= to);
    size_t used = 0;
    for (const char *at = from; at < to; at++) {
        char c = *at;
        if (c == '&') {
            const char *end = memchr(at, ';', (size_t)(to - at));
            if (end == NULL || !take_entity(&c, at + 1, (size_t)(end - at - 1)))
                return false;
            at = end;
        }
        if (c == '\0' || used == TIERCE__S3_XML_TEXT_MAX)
            return false;
        reader->text[used++] = c;
    }
    reader->text[used] = '\0';
    *out = used;
    return true;
}

/* ---- tags ------------------------------------------------------------------------------------ */

/* The name of a tag without its namespace. */
static bool take_name(struct xml_reader *reader, const char **name, size_t *bytes)
{
    TIERCE_DASSERT(reader->at <= reader->end);
    const char *from = reader->at;
    while (reader->at < reader->end && is_name_char(*reader->at)) {
        if (*reader->at++ == ':')
            from = reader->at;
    }
    *name = from;
    *bytes = (size_t)(reader->at - from);
    return *bytes > 0;
}

/* Behind the '>' of a start tag; attributes' values may hold a '>'. */
static bool end_tag(struct xml_reader *reader, bool *is_empty)
{
    char quote = '\0', last = '\0';
    for (; reader->at < reader->end; reader->at++) {
        char c = *reader->at;
        if (quote != '\0') {
            quote = c == quote ? '\0' : quote;
        } else if (c == '"' || c == '\'') {
            quote = c;
        } else if (c == '<') {
            return false;
        } else if (c == '>') {
            reader->at++;
            *is_empty = last == '/';
            return true;
        }
        last = c;
    }
    return false;
}

static bool close_element(struct xml_reader *reader, const char *name, size_t bytes)
{
    size_t before = reader->path_bytes;
    TIERCE_DASSERT(before < PATH_BYTES && reader->path[before] == '\0');
    if (reader->depth == 0 || before < bytes)
        return false;
    size_t start = before - bytes;
    if (memcmp(reader->path + start, name, bytes) != 0 ||
        (start > 0 ? reader->path[start - 1] != '/' : reader->depth != 1))
        return false;
    reader->path_bytes = start > 0 ? start - 1 : 0;
    reader->path[reader->path_bytes] = '\0';
    reader->depth--;
    reader->is_leaf = false;
    return true;
}

/* A start tag, behind its '<'. */
static bool open_element(struct xml_reader *reader)
{
    const char *name;
    size_t bytes;
    bool is_empty = false;
    if ((reader->depth == 0 && reader->has_root) || reader->depth == TIERCE__S3_XML_DEPTH_MAX ||
        !take_name(reader, &name, &bytes) || reader->path_bytes + bytes + 2 > PATH_BYTES ||
        !end_tag(reader, &is_empty))
        return false;
    if (reader->path_bytes > 0)
        reader->path[reader->path_bytes++] = '/';
    memcpy(reader->path + reader->path_bytes, name, bytes);
    reader->path_bytes += bytes;
    reader->path[reader->path_bytes] = '\0';
    TIERCE_DASSERT(reader->path_bytes < PATH_BYTES);
    reader->depth++;
    TIERCE_DASSERT(reader->depth <= TIERCE__S3_XML_DEPTH_MAX);
    reader->has_root = true;
    reader->is_leaf = true;
    if (!is_empty)
        return true;
    return reader->leaf(reader->arg, reader->path, "", 0) && close_element(reader, name, bytes);
}

/* An end tag, behind its "</"; [from, to) is the text before it. */
static bool leave_element(struct xml_reader *reader, const char *from, const char *to)
{
    TIERCE_DASSERT(from <= to && to < reader->at);
    const char *name;
    size_t bytes, text_bytes = 0;
    if (!take_name(reader, &name, &bytes))
        return false;
    while (reader->at < reader->end && is_space(*reader->at))
        reader->at++;
    if (reader->at == reader->end || *reader->at++ != '>')
        return false;
    if (reader->is_leaf) {
        if (!take_text(reader, from, to, &text_bytes) ||
            !reader->leaf(reader->arg, reader->path, reader->text, text_bytes))
            return false;
    } else if (reader->end_group != NULL) {
        reader->end_group(reader->arg, reader->path);
    }
    return close_element(reader, name, bytes);
}

/* One tag, at its '<'; [from, at) is the text before it. */
static bool read_tag(struct xml_reader *reader, const char *from)
{
    TIERCE_DASSERT(*reader->at == '<' && from <= reader->at);
    const char *to = reader->at;
    if (starts(reader, "<?"))
        return reader->depth == 0 && skip_behind(reader, "?>");
    if (starts(reader, "<!--"))
        return reader->depth == 0 && skip_behind(reader, "-->");
    if (starts(reader, "</")) {
        reader->at += 2;
        return leave_element(reader, from, to);
    }
    reader->at++;
    return open_element(reader);
}

int tierce__s3_xml_read_groups(const char *xml, size_t bytes, tierce__s3_xml_leaf_fn *leaf,
                               tierce__s3_xml_end_fn *end, void *arg)
{
    struct xml_reader reader = {
        .at = xml, .end = xml + bytes, .leaf = leaf, .end_group = end, .arg = arg};
    while (reader.at < reader.end) {
        const char *from = reader.at;
        const char *tag = memchr(from, '<', (size_t)(reader.end - from));
        reader.at = tag != NULL ? tag : reader.end;
        for (const char *at = from; reader.depth == 0 && at < reader.at; at++) {
            if (!is_space(*at) && (reader.has_root || (uint8_t)*at < 0x80)) /* a byte order mark */
                return TIERCE_E_FORMAT;
        }
        if (tag != NULL && !read_tag(&reader, from))
            return TIERCE_E_FORMAT;
    }
    TIERCE_DASSERT(reader.at == reader.end && reader.depth <= TIERCE__S3_XML_DEPTH_MAX);
    return reader.has_root && reader.depth == 0 ? 0 : TIERCE_E_FORMAT;
}

int tierce__s3_xml_read(const char *xml, size_t bytes, tierce__s3_xml_leaf_fn *leaf, void *arg)
{
    return tierce__s3_xml_read_groups(xml, bytes, leaf, NULL, arg);
}

/* ---- one text -------------------------------------------------------------------------------- */

struct xml_wanted {
    const char *path;
    char *text;
    size_t room;
    bool is_found;
};

static bool look_at(void *arg, const char *path, const char *text, size_t bytes)
{
    TIERCE_DASSERT(bytes <= TIERCE__S3_XML_TEXT_MAX && text[bytes] == '\0');
    struct xml_wanted *wanted = arg;
    if (wanted->is_found || strcmp(path, wanted->path) != 0)
        return true;
    if (bytes >= wanted->room)
        return false;
    memcpy(wanted->text, text, bytes + 1);
    wanted->is_found = true;
    return true;
}

int tierce__s3_xml_find(char *text, size_t room, const char *xml, size_t bytes, const char *path)
{
    struct xml_wanted wanted = {.path = path, .text = text, .room = room};
    TIERCE_ASSERT(room > 0);
    int rc = tierce__s3_xml_read(xml, bytes, look_at, &wanted);
    return rc != 0 ? rc : wanted.is_found ? 0 : TIERCE_E_MISS;
}
