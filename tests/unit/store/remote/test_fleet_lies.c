/* SPDX-License-Identifier: Apache-2.0 */
/* A connector through a manager whose answers are wrong: no crash, nothing wrong is read or
 * written, and a reason. */
#include "fleet_case.h"

static Meta__GetCacheLocationResponse *located(ProtobufCMessage *reply)
{
    return (Meta__GetCacheLocationResponse *)reply;
}

static Meta__StartWriteCacheResponse *started(ProtobufCMessage *reply)
{
    return (Meta__StartWriteCacheResponse *)reply;
}

/* Locations for keys that were not asked for: the reply gets more of them. */
static void lie_more(ProtobufCMessage *reply)
{
    Meta__GetCacheLocationResponse *it = located(reply);
    size_t count = it->n_locations + 7;
    Meta__CacheLocation **more = tierce__proto_alloc(reply, count * sizeof(*more));
    for (size_t i = 0; i < count; i++) {
        more[i] = i < it->n_locations ? it->locations[i]
                                      : (Meta__CacheLocation *)(void *)tierce__proto_add(
                                            reply, &meta__cache_location__descriptor);
    }
    it->locations = more;
    it->n_locations = count;
}

static void lie_fewer(ProtobufCMessage *reply)
{
    if (located(reply)->n_locations > 0)
        located(reply)->n_locations--;
}

static void lie_spec(ProtobufCMessage *reply)
{
    for (size_t i = 0; i < located(reply)->n_locations; i++)
        located(reply)->locations[i]->location_specs[0]->name = (char *)(uintptr_t) "other";
}

static void lie_no_specs(ProtobufCMessage *reply)
{
    for (size_t i = 0; i < located(reply)->n_locations; i++)
        located(reply)->locations[i]->n_location_specs = 0;
}

static void set_uris(ProtobufCMessage *reply, const char *uri)
{
    for (size_t i = 0; i < located(reply)->n_locations; i++) {
        if (located(reply)->locations[i]->location_specs[0]->uri[0] != '\0')
            located(reply)->locations[i]->location_specs[0]->uri = (char *)(uintptr_t)uri;
    }
}

static void lie_size(ProtobufCMessage *reply)
{
    set_uris(reply, "fake://s/5?size=18446744073709551615");
}

static void lie_short(ProtobufCMessage *reply)
{
    set_uris(reply, "fake://s/5?size=1");
}

static void lie_gone(ProtobufCMessage *reply)
{
    set_uris(reply, "fake://gone/5?size=8192");
}

static void lie_path(ProtobufCMessage *reply)
{
    set_uris(reply, "file:///etc/passwd");
}

static void lie_long(ProtobufCMessage *reply)
{
    enum { LONG = 1 << 20 };
    char *uri = tierce__proto_alloc(reply, LONG);
    ck_assert_ptr_nonnull(uri);
    memset(uri, 'a', LONG - 1);
    set_uris(reply, uri);
}

static fleet_fake_lie_fn *const location_lies[] = {
    lie_more, lie_fewer, lie_spec, lie_no_specs, lie_size, lie_short, lie_gone, lie_path, lie_long};
enum { LOCATION_LIES = sizeof(location_lies) / sizeof(*location_lies) };

/* A get asks for one place. */
static void ask_and_get(int status)
{
    ck_assert_int_eq(put(5), 0);
    forget(5);
    ck_assert_int_eq(get(5), status);
}

START_TEST(test_lies_about_locations)
{
    size_t found = 1;
    ck_assert_int_eq(put(5), 0);
    fleet_fake_lie(FLEET_FAKE_LOCATE, location_lies[_i]);
    ck_assert_int_eq(look_up(5, 1, &found), 0);
    ck_assert_uint_eq(found, 0);
    ask_and_get(TIERCE_E_MISS);
    if (location_lies[_i] == lie_gone)
        ck_assert_uint_ge(fleet_fake_outdated(), 1);
    if (_i != 1 && _i != 2 && _i != 3) /* an ordinary miss */
        ck_assert_str_ne(connector_why(connector), "");
    fleet_fake_lie(FLEET_FAKE_LOCATE, NULL);
    ask_and_get(0);
}
END_TEST

static void lie_start_fewer(ProtobufCMessage *reply)
{
    if (started(reply)->n_locations > 0)
        started(reply)->n_locations--;
}

static void lie_start_none(ProtobufCMessage *reply)
{
    started(reply)->n_locations = 0;
}

static void lie_no_mask(ProtobufCMessage *reply)
{
    started(reply)->block_mask = NULL;
    started(reply)->n_locations = 0;
}

