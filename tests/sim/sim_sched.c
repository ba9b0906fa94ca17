/* SPDX-License-Identifier: Apache-2.0 */
#include "sim_sched.h"
#include "base/mix.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define NEVER      SIM_NEVER
#define TICK_NS    50u /* of a call of the clock: a loop that looks at it ends */
#define WALL_S     1800000000u
#define PRIORITIES (UINT64_C(1) << 40)

enum { THREADS_MAX = 256 };

enum state { FREE, RUNS, WAITS_FOR_MUTEX, WAITS_FOR_SIGNAL, SLEEPS, AWAITS, JOINS, ENDED };

struct thread {
    enum state state;
    const void *what; /* the mutex, the condition, the thread to join, or the argument of `when` */
    sim_when_fn *when;
    uint64_t until_ns;
    uint64_t priority;
    unsigned host;
    bool is_detached, has_expired;
    pthread_t id;
    sem_t turn;
    void *(*run)(void *arg);
    void *arg;
};

/* The simulated state of a mutex lies in the memory of the real one, whose initial value is zero.
 */
struct mutex {
    struct thread *owner;
};
_Static_assert(sizeof(struct mutex) <= sizeof(int) * 2, "lies before the members of destroy");

static struct thread threads[THREADS_MAX];
static size_t thread_count; /* the others have always been free */
static struct thread *self; /* whose turn it is; NULL: there is no simulation */
static uint64_t random_state, now_ns, stolen_ns, switches, digest;
static unsigned uninterrupted; /* calls that must not lose their turn */
static unsigned keeps_time;    /* threads that have asked for it */
static uint64_t switch_rate;   /* a thread loses its turn once in so many times */
/* In some runs the ready thread with the highest priority has the turn, and once in so many times a
 * thread loses its priority: a thread may stop for long in the middle of a call. 0: each is drawn.
 */
static uint64_t demotion_rate;
static uint64_t stalled_ns[SIM_HOSTS]; /* until when no thread of the host runs */
static uint64_t stalled_all_ns[SIM_HOSTS];
static uint64_t expiry_rate; /* the first deadline expires once in so many decisions; 0: never */

/* The functions of the system, and those in their place. */
SIM_WRAPS(int, clock_gettime, clockid_t clock, struct timespec *out);
SIM_WRAPS(int, nanosleep, const struct timespec *time, struct timespec *left);
SIM_WRAPS(int, usleep, useconds_t us);
SIM_WRAPS(int, sched_yield, void);
SIM_WRAPS(ssize_t, getrandom, void *bytes, size_t count, unsigned flags);
SIM_WRAPS(int, pthread_create, pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *arg),
          void *arg);
SIM_WRAPS(int, pthread_join, pthread_t id, void **result);
SIM_WRAPS(int, pthread_detach, pthread_t id);
SIM_WRAPS(int, pthread_tryjoin_np, pthread_t id, void **result);
SIM_WRAPS(int, pthread_once, pthread_once_t *once, void (*init)(void));
SIM_WRAPS(int, pthread_setschedparam, pthread_t id, int policy, const struct sched_param *param);
SIM_WRAPS(int, pthread_mutex_lock, pthread_mutex_t *mutex);
SIM_WRAPS(int, pthread_mutex_trylock, pthread_mutex_t *mutex);
SIM_WRAPS(int, pthread_mutex_unlock, pthread_mutex_t *mutex);
SIM_WRAPS(int, pthread_cond_wait, pthread_cond_t *cond, pthread_mutex_t *mutex);
SIM_WRAPS(int, pthread_cond_timedwait, pthread_cond_t *cond, pthread_mutex_t *mutex,
          const struct timespec *until);
SIM_WRAPS(int, pthread_cond_signal, pthread_cond_t *cond);
SIM_WRAPS(int, pthread_cond_broadcast, pthread_cond_t *cond);
SIM_WRAPS(int, sem_init, sem_t *sem, int shared, unsigned value);
SIM_WRAPS(int, sem_wait, sem_t *sem);
SIM_WRAPS(int, sem_post, sem_t *sem);
SIM_WRAPS(uint32_t, tierce__processors, void);

/* ---- decisions ------------------------------------------------------------------------------- */

