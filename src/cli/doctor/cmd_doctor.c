/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "cli/cli.h"
#include "cli/doctor/doctor.h"
#include "core/codec/codec_plugin.h"
#include "core/device/cuda/cufile.h"
#include "core/policy/policy.h"
#include "engine/remotes.h"
#include "store/remote/nixl/nixl_connector.h"
#include "store/remote/nixl/nixl_library.h"
#include "store/remote/nixl/nixl_objects.h"

#include <stdint.h>
#include <string.h>

const char *const tierce__cli_doctor_help[] = {
    "Two instances can share KV only if every field of their namespaces is equal. A and B are "
    "each\n"
    "one of:\n"
    "\n"
    "  a store folder           its namespaces; if there are several, the best match is used\n"
    "  a namespace text         a file of STORE/ns\n"
    "  a description (YAML)     fields weights, model (a path, JSON text, or a mapping),\n"
    "                           kv_dtype, quantization, layout, layer_count, cell_bytes,\n"
    "                           block_tokens, chunk_tokens, hash; unknown ones may be left out\n"
    "  a configuration (YAML)   a file for `tierce config`, optionally with `model:`; codec.lossy\n"
    "                           is compared as part of quantization; a node's file states\n"
    "                           none, because its clients choose\n"
    "\n"
    "A model with several groups of layers has a namespace for each. It is shared only if all of "
    "its\n"
    "groups are shared.\n"
    "\n"
    "If remote.urls of a configuration has a store with nixl:// or s3+nixl://, one line says "
    "whether\n"
    "NIXL can be used on this machine, and one names its plug-ins that are not used. If a\n"
    "configuration sets disk.gpu_direct, one line says whether cuFile is present.\n"
    "\n"
    "Exit status: 0 no field that both sides state differs, 1 they cannot share, or a side cannot "
    "be\n"
    "read, 2 invalid arguments.\n",
    NULL};

#define VALUE_SHOWN 200
#define MODEL_SHOWN 20 /* differing values of the model that are printed */

/* Prints differences, or only counts them where `out` is NULL. */
struct printer {
    FILE *out;
    int printed;
};

static void print_value(FILE *out, const char *side, const char *value)
{
    char shown[VALUE_SHOWN];
    if (value == NULL) {
        fprintf(out, "    %s: (missing)\n", side);
        return;
    }
    tierce__text_for_message(shown, sizeof(shown), value);
    fprintf(out, "    %s: %s\n", side, *shown != '\0' ? shown : "(empty)");
}

static void print_difference(void *arg, const char *name, const char *a, const char *b)
{
    struct printer *printer = arg;
    char shown[VALUE_SHOWN];
    if (printer->out == NULL || printer->printed++ >= MODEL_SHOWN)
        return;
    tierce__text_for_message(shown, sizeof(shown), name);
    fprintf(printer->out, "  %s\n", shown);
    print_value(printer->out, "A", a);
    print_value(printer->out, "B", b);
}

/* Whether the models differ. Long JSON is compared value by value; between two complete
 * namespaces the text itself counts, because the digest covers it. */
static bool differs_in_model(const struct tierce__doctor_set *a, const struct tierce__doctor_set *b,
                             FILE *out)
{
    struct printer printer = {.out = out};
    struct tierce__doctor_model model_a = {tierce__doctor_find(a, "model"), a->raw_model};
    struct tierce__doctor_model model_b = {tierce__doctor_find(b, "model"), b->raw_model};
    bool exact = a->complete && b->complete;

    if (strcmp(model_a.json, model_b.json) == 0)
        return false;
    int count = tierce__doctor_diff_models(&model_a, &model_b, print_difference, &printer);
    if (count < 0) {
        print_difference(&printer, "model", model_a.json, model_b.json);
        return true;
    }
    if (out != NULL && count > MODEL_SHOWN)
        fprintf(out, "  model: and %d more values\n", count - MODEL_SHOWN);
    if (count == 0 && exact && out != NULL)
        fprintf(out, "  model\n    the same values, written differently (order or spaces); the "
                     "text counts\n");
    return count > 0 || exact;
}

/* The lossy codec of a set; NULL: KV is exact. */
static const struct tierce__codec *lossy_of(const struct tierce__doctor_set *set)
{
    const char *text = tierce__doctor_find(set, "quantization");
    if (text == NULL)
        return NULL;
    return set->names_codec && *text != '\0'
               ? tierce__codec_find(text + strlen(TIERCE__DOCTOR_LOSSY))
               : tierce__codec_of_quantization(text, NULL);
}

