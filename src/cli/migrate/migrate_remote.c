/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/config/config_parse.h"
#include "base/text/line.h"
#include "base/text/url.h"
#include "cli/config_check.h"
#include "cli/migrate/migrate.h"
#include "engine/remotes.h"

#include <stdio.h>
#include <string.h>

#define EXTRA         "extra_config."
#define OPTION_BYTES  240u /* of a name with its prefix */
#define NO_CAP        "LMCache sets no limit for this folder; ?size=2TiB in the URL would set one."
#define MOUNTED       "The folder is used through the mounted file system. " NO_CAP
#define UNRESERVED    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
#define SENTINEL_NAME "redismaster" /* unless REDIS_SERVICE_NAME says otherwise */

/* One remote store, from remote_url or a plug-in, and its URL for remote.urls. */
struct remote {
    struct tierce__migration *migration;
    const char *prefix; /* of the names of its options */
    const char *rest;   /* after "scheme://" */
    struct tierce__line url;
    const char *note;
    bool refused; /* the note is the reason */
    char why[TIERCE__CONNECTOR_WHY_BYTES + 2];
};

static void refuse(struct remote *remote, const char *note)
{
    remote->refused = true;
    remote->note = note;
}

static struct tierce__migrate_entry *find_option(const struct remote *remote, const char *name)
{
    char full[OPTION_BYTES];
    int length = snprintf(full, sizeof(full), "%s%s", remote->prefix, name);
    return length < (int)sizeof(full) ? tierce__migrate_find(remote->migration, full) : NULL;
}

static bool is_set(const struct remote *remote, const char *name)
{
    const struct tierce__migrate_entry *entry = find_option(remote, name);
    return entry != NULL && !tierce__migrate_is_off(entry->value);
}

/* The text of an option, which then counts as moved; NULL if it is null or empty. */
static const char *take_text(struct remote *remote, const char *name)
{
    struct tierce__migrate_entry *entry = find_option(remote, name);
    if (entry == NULL || entry->value == NULL || entry->value[0] == '\0')
        return NULL;
    tierce__migrate_end(entry, TIERCE__MIGRATE_MOVED, "%s", "");
    return entry->value;
}

/* The same; NULL if it is off. */
static const char *take(struct remote *remote, const char *name)
{
    return is_set(remote, name) ? take_text(remote, name) : NULL;
}

/* Hosts with commas between; LMCache accepts spaces after them. */
static void put_hosts(struct remote *remote, const char *hosts)
{
    for (; *hosts != '\0'; hosts++) {
        if (*hosts != ' ')
            tierce__line_put_bytes(&remote->url, hosts, 1);
    }
}

/* Also '/' and ':', which end a user and a password, and which tierce__url_put_encoded keeps. */
static void put_encoded_bytes(struct tierce__line *url, const char *text, size_t bytes)
{
    for (const char *p = text; p < text + bytes; p++) {
        if (*p != '\0' && strchr(UNRESERVED, *p) != NULL)
            tierce__line_put_bytes(url, p, 1);
        else
            tierce__line_put_format(url, "%%%02X", (unsigned)(unsigned char)*p);
    }
}

static void put_encoded(struct tierce__line *url, const char *text)
{
    put_encoded_bytes(url, text, strlen(text));
}

/* "NAME=VALUE" with the value of an option and its unit, if it is set. */
static void put_option(struct remote *remote, const char *option, const char *name,
                       const char *unit, char *separator)
{
    const char *value = take(remote, option);
    if (value == NULL)
        return;
    tierce__line_put_bytes(&remote->url, separator, 1);
    tierce__line_put(&remote->url, name);
    tierce__line_put(&remote->url, "=");
    put_encoded(&remote->url, value);
    tierce__line_put(&remote->url, unit);
    *separator = '&';
}

static void put_user(struct remote *remote, const char *user_option, const char *password_option)
{
    const char *user = take_text(remote, user_option);
    const char *password = take_text(remote, password_option);
    if (strchr(remote->rest, '@') != NULL || (user == NULL && password == NULL))
        return;
    put_encoded(&remote->url, user != NULL ? user : "");
    tierce__line_put(&remote->url, ":");
    put_encoded(&remote->url, password != NULL ? password : "");
    tierce__line_put(&remote->url, "@");
}

