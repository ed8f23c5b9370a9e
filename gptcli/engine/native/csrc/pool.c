/* The pool of threads. The thread that calls takes part in the work.

   A thread without a core must not hold up the others: the work has more parts than there are threads, and
   parts are taken from a counter. Who waits spins for some microseconds, then sleeps. A forked child has none
   of the threads; it starts with an empty pool and creates its own. */
#include "pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

enum { SPINS = 1500, STACK_BYTES = 1 << 19 };

/* The ticket says which part is next: job number << 32 | parts << 16 | next part. It is one word, so that a
   thread that comes late cannot take a part of a job that it has not looked at. */
static struct {
    pthread_mutex_t call;  /* held during a call */
    pthread_mutex_t sleep; /* guards the two conditions */
    pthread_cond_t work, finished;
    int n_workers;
    uint32_t n_jobs;
    _Atomic uint64_t ticket;
    _Atomic int64_t n_done;
    _Atomic int n_active, n_sleepers, caller_sleeps;
    _Atomic RunPart run;
    _Atomic(const void *) job;
    _Atomic(const Team *) team;
} pool = {
    .call = PTHREAD_MUTEX_INITIALIZER,
    .sleep = PTHREAD_MUTEX_INITIALIZER,
    .work = PTHREAD_COND_INITIALIZER,
    .finished = PTHREAD_COND_INITIALIZER,
};

static inline void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* `yield` does nothing on most of these processors */
#endif
}

static uint32_t job_number(uint64_t ticket) { return (uint32_t)(ticket >> 32); }
static int64_t n_parts_of(uint64_t ticket) { return (int64_t)(ticket >> 16 & 0xffff); }
static int64_t next_part(uint64_t ticket) { return (int64_t)(ticket & 0xffff); }

static void count_done(int64_t n_parts) {
    if (atomic_fetch_add(&pool.n_done, 1) + 1 == n_parts && atomic_load(&pool.caller_sleeps)) {
        pthread_mutex_lock(&pool.sleep);
        pthread_cond_signal(&pool.finished);
        pthread_mutex_unlock(&pool.sleep);
    }
}

/* Run one part, if there is one for this thread; return whether there was. */
static int take_part(int index) {
    uint64_t ticket = atomic_load(&pool.ticket);
    while (next_part(ticket) < n_parts_of(ticket) && index < atomic_load(&pool.n_active)) {
        RunPart run = atomic_load_explicit(&pool.run, memory_order_relaxed);
        const void *job = atomic_load_explicit(&pool.job, memory_order_relaxed);
        const Team *team = atomic_load_explicit(&pool.team, memory_order_relaxed);
        /* If the ticket is still the same, so is the job: it cannot end before this part is done. */
        if (!atomic_compare_exchange_weak(&pool.ticket, &ticket, ticket + 1)) continue;
        run(job, next_part(ticket), team->scratch + index * team->scratch_bytes);
        count_done(n_parts_of(ticket));
        return 1;
    }
    return 0;
}

static void sleep_until_next_job(uint32_t number) {
    pthread_mutex_lock(&pool.sleep);
    atomic_fetch_add(&pool.n_sleepers, 1);
    while (job_number(atomic_load(&pool.ticket)) == number) pthread_cond_wait(&pool.work, &pool.sleep);
    atomic_fetch_sub(&pool.n_sleepers, 1);
    pthread_mutex_unlock(&pool.sleep);
}

static void *work(void *index) {
    uint32_t number = 0;
    for (int spins = 0;; spins++) {
        uint32_t now = job_number(atomic_load(&pool.ticket));
        if (now != number) {
            spins = 0;
            number = now;
            while (take_part((int)(intptr_t)index)) {}
        }
        if (spins < SPINS) pause_briefly();
        else sleep_until_next_job(number);
    }
    return NULL;
}

static void wait_until_done(int64_t n_parts) {
    for (int spins = 0; spins < SPINS; spins++) {
        if (atomic_load(&pool.n_done) == n_parts) return;
        pause_briefly();
    }
    pthread_mutex_lock(&pool.sleep);
    atomic_store(&pool.caller_sleeps, 1);
    while (atomic_load(&pool.n_done) != n_parts) pthread_cond_wait(&pool.finished, &pool.sleep);
    atomic_store(&pool.caller_sleeps, 0);
    pthread_mutex_unlock(&pool.sleep);
}

void parallel(const Team *team, int64_t n_parts, RunPart run, const void *job) {
    if (n_parts == 1 || team->n_threads == 1 || pool.n_workers == 0) {
        for (int64_t part = 0; part < n_parts; part++) run(job, part, team->scratch);
        return;
    }
    atomic_store_explicit(&pool.run, run, memory_order_relaxed);
    atomic_store_explicit(&pool.job, job, memory_order_relaxed);
    atomic_store_explicit(&pool.team, team, memory_order_relaxed);
    atomic_store(&pool.n_active, team->n_threads);
    atomic_store(&pool.n_done, 0);
    atomic_store(&pool.ticket, (uint64_t)++pool.n_jobs << 32 | (uint64_t)n_parts << 16);
    if (atomic_load(&pool.n_sleepers)) {
        pthread_mutex_lock(&pool.sleep);
        pthread_cond_broadcast(&pool.work);
        pthread_mutex_unlock(&pool.sleep);
    }
    while (take_part(0)) {}
    wait_until_done(n_parts);
}

static void forget_threads(void) {
    static const pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static const pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    pool.call = pool.sleep = mutex;
    pool.work = pool.finished = condition;
    pool.n_workers = 0;
    atomic_store(&pool.ticket, 0);
    atomic_store(&pool.n_sleepers, 0);
    atomic_store(&pool.caller_sleeps, 0);
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_threads); }

/* Create a thread that no signal reaches, because they belong to Python's threads, but for those that its own
   reading raises: blocked, they would end the process without a word. */
static int create_worker(int index) {
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    if (pthread_attr_init(&attributes)) return 0;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, &attributes, work, (void *)(intptr_t)index);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return !failed;
}

void pool_enter(int n_threads) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&pool.call);
    /* Without a thread, the others do its parts. */
    while (pool.n_workers < n_threads - 1 && create_worker(pool.n_workers + 1)) pool.n_workers++;
}

void pool_leave(void) { pthread_mutex_unlock(&pool.call); }