static void lie_mask_long(ProtobufCMessage *reply)
{
    Meta__BoolMasksType *masks = started(reply)->block_mask->bool_masks;
    masks->n_values = 1000;
    masks->values = tierce__proto_alloc(reply, 1000 * sizeof(*masks->values));
    memset(masks->values, 1, 1000 * sizeof(*masks->values));
}

static void set_offset(ProtobufCMessage *reply, int32_t offset)
{
    started(reply)->block_mask->info_case = META__BLOCK_MASK__INFO_OFFSET;
    started(reply)->block_mask->offset = offset;
}

static void lie_mask_all(ProtobufCMessage *reply)
{
    set_offset(reply, -1);
}

static void lie_mask_far(ProtobufCMessage *reply)
{
    set_offset(reply, INT32_MAX);
}

static void lie_mask_min(ProtobufCMessage *reply)
{
    set_offset(reply, INT32_MIN);
}

static void lie_no_session(ProtobufCMessage *reply)
{
    started(reply)->write_session_id = (char *)(uintptr_t) "";
}

static void lie_long_session(ProtobufCMessage *reply)
{
    enum { LONG = 100000 };
    char *id = tierce__proto_alloc(reply, LONG);
    ck_assert_ptr_nonnull(id);
    memset(id, 'a', LONG - 1);
    started(reply)->write_session_id = id;
}

static void lie_start_uri(ProtobufCMessage *reply)
{
    for (size_t i = 0; i < started(reply)->n_locations; i++)
        started(reply)->locations[i]->location_specs[0]->uri = (char *)(uintptr_t) "file:///x";
}

static void lie_start_long(ProtobufCMessage *reply)
{
    enum { LONG = 1 << 20 };
    char *uri = tierce__proto_alloc(reply, LONG);
    memset(uri, 'a', LONG - 1);
    for (size_t i = 0; i < started(reply)->n_locations; i++)
        started(reply)->locations[i]->location_specs[0]->uri = uri;
}

static void lie_start_size(ProtobufCMessage *reply)
{
    for (size_t i = 0; i < started(reply)->n_locations; i++)
        started(reply)->locations[i]->location_specs[0]->uri =
            (char *)(uintptr_t) "fake://s/5?size=1";
}

static fleet_fake_lie_fn *const start_lies[] = {lie_start_fewer, lie_start_none, lie_no_mask,
                                                lie_mask_long,   lie_mask_all,   lie_mask_far,
                                                lie_mask_min,    lie_no_session, lie_long_session,
                                                lie_start_uri,   lie_start_long, lie_start_size};
enum { START_LIES = sizeof(start_lies) / sizeof(*start_lies) };

START_TEST(test_lies_about_writes)
{
    fleet_fake_lie(FLEET_FAKE_START, start_lies[_i]);
    submit_many(TIERCE__STORE_PUT, 0, 10, LATE_MS);
    for (uint32_t i = 0; i < 10; i++)
        ck_assert_int_lt(wait_call(&many[i]), 0);
    ck_assert_str_ne(connector_why(connector), "");
    ck_assert_uint_eq(store_connector_count(fleet_fake_store(), TIERCE__STORE_PUT), 0);
    fleet_fake_lie(FLEET_FAKE_START, NULL);
    ck_assert_int_eq(put(100), 0);
}
END_TEST

static void lie_metas(ProtobufCMessage *reply)
{
    ((Meta__GetCacheMetaResponse *)reply)->n_metas = 0;
}

static void lie_meta_locations(ProtobufCMessage *reply)
{
    ((Meta__GetCacheMetaResponse *)reply)->n_locations = 0;
}

static void lie_meta_text(ProtobufCMessage *reply)
{
    Meta__GetCacheMetaResponse *it = (Meta__GetCacheMetaResponse *)reply;
    for (size_t i = 0; i < it->n_metas; i++)
        it->metas[i] = (char *)(uintptr_t) "{\"status\":\"CLS_";
}

static fleet_fake_lie_fn *const meta_lies[] = {lie_metas, lie_meta_locations, lie_meta_text};

START_TEST(test_lies_about_states)
{
    fleet_fake_set(5, FLEET_FAKE_SERVING);
    fleet_fake_lie(FLEET_FAKE_META, meta_lies[_i]);
    ck_assert_int_lt(put(5), 0);
    ck_assert_str_ne(connector_why(connector), "");
    int rc = delete_left(name(5), TIERCE__LEFT_CHECKSUM);
    ck_assert(_i == 1 ? rc == -EPROTO : rc == 0); /* its place is not known, so META is asked */
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("fleet_lies");
    TCase *tcase = tcase_create("lies");
    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, test_lies_about_locations, 0, LOCATION_LIES);
    tcase_add_loop_test(tcase, test_lies_about_writes, 0, START_LIES);
    tcase_add_loop_test(tcase, test_lies_about_states, 0, 3);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return check_main(make_suite());
}
