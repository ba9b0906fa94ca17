/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_FAULTS_H
#define TIERCE_MANAGER_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Injected faults by API name: the debug service sets them, calls run into them. Threads: any.
 */

enum tierce__fault_kind { /* values of FaultType */
                          TIERCE__FAULT_INTERNAL_ERROR,
                          TIERCE__FAULT_DELAY = 100, /* answered correctly, but later */
                          TIERCE__FAULT_ERROR_CODE,  /* answered with an error code, not executed */
                          TIERCE__FAULT_DROP,        /* executed, never answered */
                          TIERCE__FAULT_NONE = -1,
};

struct tierce__fault {
    enum tierce__fault_kind kind;
    bool once; /* only for a trace_id that ends with '_' and `at_call` */
    int32_t at_call;
    int32_t delay_ms, code;
};

struct tierce__faults;

TIERCE_MUSTUSE int tierce__faults_create(struct tierce__faults **out);
void tierce__faults_destroy(struct tierce__faults *faults);

/* Sets a fault, replacing the previous one of that name. Errors: -ENOMEM, TIERCE_E_ARGUMENT (no RPC
 * of that name). */
TIERCE_MUSTUSE int tierce__faults_set(struct tierce__faults *faults, const char *api_name,
                                      const struct tierce__fault *fault);
/* -ENOENT. */
TIERCE_MUSTUSE int tierce__faults_remove(struct tierce__faults *faults, const char *api_name);
void tierce__faults_clear(struct tierce__faults *faults);

/* Returns the fault for this call; usually kind NONE, at the cost of one load. */
struct tierce__fault tierce__faults_meet(struct tierce__faults *faults, const char *api_name,
                                         const char *trace_id);

#endif