/* One field. Unknown on a side that is not complete: no difference. */
static int compare_field(const struct tierce__doctor_set *a, const struct tierce__doctor_set *b,
                         const char *name, FILE *out)
{
    struct printer printer = {.out = out};
    const char *value_a = tierce__doctor_find(a, name);
    const char *value_b = tierce__doctor_find(b, name);
    if ((value_a == NULL && !a->complete) || (value_b == NULL && !b->complete))
        return 0;
    if (value_a != NULL && value_b != NULL && strcmp(name, "model") == 0)
        return differs_in_model(a, b, out);
    if (value_a != NULL && value_b != NULL && strcmp(value_a, value_b) == 0)
        return 0;
    if (strcmp(name, "quantization") == 0 && (a->names_codec || b->names_codec) &&
        lossy_of(a) == lossy_of(b))
        return 0;
    print_difference(&printer, name, value_a, value_b);
    return 1;
}

/* Returns the number of fields that differ. */
static int compare(const struct tierce__doctor_set *a, const struct tierce__doctor_set *b,
                   FILE *out)
{
    int count = 0;
    for (size_t i = 0; i < a->count; i++)
        count += compare_field(a, b, a->fields[i].name, out);
    for (size_t i = 0; i < b->count; i++) {
        if (tierce__doctor_find(a, b->fields[i].name) == NULL)
            count += compare_field(a, b, b->fields[i].name, out);
    }
    return count;
}

/* Prints on one line the namespace fields that one side or both lack; nothing if there are none. */
static bool print_unknown(const struct tierce__doctor_set *a, const struct tierce__doctor_set *b)
{
    bool any = false;
    for (const char *const *name = tierce__doctor_names; *name != NULL; name++) {
        bool in_a = a->complete || tierce__doctor_find(a, *name) != NULL;
        bool in_b = b->complete || tierce__doctor_find(b, *name) != NULL;
        if (in_a && in_b)
            continue;
        printf("%s%s%s",
               any ? ", "
                   : "Not compared, because these files do not contain it (the engine adds it): ",
               *name, in_a ? " (missing in B)" : (in_b ? " (missing in A)" : ""));
        any = true;
    }
    if (any)
        printf("\n");
    return any;
}

/* Prints that codecs do not help a namespace, whose numbers they do not know. */
static void print_codec(const struct tierce__doctor_set *set)
{
    const char *dtype = tierce__doctor_find(set, "kv_dtype");
    if (dtype != NULL && tierce__element_of_dtype(dtype) == TIERCE__ELEMENT_RAW)
        printf(
            "disk.codec and remote.codec store chunks of kv_dtype %s unchanged; bfloat16, float16, "
            "fp8, fp8_e4m3 and fp8_e5m2 are encoded.\n",
            dtype);
}

/* Prints the lossy codec of a namespace or a configuration. `side`: "A: ", or "" for both. */
static void print_lossy(const char *side, const struct tierce__doctor_set *set)
{
    const struct tierce__codec *codec = lossy_of(set);
    if (codec != NULL)
        printf("%sKV on disk and in remote stores is lossy: codec %s (codec.lossy).\n", side,
               codec->name);
}

/* The kind of the engine, the first word of "engine" in the canonical JSON of its layout; or empty.
 */
static int engine_of(const struct tierce__doctor_set *set, const char **name)
{
    static const char key[] = "\"engine\":\"";
    const char *layout = tierce__doctor_find(set, "layout");
    const char *found = layout != NULL ? strstr(layout, key) : NULL;
    *name = found != NULL ? found + sizeof(key) - 1 : "";
    return (int)strcspn(*name, " \"");
}

/* Prints that no setting would let engines of two kinds share. */
static void print_engines(const struct tierce__doctor_set *a, const struct tierce__doctor_set *b)
{
    const char *of_a, *of_b;
    int length_a = engine_of(a, &of_a), length_b = engine_of(b, &of_b);
    if (length_a == 0 || length_b == 0 ||
        (length_a == length_b && strncmp(of_a, of_b, (size_t)length_a) == 0))
        return;
    printf(
        "A is of %.*s and B of %.*s: they name their blocks by hashes of different inputs, so no "
        "setting lets them share KV.\n",
        length_a, of_a, length_b, of_b);
}

