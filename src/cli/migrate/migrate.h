/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_MIGRATE_H
#define TIERCE_CLI_MIGRATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/config.h>

/*
 * A configuration of LMCache as entries, one for each key, with the outcome of each.
 * lmcache_keys.def and lmcache_server.def have the keys, migrate_read.c reads file, environment,
 * JSON and command line, migrate_rules.c has the rules of the rows, migrate_remote.c the URLs of
 * remote stores, cmd_migrate.c the output.
 *
 * Thread: one.
 */

#define TIERCE__MIGRATE_ENTRIES_MAX 512u
#define TIERCE__MIGRATE_PARAMS_MAX  2u /* that one key sets */
#define TIERCE__MIGRATE_NOTE_BYTES  1024u
/* The line of an entry that is in no file. */
#define TIERCE__MIGRATE_ENVIRONMENT (-1)
#define TIERCE__MIGRATE_CONNECTOR   (-2) /* kv_connector_extra_config of vLLM */
#define TIERCE__MIGRATE_SERVER      (-3) /* the command line of LMCache's multiprocess server */

/* Members of the adapters of LMCache's server: "--l2-adapter.1.type" and so on. Their rows have no
 * number. */
#define TIERCE__MIGRATE_ADAPTER "--l2-adapter."

struct tierce__migration;
struct tierce__migrate_entry;

enum tierce__migrate_outcome {
    TIERCE__MIGRATE_PENDING, /* its rule has not run */
    TIERCE__MIGRATE_MOVED,   /* to the parameters of the entry, or into the URL of a store */
    TIERCE__MIGRATE_OFF,     /* the function is off, or has no effect: nothing to do */
    TIERCE__MIGRATE_NONE,    /* no counterpart, and none is required */
    TIERCE__MIGRATE_REFUSED, /* the person must decide */
};

struct tierce__lmcache_key {
    const char *name;
    void (*rule)(struct tierce__migration *migration, struct tierce__migrate_entry *entry);
    const char *target; /* a parameter of an engine, or NULL */
    const char *text;
};

struct tierce__migrate_entry {
    char *name;
    char *value;  /* a list: its elements with commas between; NULL: null */
    bool is_text; /* a variable, or in quotes: LMCache takes yes and on for false */
    int line;     /* 0: in neither file nor environment, the value is LMCache's default */
    const struct tierce__lmcache_key *key;
    enum tierce__migrate_outcome outcome;
    char note[TIERCE__MIGRATE_NOTE_BYTES]; /* replaces or follows the text of the key; may be "" */
    const char *params[TIERCE__MIGRATE_PARAMS_MAX]; /* names */
    size_t param_count;
};

struct tierce__migration {
    const char *path;        /* NULL: no file */
    bool environment;        /* variables override the file, as in LMCache */
    const char *kv_transfer; /* the JSON of vLLM's --kv-transfer-config, or NULL: its values
                                override both */
    char **server;           /* the words of the command line of LMCache's server, or NULL */
    int server_words;
    uint64_t ranks; /* of a host */
    struct tierce_config *config;
    struct tierce__migrate_entry *entries; /* [TIERCE__MIGRATE_ENTRIES_MAX] */
    size_t count;
};

/* The rows of both tables; a row with a NULL name ends them. */
extern const struct tierce__lmcache_key tierce__lmcache_keys[];
/* The row of keys that have none. */
extern const struct tierce__lmcache_key tierce__lmcache_unknown;

/*
 * Reads all sources into entries. Errors: TIERCE_E_CONFIG (content), negative
 * errno of the file, -ENOMEM; `why` is a sentence each time. The caller clears the migration in
 * any case.
 */
TIERCE_MUSTUSE int tierce__migrate_read(struct tierce__migration *migration,
                                        char why[TIERCE_CONFIG_ERROR_BYTES]);
void tierce__migrate_clear(struct tierce__migration *migration);

/* Where entries of this line are, if it is not a line of the file; otherwise NULL. */
const char *tierce__migrate_place(int line);

/* Runs the rule of every entry. */
void tierce__migrate_apply(struct tierce__migration *migration);

/* The entry of a key, or NULL. A value that is off (tierce__migrate_is_off) counts as NULL for
 * `value`. */
struct tierce__migrate_entry *tierce__migrate_find(const struct tierce__migration *migration,
                                                   const char *name);
const char *tierce__migrate_value(const struct tierce__migration *migration, const char *name);

/* null, false, no, off, empty, [] or 0. */
bool tierce__migrate_is_off(const char *value);

/* Results of a rule. The note is a sentence by printf rules, "" for none. */
void tierce__migrate_end(struct tierce__migrate_entry *entry, enum tierce__migrate_outcome outcome,
                         const char *note, ...) __attribute__((format(printf, 3, 4)));
/* Sets a parameter and ends the entry as moved, or as refused with the message of the bounds. The
 * parameter is printed below the first entry that set it. */
void tierce__migrate_set(struct tierce__migration *migration, struct tierce__migrate_entry *entry,
                         const char *param, const char *value);

/* Sets a size: the GiB of the value, for each rank. */
void tierce__migrate_gib(struct tierce__migration *migration, struct tierce__migrate_entry *entry,
                         const char *param, uint64_t ranks);

/* The rules of remote_url, remote_storage_plugins and the type of an adapter; each adds to the URLs
 * that are there. */
void tierce__migrate_adapter(struct tierce__migration *migration,
                             struct tierce__migrate_entry *entry);
void tierce__migrate_remote(struct tierce__migration *migration,
                            struct tierce__migrate_entry *entry);
void tierce__migrate_plugins(struct tierce__migration *migration,
                             struct tierce__migrate_entry *entry);

#endif