/* Writes "USER:PASSWORD@" of a URL that LMCache splits itself, at the first '@' and the first ':',
 * and does not decode. Returns the text after it. */
static const char *put_raw_user(struct remote *remote)
{
    const char *at = strchr(remote->rest, '@');
    if (at == NULL)
        return remote->rest;
    size_t bytes = (size_t)(at - remote->rest);
    const char *colon = memchr(remote->rest, ':', bytes);
    size_t user = colon != NULL ? (size_t)(colon - remote->rest) : bytes;
    put_encoded_bytes(&remote->url, remote->rest, user);
    tierce__line_put(&remote->url, ":");
    if (colon != NULL)
        put_encoded_bytes(&remote->url, colon + 1, (size_t)(at - colon) - 1);
    tierce__line_put(&remote->url, "@");
    return at + 1;
}

/* Refuses options in the URL, except a number of the database where `takes_database`. */
static bool has_options(struct remote *remote, const char *rest, bool takes_database)
{
    const char *options = strchr(rest, '?');
    if (options == NULL || (takes_database && strncmp(options, "?db=", 4) == 0 &&
                            options[4 + strspn(options + 4, "0123456789")] == '\0'))
        return false;
    refuse(remote,
           "Options after the '?' of LMCache's URL are not translated. Set remote.urls with "
           "the parameters of docs/using/remote.md.");
    return true;
}

/* ---- stores with a counterpart */

/* The URL with another scheme. */
static void put_scheme(struct remote *remote, const char *scheme)
{
    tierce__line_put(&remote->url, scheme);
    tierce__line_put(&remote->url, remote->rest);
}

static void map_lm(struct remote *remote)
{
    put_scheme(remote, "lm://");
    remote->note = "LMCache's server never evicts, and has neither users nor TLS. A `tierce node` "
                   "(tierce://HOST:6494) "
                   "has none of these limits.";
}

/* LMCache reads these options for resp:// only. */
static void map_resp(struct remote *remote)
{
    tierce__line_put(&remote->url, "redis://");
    put_user(remote, "username", "password");
    tierce__line_put(&remote->url, remote->rest);
}

static void map_redis(struct remote *remote)
{
    put_scheme(remote, "redis://");
}

static void map_rediss(struct remote *remote)
{
    put_scheme(remote, "rediss://");
}

static void map_unix(struct remote *remote)
{
    put_scheme(remote, "redis+unix://");
}

static void map_cluster(struct remote *remote)
{
    tierce__line_put(&remote->url, "redis+cluster://");
    const char *hosts = put_raw_user(remote);
    if (!has_options(remote, hosts, false))
        put_hosts(remote, hosts);
}

static void map_sentinel(struct remote *remote)
{
    tierce__line_put(&remote->url, "redis+sentinel://");
    const char *hosts = put_raw_user(remote);
    if (has_options(remote, hosts, false))
        return;
    for (; *hosts != '\0' && *hosts != '/'; hosts++)
        tierce__line_put_bytes(&remote->url, hosts, *hosts != ' ');
    tierce__line_put(&remote->url, "/" SENTINEL_NAME);
    remote->note = "The sentinels know the master as " SENTINEL_NAME
                   ", LMCache's default; if REDIS_SERVICE_NAME of "
                   "LMCache's environment has another name, write it there.";
}

static void map_valkey(struct remote *remote)
{
    const char *mode = take(remote, "valkey_mode");
    bool is_tls = take(remote, "tls_enable") != NULL;
    bool is_cluster = mode != NULL && strcmp(mode, "cluster") == 0;
    char separator = '?';
    if (!is_cluster && strchr(remote->rest, ',') != NULL) {
        refuse(remote, "Several hosts require valkey_mode: cluster. Otherwise name one of them, or "
                       "sentinels (valkey+sentinel://).");
        return;
    }
    tierce__line_put(&remote->url, is_tls ? "valkeys" : "valkey");
    tierce__line_put(&remote->url, is_cluster ? "+cluster://" : "://");
    put_user(remote, "valkey_username", "valkey_password");
    put_hosts(remote, remote->rest);
    if (!is_cluster) /* a cluster has no databases */
        put_option(remote, "valkey_database", "db", "", &separator);
    if (take(remote, "valkey_enable_ttl") == NULL)
        return;
    if (is_set(remote, "valkey_ttl_sec"))
        put_option(remote, "valkey_ttl_sec", "ttl", "s", &separator);
    else
        tierce__line_put_format(&remote->url, "%cttl=24h", separator); /* LMCache's default */
}