static void note(uint64_t what)
{
    digest = (digest ^ what) * 0x9e3779b97f4a7c15u;
    digest ^= digest >> 29;
}

uint64_t sim_below(uint64_t bound)
{
    uint64_t drawn = tierce__random_next(&random_state) % bound;
    note(drawn);
    return drawn;
}

uint64_t sim_now_ns(void)
{
    return now_ns;
}

uint64_t sim_stolen_ns(void)
{
    return stolen_ns;
}

uint64_t sim_digest(void)
{
    note(now_ns);
    return digest;
}

void sim_keep_time(bool keeps)
{
    keeps_time += keeps ? 1 : -1u;
}

uint64_t sim_switches(void)
{
    return switches;
}

/* When a thread that sleeps or awaits something may run. */
static uint64_t due_ns(const struct thread *t)
{
    uint64_t when_ns = t->state == AWAITS ? t->when(t->what) : NEVER;
    return when_ns < t->until_ns ? when_ns : t->until_ns;
}

static bool may_run(const struct thread *t)
{
    if (stalled_ns[t->host] > now_ns)
        return false;
    switch (t->state) {
    case RUNS:
        return true;
    case WAITS_FOR_MUTEX:
        return ((const struct mutex *)t->what)->owner == NULL;
    case WAITS_FOR_SIGNAL:
        return false; /* a signal makes it wait for the mutex; see expire */
    case SLEEPS:
    case AWAITS:
        return due_ns(t) <= now_ns;
    case JOINS:
        return ((const struct thread *)t->what)->state == ENDED;
    case FREE:
    case ENDED:
        break;
    }
    return false;
}

static void fail(const char *why)
{
    static const char *const names[] = {"free",  "runs",   "mutex", "signal",
                                        "sleep", "awaits", "joins", "ended"};
    fprintf(stderr, "the simulation ends at %.6f s: %s\n", (double)now_ns / 1e9, why);
    for (size_t i = 0; i < thread_count; i++)
        if (threads[i].state != FREE)
            fprintf(stderr, "  thread %zu%s: %s %p\n", i, &threads[i] == self ? " (its turn)" : "",
                    names[threads[i].state], threads[i].what);
    abort();
}

/* The earliest deadline of a thread that waits, or end of a stall. */
static uint64_t first_deadline(void)
{
    uint64_t first = NEVER;
    for (size_t i = 0; i < SIM_HOSTS; i++)
        if (stalled_ns[i] > now_ns && stalled_ns[i] < first)
            first = stalled_ns[i];
    for (size_t i = 0; i < thread_count; i++) {
        const struct thread *t = &threads[i];
        bool has_deadline =
            t->state == SLEEPS || t->state == AWAITS || t->state == WAITS_FOR_SIGNAL;
        uint64_t due = has_deadline && stalled_ns[t->host] <= now_ns ? due_ns(t) : NEVER;
        first = due < first ? due : first;
    }
    return first;
}

/* Waits for a signal that have expired become waits for the mutex, which `arg` holds. */
static void expire(void)
{
    for (size_t i = 0; i < thread_count; i++) {
        struct thread *t = &threads[i];
        if (t->state != WAITS_FOR_SIGNAL || t->until_ns > now_ns)
            continue;
        t->state = WAITS_FOR_MUTEX;
        t->what = t->arg;
        t->has_expired = true;
    }
}

static struct thread *first_of(struct thread *const *ready, size_t count)
{
    struct thread *first = ready[0];
    for (size_t i = 1; i < count; i++)
        first = ready[i]->priority > first->priority ? ready[i] : first;
    return first;
}

static struct thread *choose(void)
{
    struct thread *ready[THREADS_MAX];
    size_t count = 0;
    if (expiry_rate > 0 && keeps_time == 0 && sim_below(expiry_rate) == 0) {
        uint64_t first = first_deadline();
        if (first != NEVER && first > now_ns && first - now_ns < 20000000000u) {
            stolen_ns += first - now_ns;
            now_ns = first;
        }
    }
    for (;;) {
        expire();
        for (size_t i = 0; i < thread_count; i++)
            if (may_run(&threads[i]))
                ready[count++] = &threads[i];
        if (count > 0 && demotion_rate == 0)
            return ready[sim_below(count)];
        if (count > 0)
            return first_of(ready, count);
        uint64_t first = first_deadline();
        if (first == NEVER)
            fail("every thread waits, and none has a deadline");
        now_ns = first > now_ns ? first : now_ns;
    }
}

