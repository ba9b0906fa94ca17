/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_CONFIG_YAML_H
#define TIERCE_BASE_CONFIG_YAML_H

#include <stddef.h>

#include "base/config/config.h"

struct fy_parser;
struct fy_document;
struct fy_diag;
struct fy_node;

/*
 * One untrusted YAML document of at most 256 KiB: no NUL, well-formed UTF-8, no directives, at most
 * 64 levels, one document a file. The code that walks the tree must reject aliases
 * (fy_node_is_alias), which are not resolved, so that nothing can grow, and duplicate keys, for
 * which the parser would need quadratic time.
 */

#define TIERCE__YAML_BYTES_MAX (256u * 1024)

struct tierce__yaml {
    char *text;
    struct fy_diag *diag;
    struct fy_parser *parser;
    struct fy_document *document;
    struct fy_node *root; /* NULL for a file that holds nothing but comments */
};

/*
 * Reads and parses a file. kind: what the user gave it as, for the message if it cannot be read
 * ("the configuration file"). Errors: negative errno of the file, TIERCE_E_CONFIG (content),
 * -ENOMEM; each fills `error` with a sentence that starts with the path and, where it is known,
 * line and column. The caller closes `out` after success only.
 */
TIERCE_MUSTUSE int tierce__yaml_open(struct tierce__yaml *out, const char *path, const char *kind,
                                     struct tierce__config_error *error);

/* The same for `len` bytes in memory, [borrow] for the call; `name` stands for the path. */
TIERCE_MUSTUSE int tierce__yaml_parse(struct tierce__yaml *out, const char *name, const char *text,
                                      size_t len, struct tierce__config_error *error);

/* Zeroed is accepted. */
void tierce__yaml_close(struct tierce__yaml *yaml);

/* Line of a scalar, counted from 1; 0 if the node is not a scalar. */
int tierce__yaml_line(struct fy_node *scalar);

/*
 * A scalar as text with a NUL, heap, tierce__free. *out is untouched on failure.
 * Errors: -EINVAL (no scalar, an alias, or no value at all), -EILSEQ (NUL inside), -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__yaml_scalar(char **out, struct fy_node *node);

#endif
