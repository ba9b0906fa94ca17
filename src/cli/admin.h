/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_ADMIN_H
#define TIERCE_CLI_ADMIN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/json/json_value.h"
#include "base/json/json_write.h"
#include "base/text/line.h"
#include "cli/cli.h"

/*
 * Calling a manager from the command line: `tierce storage`, `group`, `instance`, `cache`,
 * `account`, `cluster` are rows of one table (cmd_admin.c), the call is JSON over HTTP
 * (admin_call.c), and the result is printed as a table or JSON (admin_print.c, admin_view.c).
 */

struct tierce__admin_target {
    const char *admin_url, *meta_url; /* "http://127.0.0.1:6492", "http://127.0.0.1:6382" */
    const char *token_file;           /* or NULL */
    const char *user;                 /* NAME:PASSWORD-FILE, or NULL */
    const char *ca_file;              /* or NULL */
    bool raw;                         /* print JSON */
};

/* Posts `request`, JSON, to the RPC of that name; NULL: gets the page of that name. *reply = the
 * reply, which the caller clears in any case. Returns an exit status; unless it is TIERCE__CLI_OK,
 * why was printed. */
int tierce__admin_call(const struct tierce__admin_target *target, const char *command,
                       const char *rpc, bool is_meta, const char *request,
                       struct tierce__json_doc *reply);

/* Prints the reply of an RPC: its lists as tables, the rest as lines; or JSON. */
void tierce__admin_print(const struct tierce__admin_target *target, const char *rpc,
                         struct tierce__text reply);

/* A column of a table that shows a part of each object. `put` adds the cell, and nothing if the
 * object has no value for it. */
struct tierce__admin_column {
    const char *title; /* NULL ends an array */
    void (*put)(struct tierce__line *line, struct tierce__text row, const char *path);
    const char *path; /* for `put` */
};

/* The columns for the list in an RPC's reply; NULL: all fields of its objects. */
const struct tierce__admin_column *tierce__admin_view(const char *rpc);

/* Checks the object that a person wrote as `field` of a request, or as the whole request (NULL):
 * the manager ignores names that it does not know. Returns an exit status; unless it is
 * TIERCE__CLI_OK, why was printed. */
int tierce__admin_check(const char *command, const char *rpc, const char *field,
                        struct tierce__text object);

/* ---- admin_worker.c: commands to workers of the directory ------------------------------------ */

struct tierce__admin_worker {
    uint64_t pin_ms;  /* --for; 0: as the worker is configured */
    uint32_t wait_ms; /* --wait; 0: 30 s */
    bool keeps;       /* --copy */
    const char *to;   /* --to WORKER, of a move; NULL: between tiers */
};

/* Puts the keys of chunks, each of 32 hexadecimal digits, as `keys`. Returns an exit status; unless
 * it is TIERCE__CLI_OK, why was printed. */
int tierce__admin_put_chunks(const char *command, int count, char **keys,
                             struct tierce__json_write *request);

/* Puts the fields of a CommandWorker: of the verb "pin", ..., with its arguments GROUP WORKER ...;
 * count >= 2. Returns as above. */
int tierce__admin_put_worker(const char *command, const char *verb, int count, char **arguments,
                             const struct tierce__admin_worker *worker,
                             struct tierce__json_write *request);

/* `given`: the answer of CommandWorker. Waits for the result, and prints it. */
int tierce__admin_show_command(const struct tierce__admin_target *target, const char *command,
                               struct tierce__text given, const char *group, uint32_t wait_ms);

#endif
