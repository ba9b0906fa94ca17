/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/why/why_text.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "cli/cli.h"
#include "engine/why/why_prompt.h"

#include <errno.h>
#include <regex.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUTPUT_BYTES_MAX (256u << 20)
#define SHOWN_BYTES      72u
/* A value that differs may begin before the first token that differs. */
#define BEFORE_BYTES 24u

extern char **environ;

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Two lines: the ids, and the byte where each token begins. */
static const char script[] =
    "import os, sys\n"
    "try:\n"
    "    from tokenizers import Tokenizer\n"
    "except ImportError as error:\n"
    "    sys.exit(f'{sys.executable}: {error}; pip install tokenizers, or set TIERCE_PYTHON')\n"
    "path, specials = sys.argv[1], sys.argv[2] == '1'\n"
    "if os.path.isdir(path):\n"
    "    path = os.path.join(path, 'tokenizer.json')\n"
    "try:\n"
    "    text = sys.stdin.buffer.read().decode()\n"
    "except UnicodeDecodeError as error:\n"
    "    at = error.start\n"
    "    sys.exit(f'tierce why: {sys.argv[3]}: is not UTF-8 text: byte {at} is "
    "0x{error.object[at]:02x}')\n"
    "try:\n"
    "    made = Tokenizer.from_file(path).encode(text, add_special_tokens=specials)\n"
    "except Exception as error:\n"
    "    sys.exit(f'{path}: {error}')\n"
    "at = [0]\n"
    "for letter in text:\n"
    "    at.append(at[-1] + len(letter.encode()))\n"
    "print(*made.ids)\n"
    "print(*(at[start] for start, _ in made.offsets))\n";

/* Runs the script with these files as input and output. Returns its wait status, or a negative
 * errno. */
static int run_script(const char *tokenizer, const char *path, bool specials, int input, int output)
{
    const char *python = getenv("TIERCE_PYTHON");
    char *argv[] = {(char *)(uintptr_t)(python != NULL && *python != '\0' ? python : "python3"),
                    (char *)(uintptr_t) "-c",
                    (char *)(uintptr_t)script,
                    (char *)(uintptr_t)tokenizer,
                    (char *)(uintptr_t)(specials ? "1" : "0"),
                    (char *)(uintptr_t)path,
                    NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status, rc = posix_spawn_file_actions_init(&actions);
    if (rc != 0)
        return -rc;
    rc = posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
    if (rc == 0)
        rc = posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    if (rc == 0)
        rc = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (rc != 0)
        return tierce__cli_fail("why", "%.200s: %s; set TIERCE_PYTHON to a Python interpreter",
                                argv[0], strerror(rc));
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            return -errno;
    }
    return status;
}

/* Reads the output of the script: heap, NUL-terminated. */
static int read_output(char **out, int fd)
{
    off_t bytes = lseek(fd, 0, SEEK_END);
    if (bytes < 0 || (uint64_t)bytes > OUTPUT_BYTES_MAX)
        return -EFBIG;
    char *text = tierce__alloc((size_t)bytes + 1);
    if (text == NULL)
        return -ENOMEM;
    if (pread(fd, text, (size_t)bytes, 0) != bytes) {
        tierce__free(text);
        return -EIO;
    }
    text[bytes] = '\0';
    *out = text;
    return 0;
}

/* Cuts the output into its two lines. */
static int take_output(struct tierce__why_text_source *out, char *output)
{
    char why[TIERCE__PROMPT_WHY_BYTES];
    int32_t *ids = NULL;
    size_t count = 0;
    char *second = strchr(output, '\n');
    out->ids = output;
    if (second == NULL)
        return TIERCE_E_FORMAT;
    *second++ = '\0';
    int rc = tierce__prompt_tokens(&out->starts, &out->count, second, strlen(second), why);
    if (rc == 0)
        rc = tierce__prompt_tokens(&ids, &count, out->ids, strlen(out->ids), why);
    tierce__free(ids);
    return rc == 0 && count != out->count ? TIERCE_E_FORMAT : rc;
}

static int tokenize_in(struct tierce__why_text_source *out, const char *tokenizer, const char *path,
                       bool specials, int input, int output)
{
    size_t bytes = strlen(out->text);
    char *made = NULL;
    if (write(input, out->text, bytes) != (ssize_t)bytes || lseek(input, 0, SEEK_SET) != 0)
        return tierce__cli_fail("why", "out of memory for the prompt");
    int rc = run_script(tokenizer, path, specials, input, output);
    if (rc != 0) /* the script has printed the reason */
        return rc < 0 ? tierce__cli_fail("why", "%s", strerror(-rc)) : TIERCE__CLI_FAILED;
    rc = read_output(&made, output);
    if (rc == 0)
        rc = take_output(out, made);
    if (rc < 0)
        return tierce__cli_fail("why", "the tokens of %.200s: %s", tokenizer, tierce_strerror(rc));
    return TIERCE__CLI_OK;
}