/* Gives the turn to a thread that is drawn. Returns when it is the caller's again. */
static void pass(void)
{
    struct thread *me = self, *next;
    if (uninterrupted > 0)
        fail("a thread waits where it must not");
    next = choose();
    if (next != me) {
        switches++;
        note((uint64_t)(next - threads));
        self = next;
        bool is_over = me->state == ENDED;
        __real_sem_post(&next->turn);
        if (is_over)
            return;
        while (__real_sem_wait(&me->turn) != 0) {
        }
    }
    self->state = RUNS;
}

/* A place where a thread may lose its turn. */
static void maybe_pass(void)
{
    if (uninterrupted > 0 || sim_below(switch_rate) != 0)
        return;
    if (demotion_rate > 0 && sim_below(demotion_rate) == 0)
        self->priority = sim_below(self->priority + 1);
    pass();
}

void sim_start(uint64_t seed)
{
    static const uint64_t rates[] = {3, 10, 40, 200}, expiries[] = {0, 0, 2000, 100};
    static const uint64_t demotions[] = {0, 0, 20, 200};
    random_state = seed;
    now_ns = 1000000000u;
    thread_count = 1;
    self = &threads[0];
    *self = (struct thread){.state = RUNS, .id = pthread_self()};
    __real_sem_init(&self->turn, 0, 0);
    /* One thread runs at a time: a turn passes faster within a processor. */
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET((size_t)sched_getcpu(), &here);
    (void)sched_setaffinity(0, sizeof(here), &here);
    /* Memory of an engine that has ended is that of the next one, without a call of the system. */
    (void)mallopt(M_ARENA_MAX, 1);
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
    switch_rate = rates[sim_below(4)];
    demotion_rate = demotions[sim_below(4)];
    self->priority = sim_below(PRIORITIES);
    expiry_rate = expiries[sim_below(4)];
}

void sim_stop(void)
{
    for (size_t i = 0; i < thread_count; i++)
        if (&threads[i] != self && threads[i].state != FREE &&
            !(threads[i].state == ENDED && threads[i].is_detached))
            fail("a thread is left");
    self = NULL;
}

void sim_sleep_ns(uint64_t ns)
{
    self->state = SLEEPS;
    self->until_ns = now_ns + ns;
    pass();
}

bool sim_is_on(void)
{
    return self != NULL;
}

void sim_may_pass(void)
{
    maybe_pass();
}

bool sim_await(sim_when_fn *when, const void *arg, uint64_t until_ns)
{
    if (when(arg) > now_ns) {
        self->what = arg;
        self->when = when;
        self->until_ns = until_ns;
        self->state = AWAITS;
        pass();
    }
    return when(arg) <= now_ns;
}

unsigned sim_host(void)
{
    return self->host;
}

void sim_enter_host(unsigned host)
{
    self->host = host;
}

void sim_stall(unsigned host, uint64_t ns)
{
    uint64_t from_ns = stalled_ns[host] > now_ns ? stalled_ns[host] : now_ns;
    stalled_ns[host] = now_ns + ns;
    stalled_all_ns[host] += stalled_ns[host] > from_ns ? stalled_ns[host] - from_ns : 0;
}

uint64_t sim_stalled_ns(void)
{
    return stalled_all_ns[self->host];
}

/* ---- time ------------------------------------------------------------------------------------ */

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    if (self == NULL)
        return __real_clock_gettime(clock, out);
    now_ns += TICK_NS;
    bool is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    *out = (struct timespec){.tv_sec = (time_t)(now_ns / 1000000000u + (is_wall ? WALL_S : 0)),
                             .tv_nsec = (long)(now_ns % 1000000000u)};
    return 0;
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    if (self == NULL)
        return __real_nanosleep(time, left);
    sim_sleep_ns((uint64_t)time->tv_sec * 1000000000u + (uint64_t)time->tv_nsec);
    return 0;
}

