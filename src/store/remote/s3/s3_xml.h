/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_S3_XML_H
#define TIERCE_CONNECTOR_S3_XML_H

#include <stdbool.h>
#include <stddef.h>

#include <tierce/status.h>

/*
 * The answers of S3 in XML: elements and texts. Attributes and content outside the root element are
 * ignored; names have no namespace. Document types, CDATA, comments between elements and numeric
 * characters beyond ASCII, which S3 does not send, are rejected. Hostile bytes yield
 * TIERCE_E_FORMAT and nothing worse.
 *
 * Nothing here allocates. Thread: any.
 */

#define TIERCE__S3_XML_DEPTH_MAX 8u
#define TIERCE__S3_XML_TEXT_MAX  8192u /* of one element, once its entities are replaced */

/* Called for each element that contains no other: its path, such as
 * "ListBucketResult/Contents/Key", and its NUL-terminated text. [borrow for the call] Returns false
 * to stop reading. */
typedef bool tierce__s3_xml_leaf_fn(void *arg, const char *path, const char *text, size_t bytes);

/* Errors: TIERCE_E_FORMAT (also: `leaf` returned false, or no element at all). */
TIERCE_MUSTUSE int tierce__s3_xml_read(const char *xml, size_t bytes, tierce__s3_xml_leaf_fn *leaf,
                                       void *arg);

/* Called at the end of each element that contains others. */
typedef void tierce__s3_xml_end_fn(void *arg, const char *path);

/* The same, with the ends of elements. */
TIERCE_MUSTUSE int tierce__s3_xml_read_groups(const char *xml, size_t bytes,
                                              tierce__s3_xml_leaf_fn *leaf,
                                              tierce__s3_xml_end_fn *end, void *arg);

/* Copies the text of the first leaf with that path. Errors: TIERCE_E_FORMAT (the XML is wrong, or
 * its text does not fit), TIERCE_E_MISS (there is none). */
TIERCE_MUSTUSE int tierce__s3_xml_find(char *text, size_t room, const char *xml, size_t bytes,
                                       const char *path);

#endif
