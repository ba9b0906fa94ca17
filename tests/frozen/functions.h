/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_FROZEN_FUNCTIONS_H
#define TIERCE_TESTS_FROZEN_FUNCTIONS_H

#include <tierce/plugin.h>
#include <tierce/plugin_codec.h>
#include <tierce/plugin_policy.h>
#include <tierce/tierce.h>

/*
 * Every public function, declared a second time: another type than that of the public header does
 * not compile. tests/frozen/symbols.txt lists the symbols.
 */

const char *tierce_strerror(int);
const char *tierce_error_name(int);
int tierce_config_create(struct tierce_config **);
void tierce_config_destroy(struct tierce_config *);
int tierce_config_load_file(struct tierce_config *, const char *, char[512]);
int tierce_config_load_env(struct tierce_config *, char[512]);
int tierce_config_set(struct tierce_config *, const char *, const char *, char[512]);
const char *tierce_config_get(const struct tierce_config *, const char *);
void tierce_config_print(const struct tierce_config *, FILE *);
const char *tierce_chain_algo_name(enum tierce_chain_algo);
int tierce_chain_algo_parse(enum tierce_chain_algo *, const char *);
const char *tierce_group_name(enum tierce_group);
int tierce_namespace_text(char **, const struct tierce_namespace *);
void tierce_namespace_digest(uint8_t[32], const char *);
int tierce_namespace_diff(const char *, const char *, tierce_namespace_diff_fn *, void *);
void tierce_free(void *);
int tierce_weights_fingerprint(char[65], const char *, const struct tierce_fingerprint_opts *);
int tierce_chain_create(struct tierce_chain **, const struct tierce_chain_opts *);
void tierce_chain_destroy(struct tierce_chain *);
int64_t tierce_chain_append(struct tierce_chain *, const int32_t *, size_t,
                            const struct tierce_chain_extras *);
int64_t tierce_chain_append_hashes(struct tierce_chain *, const uint8_t *, size_t);
size_t tierce_chain_blocks(const struct tierce_chain *);
const uint8_t *tierce_chain_hash(const struct tierce_chain *, size_t);
const uint8_t *tierce_chain_root_hash(const struct tierce_chain *);
void tierce_chain_reset(struct tierce_chain *);
int tierce_engine_open(struct tierce_engine **, const struct tierce_config *, char[512]);
void tierce_engine_close(struct tierce_engine *);
int tierce_engine_flush(struct tierce_engine *, uint32_t);
void tierce_engine_stats(struct tierce_engine *, struct tierce_engine_stats *);
int tierce_view_open(struct tierce_view **, struct tierce_engine *, const struct tierce_namespace *,
                     const struct tierce_shard *);
int tierce_view_open_part(struct tierce_view **, struct tierce_engine *,
                          const struct tierce_namespace *, const struct tierce_shard *,
                          const struct tierce_part *);
void tierce_view_close(struct tierce_view *);
const char *tierce_view_namespace(const struct tierce_view *);
uint64_t tierce_view_needs(const struct tierce_view *, uint64_t);
int tierce_view_prepare(struct tierce_view *, const struct tierce_paged *);
int tierce_view_chain(struct tierce_chain **, const struct tierce_view *,
                      const struct tierce_chain_root *);
void tierce_view_computed(struct tierce_view *, uint64_t, uint64_t);
int tierce_lookup(struct tierce_view *, const struct tierce_chain *, uint64_t,
                  const struct tierce_lookup_opts *, struct tierce_found *);
int tierce_durable(struct tierce_view *, const struct tierce_chain *, uint64_t, uint64_t *);
void tierce_unpin(struct tierce_view *, uint64_t);
int tierce_session_hint(struct tierce_view *, uint64_t, enum tierce_hint);
int tierce_session_returns(struct tierce_view *, uint64_t, uint32_t);
int tierce_store_begin(struct tierce_store **, struct tierce_view *,
                       const struct tierce_transfer_opts *);
int tierce_store_layer(struct tierce_store *, uint32_t);
int64_t tierce_store_end(struct tierce_store *);
void tierce_store_abort(struct tierce_store *);
int64_t tierce_store(struct tierce_view *, const struct tierce_transfer_opts *);
int tierce_load_begin(struct tierce_load **, struct tierce_view *,
                      const struct tierce_transfer_opts *);
int tierce_load_layer(struct tierce_load *, uint32_t);
int64_t tierce_load_end(struct tierce_load *, uint8_t *);
void tierce_load_abort(struct tierce_load *);
int64_t tierce_load(struct tierce_view *, const struct tierce_transfer_opts *, uint8_t *);
const char *tierce_miss_name(enum tierce_miss_reason);
const char *tierce_miss_text(enum tierce_miss_reason);
int tierce_why(struct tierce_view *, const struct tierce_chain *, uint64_t, uint64_t,
               struct tierce_miss *);
int tierce_request_note(struct tierce_engine *, const struct tierce_request *);
int tierce_events_subscribe(struct tierce_subscription **, struct tierce_engine *,
                            const struct tierce_events_opts *);
void tierce_events_unsubscribe(struct tierce_subscription *);
int tierce_events_snapshot(struct tierce_subscription *, uint64_t *, tierce_events_fn *, void *);
void tierce_set_log_fn(tierce_log_fn *, void *, enum tierce_log_level);
void tierce_set_panic_fn(tierce_panic_fn *);
const char *tierce_mode_name(enum tierce_mode);
int tierce_engine_set_mode(struct tierce_engine *, enum tierce_mode);
int tierce_engine_set_role(struct tierce_engine *, const char *);
enum tierce_mode tierce_engine_mode(const struct tierce_engine *);
int64_t tierce_engine_clear(struct tierce_engine *, uint32_t, const struct tierce_view *);
int64_t tierce_copy(struct tierce_view *, const struct tierce_chain *, uint64_t,
                    const struct tierce_copy_opts *);
int tierce_prefetch_begin(struct tierce_prefetch **, struct tierce_view *,
                          const struct tierce_chain *, uint64_t,
                          const struct tierce_prefetch_opts *);
bool tierce_prefetch_poll(struct tierce_prefetch *, struct tierce_prefetch_result *);
int tierce_prefetch_wait(struct tierce_prefetch *, uint32_t);
void tierce_prefetch_end(struct tierce_prefetch *);
const char *tierce_version(void);
const struct tierce_plugin *tierce_plugin(void);
const struct tierce_plugin_codec *tierce_plugin_codec(void);
const struct tierce_plugin_policy *tierce_plugin_policy(void);

#endif