int __wrap_usleep(useconds_t us)
{
    if (self == NULL)
        return __real_usleep(us);
    sim_sleep_ns((uint64_t)us * 1000u);
    return 0;
}

/* The caller waits for another thread: it is that one's turn, and time passes. */
int __wrap_sched_yield(void)
{
    if (self == NULL)
        return __real_sched_yield();
    sim_sleep_ns(1000);
    return 0;
}

ssize_t __wrap_getrandom(void *bytes, size_t count, unsigned flags)
{
    if (self == NULL)
        return __real_getrandom(bytes, count, flags);
    for (size_t i = 0; i < count; i++)
        ((uint8_t *)bytes)[i] = (uint8_t)sim_below(256);
    return (ssize_t)count;
}

/* ---- threads --------------------------------------------------------------------------------- */

static bool has_left(const struct thread *t)
{
    return t->state == ENDED && t->is_detached;
}

/* The system may have given the number of a detached thread that has ended to another. */
static struct thread *find_thread(pthread_t id)
{
    for (size_t i = 0; i < thread_count; i++)
        if (threads[i].state != FREE && !has_left(&threads[i]) &&
            pthread_equal(threads[i].id, id) != 0)
            return &threads[i];
    fail("a thread that is not simulated");
    return NULL;
}

static void forget(struct thread *t)
{
    t->state = FREE;
    sem_destroy(&t->turn);
}

static void *begin_thread(void *arg)
{
    struct thread *me = arg;
    while (__real_sem_wait(&me->turn) != 0) {
    }
    me->state = RUNS;
    void *result = me->run(me->arg);
    me->state = ENDED;
    pass();
    return result;
}

int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *arg),
                          void *arg)
{
    if (self == NULL)
        return __real_pthread_create(out, attr, run, arg);
    struct thread *t = NULL;
    for (size_t i = 0; i < thread_count && t == NULL; i++) {
        if (has_left(&threads[i]))
            forget(&threads[i]);
        t = threads[i].state == FREE ? &threads[i] : NULL;
    }
    if (t == NULL && thread_count < THREADS_MAX)
        t = &threads[thread_count++];
    int detached = PTHREAD_CREATE_JOINABLE;
    if (t == NULL)
        return EAGAIN;
    if (attr != NULL)
        pthread_attr_getdetachstate(attr, &detached);
    *t = (struct thread){.state = RUNS,
                         .run = run,
                         .arg = arg,
                         .priority = sim_below(PRIORITIES),
                         .host = self->host,
                         .is_detached = detached == PTHREAD_CREATE_DETACHED};
    __real_sem_init(&t->turn, 0, 0);
    int rc = __real_pthread_create(&t->id, attr, begin_thread, t);
    if (rc != 0) {
        forget(t);
        return rc;
    }
    *out = t->id;
    maybe_pass();
    return 0;
}

int __wrap_pthread_join(pthread_t id, void **result)
{
    if (self == NULL)
        return __real_pthread_join(id, result);
    struct thread *t = find_thread(id);
    if (t->state != ENDED) {
        self->what = t;
        self->state = JOINS;
        pass();
    }
    forget(t);
    return __real_pthread_join(id, result);
}

int __wrap_pthread_tryjoin_np(pthread_t id, void **result)
{
    if (self == NULL)
        return __real_pthread_tryjoin_np(id, result);
    return find_thread(id)->state == ENDED ? __wrap_pthread_join(id, result) : EBUSY;
}

int __wrap_pthread_detach(pthread_t id)
{
    if (self != NULL)
        find_thread(id)->is_detached = true;
    return __real_pthread_detach(id);
}

int __wrap_pthread_once(pthread_once_t *once, void (*init)(void))
{
    uninterrupted++;
    int rc = __real_pthread_once(once, init);
    uninterrupted--;
    return rc;
}

int __wrap_pthread_setschedparam(pthread_t id, int policy, const struct sched_param *param)
{
    return self == NULL ? __real_pthread_setschedparam(id, policy, param) : 0;
}

/* As many on every machine. */
uint32_t __wrap_tierce__processors(void)
{
    return self == NULL ? __real_tierce__processors() : 2;
}