/* A folder of a plug-in or of a URL; the note is about the folder. */
static void map_folder(struct remote *remote, const char *path, const char *note)
{
    if (path == NULL || path[strspn(path, "/ ")] == '\0') {
        refuse(remote, "No folder is given.");
    } else if (strchr(path, ',') != NULL) {
        refuse(remote, "Tierce puts a store into one folder: add file:///FOLDER to remote.urls. "
                       "Alternatively, list one URL for each folder; each folder then stores all "
                       "chunks.");
    } else if (path[0] != '/') {
        refuse(remote, "The folder is not an absolute path. Set remote.urls: file:///FOLDER.");
    } else {
        tierce__line_put(&remote->url, "file:///");
        tierce__url_put_encoded(&remote->url, path + strspn(path, "/"));
        remote->note = note;
    }
}

/* fs://HOST:PORT/FOLDER; LMCache ignores the host. */
static void map_fs(struct remote *remote)
{
    map_folder(remote, strchr(remote->rest, '/'), NO_CAP);
}

static void map_hf3fs(struct remote *remote)
{
    map_folder(remote, remote->rest, MOUNTED);
}

/* An option of Mooncake's client: mooncake_NAME precedes NAME. */
static void put_mooncake(struct remote *remote, const char *prefixed, const char *name,
                         char *separator)
{
    put_option(remote, is_set(remote, prefixed) ? prefixed : prefixed + strlen("mooncake_"), name,
               "", separator);
}

/* LMCache takes the master from its options, and older releases take it from the URL. */
static void map_mooncake(struct remote *remote)
{
    const char *master = take(remote, "mooncake_master_server_address");
    if (master == NULL)
        master = take(remote, "master_server_address");
    if (master == NULL)
        master = remote->rest;
    char separator = '?';
    if (*master == '\0') {
        refuse(remote, "master_server_address of extra_config is missing. If a file that "
                       "MOONCAKE_CONFIG_PATH names has it, set remote.urls: mooncake://MASTER.");
        return;
    }
    tierce__line_put(&remote->url, "mooncake://");
    tierce__line_put_bytes(&remote->url, master, strcspn(master, "/?"));
    put_mooncake(remote, "mooncake_metadata_server", "metadata", &separator);
    put_mooncake(remote, "mooncake_protocol", "protocol", &separator);
    put_mooncake(remote, "mooncake_device_name", "device", &separator);
    put_mooncake(remote, "mooncake_local_hostname", "host", &separator);
    put_mooncake(remote, "mooncake_global_segment_size", "segment", &separator);
    put_mooncake(remote, "mooncake_local_buffer_size", "buffer", &separator);
    remote->note = "Values of the file that MOONCAKE_CONFIG_PATH names are not read: add them to "
                   "the URL (docs/using/remote.md). Without segment the engine gives no memory to "
                   "the store; LMCache gives 3.1 GiB by default.";
}

/* The parts of the host of a bucket. */
struct s3_host {
    size_t bucket;   /* bytes */
    const char *end; /* of the host */
    const char *region;
    size_t region_bytes; /* 0: the host names none */
    bool is_default;     /* Tierce makes the same host of bucket and region */
};

/* BUCKET.s3.REGION.amazonaws.com, BUCKET.s3.amazonaws.com, or BUCKET.HOST. A bucket of Amazon's may
 * have dots. */
