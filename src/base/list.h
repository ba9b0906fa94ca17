/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_LIST_H
#define TIERCE_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

/* Intrusive circular list with a head that is a node itself. A node on no list points at itself
 * (after init or remove), so removing twice is harmless. No locking. */

struct tierce__list {
    struct tierce__list *next;
    struct tierce__list *prev;
};

#define TIERCE__CONTAINER_OF(ptr, type, member)                                                    \
    ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

static inline void tierce__list_init(struct tierce__list *node)
{
    node->next = node;
    node->prev = node;
}

static inline bool tierce__list_empty(const struct tierce__list *head)
{
    return head->next == head;
}

static inline void tierce__list_insert_after(struct tierce__list *pos, struct tierce__list *node)
{
    node->prev = pos;
    node->next = pos->next;
    pos->next->prev = node;
    pos->next = node;
}

static inline void tierce__list_push_front(struct tierce__list *head, struct tierce__list *node)
{
    tierce__list_insert_after(head, node);
}

static inline void tierce__list_push_back(struct tierce__list *head, struct tierce__list *node)
{
    tierce__list_insert_after(head->prev, node);
}

static inline void tierce__list_remove(struct tierce__list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    tierce__list_init(node);
}

/* The body may not remove `it`; the _SAFE form allows that. */
#define TIERCE__LIST_FOR_EACH(it, head)                                                            \
    for (struct tierce__list *it = (head)->next; it != (head); it = it->next)

#define TIERCE__LIST_FOR_EACH_SAFE(it, after, head)                                                \
    for (struct tierce__list *it = (head)->next, *after = it->next; it != (head);                  \
         it = after, after = it->next)

#endif