/* Prints the result of comparing two sets. Returns whether they can share. */
static bool judge(const struct tierce__doctor_set *a, const struct tierce__doctor_set *b)
{
    printf("A: %s\nB: %s\n", a->title, b->title);
    int count = compare(a, b, NULL);
    if (count > 0) {
        printf("They cannot share: %d field%s differ%s.\n", count, count == 1 ? "" : "s",
               count == 1 ? "s" : "");
        compare(a, b, stdout);
        print_engines(a, b);
        print_lossy("A: ", a);
        print_lossy("B: ", b);
        print_unknown(a, b);
        return false;
    }
    if (a->complete && b->complete) {
        printf("They can share: every field of the namespace is equal.\n");
        print_lossy("", a);
        print_codec(a);
        return true;
    }
    printf(
        "They can share as far as these sources show: every field that both contain is equal.\n");
    print_unknown(a, b);
    if (a->raw_model != b->raw_model && tierce__doctor_find(a, "model") != NULL &&
        tierce__doctor_find(b, "model") != NULL)
        printf("Only the fields in the model's own file were compared; an engine adds others.\n");
    print_lossy("A: ", a);
    print_lossy("B: ", b);
    print_codec(a);
    return true;
}

/* The set of `side` with the fewest differences from `set`. */
static const struct tierce__doctor_set *best_match(const struct tierce__doctor_set *set,
                                                   const struct tierce__doctor_side *side)
{
    const struct tierce__doctor_set *best = NULL;
    int best_count = 0;
    for (size_t i = 0; i < side->count; i++) {
        int count = compare(set, &side->sets[i], NULL);
        if (best == NULL || count < best_count) {
            best = &side->sets[i];
            best_count = count;
        }
    }
    return best;
}

/* Whether both lack the field, or have the same value. */
static bool is_equal(const struct tierce__doctor_set *a, const struct tierce__doctor_set *b,
                     const char *name)
{
    const char *value_a = tierce__doctor_find(a, name), *value_b = tierce__doctor_find(b, name);
    return value_a == value_b ||
           (value_a != NULL && value_b != NULL && strcmp(value_a, value_b) == 0);
}

/* Whether two sets are groups of layers of one model. */
static bool is_same_model(const struct tierce__doctor_set *a, const struct tierce__doctor_set *b)
{
    return tierce__doctor_find(a, "group") != NULL && tierce__doctor_find(b, "group") != NULL &&
           is_equal(a, b, "weights") && is_equal(a, b, "model");
}

/* Whether a set with these layers is shared. The layout and the sizes may differ from group to
 * group, so layers are what identifies a group of a model. */
static bool has_shared_layers(const struct tierce__doctor_side *side,
                              const struct tierce__doctor_set *set)
{
    for (size_t i = 0; i < side->count; i++) {
        const struct tierce__doctor_set *other = &side->sets[i];
        if (other->shared && is_same_model(other, set) && is_equal(other, set, "layers"))
            return true;
    }
    return false;
}

/* A group of the model of `set` that is not shared, or NULL. */
static const struct tierce__doctor_set *missing_group(const struct tierce__doctor_side *side,
                                                      const struct tierce__doctor_set *set)
{
    for (size_t i = 0; i < side->count; i++) {
        const struct tierce__doctor_set *other = &side->sets[i];
        if (is_same_model(other, set) && !has_shared_layers(side, other))
            return other;
    }
    return NULL;
}

/* Whether the namespace helps: an engine finds nothing of a model that lacks a group. */
static bool is_usable(const struct tierce__doctor_side *side, const struct tierce__doctor_set *set)
{
    const struct tierce__doctor_set *missing = set->shared ? missing_group(side, set) : NULL;
    if (missing != NULL)
        printf("\n%s: cannot be used, because the same model's group of layers %s (%s) cannot be "
               "shared: a hit requires all groups.\n",
               set->title, tierce__doctor_find(missing, "layers"),
               tierce__doctor_find(missing, "group"));
    return set->shared && missing == NULL;
}

static int judge_sides(const struct tierce__doctor_side *a, const struct tierce__doctor_side *b)
{
    size_t usable = 0, sharing = 0;
    for (size_t i = 0; i < a->count; i++) {
        if (i > 0)
            printf("\n");
        a->sets[i].shared = judge(&a->sets[i], best_match(&a->sets[i], b));
        sharing += a->sets[i].shared;
    }
    for (size_t i = 0; i < a->count; i++)
        usable += is_usable(a, &a->sets[i]);
    TIERCE_ASSERT(usable <= sharing);
    if (a->count > 1)
        printf("\n%zu of %zu namespaces of A can be shared with B.\n", sharing, a->count);
    return usable > 0 ? TIERCE__CLI_OK : TIERCE__CLI_FAILED;
}

