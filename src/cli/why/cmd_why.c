/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "cli/options.h"
#include "cli/process.h"
#include "cli/why/why_compare.h"
#include "cli/why/why_folder.h"
#include "cli/why/why_text.h"
#include "core/key/group.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

const char *const tierce__cli_why_help[] = {
    "Explains why the KV of a prompt is not found: how much of it is stored, which chunk is the\n"
    "first missing one, and why it is missing. A running process remembers evicted chunks and "
    "when\n"
    "they were evicted. A store folder (disk.path) shows its chunks only; a process may have it\n"
    "open.\n"
    "\n"
    "  DIR|PID|SOCKET       a store folder, a process id, or the path of a control socket; "
    "default:\n"
    "                       the only process of this user that has a control socket\n"
    "  --tokens FILE        the prompt's token ids: a JSON array, or numbers between white space;\n"
    "                       \"-\" is standard input\n"
    "  --text FILE          the prompt as text, with --tokenizer; \"-\" is standard input. Also\n"
    "                       shows the text at the missing part, and values in it that may differ\n"
    "                       in each request\n"
    "  --tokenizer DIR      the model's folder, or its tokenizer.json; requires python3 (or\n"
    "                       TIERCE_PYTHON) with the package tokenizers\n"
    "  --chat               the text is a rendered chat: no special tokens are added to it\n"
    "  --against FILE       another prompt in the same form, which was expected to begin in the "
    "same way: "
    "shows\n"
    "                       the first token at which the two differ; with texts also the likely\n"
    "                       cause\n"
    "  --hash DIGITS        instead of a prompt: the chunks whose hash begins with DIGITS, and\n"
    "                       their tiers\n"
    "  --request ID         instead of a prompt: a request that an inference engine has served, "
    "by\n"
    "                       its id or a part of it. A process remembers the last\n"
    "                       requests.remembered requests\n"
    "  --namespace DIGEST   the digest of the namespace, or its first digits; required if there\n"
    "                       are several (an error lists them), unless they are the groups of\n"
    "                       layers of one model, which are explained together\n"
    "  --shard R/N[,R/N]    rank and size of tensor (and pipeline) parallelism; default: of a\n"
    "                       folder the only one there is, else 0/1\n"
    "  --salt TEXT          the request's cache salt\n"
    "  --lora HEX           digest of the LoRA adapter\n"
    "  --json               prints one JSON object\n"
    "\n"
    "Exit status: 0 all of the KV is stored, 1 a part is missing or no process answered, 2 "
    "invalid\n"
    "arguments. The reasons: docs/using/why.md.\n",
    NULL,
};

#define TOKENS_BYTES_MAX (64u << 20)
#define LORA_BYTES_MAX   256u

/* A prompt that was read from a file. */
struct why_prompt {
    char *text;                            /* of the tokens */
    struct tierce__why_text_source source; /* empty if the file has tokens */
    int32_t *tokens;                       /* [count], heap */
    size_t count;
};

struct why_request {
    const char *where; /* or NULL */
    const char *tokens_path, *text_path, *tokenizer, *hash, *request, *lora, *shard, *salt,
        *against;
    struct tierce__hash_prefix prefix;
    bool json, chat;
    struct tierce__prompt prompt; /* its tokens are those of `here` */
    uint8_t lora_bytes[LORA_BYTES_MAX];
    struct why_prompt here, there; /* there: of --against */
};

/* ---- arguments ------------------------------------------------------------------------------- */

static const struct tierce__option options[] = {
    {"--tokens", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct why_request, tokens_path)},
    {"--text", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct why_request, text_path)},
    {"--tokenizer", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct why_request, tokenizer)},
    {"--chat", TIERCE__OPTION_FLAG, TIERCE__OPTION_FIELD(struct why_request, chat)},
    {"--hash", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct why_request, hash)},
    {"--against", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct why_request, against)},
    {"--request", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct why_request, request)},
    {"--namespace", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct why_request, prompt.ns)},
    {"--shard", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct why_request, shard)},
    {"--salt", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct why_request, salt)},
    {"--lora", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct why_request, lora)},
    {"--json", TIERCE__OPTION_FLAG, TIERCE__OPTION_FIELD(struct why_request, json)},
    {NULL},
};

static int read_args(struct why_request *r, int argc, char **argv)
{
    int status = tierce__options_read("why", options, r, 0, &argc, argv);
    if (status == TIERCE__CLI_OK && argc > 2)
        status = tierce__cli_usage(
            "why", "accepts one folder, process or socket; \"%.100s\" is a second", argv[2]);
    if (status != TIERCE__CLI_OK)
        return status;
    r->where = argv[1];
    r->prompt.root = (struct tierce_chain_root){.size = sizeof(r->prompt.root),
                                                .salt = r->salt,
                                                .salt_bytes = r->salt ? strlen(r->salt) : 0};
    return TIERCE__CLI_OK;
}

