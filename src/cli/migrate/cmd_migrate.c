/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/text/url.h"
#include "cli/config_check.h"
#include "cli/migrate/migrate.h"
#include "cli/options.h"
#include "engine/engine_config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define COMMAND     "migrate"
#define RANKS_MAX   1024
#define VALUE_SHOWN 120
#define WIDTH       100 /* of comments */

const char *const tierce__cli_migrate_help[] = {
    "Translates a configuration file of LMCache (LMCACHE_CONFIG_FILE) into one of Tierce, which\n"
    "is printed. A comment explains each key: the parameter that replaces it, why none is\n"
    "required, or why it was refused and what to do. The messages on stderr repeat the refused\n"
    "keys.\n"
    "\n"
    "  --ranks N      ranks of one engine on a host (tensor times pipeline parallelism), 1 by\n"
    "                 default: LMCache takes its memory and disk for each rank, Tierce for all\n"
    "                 together\n"
    "  --environment  read the variables LMCACHE_* too, which override the file. FILE may be\n"
    "                 omitted\n"
    "\n"
    "  --kv-transfer-config JSON\n"
    "                 read vLLM's flag of this name too: values lmcache.* of its\n"
    "                 kv_connector_extra_config override the file. FILE may be omitted\n"
    "  -- COMMAND...  read the flags of LMCache's multiprocess server too: the words of its\n"
    "                 command line, as in `-- lmcache server --l1-size-gb 20`. FILE may be\n"
    "                 omitted\n"
    "\n"
    "Passwords in URLs are copied: write the output to a file of mode 0600.\n"
    "\n"
    "Exit status: 0: every key was translated or needs no counterpart; 1: the configuration was\n"
    "printed, and some keys were refused; 2: invalid arguments, or an invalid file.\n",
    NULL};

/* The words of a text as lines of a comment. */
static void print_comment(const char *text)
{
    size_t column = 0;
    for (const char *word = text; *word != '\0';) {
        size_t length = strcspn(word, " ");
        if (column == 0 || column + 1 + length > WIDTH)
            column = (size_t)printf("%s#  ", column > 0 ? "\n" : "") - (column > 0 ? 1 : 0);
        column += (size_t)printf(" %.*s", (int)length, word);
        word += length;
        word += strspn(word, " ");
    }
    if (column > 0)
        printf("\n");
}

/* Names of extra_config belong to many stores, and an unknown key may be one of them that has lost
 * its indentation, so each that looks like a secret counts. */
static bool is_secret(const struct tierce__migrate_entry *entry)
{
    static const char *const words[] = {"pass", "secret", "credential", "auth",
                                        "_key", "token",  "sas",        "connection_string"};
    /* Other keys have the later words too: min_retrieve_tokens. */
    bool is_any =
        strncmp(entry->name, "extra_config.", 13) == 0 ||
        strncmp(entry->name, TIERCE__MIGRATE_ADAPTER, strlen(TIERCE__MIGRATE_ADAPTER)) == 0 ||
        entry->key == &tierce__lmcache_unknown;
    for (size_t i = 0; i < (is_any ? sizeof(words) / sizeof(*words) : 2); i++) {
        if (strcasestr(entry->name, words[i]) != NULL)
            return true;
    }
    return false;
}

/* The value of a key without secrets. `shown` has VALUE_SHOWN bytes. */
static void show_value(char *shown, const struct tierce__migrate_entry *entry)
{
    if (entry->value == NULL) {
        snprintf(shown, VALUE_SHOWN, "null");
        return;
    }
    if (is_secret(entry)) {
        snprintf(shown, VALUE_SHOWN, "***");
        return;
    }
    char url[TIERCE__URL_BYTES_MAX];
    char *clean = tierce__url_show_all(entry->value);
    if (clean != NULL && strstr(clean, "://") != NULL) {
        tierce__url_show(url, sizeof(url), clean); /* its password may have blanks */
        tierce__text_for_message(shown, VALUE_SHOWN, url);
    } else {
        tierce__text_for_message(shown, VALUE_SHOWN, clean != NULL ? clean : "***");
    }
    tierce__free(clean);
}

static void print_entry(const struct tierce__migration *migration,
                        const struct tierce__migrate_entry *entry)
{
    char shown[VALUE_SHOWN], name[VALUE_SHOWN];
    show_value(shown, entry);
    tierce__text_for_message(name, sizeof(name), entry->name); /* it may be any text */
    if (entry->line > 0)
        printf("\n# %s: %s (line %d)\n", name, shown, entry->line);
    else
        printf("\n# %s: %s (%s)\n", name, shown,
               entry->line < 0 ? tierce__migrate_place(entry->line) : "not set; LMCache's default");
    /* A reason of the value is more exact than the text of the key. */
    if (entry->outcome != TIERCE__MIGRATE_REFUSED || entry->note[0] == '\0')
        print_comment(entry->key->text);
    print_comment(entry->note);
    for (size_t i = 0; i < entry->param_count; i++) {
        const char *value = tierce_config_get(migration->config, entry->params[i]);
        TIERCE_ASSERT(value != NULL);
        printf("%s: ", entry->params[i]);
        tierce__config_print_value(value, stdout);
        printf("\n");
    }
}