static struct s3_host split_s3(const char *rest)
{
    static const char mark[] = ".s3.", domain[] = "amazonaws.com";
    struct s3_host host = {.bucket = strcspn(rest, "./?"), .end = rest + strcspn(rest, "/?")};
    size_t tail = sizeof(domain) - 1;
    const char *s3 = memmem(rest, (size_t)(host.end - rest), mark, sizeof(mark) - 1);
    const char *region = s3 != NULL ? s3 + sizeof(mark) - 1 : host.end;
    size_t left = (size_t)(host.end - region);
    if (left < tail || memcmp(host.end - tail, domain, tail) != 0)
        return host;
    size_t bytes = strcspn(region, ".");
    host.is_default = left == tail || left == bytes + 1 + tail;
    if (host.is_default)
        host.bucket = (size_t)(s3 - rest);
    if (host.is_default && left > tail) {
        host.region = region;
        host.region_bytes = bytes;
    }
    return host;
}

/* LMCache has the host of the bucket. Each host that Tierce does not make itself is an endpoint. */
static void map_s3(struct remote *remote)
{
    const struct s3_host host = split_s3(remote->rest);
    const char *endpoint = remote->rest + host.bucket;
    if (strstr(endpoint, "s3express") != NULL) {
        refuse(remote, "Directory buckets (S3 Express) are not supported: use another bucket.");
        return;
    }
    bool is_plain = take(remote, "disable_tls") != NULL;
    bool has_region = take(remote, "s3_region") != NULL;
    char separator = '?';
    tierce__line_put(&remote->url, "s3://");
    tierce__line_put_bytes(&remote->url, remote->rest, host.bucket);
    if (host.end > endpoint + 1 && (is_plain || !host.is_default)) {
        tierce__line_put(&remote->url, is_plain ? "?endpoint=http://" : "?endpoint=https://");
        tierce__line_put_bytes(&remote->url, endpoint + 1, (size_t)(host.end - endpoint) - 1);
        tierce__line_put(&remote->url,
                         is_plain ? "&path_style=false&insecure=true" : "&path_style=false");
        separator = '&';
    }
    put_option(remote, "s3_region", "region", "", &separator);
    if (!has_region && host.region_bytes > 0) {
        tierce__line_put_format(&remote->url, "%cregion=", separator);
        tierce__line_put_bytes(&remote->url, host.region, host.region_bytes);
    } else if (!has_region &&
               memmem(endpoint, (size_t)(host.end - endpoint), ".amazonaws.com", 14) != NULL &&
               !host.is_default) {
        refuse(remote, "The region of this host is not known: set s3_region in extra_config.");
        return;
    }
    remote->note = "Credentials are found as AWS's libraries find them. Give the bucket a rule "
                   "that deletes old objects.";
}

static void map_audit(struct remote *remote);

/* ---- stores without a counterpart */

static void drop(struct remote *remote)
{
    remote->note = "It is a store for tests, which keeps nothing.";
}

/* Reasons of rows that more than one of the tables below has. */
#define NO_CLIENT                                                                                  \
    "Tierce has no client of this service. Use s3://, or a store of your own in Python "           \
    "(python://) or C (plugin://, docs/using/remote.md)."
#define NO_PLUGIN                                                                                  \
    "Write the store into remote.urls if Tierce knows it (docs/using/remote.md). Another store "   \
    "becomes a class with the methods of python://: LMCache's interface is a different one."

/* What may follow a '?' in the URL. */
enum options {
    OPTIONS_NONE,
    OPTIONS_DATABASE,
    OPTIONS_UNCHECKED, /* the function checks, or it reads none, or all URLs are refused */
};