static bool is_hex(const char *text)
{
    return strspn(text, "0123456789abcdefABCDEF") == strlen(text);
}

static int check_args(struct why_request *r)
{
    if ((r->tokens_path != NULL) + (r->text_path != NULL) + (r->hash != NULL) +
            (r->request != NULL) !=
        1)
        return tierce__cli_usage("why", "requires exactly one of --tokens FILE, --text FILE, "
                                        "--hash DIGITS and --request ID");
    if (r->request != NULL &&
        (r->request[0] == '\0' || strlen(r->request) > TIERCE_REQUEST_NAME_MAX))
        return tierce__cli_usage("why", "--request requires an id of 1 to %u bytes",
                                 TIERCE_REQUEST_NAME_MAX);
    if ((r->text_path != NULL) != (r->tokenizer != NULL))
        return tierce__cli_usage("why", "--text FILE and --tokenizer DIR must be given together");
    if (r->against != NULL && r->text_path == NULL && r->tokens_path == NULL)
        return tierce__cli_usage("why", "--against FILE requires --tokens FILE or --text FILE");
    const char *path = r->text_path != NULL ? r->text_path : r->tokens_path;
    if (r->against != NULL && strcmp(r->against, "-") == 0 && strcmp(path, "-") == 0)
        return tierce__cli_usage("why", "only one prompt can be read from standard input");
    if (r->chat && r->text_path == NULL)
        return tierce__cli_usage("why", "--chat requires --text FILE");
    if (r->hash != NULL && !tierce__hash_prefix(&r->prefix, r->hash))
        return tierce__cli_usage("why", "--hash requires 1 to 64 hex digits");
    if (r->prompt.ns != NULL && (!is_hex(r->prompt.ns) || strlen(r->prompt.ns) > 64))
        return tierce__cli_usage("why",
                                 "--namespace requires a digest in hex, or its first digits");
    if (r->shard != NULL && !tierce__prompt_shard(&r->prompt.shard, r->shard))
        return tierce__cli_usage("why", "--shard requires RANK/SIZE, such as 1/4 or 1/4,0/2");
    size_t bytes = r->lora != NULL ? strlen(r->lora) / 2 : 0;
    if (r->lora != NULL && (strlen(r->lora) % 2 != 0 || bytes > LORA_BYTES_MAX ||
                            !tierce__hex_decode(r->lora_bytes, bytes, r->lora)))
        return tierce__cli_usage("why", "--lora requires a digest in hex");
    r->prompt.root.lora = r->lora_bytes;
    r->prompt.root.lora_bytes = bytes;
    return TIERCE__CLI_OK;
}

/* A pipe is not a regular file. */
static int read_stdin(char **out)
{
    struct tierce__line text = {0};
    char piece[65536];
    size_t bytes;
    while ((bytes = fread(piece, 1, sizeof(piece), stdin)) > 0 && text.bytes <= TOKENS_BYTES_MAX)
        tierce__line_put_bytes(&text, piece, bytes);
    tierce__line_put_bytes(&text, "", 1);
    int rc = ferror(stdin) ? -EIO : 0;
    if (text.failed)
        rc = -ENOMEM;
    else if (text.bytes > TOKENS_BYTES_MAX)
        rc = -EFBIG;
    else if (strlen(text.text) + 1 < text.bytes)
        rc = -EILSEQ; /* as in a file */
    if (rc == 0)
        *out = text.text;
    else
        tierce__line_clear(&text);
    return rc;
}

static int read_file(char **out, const char *path)
{
    int rc = strcmp(path, "-") == 0 ? read_stdin(out)
                                    : tierce__cli_read_text(out, path, TOKENS_BYTES_MAX);
    if (rc < 0)
        return tierce__cli_fail("why", "%.300s: %s", path, tierce__cli_read_error(rc));
    return TIERCE__CLI_OK;
}

/* Reads a prompt, as text if the request has a tokenizer, otherwise as tokens. */
static int read_prompt(struct why_prompt *out, const struct why_request *r, const char *path)
{
    char why[TIERCE__PROMPT_WHY_BYTES] = "no memory";
    bool is_text = r->tokenizer != NULL;
    int status = read_file(is_text ? &out->source.text : &out->text, path);
    if (is_text && status == TIERCE__CLI_OK) {
        status = tierce__why_tokenize(&out->source, r->tokenizer, path, !r->chat);
        out->text = out->source.ids;
        out->source.ids = NULL;
    }
    if (status == TIERCE__CLI_OK &&
        tierce__prompt_tokens(&out->tokens, &out->count, out->text, strlen(out->text), why) < 0)
        status = tierce__cli_fail("why", "%.300s: %s", path, why);
    return status;
}

