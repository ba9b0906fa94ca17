/* SPDX-License-Identifier: Apache-2.0 */
/* The table of holes: which steps of removals open, close and count them. */
#include "check_main.h"
#include "manager/locate/notes.h"
#include "manager/reclaim/orphans.h"
#include "manager_harness.h"

enum { NOTE = 7, OTHER_NOTE = 8 };

static struct tierce__holes holes;

static void begin(void)
{
    tierce__holes_init(&holes);
}

static void end(void)
{
    tierce__holes_fini(&holes);
}

static void take(int64_t key, uint32_t children, uint64_t note)
{
    const struct tierce__gone gone = {.key = key, .children = children};
    tierce__holes_take(&holes, &gone, 1, note);
}

static void take_child(int64_t key, int64_t parent, bool has_parent)
{
    const struct tierce__gone gone = {.key = key, .parent = parent, .has_parent = has_parent};
    tierce__holes_take(&holes, &gone, 1, NOTE);
}

static const struct tierce__hole *only_hole(void)
{
    const struct tierce__hole *hole = NULL;
    ck_assert_uint_eq(holes.map.count, 1);
    TIERCE__MAP_FOR_EACH (node, &holes.map)
        hole = TIERCE__CONTAINER_OF(node, struct tierce__hole, node);
    return hole;
}

START_TEST(children_of_the_same_step_do_not_count)
{
    struct tierce__gone chain[] = {{.key = 11, .children = 1},
                                   {.key = 22, .parent = 11, .has_parent = true, .children = 1},
                                   {.key = 33, .parent = 22, .has_parent = true}};
    ck_assert(!tierce__gone_settle(chain, 3));
    ck_assert_uint_eq(chain[0].children + chain[1].children + chain[2].children, 0);
    struct tierce__gone tree[] = {{.key = 33, .parent = 22, .has_parent = true},
                                  {.key = 44, .parent = 22},
                                  {.key = 55, .parent = 66, .has_parent = true},
                                  {.key = 22, .children = 3}};
    ck_assert(tierce__gone_settle(tree, 4));
    ck_assert_uint_eq(tree[3].children, 2); /* 44 has no parent, 55 another one */
    ck_assert_uint_eq(tree[0].children + tree[1].children + tree[2].children, 0);
}
END_TEST

/* A child that was stored after its parent's record was read is not in the parent's count. */
START_TEST(children_do_not_fall_below_zero)
{
    struct tierce__gone gone[] = {{.key = 11, .children = 0},
                                  {.key = 22, .parent = 11, .has_parent = true},
                                  {.key = 33, .parent = 11, .has_parent = true}};
    ck_assert(!tierce__gone_settle(gone, 3));
    ck_assert_uint_eq(gone[0].children, 0);
    gone[0].children = 1;
    ck_assert(!tierce__gone_settle(gone, 3));
    ck_assert_uint_eq(gone[0].children, 0);
}
END_TEST

START_TEST(a_hole_without_children_is_closed)
{
    take(11, 2, NOTE);
    take_child(22, 11, true);
    ck_assert_uint_eq(tierce__holes_children(&holes, 11), 1);
    take_child(33, 11, false); /* the beginning of a chain: its field `parent` means nothing */
    take_child(44, 12, true);
    ck_assert_uint_eq(tierce__holes_children(&holes, 11), 1);
    take_child(55, 11, true);
    ck_assert_uint_eq(holes.map.count, 0);
}
END_TEST

/* A hole whose key is stored and removed again without children is closed. */
START_TEST(the_last_removal_of_a_key_counts)
{
    take(11, 2, NOTE);
    take(11, 0, OTHER_NOTE);
    ck_assert_uint_eq(holes.map.count, 0);
    take(11, 2, NOTE);
    take(11, 1, OTHER_NOTE);
    ck_assert_uint_eq(only_hole()->children, 1);
    ck_assert_uint_eq(only_hole()->note, OTHER_NOTE);
}
END_TEST

/* Blocks that are stored behind a hole add to its children, and its note remains in use. */
START_TEST(a_hole_keeps_its_note_when_it_gets_children)
{
    take(11, 2, NOTE);
    take(11, 1, 0);
    ck_assert_uint_eq(only_hole()->children, 3);
    ck_assert_uint_eq(only_hole()->note, NOTE);
    ck_assert_uint_eq(holes.note_count, 1);
    take(22, 1, 0); /* a hole without a note */
    ck_assert_uint_eq(holes.map.count, 2);
    ck_assert_uint_eq(holes.note_count, 1);
}
END_TEST

