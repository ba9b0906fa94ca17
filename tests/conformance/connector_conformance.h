/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_CONNECTOR_CONFORMANCE_H
#define TIERCE_TESTS_CONNECTOR_CONFORMANCE_H

#include "store/remote/connector.h"
#include "connector_harness.h"

/*
 * The contract of every connector, for any store. A test program names its stores and runs them:
 *
 *     static const struct connector_factory factories[] = {{.name = "file", .start = ...}};
 *     int main(void) { return connector_conformance_main(factories, 1); }
 *
 * Each test has an empty store and runs in a process of its own. The stores of the factories are
 * tested at once, each by a process that starts it.
 */

struct connector_factory {
    const char *name;
    /* Starts an empty store, whose URL is written to `url`; false fails the test. */
    bool (*start)(char *url, size_t room, void *ctx);
    /* Makes a store that was started an empty one again, at the same URL or at a new one. NULL: it
     * cannot be shared, and each test starts its own. */
    bool (*renew)(char *url, size_t room, void *ctx);
    /* Ends the store and all that is left of it. */
    void (*stop)(void *ctx);
    void *ctx;
    unsigned caps; /* that its connector must have */
    /* names=path: a name that is not a path of plain parts is TIERCE_E_ARGUMENT. */
    bool has_paths;
    /* It is tested behind the connector that encodes chunks, which changes no other object. */
    bool codes;
    /* A LOOKUP of one name tells the object's length. */
    bool has_lengths;
    /* A PUT writes where the object lies, so that a reader may see a part of it. */
    bool is_in_place;
    /* NULL: any text is a name, and any bytes are an object. Otherwise names are texts of keys:
     * `key` writes the one that stands for a text, and all objects have object_bytes. */
    void (*key)(char out[TIERCE__CONNECTOR_NAME_MAX + 1], const char *text);
    uint64_t object_bytes;
    struct tierce__namespaces **namespaces; /* of these keys */
    /* Number of names in an EXISTS; 0: 600. Lower for a store that needs one query per name. */
    uint32_t exists;
    /* How many names a LIST has to find, 600 where this is 0, and by how many prefixes, all where
     * this is 0: fewer for a store that reads each object for it, or each folder, if the same code
     * is tested with all of them by another factory. */
    uint32_t listed, prefixes;
    /* Its threads are those of another factory of the same test: it is left out with the thread
     * sanitizer. */
    bool is_twin;
};

/* Runs all tests over all factories. Returns the exit status of the program. */
int connector_conformance_main(const struct connector_factory *factories, size_t count);

#endif