static const struct scheme {
    const char *name;
    void (*map)(struct remote *remote);
    enum options options;
    const char *refusal; /* of all URLs; `map` is NULL */
} schemes[] = {
    {"lm", map_lm, OPTIONS_NONE, NULL},
    {"redis", map_redis, OPTIONS_DATABASE, NULL},
    {"rediss", map_rediss, OPTIONS_DATABASE, NULL},
    {"resp", map_resp, OPTIONS_NONE, NULL},
    {"unix", map_unix, OPTIONS_DATABASE, NULL},
    {"redis-sentinel", map_sentinel, OPTIONS_UNCHECKED, NULL},
    {"redis-cluster", map_cluster, OPTIONS_UNCHECKED, NULL},
    {"valkey", map_valkey, OPTIONS_NONE, NULL},
    {"fs", map_fs, OPTIONS_NONE, NULL},
    {"hf3fs", map_hf3fs, OPTIONS_UNCHECKED, NULL},
    {"mooncakestore", map_mooncake, OPTIONS_NONE, NULL},
    {"s3", map_s3, OPTIONS_NONE, NULL},
    {"audit", map_audit, OPTIONS_UNCHECKED, NULL},
    {"mock", drop, OPTIONS_UNCHECKED, NULL},
    {"blackhole", drop, OPTIONS_UNCHECKED, NULL},
    {"infinistore", NULL, OPTIONS_UNCHECKED,
     "Tierce has no client of InfiniStore. A `tierce node` on that host (tierce://HOST:6494), or "
     "mooncake:// for RDMA, can take its place."},
    {"azure", NULL, OPTIONS_UNCHECKED,
     "Tierce has no client of Azure's blobs. Use a store with S3's interface, or a mounted folder "
     "(file://)."},
    {"sagemaker-hyperpod", NULL, OPTIONS_UNCHECKED, NO_CLIENT},
    {"eic", NULL, OPTIONS_UNCHECKED, NO_CLIENT},
    {"bigtable", NULL, OPTIONS_UNCHECKED, NO_CLIENT},
    {"aerospike", NULL, OPTIONS_UNCHECKED, NO_CLIENT},
    {"plugin", NULL, OPTIONS_UNCHECKED, NO_PLUGIN},
    {"external", NULL, OPTIONS_UNCHECKED, NO_PLUGIN},
};

static void map_scheme(struct remote *remote, const char *text)
{
    const char *separator = strstr(text, "://");
    size_t length = separator != NULL ? (size_t)(separator - text) : 0;
    for (size_t i = 0; length > 0 && i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        if (strlen(schemes[i].name) == length && memcmp(schemes[i].name, text, length) == 0) {
            remote->rest = separator + 3;
            enum options options = schemes[i].options;
            if (schemes[i].refusal != NULL)
                refuse(remote, schemes[i].refusal);
            else if (options == OPTIONS_UNCHECKED ||
                     !has_options(remote, remote->rest, options == OPTIONS_DATABASE))
                schemes[i].map(remote);
            return;
        }
    }
    refuse(remote, "The scheme is not one of LMCache's.");
}

/* The URL that audit:// wraps; Tierce verifies chunks anyway. */
static void map_audit(struct remote *remote)
{
    const char *url = tierce__migrate_value(remote->migration, EXTRA "audit_actual_remote_url");
    if (url == NULL)
        url = tierce__migrate_value(remote->migration, "audit_actual_remote_url");
    if (url == NULL || strncmp(url, "audit://", 8) == 0)
        refuse(remote, "audit:// requires the store in audit_actual_remote_url.");
    else
        map_scheme(remote, url);
}

/* ---- the rules */

/* Ends the URL and adds it to `all`, unless there is none. */
static void end_store(struct remote *remote, struct tierce__line *all)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES] = "";
    tierce__line_put_bytes(&remote->url, "", 1);
    if (!remote->refused && remote->url.failed)
        refuse(remote, "No memory for its URL.");
    else if (!remote->refused && remote->url.text[strcspn(remote->url.text, " \t\r\n")] != '\0')
        refuse(remote, "A blank in a URL must be percent-encoded (%20).");
    else if (!remote->refused && remote->url.text[0] != '\0' &&
             tierce__cli_check_url(remote->url.text, why) != 0) {
        snprintf(remote->why, sizeof(remote->why), "%s.", why);
        refuse(remote, remote->why);
    }
    if (remote->refused || remote->url.text[0] == '\0')
        return;
    tierce__line_put(all, all->bytes > 0 ? " " : "");
    tierce__line_put(all, remote->url.text);
}

static bool are_too_many(const char *urls)
{
    size_t count = 1;
    for (const char *at = urls; *at != '\0'; at++)
        count += *at == ' ';
    return count > TIERCE__REMOTES_MAX;
}

