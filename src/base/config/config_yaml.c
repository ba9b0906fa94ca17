/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config/config_yaml.h"
#include "base/alloc.h"
#include "base/config/config_parse.h"
#include "base/file.h"

#include <errno.h>
#include <libfyaml.h>
#include <stdarg.h>
#include <string.h>

#define PATH_SHOWN 200

int tierce__config_fail(struct tierce__config_error *error, int rc, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(error->text, sizeof(error->text), format, ap);
    va_end(ap);
    return rc;
}

static int refuse_size(const char *shown, struct tierce__config_error *error)
{
    return tierce__config_fail(error, TIERCE_E_CONFIG,
                               "%s: is larger than %u KiB, the limit for a YAML file", shown,
                               TIERCE__YAML_BYTES_MAX / 1024);
}

/* The whole of a small regular file. */
static int read_file(char **out, size_t *len, const char *path, const char *shown, const char *kind,
                     struct tierce__config_error *error)
{
    int rc = tierce__read_file(out, len, path, TIERCE__YAML_BYTES_MAX);
    if (rc == -EFBIG)
        return refuse_size(shown, error);
    if (rc == -EISDIR || rc == -EINVAL)
        return tierce__config_fail(error, rc, "%s: is not a file", shown);
    if (rc < 0)
        tierce__config_fail(error, rc, "%s: cannot be read: %s; it is given as %s", shown,
                            tierce_strerror(rc), kind);
    return rc;
}

static int line_of(const char *text, size_t pos)
{
    int line = 1;
    for (size_t i = 0; i < pos; i++)
        line += text[i] == '\n';
    return line;
}

/* Rejects input that libfyaml accepts silently (NUL, invalid UTF-8) or parses in quadratic time
 * (directives). */
static int check_bytes(const char *shown, const char *text, size_t len,
                       struct tierce__config_error *error)
{
    if (len > TIERCE__YAML_BYTES_MAX)
        return refuse_size(shown, error);
    if (len == 0)
        return 0;
    const char *nul = memchr(text, '\0', len);
    if (nul != NULL)
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "%s:%d: a NUL byte; the file must be text in UTF-8", shown,
                                   line_of(text, (size_t)(nul - text)));
    for (size_t start = 0; start < len;) {
        const char *end = memchr(text + start, '\n', len - start);
        size_t stop = end != NULL ? (size_t)(end - text) : len;
        if (text[start] == '%')
            return tierce__config_fail(
                error, TIERCE_E_CONFIG,
                "%s:%d: a YAML directive (%%YAML, %%TAG); directives are not supported", shown,
                line_of(text, start));
        for (size_t i = start; i < stop;) {
            /* Tabs and CR may stand in YAML; other control characters may not. */
            size_t run = 0;
            while (i + run < stop && text[i + run] != '\t' && text[i + run] != '\r')
                run++;
            if (!tierce__text_is_clean(text + i, run))
                return tierce__config_fail(
                    error, TIERCE_E_CONFIG,
                    "%s:%d: a control character or bytes that are not UTF-8; the file must be "
                    "text in UTF-8",
                    shown, line_of(text, start));
            i += run + 1;
        }
        start = stop + 1;
    }
    return 0;
}

/* The first message of the parser, or a general one. */
static int syntax_error(struct fy_diag *diag, const char *shown, struct tierce__config_error *error)
{
    void *state = NULL;
    struct fy_diag_error *first = fy_diag_errors_iterate(diag, &state);
    if (first == NULL)
        return tierce__config_fail(error, TIERCE_E_CONFIG, "%s: is not valid YAML", shown);
    char message[200];
    tierce__text_for_message(message, sizeof(message), first->msg);
    return tierce__config_fail(error, TIERCE_E_CONFIG, "%s:%d:%d: is not valid YAML: %s", shown,
                               first->line, first->column, message);
}

static int load_document(struct tierce__yaml *yaml, const char *shown, size_t len,
                         struct tierce__config_error *error)
{
    struct fy_diag_cfg diag_cfg;
    fy_diag_cfg_default(&diag_cfg);
    diag_cfg.fp = NULL;
    yaml->diag = fy_diag_create(&diag_cfg);
    if (yaml->diag == NULL)
        return tierce__config_fail(error, -ENOMEM, "%s: no memory to parse it", shown);
    fy_diag_set_collect_errors(yaml->diag, true);