static const struct nixl_scheme {
    const char *begins; /* the URL */
    const char *plugin;
} nixl_schemes[] = {{"nixl://", "POSIX"}, {TIERCE__NIXL_OBJECTS_SCHEME "://", "OBJ"}};

/* NULL: the URL does not require NIXL. */
static const struct nixl_scheme *find_nixl_scheme(const char *url)
{
    for (size_t i = 0; i < sizeof(nixl_schemes) / sizeof(*nixl_schemes); i++) {
        if (strncmp(url, nixl_schemes[i].begins, strlen(nixl_schemes[i].begins)) == 0)
            return &nixl_schemes[i];
    }
    return NULL;
}

/* Prints a line for each URL of a configuration that requires NIXL: whether it is usable here.
 * After these, a line about the plug-ins that are not used. */
static void print_nixl(const struct tierce__doctor_side *side, const char *name)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    char *rest = side->count == 1 ? side->sets[0].remote_urls : NULL, *url;
    bool any = false;
    while (rest != NULL && (url = strtok_r(rest, " \t\r\n", &rest)) != NULL) {
        const struct nixl_scheme *scheme = find_nixl_scheme(url);
        if (scheme == NULL)
            continue;
        any = true;
        tierce__remotes_drop_params(url);
        if (tierce__nixl_check(url, why) == 0)
            printf("%s: %s can be used on this machine: NIXL " TIERCE__NIXL_VERSION
                   " and its plug-in %s are present.\n",
                   name, scheme->begins, scheme->plugin);
        else
            printf("%s: %s cannot be used on this machine: %s\n", name, scheme->begins, why);
    }
    if (any)
        printf(
            "%s: Tierce uses NIXL's plug-ins POSIX (nixl://) and OBJ (s3+nixl://) only. GPUDirect "
            "storage (GDS, GDS_MT), 3FS (HF3FS) and RDMA (UCX) through NIXL are not used, and "
            "have never run with Tierce.\n",
            name);
}

/* The same for disk.gpu_direct. */
static void print_gpu_direct(const struct tierce__doctor_side *side, const char *name)
{
    char why[TIERCE__CUFILE_WHY_BYTES];
    if (side->count != 1 || !side->sets[0].gpu_direct)
        return;
    if (tierce__cufile_check(why) == 0)
        printf("%s: disk.gpu_direct: libcufile.so.0 is present on this machine.\n", name);
    else
        printf("%s: disk.gpu_direct cannot be used on this machine: %s\n", name, why);
}

/* The same for policies and codecs in shared objects, which are loaded. */
static void print_plugins(const struct tierce__doctor_side *side, const char *name)
{
    static const char *const settings[] = {"memory.policy", "disk.policy", "disk.codec",
                                           "remote.codec"};
    enum { POLICIES = 2 };
    for (size_t i = 0; side->count == 1 && i < sizeof(settings) / sizeof(settings[0]); i++) {
        const char *url = side->sets[0].plugins[i];
        const struct tierce__policy_ops *policy = NULL;
        const struct tierce__codec *codec = NULL;
        char why[TIERCE__URL_WHY_BYTES];
        if (url == NULL)
            continue;
        int rc = i < POLICIES ? tierce__policy_open(&policy, url, why)
                              : tierce__codec_open(&codec, url, why);
        if (rc == 0)
            printf("%s: %s can be used on this machine: the plug-in has the %s %s.\n", name,
                   settings[i], i < POLICIES ? "policy" : "codec",
                   i < POLICIES ? policy->name : codec->name);
        else
            printf("%s: %s cannot be used on this machine: %s\n", name, settings[i], why);
    }
}

int tierce__cli_doctor(int argc, char **argv)
{
    struct tierce__doctor_side a = {0}, b = {0};
    char why[TIERCE__DOCTOR_WHY_BYTES] = "";
    int status;

    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1] != '\0')
            return tierce__cli_usage("doctor", "there is no option \"%.100s\"", argv[i]);
    }
    if (argc != 3)
        return tierce__cli_usage("doctor", "requires two sources, A and B; %d given", argc - 1);
    if (tierce__doctor_read(&a, argv[1], why) != 0 || tierce__doctor_read(&b, argv[2], why) != 0)
        status = tierce__cli_fail("doctor", "%s", why);
    else
        status = judge_sides(&a, &b);
    print_nixl(&a, "A");
    print_nixl(&b, "B");
    print_gpu_direct(&a, "A");
    print_gpu_direct(&b, "B");
    print_plugins(&a, "A");
    print_plugins(&b, "B");
    tierce__doctor_clear(&a);
    tierce__doctor_clear(&b);
    return status;
}