/* Sets remote.urls to the URLs that are there and `all`. */
static void set_urls(struct tierce__migration *migration, struct tierce__migrate_entry *entry,
                     const struct tierce__line *all)
{
    struct tierce__line urls = {0};
    const char *old = tierce_config_get(migration->config, "remote.urls");
    tierce__line_put(&urls, old != NULL ? old : "");
    tierce__line_put(&urls, urls.bytes > 0 ? " " : "");
    tierce__line_put_bytes(&urls, all->text, all->bytes);
    tierce__line_put_bytes(&urls, "", 1);
    if (urls.failed || all->failed)
        tierce__migrate_end(entry, TIERCE__MIGRATE_REFUSED, "No memory for its URL.");
    else if (are_too_many(urls.text))
        tierce__migrate_end(entry, TIERCE__MIGRATE_REFUSED,
                            "Tierce has at most %u remote stores. Choose them and set remote.urls.",
                            TIERCE__REMOTES_MAX);
    else
        tierce__migrate_set(migration, entry, "remote.urls", urls.text);
    tierce__line_clear(&urls);
}

/* Ends an entry that has one store. */
static void end_only_store(struct remote *remote, struct tierce__migrate_entry *entry)
{
    struct tierce__line all = {0};
    end_store(remote, &all);
    tierce__migrate_end(entry, remote->refused ? TIERCE__MIGRATE_REFUSED : TIERCE__MIGRATE_OFF,
                        "%s", remote->note);
    if (all.bytes > 0)
        set_urls(remote->migration, entry, &all);
    tierce__line_clear(&remote->url);
    tierce__line_clear(&all);
}

void tierce__migrate_remote(struct tierce__migration *migration,
                            struct tierce__migrate_entry *entry)
{
    struct remote remote = {.migration = migration, .prefix = EXTRA, .note = ""};
    if (tierce__migrate_is_off(entry->value)) {
        tierce__migrate_end(entry, TIERCE__MIGRATE_OFF, "%s", "");
        return;
    }
    map_scheme(&remote, entry->value);
    end_only_store(&remote, entry);
}

/* The value of "extra_config.remote_storage_plugin.PLUGIN.OPTION", or NULL. */
static const char *take_of_plugin(struct remote *remote, const char *plugin, const char *option)
{
    char name[OPTION_BYTES];
    int length = snprintf(name, sizeof(name), "remote_storage_plugin.%s.%s", plugin, option);
    return length < (int)sizeof(name) ? take(remote, name) : NULL;
}

/* A plug-in is TYPE or TYPE.INSTANCE. */
static bool has_type(const char *plugin, const char *type)
{
    size_t length = strlen(type);
    return strncmp(plugin, type, length) == 0 && (plugin[length] == '\0' || plugin[length] == '.');
}

/* LMCache has these types itself. */
static void map_plugin(struct remote *remote, const char *plugin)
{
    const char *value = NULL;
    remote->rest = "";
    if (take_of_plugin(remote, plugin, "module_path") != NULL) {
        refuse(remote, NO_PLUGIN);
    } else if (has_type(plugin, "fs")) {
        value = take_of_plugin(remote, plugin, "base_path");
        map_folder(remote, value != NULL ? value : take(remote, "fs_base_path"), NO_CAP);
    } else if (has_type(plugin, "hf3fs")) {
        value = take_of_plugin(remote, plugin, "base_path");
        map_folder(remote, value != NULL ? value : take(remote, "hf3fs_base_path"), MOUNTED);
    } else if (has_type(plugin, "mooncakestore")) {
        map_mooncake(remote);
    } else if (has_type(plugin, "redis")) {
        value = take_of_plugin(remote, "redis", "redis_url");
        if (value == NULL)
            value = take(remote, "redis_url");
        if (value != NULL || tierce__migrate_value(remote->migration, "remote_url") == NULL)
            map_scheme(remote, value != NULL ? value : "redis://localhost:6379");
    } else {
        refuse(remote, NO_PLUGIN);
    }
}

/* Adds the result of one of several plug-ins to the note: reasons of refused ones alone, as soon as
 * there is one. */
