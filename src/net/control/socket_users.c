/* SPDX-License-Identifier: Apache-2.0 */
#include "net/control/socket_users.h"

#include "base/assert.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "net/control/socket.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

#define ENTRY_BYTES (1u << 20) /* of a user, or of a group with all its members */
#define NAME_BYTES  64u

/* ---- names ---- */

static bool take_number(uint32_t *out, const char *text)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    *out = (uint32_t)value;
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && value < UINT32_MAX;
}

static bool find_user(uid_t *out, const char *name)
{
    struct passwd entry, *found = NULL;
    if (take_number(out, name))
        return true;
    char *room = tierce__alloc(ENTRY_BYTES);
    if (room != NULL)
        (void)getpwnam_r(name, &entry, room, ENTRY_BYTES, &found);
    if (found != NULL)
        *out = entry.pw_uid;
    tierce__free(room);
    return found != NULL;
}

static bool find_group(gid_t *out, const char *name)
{
    struct group entry, *found = NULL;
    if (take_number(out, name))
        return true;
    char *room = tierce__alloc(ENTRY_BYTES);
    if (room != NULL)
        (void)getgrnam_r(name, &entry, room, ENTRY_BYTES, &found);
    if (found != NULL)
        *out = entry.gr_gid;
    tierce__free(room);
    return found != NULL;
}

bool tierce__user_is(uid_t user, const char *name)
{
    uid_t named;
    return name[0] != '\0' && find_user(&named, name) && named == user;
}

/* Returns the name in the `bytes` at `at`, without surrounding spaces. */
static int add_user(struct tierce__socket_users *allowed, const char *at, size_t bytes,
                    char why[256])
{
    char name[NAME_BYTES];
    TIERCE_DASSERT(allowed->user_count <= TIERCE__SOCKET_USERS_MAX);
    while (bytes > 0 && *at == ' ') {
        at++;
        bytes--;
    }
    while (bytes > 0 && at[bytes - 1] == ' ')
        bytes--;
    if (allowed->user_count == TIERCE__SOCKET_USERS_MAX) {
        snprintf(why, 256, "there are more than %u users", TIERCE__SOCKET_USERS_MAX);
        return TIERCE_E_ARGUMENT;
    }
    snprintf(name, sizeof(name), "%.*s", (int)(bytes < NAME_BYTES ? bytes : NAME_BYTES), at);
    if (bytes < NAME_BYTES && find_user(&allowed->users[allowed->user_count], name)) {
        allowed->user_count++;
        return 0;
    }
    snprintf(why, 256, "there is no user \"%s\"", name);
    return TIERCE_E_ARGUMENT;
}

int tierce__socket_users_init(struct tierce__socket_users *out, const char *users,
                              const char *group, char why[256])
{
    *out = (struct tierce__socket_users){.has_group = group[0] != '\0'};
    int rc = 0;
    for (const char *at = users; *at != '\0' && rc == 0;) {
        size_t bytes = strcspn(at, ",");
        rc = add_user(out, at, bytes, why);
        at += bytes + (at[bytes] == ',');
    }
    if (rc < 0 || !out->has_group || find_group(&out->group, group))
        return rc;
    snprintf(why, 256, "there is no group \"%.64s\"", group);
    return TIERCE_E_ARGUMENT;
}

/* ---- the file ---- */

int tierce__socket_users_open(const struct tierce__socket_users *allowed, const char *path,
                              char why[256])
{
    mode_t mode = allowed->user_count > 0 ? 0666 : allowed->has_group ? 0660 : 0600;
    if (mode == 0600)
        return 0;
    int rc = 0;
    if (allowed->has_group && lchown(path, (uid_t)-1, allowed->group) < 0)
        rc = -errno;
    if (rc == 0 && chmod(path, mode) < 0)
        rc = -errno;
    if (rc == -EPERM)
        snprintf(
            why, 256,
            "this user is not a member of the group %lu, so it cannot give a socket to that group",
            (unsigned long)allowed->group);
    else if (rc < 0)
        snprintf(why, 256, "%.160s: %s", path, tierce_strerror(rc));
    return rc;
}

/* ---- the door ---- */

/* Returns whether the peer was a member of a group when it connected. */
static bool is_member(int fd, const struct ucred *peer, gid_t group)
{
    socklen_t bytes = 0; /* how many there are */
    if (peer->gid == group)
        return true;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &bytes) == 0 || errno != ERANGE)
        return false;
    gid_t *groups = tierce__alloc(bytes);
    bool found = false;
    if (groups != NULL && getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &bytes) == 0) {
        for (size_t i = 0; i < bytes / sizeof(*groups); i++)
            found |= groups[i] == group;
    }
    tierce__free(groups);
    return found;
}

bool tierce__socket_users_admit(const struct tierce__socket_users *allowed, int fd)
{
    struct ucred peer;
    TIERCE_DASSERT(allowed->user_count <= TIERCE__SOCKET_USERS_MAX);
    if (tierce__control_peer_is_ours(fd))
        return true;
    if (!tierce__control_peer(fd, &peer))
        return false;
    for (size_t i = 0; i < allowed->user_count; i++) {
        if (allowed->users[i] == peer.uid)
            return true;
    }
    return allowed->has_group && is_member(fd, &peer, allowed->group);
}