int tierce__why_tokenize(struct tierce__why_text_source *out, const char *tokenizer,
                         const char *path, bool specials)
{
    int input = memfd_create("tierce-why-text", MFD_CLOEXEC);
    int output = memfd_create("tierce-why-tokens", MFD_CLOEXEC);
    int status = input >= 0 && output >= 0
                     ? tokenize_in(out, tokenizer, path, specials, input, output)
                     : tierce__cli_fail("why", "memory for the prompt: %s", strerror(errno));
    if (input >= 0)
        close(input);
    if (output >= 0)
        close(output);
    return status;
}

void tierce__why_text_clear(struct tierce__why_text_source *source)
{
    tierce__free(source->text);
    tierce__free(source->ids);
    tierce__free(source->starts);
    *source = (struct tierce__why_text_source){0};
}

/* ---- what differs ---------------------------------------------------------------------------- */

/* The first pattern that matches counts. */
static const struct {
    const char *pattern, *what;
} suspects[] = {
    {"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}", "an id (UUID)"},
    {"(19|20)[0-9]{2}-[01][0-9]-[0-3][0-9]|[0-2]?[0-9]:[0-5][0-9](:[0-5][0-9])?", "a date or time"},
    {"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* [0-3]?[0-9],? (19|20)[0-9]{2}",
     "a date"},
    {"[0-9]{10,}", "a number such as a time or an id"},
    {"[0-9a-fA-F]{16,}", "an id (hexadecimal)"},
    {"\"(parameters|input_schema|function|tools)\" *:", "a list of tools"},
    {"<\\|[a-z_]+\\|>|\\[/?INST\\]", "a part of the chat template"},
};

static void put_quoted(struct tierce__line *out, const char *text, size_t bytes)
{
    char shown[SHOWN_BYTES + 1];
    bool is_all = bytes <= SHOWN_BYTES;
    bytes = is_all ? bytes : SHOWN_BYTES;
    memcpy(shown, text, bytes);
    for (size_t i = 0; i < bytes; i++) {
        if (shown[i] == '\n' || shown[i] == '\r' || shown[i] == '\t')
            shown[i] = ' ';
    }
    shown[bytes] = '\0';
    tierce__cli_clean(shown);
    tierce__line_put(out, "\"");
    tierce__line_put(out, shown);
    tierce__line_put(out, is_all ? "\"" : "...\"");
}

/* The first match that ends after `skip` bytes. */
static bool find_match(regmatch_t *out, const regex_t *regex, const char *text, size_t skip)
{
    size_t at = 0;
    while (regexec(regex, text + at, 1, out, 0) == 0 && out->rm_eo > 0) {
        out->rm_so += (regoff_t)at;
        out->rm_eo += (regoff_t)at;
        if ((size_t)out->rm_eo > skip)
            return true;
        at = (size_t)out->rm_eo;
    }
    return false;
}

/* The first `skip` bytes precede the missing part. */
static void put_suspect(struct tierce__line *out, const char *text, size_t skip)
{
    for (size_t i = 0; i < sizeof(suspects) / sizeof(suspects[0]); i++) {
        regex_t regex;
        regmatch_t match;
        if (regcomp(&regex, suspects[i].pattern, REG_EXTENDED) != 0)
            continue;
        bool is_match = find_match(&match, &regex, text, skip);
        regfree(&regex);
        if (!is_match)
            continue;
        tierce__line_put(out, "suspect    ");
        put_quoted(out, text + match.rm_so, (size_t)(match.rm_eo - match.rm_so));
        tierce__line_put(out, ", ");
        tierce__line_put(out, suspects[i].what);
        tierce__line_put(out, ": it may differ in each request\n");
        return;
    }
}

void tierce__why_text_show(struct tierce__line *out, const struct tierce__why_text_source *source,
                           uint64_t from, uint64_t to)
{
    size_t bytes = strlen(source->text);
    if (from >= source->count || from >= to)
        return;
    size_t begin = (size_t)source->starts[from];
    size_t end = to < source->count ? (size_t)source->starts[to] : bytes;
    TIERCE_DASSERT(begin <= bytes && end <= bytes);
    if (begin >= end)
        return;
    size_t before = begin > BEFORE_BYTES ? begin - BEFORE_BYTES : 0;
    char *part = tierce__alloc(end - before + 1);
    if (part == NULL)
        return;
    memcpy(part, source->text + before, end - before);
    part[end - before] = '\0';
    tierce__line_put(out, "text       ");
    put_quoted(out, source->text + begin, end - begin);
    tierce__line_put(out, "\n");
    put_suspect(out, part, begin - before);
    tierce__free(part);
}
