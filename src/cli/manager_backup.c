/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/manager_backup.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/json/json_write.h"
#include "cli/admin.h"
#include "cli/options.h"
#include "manager/backup/restore_offline.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BACKUP  "manager backup"
#define RESTORE "manager restore"

extern char **environ;

/* ---- backup ---------------------------------------------------------------------------------- */

static const struct tierce__option options[] = {
    {"--url", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct tierce__admin_target, admin_url)},
    {"--token-file", TIERCE__OPTION_TEXT,
     TIERCE__OPTION_FIELD(struct tierce__admin_target, token_file)},
    {"--user", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct tierce__admin_target, user)},
    {"--ca-file", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct tierce__admin_target, ca_file)},
    {NULL},
};

struct backing_up {
    struct tierce__admin_target target;
    struct tierce__backup_writer writer;
    char *cursor; /* heap; of the next page; "": the last page was read */
    uint64_t unreadable;
};

/* Adds the content of a page, which is base64. */
static int add_page(struct backing_up *b, uint32_t kind, const char *text)
{
    size_t length = strlen(text), padding = 0;
    if (length == 0)
        return 0;
    if (length % 4 != 0 || length > INT32_MAX)
        return TIERCE_E_FORMAT;
    unsigned char *content = tierce__alloc(length / 4 * 3);
    if (content == NULL)
        return -ENOMEM;
    while (padding < 2 && text[length - 1 - padding] == '=')
        padding++;
    int got = EVP_DecodeBlock(content, (const unsigned char *)text, (int)length);
    int rc = got < 0 ? TIERCE_E_FORMAT
                     : tierce__backup_add(&b->writer, kind, content, (size_t)got - padding);
    tierce__free(content);
    return rc;
}

static int read_reply(struct backing_up *b, struct tierce__text reply)
{
    char *page = NULL, *cursor = NULL, number[32] = "0";
    int64_t kind = tierce__json_get_int(reply, "kind", 0);
    int rc = tierce__json_copy_text(&page, reply, "page");
    if (rc == 0)
        rc = tierce__json_copy_text(&cursor, reply, "cursor");
    if (rc == 0 && kind != TIERCE__BACKUP_CATALOG && kind != TIERCE__BACKUP_RECORDS &&
        kind != TIERCE__BACKUP_END)
        rc = TIERCE_E_FORMAT;
    if (rc == 0)
        rc = add_page(b, (uint32_t)kind, page);
    if (rc == 0 && tierce__json_get_text(number, sizeof(number), reply, "unreadable_records"))
        b->unreadable += strtoull(number, NULL, 10);
    tierce__free(page);
    if (rc < 0) {
        tierce__free(cursor);
        return tierce__cli_fail(BACKUP,
                                "an answer of the manager cannot be written to the backup: %s",
                                tierce_strerror(rc));
    }
    tierce__free(b->cursor);
    b->cursor = cursor;
    return TIERCE__CLI_OK;
}

static int read_next(struct backing_up *b)
{
    struct tierce__line line = {0};
    struct tierce__json_write request = {.line = &line};
    struct tierce__json_doc reply = {0};
    tierce__json_write_open(&request, NULL, '{');
    tierce__json_write_text(&request, "cursor", b->cursor != NULL ? b->cursor : "");
    tierce__json_write_close(&request, '}');
    tierce__line_put_bytes(&line, "", 1);
    int status = line.failed ? tierce__cli_fail(BACKUP, "no memory")
                             : tierce__admin_call(&b->target, BACKUP, "readBackup", false,
                                                  line.text, &reply);
    if (status == TIERCE__CLI_OK)
        status = read_reply(b, reply.value);
    tierce__json_doc_clear(&reply);
    tierce__line_clear(&line);
    return status;
}