static void add_note(struct tierce__migrate_entry *entry, const char *plugin,
                     const struct remote *remote)
{
    char shown[64];
    bool is_refused = entry->outcome == TIERCE__MIGRATE_REFUSED;
    if (remote->refused && !is_refused)
        tierce__migrate_end(entry, TIERCE__MIGRATE_REFUSED, "%s", "");
    if (remote->note[0] == '\0' || (is_refused && !remote->refused))
        return;
    tierce__text_for_message(shown, sizeof(shown), plugin); /* it may be any text */
    size_t used = strlen(entry->note), room = sizeof(entry->note) - used;
    int added =
        snprintf(entry->note + used, room, "%s%s: %s", used > 0 ? " " : "", shown, remote->note);
    if ((size_t)added >= room) /* a cut text may end inside a letter */
        entry->note[used] = '\0';
}

void tierce__migrate_plugins(struct tierce__migration *migration,
                             struct tierce__migrate_entry *entry)
{
    struct tierce__line all = {0};
    char *plugins = tierce__strdup(entry->value != NULL ? entry->value : "");
    char *rest = plugins, *plugin;
    tierce__migrate_end(entry, TIERCE__MIGRATE_OFF, "%s", "");
    if (plugins == NULL)
        tierce__migrate_end(entry, TIERCE__MIGRATE_REFUSED, "No memory for its URL.");
    while (plugins != NULL && (plugin = strtok_r(rest, ", ", &rest)) != NULL) {
        struct remote remote = {.migration = migration, .prefix = EXTRA, .note = ""};
        map_plugin(&remote, plugin);
        end_store(&remote, &all);
        add_note(entry, plugin, &remote);
        tierce__line_clear(&remote.url);
    }
    bool is_refused = entry->outcome == TIERCE__MIGRATE_REFUSED;
    if (all.bytes > 0)
        set_urls(migration, entry, &all);
    if (is_refused)
        entry->outcome = TIERCE__MIGRATE_REFUSED;
    tierce__line_clear(&all);
    tierce__free(plugins);
}

/* ---- adapters of `lmcache server` */

/* A folder is the disk tier if LMCache limits it, and a store without a limit otherwise. Sets the
 * disk tier and returns true. */
static bool map_disk(struct remote *remote, struct tierce__migrate_entry *entry, const char *path)
{
    const char *old = tierce_config_get(remote->migration->config, "disk.path");
    struct tierce__migrate_entry *size = find_option(remote, "max_capacity_gb");
    if (path == NULL || path[0] != '/' || !is_set(remote, "max_capacity_gb") ||
        (old != NULL && *old != '\0'))
        return false;
    tierce__migrate_gib(remote->migration, size, "disk.size", 1);
    tierce__migrate_set(remote->migration, entry, "disk.path", path);
    return true;
}

static void map_l2_resp(struct remote *remote)
{
    const char *host = take_text(remote, "host"), *port = take_text(remote, "port");
    remote->rest = host != NULL ? host : "";
    tierce__line_put(&remote->url, "redis://");
    put_user(remote, "username", "password");
    tierce__line_put_format(&remote->url, "%s:%s", remote->rest, port != NULL ? port : "");
}

static void map_l2_valkey(struct remote *remote)
{
    const char *nodes = take_text(remote, "startup_nodes");
    bool is_cluster = take(remote, "cluster_mode") != NULL;
    char separator = '?';
    remote->rest = nodes != NULL ? nodes : "";
    if (!is_cluster && strchr(remote->rest, ',') != NULL) {
        refuse(remote,
               "Several startup_nodes require cluster_mode: true. Otherwise name one of them.");
        return;
    }
    tierce__line_put(&remote->url, take(remote, "tls_enable") != NULL ? "valkeys" : "valkey");
    tierce__line_put(&remote->url, is_cluster ? "+cluster://" : "://");
    put_user(remote, "username", "password");
    put_hosts(remote, remote->rest);
    if (!is_cluster)
        put_option(remote, "database_id", "db", "", &separator);
    put_option(remote, "ttl_seconds", "ttl", "s", &separator);
}

static void map_l2_s3(struct remote *remote)
{
    const char *endpoint = take_text(remote, "s3_endpoint");
    remote->rest = endpoint != NULL ? endpoint : "";
    if (strncmp(remote->rest, "s3://", 5) == 0)
        remote->rest += 5;
    map_s3(remote);
}

