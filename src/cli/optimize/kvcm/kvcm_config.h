/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_KVCM_CONFIG_H
#define TIERCE_CLI_KVCM_CONFIG_H

#include "optimizer/kvcm/kvcm.h"

/*
 * The configuration of KVCM's own optimizer, a JSON file. Errors name unknown fields and missing
 * ones. Capacities are blocks; if a group evicts by tiers, its capacity is that of the first tier,
 * because KVCM evicts only there.
 */

struct tierce__kvcm_config_group {
    char *name;
    uint64_t capacity;
    double used_share;
};

struct tierce__kvcm_config_instance {
    char *name;
    enum tierce__kvcm_kind kind;
    double sample_rate;
    uint32_t group;
};

struct tierce__kvcm_config {
    char *trace_path, *output_path; /* as they are written */
    const char *format;             /* of the trace, a name of trace_formats.def */
    enum tierce__kvcm_mode mode;
    uint32_t batch;
    struct tierce__kvcm_config_group *groups;
    uint32_t group_count;
    struct tierce__kvcm_config_instance *instances; /* by group, in the order of the file */
    uint32_t instance_count;
};

#define TIERCE__KVCM_CONFIG_WHY_BYTES 512u

/* Errors, *out untouched and `why` a sentence: negative errno (the file), -ENOMEM,
 * TIERCE_E_FORMAT. */
TIERCE_MUSTUSE int tierce__kvcm_config_read(struct tierce__kvcm_config *out, const char *path,
                                            char why[TIERCE__KVCM_CONFIG_WHY_BYTES]);

/* The same for a text in memory. */
TIERCE_MUSTUSE int tierce__kvcm_config_read_text(struct tierce__kvcm_config *out, const char *text,
                                                 char why[TIERCE__KVCM_CONFIG_WHY_BYTES]);

/* Accepts a zeroed config. */
void tierce__kvcm_config_clear(struct tierce__kvcm_config *config);

/*
 * The layout for a trace with these instances: first these, by their index, then those that only
 * the configuration has. *names_out gets the name of each [heap, tierce__free; the names borrow].
 * If a trace does not name its instance, it is the instance "instance", or the only one. Errors,
 * outputs untouched and `why` a sentence: -ENOMEM, TIERCE_E_ARGUMENT (the trace has an instance
 * that the config has not).
 */
TIERCE_MUSTUSE int tierce__kvcm_config_layout(struct tierce__kvcm_layout *out,
                                              const char ***names_out,
                                              const struct tierce__kvcm_config *config,
                                              const char *const *instances, uint32_t instance_count,
                                              char why[TIERCE__KVCM_CONFIG_WHY_BYTES]);

#endif