    /* libfyaml compares each key with all before it: 11 s for 25,000 keys. The readers of the tree
     * reject duplicates themselves. */
    const struct fy_parse_cfg cfg = {.flags = FYPCF_QUIET | FYPCF_ALLOW_DUPLICATE_KEYS,
                                     .diag = yaml->diag};
    yaml->parser = fy_parser_create(&cfg);
    if (yaml->parser == NULL || fy_parser_set_string(yaml->parser, yaml->text, len) != 0)
        return tierce__config_fail(error, -ENOMEM, "%s: no memory to parse it", shown);

    yaml->document = fy_parse_load_document(yaml->parser);
    if (yaml->document == NULL)
        return fy_parser_get_stream_error(yaml->parser) ? syntax_error(yaml->diag, shown, error)
                                                        : 0;
    struct fy_document *second = fy_parse_load_document(yaml->parser);
    if (second != NULL) {
        fy_parse_document_destroy(yaml->parser, second);
        return tierce__config_fail(
            error, TIERCE_E_CONFIG,
            "%s: holds more than one YAML document; a configuration is a single document", shown);
    }
    if (fy_parser_get_stream_error(yaml->parser))
        return syntax_error(yaml->diag, shown, error);
    yaml->root = fy_document_root(yaml->document);
    return 0;
}

int tierce__yaml_parse(struct tierce__yaml *out, const char *name, const char *text, size_t len,
                       struct tierce__config_error *error)
{
    struct tierce__yaml yaml = {0};
    char shown[PATH_SHOWN];
    tierce__text_for_message(shown, sizeof(shown), name);

    int rc = check_bytes(shown, text, len, error);
    if (rc != 0)
        return rc;
    yaml.text = tierce__alloc(len + 1);
    if (yaml.text == NULL)
        return tierce__config_fail(error, -ENOMEM, "%s: no memory to parse it", shown);
    if (len > 0)
        memcpy(yaml.text, text, len);
    yaml.text[len] = '\0';
    rc = load_document(&yaml, shown, len, error);
    if (rc != 0) {
        tierce__yaml_close(&yaml);
        return rc;
    }
    *out = yaml;
    return 0;
}

int tierce__yaml_open(struct tierce__yaml *out, const char *path, const char *kind,
                      struct tierce__config_error *error)
{
    char *text = NULL;
    size_t len = 0;
    char shown[PATH_SHOWN];
    tierce__text_for_message(shown, sizeof(shown), path);

    int rc = read_file(&text, &len, path, shown, kind, error);
    if (rc == 0)
        rc = tierce__yaml_parse(out, path, text, len, error);
    tierce__free(text);
    return rc;
}

void tierce__yaml_close(struct tierce__yaml *yaml)
{
    if (yaml->document != NULL)
        fy_parse_document_destroy(yaml->parser, yaml->document);
    if (yaml->parser != NULL)
        fy_parser_destroy(yaml->parser);
    if (yaml->diag != NULL)
        fy_diag_destroy(yaml->diag);
    tierce__free(yaml->text);
    *yaml = (struct tierce__yaml){0};
}

int tierce__yaml_line(struct fy_node *scalar)
{
    struct fy_token *token = fy_node_get_scalar_token(scalar);
    const struct fy_mark *mark = token != NULL ? fy_token_start_mark(token) : NULL;
    return mark != NULL ? mark->line + 1 : 0;
}

int tierce__yaml_scalar(char **out, struct fy_node *node)
{
    if (node == NULL || !fy_node_is_scalar(node) || fy_node_is_alias(node))
        return -EINVAL;
    size_t len = 0;
    const char *text = fy_node_get_scalar(node, &len);
    bool quoted = fy_node_get_style(node) != FYNS_PLAIN;
    if (text == NULL || (len == 0 && !quoted))
        return -EINVAL;
    if (memchr(text, '\0', len) != NULL)
        return -EILSEQ;
    char *copy = tierce__alloc(len + 1);
    if (copy == NULL)
        return -ENOMEM;
    memcpy(copy, text, len);
    copy[len] = '\0';
    *out = copy;
    return 0;
}