static int read_prompts(struct why_request *r)
{
    const char *path = r->text_path != NULL ? r->text_path : r->tokens_path;
    int status = path != NULL ? read_prompt(&r->here, r, path) : TIERCE__CLI_OK;
    if (status == TIERCE__CLI_OK && r->against != NULL)
        status = read_prompt(&r->there, r, r->against);
    r->prompt.tokens = r->here.tokens;
    r->prompt.count = r->here.count;
    return status;
}

static void clear_prompt(struct why_prompt *prompt)
{
    tierce__free(prompt->text);
    tierce__free(prompt->tokens);
    tierce__why_text_clear(&prompt->source);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* The answer of the first group of layers, or the only one. */
static struct tierce__text first_group(struct tierce__text answer)
{
    struct tierce__text group = tierce__json_get(answer, "groups.0");
    return group.length > 0 ? group : answer;
}

/* Where the hit ends; -1: nothing is missing. A window or a state is missing at the end of the
 * prompt, wherever the hit ends. */
static int64_t end_of_hit(struct tierce__text answer)
{
    char name[16] = "", reason[64] = "";
    enum tierce_group group = TIERCE_GROUP_ALL;
    (void)tierce__json_get_text(reason, sizeof(reason), answer, "reason");
    if (strcmp(reason, "none") == 0)
        return -1;
    if (tierce__json_get(answer, "groups.0").length > 0)
        return tierce__json_get_int(answer, "held_tokens", -1);
    if (tierce__json_get_text(name, sizeof(name), answer, "group") &&
        tierce__group_parse(&group, name) && tierce__group_is_sparse(group))
        return tierce__json_get_int(answer, "held_blocks", 0) *
               tierce__json_get_int(answer, "block_tokens", 0);
    return tierce__json_get_int(answer, "token", -1);
}

/* Adds the text of the first missing part: of the first block that differs if a lookup found the
 * blocks before it, otherwise of the chunk. */
static void put_source(struct tierce__line *out, const struct why_request *r,
                       struct tierce__text answer)
{
    int64_t token = tierce__json_get_int(answer, "token", -1);
    int64_t block_tokens = tierce__json_get_int(answer, "block_tokens", 0);
    int64_t chunk_tokens = block_tokens * tierce__json_get_int(answer, "chunk_blocks", 0);
    if (r->here.source.text == NULL || token < 0 || chunk_tokens <= 0)
        return;
    int64_t end = token + (token % chunk_tokens != 0 ? block_tokens : chunk_tokens);
    end = tierce__json_get_int(answer, "departs.to_token", end);
    tierce__why_text_show(out, &r->here.source, (uint64_t)token, (uint64_t)end);
}

static struct tierce__why_side side_of(const struct why_prompt *prompt)
{
    return (struct tierce__why_side){.tokens = prompt->tokens,
                                     .count = prompt->count,
                                     .source =
                                         prompt->source.text != NULL ? &prompt->source : NULL};
}

/* Prints the answer of a process or folder, and adds the lines about the texts, which only this
 * process knows. */
static void print_answer(const struct why_request *r, const char *json, const char *text,
                         struct tierce__text answer)
{
    struct tierce__line line = {0};
    struct tierce__why_comparison comparison;
    struct tierce__why_side here = side_of(&r->here), there = side_of(&r->there);
    if (r->against != NULL)
        tierce__why_compare(&comparison, &here, &there);
    if (r->json && r->against == NULL) {
        tierce__line_put(&line, json);
    } else if (r->json) {
        tierce__line_put_bytes(&line, json, (size_t)(strrchr(json, '}') - json));
        tierce__why_compare_json(&line, &comparison);
        tierce__line_put(&line, "}\n");
    } else {
        struct tierce__text group = first_group(answer);
        struct tierce__why_place place = {
            .missing_token = end_of_hit(answer),
            .block_tokens = (uint64_t)tierce__json_get_int(group, "block_tokens", 0)};
        tierce__line_put(&line, text);
        if (r->against != NULL)
            tierce__why_compare_text(&line, &comparison, &place);
        else
            put_source(&line, r, group);
    }
    if (line.text != NULL && !line.failed)
        fwrite(line.text, 1, line.bytes, stdout);
    tierce__line_clear(&line);
}

/* Prints the JSON answer, and returns its reason as an exit status. */
static int show(const struct why_request *r, const char *json)
{
    struct tierce__json_doc answer = {0};
    char *text = NULL, reason[64];
    int status = TIERCE__CLI_OK;
    if (tierce__json_parse(&answer, json, strlen(json), NULL) < 0 ||
        tierce__json_value_kind(answer.value) != '{' ||
        tierce__json_copy_text(&text, answer.value, "text") < 0 ||
        !tierce__json_get_text(reason, sizeof(reason), answer.value, "reason"))
        status = tierce__cli_fail("why", "the process did not send a valid answer");
    if (status == TIERCE__CLI_OK) {
        tierce__cli_clean(text);
        print_answer(r, json, text, answer.value);
    }
    if (status == TIERCE__CLI_OK && strcmp(reason, "none") != 0)
        status = TIERCE__CLI_FAILED;
    tierce__free(text);
    tierce__json_doc_clear(&answer);
    return status;
}

static void put_hex(struct tierce__line *out, const char *name, const uint8_t *bytes, size_t count)
{
    char text[3];
    tierce__line_put(out, name);
    for (size_t i = 0; i < count; i++) {
        tierce__hex_encode(text, bytes + i, 1);
        tierce__line_put(out, text);
    }
}

/* An argument of a URL. */
static void put_escaped(struct tierce__line *out, const char *text)
{
    char escaped[4];
    for (const char *c = text; *c != '\0'; c++) {
        snprintf(escaped, sizeof(escaped), isalnum((unsigned char)*c) ? "%c" : "%%%02X",
                 (unsigned char)*c);
        tierce__line_put(out, escaped);
    }
}

/* The path of the question, and its end. */
static void put_question(struct tierce__line *path, const struct why_request *r)
{
    tierce__line_put(path, "/why?");
    if (r->request != NULL) {
        tierce__line_put(path, "request=");
        put_escaped(path, r->request);
    } else if (r->hash != NULL) {
        tierce__line_put(path, "hash=");
        tierce__line_put(path, r->hash);
    } else {
        tierce__line_put(path, "namespace=");
        tierce__line_put(path, r->prompt.ns != NULL ? r->prompt.ns : "");
        tierce__line_put(path, "&shard=");
        tierce__line_put(path, r->shard != NULL ? r->shard : "0/1");
        put_hex(path, "&salt=", r->prompt.root.salt, r->prompt.root.salt_bytes);
        put_hex(path, "&lora=", r->prompt.root.lora, r->prompt.root.lora_bytes);
    }
    tierce__line_put_bytes(path, "", 1);
}

/* Queries the processes until one answers. Only the last one reports why it does not. */
static int ask_each(const struct why_request *r, const struct tierce__process *processes,
                    size_t count, const char *path, char **json)
{
    int status = TIERCE__CLI_FAILED;
    TIERCE_DASSERT(count > 0);
    for (size_t i = 0; i < count && status != TIERCE__CLI_OK; i++)
        status = tierce__process_ask("why", &processes[i], path,
                                     r->here.text != NULL ? r->here.text : "", i + 1 < count, json);
    return status;
}

static int ask_process(const struct why_request *r)
{
    struct tierce__process *processes;
    struct tierce__line path = {0};
    size_t count;
    char *json = NULL;
    int status = tierce__processes_find("why", r->where, &processes, &count);
    if (status == TIERCE__CLI_OK && count > 1 && r->request == NULL)
        status = tierce__cli_usage("why",
                                   "%zu processes have control sockets: name one (`tierce "
                                   "top` shows them)",
                                   count);
    if (status == TIERCE__CLI_OK) {
        put_question(&path, r);
        status = path.failed || path.bytes > 900 ? tierce__cli_fail("why", "--salt is too long")
                                                 : ask_each(r, processes, count, path.text, &json);
    }
    if (status == TIERCE__CLI_OK)
        status = show(r, json);
    tierce__free(json);
    tierce__line_clear(&path);
    tierce__free(processes);
    return status;
}

static int ask_folder(const struct why_request *r)
{
    struct tierce__line json = {0};
    int status = r->hash != NULL ? tierce__why_folder_hash(&json, r->where, &r->prefix)
                                 : tierce__why_folder(&json, r->where, &r->prompt);
    tierce__line_put_bytes(&json, "", 1);
    if (status == TIERCE__CLI_OK)
        status = json.failed ? tierce__cli_fail("why", "no memory") : show(r, json.text);
    tierce__line_clear(&json);
    return status;
}

int tierce__cli_why(int argc, char **argv)
{
    struct why_request r = {0};
    struct stat st;
    int status = read_args(&r, argc, argv);
    if (status == TIERCE__CLI_OK)
        status = check_args(&r);
    if (status == TIERCE__CLI_OK)
        status = read_prompts(&r);
    if (status == TIERCE__CLI_OK) {
        bool is_path = r.where != NULL && strspn(r.where, "0123456789") != strlen(r.where);
        bool is_socket = is_path && stat(r.where, &st) == 0 && S_ISSOCK(st.st_mode);
        bool is_folder = is_path && !is_socket;
        if (is_folder && r.request != NULL)
            status = tierce__cli_usage("why", "--request requires a running process: a folder has "
                                              "no record of requests");
        else
            status = is_folder ? ask_folder(&r) : ask_process(&r);
    }
    clear_prompt(&r.here);
    clear_prompt(&r.there);
    return status;
}