static int write_backup(struct backing_up *b, const char *path)
{
    struct timespec now;
    char why[256];
    int status = TIERCE__CLI_OK;
    clock_gettime(CLOCK_REALTIME, &now);
    int rc = tierce__backup_create(&b->writer, path,
                                   (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000, why);
    if (rc < 0)
        return tierce__cli_fail(BACKUP, "%s", why);
    do
        status = read_next(b);
    while (status == TIERCE__CLI_OK && b->cursor[0] != '\0');
    uint64_t records = b->writer.records;
    rc = tierce__backup_close(&b->writer, status == TIERCE__CLI_OK, why);
    if (status == TIERCE__CLI_OK && rc < 0)
        return tierce__cli_fail(BACKUP, "%s", why);
    if (status == TIERCE__CLI_OK)
        printf("%s: %llu blocks\n", path, (unsigned long long)records);
    if (status == TIERCE__CLI_OK && b->unreadable > 0)
        printf("%llu blocks were removed meanwhile or are unreadable, and were left out\n",
               (unsigned long long)b->unreadable);
    return status;
}

int tierce__cli_manager_backup(int argc, char **argv)
{
    struct backing_up b = {.target = {.admin_url = "http://127.0.0.1:6492"}};
    TIERCE_ASSERT(argc > 1 && strcmp(argv[1], "backup") == 0);
    argc--;
    argv++;
    int status = tierce__options_read(BACKUP, options, &b.target, 0, &argc, argv);
    if (status == TIERCE__CLI_OK && argc != 2)
        status =
            tierce__cli_usage(BACKUP, "manager backup accepts one argument, the file to write");
    if (status == TIERCE__CLI_OK)
        status = write_backup(&b, argv[1]);
    tierce__free(b.cursor);
    return status;
}

/* ---- restore --------------------------------------------------------------------------------- */

static void tell_restored(const char *path, const struct tierce__restored *restored)
{
    char made[32] = "";
    struct tm parts;
    time_t seconds = (time_t)(restored->made_us / 1000000);
    if (gmtime_r(&seconds, &parts) != NULL)
        (void)strftime(made, sizeof(made), "%Y-%m-%dT%H:%M:%SZ", &parts);
    printf("%s, made at %s: %llu storages, %llu instance groups, %llu instances, %llu blocks\n",
           path, made, (unsigned long long)restored->storages, (unsigned long long)restored->groups,
           (unsigned long long)restored->instances, (unsigned long long)restored->blocks);
    if (restored->slots_left > 0)
        printf("%llu locations in files that several blocks share were left out: their clients may "
               "not "
               "verify what they read; --restore.keep_slots=true keeps them\n",
               (unsigned long long)restored->slots_left);
    if (restored->others_left > 0)
        printf("%llu locations in unknown storages, or of another block, were left out\n",
               (unsigned long long)restored->others_left);
    if (restored->has_other_id)
        printf(
            "the storages have the mark of the registry that was backed up, and are not used: if "
            "no other manager uses them, run \"tierce storage adopt NAME --keep\" for each (or "
            "restore with --restore.same_registry=true)\n");
}

int tierce__cli_manager_restore(int argc, char **argv)
{
    struct tierce__manager_config config = {0};
    struct tierce__config_error error;
    struct tierce__restored restored = {0};
    char *warnings = NULL, why[256];
    TIERCE_ASSERT(argc > 1 && strcmp(argv[1], "restore") == 0);
    if (argc < 3 || argv[2][0] == '-')
        return tierce__cli_usage(RESTORE, "manager restore requires the file of a backup, and then "
                                          "the parameters of the manager");
    int rc = tierce__manager_config_load(&config, argc - 3, argv + 3, environ, &warnings, &error);
    tierce__free(warnings); /* for the manager that serves */
    if (rc < 0)
        return tierce__cli_usage(RESTORE, "%s", error.text);
    rc = tierce__restore_offline(&restored, &config, argv[2], why);
    tierce__manager_config_clear(&config);
    if (rc < 0)
        return tierce__cli_fail(RESTORE, "%s", why);
    tell_restored(argv[2], &restored);
    return TIERCE__CLI_OK;
}