/* Returns how many entries there are. */
static size_t print_group(const struct tierce__migration *migration,
                          enum tierce__migrate_outcome outcome, const char *title)
{
    size_t count = 0;
    for (size_t i = 0; i < migration->count; i++) {
        if (migration->entries[i].outcome != outcome)
            continue;
        if (count++ == 0)
            printf("\n# ---- %s\n", title);
        print_entry(migration, &migration->entries[i]);
    }
    return count;
}

static void print_refusals(const struct tierce__migration *migration, const char *path)
{
    for (size_t i = 0; i < migration->count; i++) {
        const struct tierce__migrate_entry *entry = &migration->entries[i];
        const char *why = entry->note[0] != '\0' ? entry->note : entry->key->text;
        char name[64];
        tierce__text_for_message(name, sizeof(name), entry->name);
        if (entry->outcome != TIERCE__MIGRATE_REFUSED)
            continue;
        if (entry->line < 0)
            (void)tierce__cli_fail(COMMAND, "%s: %s is refused: %s",
                                   tierce__migrate_place(entry->line), name, why);
        else
            (void)tierce__cli_fail(COMMAND, "%s:%d: %s is refused: %s", path, entry->line, name,
                                   why);
    }
}

/* Prints the configuration; returns the exit status. */
static int print_all(const struct tierce__migration *migration)
{
    char shown[VALUE_SHOWN] = "";
    const char *between = "";
    if (migration->path != NULL)
        tierce__text_for_message(shown, sizeof(shown), migration->path);
    const char *const from[] = {migration->path != NULL ? shown : NULL,
                                migration->environment ? "the environment" : NULL,
                                migration->kv_transfer != NULL ? "kv_connector_extra_config" : NULL,
                                migration->server != NULL ? "a command line" : NULL};
    printf("# A configuration of Tierce, translated by `tierce migrate` from ");
    for (size_t i = 0; i < sizeof(from) / sizeof(from[0]); i++) {
        if (from[i] == NULL)
            continue;
        printf("%s%s", between, from[i]);
        between = " and ";
    }
    printf(".\n"
           "# Check it with: tierce config --file FILE. vLLM reads it with TIERCE_CONFIG=FILE and\n"
           "#   --kv-transfer-config '{\"kv_connector\": \"TierceConnector\", "
           "\"kv_connector_module_path\":\n"
           "#   \"tierce.vllm\", \"kv_role\": \"kv_both\", \"kv_load_failure_policy\": "
           "\"recompute\"}'\n"
           "# Parameters that are not here keep Tierce's defaults.\n");
    size_t refused = print_group(migration, TIERCE__MIGRATE_REFUSED, "refused: you must decide");
    print_group(migration, TIERCE__MIGRATE_MOVED, "translated");
    print_group(migration, TIERCE__MIGRATE_OFF, "off, or without effect: nothing to translate");
    print_group(migration, TIERCE__MIGRATE_NONE, "no counterpart, and none is required");
    print_refusals(migration, shown);
    return refused > 0 ? TIERCE__CLI_FAILED : TIERCE__CLI_OK;
}

int tierce__cli_migrate(int argc, char **argv)
{
    struct tierce__migration migration = {.ranks = 1};
    static const struct tierce__option options[] = {
        {"--ranks", TIERCE__OPTION_COUNT, TIERCE__OPTION_FIELD(struct tierce__migration, ranks),
         .min = 1, .max = RANKS_MAX},
        {"--environment", TIERCE__OPTION_FLAG,
         TIERCE__OPTION_FIELD(struct tierce__migration, environment)},
        {"--kv-transfer-config", TIERCE__OPTION_TEXT,
         TIERCE__OPTION_FIELD(struct tierce__migration, kv_transfer)},
        {NULL}};
    char why[TIERCE_CONFIG_ERROR_BYTES];
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--") != 0)
            continue;
        migration.server = i + 1 < argc ? argv + i + 1 : NULL;
        migration.server_words = argc - i - 1;
        argc = i;
        argv[i] = NULL;
    }
    int status = tierce__options_read(COMMAND, options, &migration, 0, &argc, argv);
    if (status != TIERCE__CLI_OK)
        return status;
    bool is_elsewhere =
        migration.environment || migration.kv_transfer != NULL || migration.server != NULL;
    if (argc > 2 || (argc < 2 && !is_elsewhere))
        return tierce__cli_usage(COMMAND, "one FILE is required: a configuration of LMCache");
    if (argc == 2)
        migration.path = argv[1];
    else if (migration.environment)
        migration.path = getenv("LMCACHE_CONFIG_FILE");
    int rc = tierce_config_create(&migration.config);
    if (rc != 0)
        return tierce__cli_fail(COMMAND, "%s", tierce_strerror(rc));
    rc = tierce__migrate_read(&migration, why);
    if (rc != 0) {
        status = rc == -ENOMEM ? tierce__cli_fail(COMMAND, "%s", why)
                               : tierce__cli_usage(COMMAND, "%s", why);
    } else {
        tierce__migrate_apply(&migration);
        status = tierce__cli_check_config(COMMAND, migration.config);
        if (status == TIERCE__CLI_OK)
            status = print_all(&migration);
    }
    tierce__migrate_clear(&migration);
    return status;
}