/* ---- mutexes and conditions ------------------------------------------------------------------ */

static void take(struct mutex *mutex)
{
    if (mutex->owner == self)
        fail("a thread takes a mutex that it holds");
    while (mutex->owner != NULL) {
        self->what = mutex;
        self->state = WAITS_FOR_MUTEX;
        pass();
    }
    mutex->owner = self;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (self == NULL)
        return __real_pthread_mutex_lock(mutex);
    maybe_pass();
    take((struct mutex *)mutex);
    return 0;
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    if (self == NULL)
        return __real_pthread_mutex_trylock(mutex);
    maybe_pass();
    if (((struct mutex *)mutex)->owner != NULL)
        return EBUSY;
    take((struct mutex *)mutex);
    return 0;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    if (self == NULL)
        return __real_pthread_mutex_unlock(mutex);
    if (((struct mutex *)mutex)->owner != self)
        fail("a thread releases a mutex that it does not hold");
    ((struct mutex *)mutex)->owner = NULL;
    maybe_pass();
    return 0;
}

/* False: the deadline has passed. */
static bool wait_for_signal(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t until_ns)
{
    void *arg = self->arg; /* of the thread's start, which has happened */
    ((struct mutex *)mutex)->owner = NULL;
    self->what = cond;
    self->arg = mutex;
    self->until_ns = until_ns;
    self->has_expired = false;
    self->state = WAITS_FOR_SIGNAL;
    pass();
    self->arg = arg;
    bool has_expired = self->has_expired;
    take((struct mutex *)mutex);
    return !has_expired;
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    if (self == NULL)
        return __real_pthread_cond_wait(cond, mutex);
    (void)wait_for_signal(cond, mutex, NEVER);
    return 0;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *until)
{
    if (self == NULL)
        return __real_pthread_cond_timedwait(cond, mutex, until);
    uint64_t until_ns = (uint64_t)until->tv_sec * 1000000000u + (uint64_t)until->tv_nsec;
    return wait_for_signal(cond, mutex, until_ns) ? 0 : ETIMEDOUT;
}

/* Wakes up to `most` waiters, which are drawn. */
static void wake(const pthread_cond_t *cond, size_t most)
{
    for (; most > 0; most--) {
        struct thread *waiting[THREADS_MAX];
        size_t count = 0;
        for (size_t i = 0; i < thread_count; i++)
            if (threads[i].state == WAITS_FOR_SIGNAL && threads[i].what == cond)
                waiting[count++] = &threads[i];
        if (count == 0)
            break;
        struct thread *t = waiting[sim_below(count)];
        t->state = WAITS_FOR_MUTEX;
        t->what = t->arg;
    }
    maybe_pass();
}

int __wrap_pthread_cond_signal(pthread_cond_t *cond)
{
    if (self == NULL)
        return __real_pthread_cond_signal(cond);
    wake(cond, 1);
    return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *cond)
{
    if (self == NULL)
        return __real_pthread_cond_broadcast(cond);
    wake(cond, SIZE_MAX);
    return 0;
}

/* ---- semaphores ------------------------------------------------------------------------------ */

/* The simulated value lies in the memory of the real one. */
struct semaphore {
    uint64_t value;
};
_Static_assert(sizeof(struct semaphore) <= sizeof(sem_t), "lies in its memory");

int __wrap_sem_init(sem_t *sem, int shared, unsigned value)
{
    if (self == NULL)
        return __real_sem_init(sem, shared, value);
    ((struct semaphore *)sem)->value = value;
    return 0;
}

static uint64_t when_posted(const void *arg)
{
    return ((const struct semaphore *)arg)->value > 0 ? 0 : NEVER;
}

int __wrap_sem_wait(sem_t *sem)
{
    if (self == NULL)
        return __real_sem_wait(sem);
    maybe_pass();
    while (!sim_await(when_posted, sem, NEVER)) {
    }
    ((struct semaphore *)sem)->value--;
    return 0;
}

int __wrap_sem_post(sem_t *sem)
{
    if (self == NULL)
        return __real_sem_post(sem);
    ((struct semaphore *)sem)->value++;
    maybe_pass();
    return 0;
}