static void map_l2_mooncake(struct remote *remote)
{
    const char *master = take_text(remote, "master_server_addr");
    remote->rest = master != NULL ? master : "";
    map_mooncake(remote);
}

static void map_l2_fs(struct remote *remote)
{
    map_folder(remote, take(remote, "base_path"), NO_CAP);
}

static void map_l2_hf3fs(struct remote *remote)
{
    map_folder(remote, take(remote, "base_paths"), MOUNTED);
}

static void refuse_l2_plugin(struct remote *remote)
{
    const struct tierce__migrate_entry *module = find_option(remote, "module_path");
    if (module != NULL && module->value != NULL && strcmp(module->value, "tierce.lmcache") == 0)
        refuse(remote, "Its adapter_params are parameters of Tierce: add them to this file, "
                       "without identity.");
    else
        refuse(remote, NO_PLUGIN);
}

#define USE_NIXL "Use nixl:///FOLDER or s3+nixl://BUCKET in remote.urls (docs/using/remote.md)."
#define NO_DEVICE                                                                                  \
    "Tierce does not use raw devices or DAX memory: set disk.path to a folder of a file system "   \
    "there, and disk.size."

static const struct adapter {
    const char *type;
    void (*map)(struct remote *remote);
    const char *folder;  /* the option of a folder that may be the disk tier, or NULL */
    const char *refusal; /* of all adapters of the type; `map` is NULL */
} adapters[] = {
    {"fs", map_l2_fs, "base_path", NULL},
    {"fs_native", map_l2_fs, "base_path", NULL},
    {"hf3fs", map_l2_hf3fs, NULL, NULL},
    {"resp", map_l2_resp, NULL, NULL},
    {"valkey", map_l2_valkey, NULL, NULL},
    {"s3", map_l2_s3, NULL, NULL},
    {"mooncake_store", map_l2_mooncake, NULL, NULL},
    {"mock", drop, NULL, NULL},
    {"fault_inject", drop, NULL, NULL},
    {"native_plugin", refuse_l2_plugin, NULL, NULL},
    {"plugin", refuse_l2_plugin, NULL, NULL},
    {"nixl_native", NULL, NULL, USE_NIXL},
    {"nixl_store", NULL, NULL, USE_NIXL},
    {"nixl_store_dynamic", NULL, NULL, USE_NIXL},
    {"p2p", NULL, NULL,
     "Start `tierce manager` and add peers://HOST:6381 with its address to remote.urls "
     "(docs/using/peers.md)."},
    {"raw_block", NULL, NULL, NO_DEVICE},
    {"dax", NULL, NULL, NO_DEVICE},
    {"aerospike", NULL, NULL, NO_CLIENT},
    {"bigtable", NULL, NULL, NO_CLIENT},
    {"hfbucket", NULL, NULL, NO_CLIENT},
    {"sagemaker-hyperpod", NULL, NULL, NO_CLIENT},
};

void tierce__migrate_adapter(struct tierce__migration *migration,
                             struct tierce__migrate_entry *entry)
{
    char prefix[64];
    struct remote remote = {.migration = migration, .prefix = prefix, .note = ""};
    /* "--l2-adapter.1.type" */
    snprintf(prefix, sizeof(prefix), "%.*s", (int)(strlen(entry->name) - strlen("type")),
             entry->name);
    const char *type = entry->value != NULL ? entry->value : "";
    for (size_t i = 0; i < sizeof(adapters) / sizeof(adapters[0]); i++) {
        const struct adapter *adapter = &adapters[i];
        if (strcmp(adapter->type, type) != 0)
            continue;
        if (adapter->folder != NULL && map_disk(&remote, entry, take(&remote, adapter->folder)))
            return;
        if (adapter->refusal != NULL)
            refuse(&remote, adapter->refusal);
        else
            adapter->map(&remote);
        end_only_store(&remote, entry);
        return;
    }
    tierce__migrate_end(entry, TIERCE__MIGRATE_REFUSED,
                        "The type is not one of LMCache 0.5.6's adapters.");
}
