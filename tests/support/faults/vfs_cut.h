/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_VFS_CUT_H
#define TIERCE_BASE_VFS_CUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * The undo log for a simulated power cut: every change to files that no sync has made durable, with
 * the replaced data, so that the change can be undone. Owned by the fault vfs. Thread: one at a
 * time; the owner locks. Blocks on the disk.
 */

struct tierce__cut;
struct tierce__cut_file;
struct tierce__cut_effect;

TIERCE_MUSTUSE int tierce__cut_create(struct tierce__cut **out); /* -ENOMEM */
void tierce__cut_destroy(struct tierce__cut *cut);

/* Resolves all later names in this folder; keeps a copy of the descriptor. Errors: negative
 * errno. */
TIERCE_MUSTUSE int tierce__cut_enter(struct tierce__cut *cut, int folder);

/* A file is about to be opened; *created tells whether that will make it. Truncation by the open
 * counts as a change of length. NULL result: no memory. */
struct tierce__cut_file *tierce__cut_open(struct tierce__cut *cut, const char *path, bool create,
                                          bool truncate);
/* The owner has no more use for it; it lives on until its effects are durable. */
void tierce__cut_close(struct tierce__cut *cut, struct tierce__cut_file *file);

/* A write or a change of length is about to begin; NULL: no memory, or the file cannot be read.
 * `data` NULL with a length is an allocation, length 0 a truncation to `offset`. The effect is
 * revocable until a sync that began after tierce__cut_ended succeeds. */
struct tierce__cut_effect *tierce__cut_begin(struct tierce__cut *cut, struct tierce__cut_file *file,
                                             const void *data, uint64_t offset, uint64_t length);
void tierce__cut_ended(struct tierce__cut *cut, struct tierce__cut_effect *effect);

/* Brackets of a sync of a file: mark, then covered with the mark if it succeeded. */
uint64_t tierce__cut_mark(struct tierce__cut *cut);
void tierce__cut_covered(struct tierce__cut *cut, struct tierce__cut_file *file, uint64_t mark);

/* Names: called before the change; *undo is a number to cancel it with if the change fails. */
TIERCE_MUSTUSE int tierce__cut_rename(struct tierce__cut *cut, uint64_t *undo, const char *from,
                                      const char *to);
TIERCE_MUSTUSE int tierce__cut_unlink(struct tierce__cut *cut, uint64_t *undo, const char *path);
void tierce__cut_cancel(struct tierce__cut *cut, uint64_t undo);
/* A sync of a folder succeeded. */
void tierce__cut_folder_covered(struct tierce__cut *cut, const char *folder, uint64_t mark);

/* Takes back a random part of all that is revocable. */
void tierce__cut_apply(struct tierce__cut *cut, uint64_t seed);

#endif