START_TEST(the_number_of_children_does_not_wrap)
{
    take(11, TIERCE__CHILDREN_UNKNOWN - 2, NOTE);
    take(11, 1, 0);
    ck_assert_uint_eq(only_hole()->children, TIERCE__CHILDREN_UNKNOWN - 1);
    take(11, 5, 0);
    ck_assert_uint_eq(only_hole()->children, TIERCE__CHILDREN_UNKNOWN);
}
END_TEST

START_TEST(a_step_has_one_note)
{
    const struct tierce__gone gone[] = {{.key = 11, .children = 1}, {.key = 22, .children = 2}};
    tierce__holes_take(&holes, gone, 2, NOTE);
    ck_assert_uint_eq(holes.note_count, 1);
    ck_assert_uint_eq(holes.notes[0], NOTE);
}
END_TEST

/* The sweep closes them: until then nothing is known about their children. */
START_TEST(keys_of_a_step_of_unknown_outcome_are_holes)
{
    const struct tierce__gone gone[] = {{.key = 11, .children = 1},
                                        {.key = 22, .parent = 11, .has_parent = true},
                                        {.key = 33, .children = 2}};
    tierce__holes_doubt(&holes, gone, 3, NOTE);
    ck_assert_uint_eq(holes.map.count, 2);
    ck_assert_uint_eq(holes.note_count, 1);
    tierce__holes_close(&holes, 33);
    ck_assert_uint_eq(only_hole()->key, 11);
    ck_assert_uint_eq(tierce__holes_children(&holes, 11), 0);
    take_child(22, 11, true);
    ck_assert_uint_eq(only_hole()->children, TIERCE__CHILDREN_UNKNOWN);
}
END_TEST

/* The note of a step, with `more` bytes behind it, as the next leader finds it. */
static void find_note(struct harness *h, struct tierce__live *live, size_t more)
{
    const struct tierce__gone gone[] = {{.key = 11, .children = 1}, {.key = 22}};
    struct tierce__meta_note note;
    ck_assert_int_eq(tierce__gone_write(gone, 2, NOTE, &h->arena, &note), 0);
    unsigned char *bytes = tierce__arena_calloc(&h->arena, note.bytes + more, 1);
    memcpy(bytes, note.value, note.bytes);
    note.value = bytes;
    note.bytes += more;
    ck_assert_int_eq(tierce__meta_index_write_notes(live->index, &note, 1), 0);
    ck_assert_int_eq(tierce__live_find_holes(live), 0);
}

START_TEST(a_damaged_note_opens_no_hole)
{
    struct harness h;
    struct tierce__live *live;
    harness_open(&h, &(struct harness_opts){0});
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
    find_note(&h, live, 8);
    ck_assert(!tierce__holes_any(&live->holes));
    find_note(&h, live, 0);
    ck_assert_uint_eq(live->holes.map.count, 1);
    ck_assert_uint_eq(live->holes.note_count, 1);
    tierce__live_release(live);
    harness_close(&h);
}
END_TEST

START_TEST(many_notes_are_dropped)
{
    enum { NOTES = 600 }; /* more than two batches */
    struct harness h;
    struct tierce__live *live;
    harness_open(&h, &(struct harness_opts){0});
    ck_assert_int_eq(tierce__live_acquire(&live, h.locator, "i", h.why), 0);
    for (int i = 1; i <= NOTES; i++) {
        const struct tierce__gone gone = {.key = i, .children = 1};
        tierce__holes_take(&live->holes, &gone, 1, (uint64_t)i);
        if (i != NOTES / 2)
            tierce__holes_close(&live->holes, i);
    }
    ck_assert_int_eq(tierce__live_drop_hole_notes(live), 0);
    ck_assert_uint_eq(live->holes.note_count, 1);
    ck_assert_uint_eq(live->holes.notes[0], NOTES / 2);
    tierce__live_release(live);
    harness_close(&h);
}
END_TEST

CHECK_MAIN("holes", .setup = begin, .teardown = end,
           .tests = {children_of_the_same_step_do_not_count, children_do_not_fall_below_zero,
                     a_hole_without_children_is_closed, the_last_removal_of_a_key_counts,
                     a_hole_keeps_its_note_when_it_gets_children,
                     the_number_of_children_does_not_wrap, a_step_has_one_note,
                     keys_of_a_step_of_unknown_outcome_are_holes, a_damaged_note_opens_no_hole,
                     many_notes_are_dropped})
