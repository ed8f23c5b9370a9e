/* One pool of threads for the process. A loop is cut into parts; whoever is free takes the next one. */
#ifndef GPTCLI_POOL_H
#define GPTCLI_POOL_H

#include <stdint.h>

enum { MAX_THREADS = 256, MAX_PARTS = 65535 };

/* The threads that work on a call, and their scratch memory. */
typedef struct {
    int n_threads;
    char *scratch;         /* [n_threads, scratch_bytes] */
    int64_t scratch_bytes;
    void *shared;          /* scratch memory of all together */
} Team;

typedef void (*RunPart)(const void *job, int64_t part, void *scratch);

/* Wait until no other call uses the pool, and create the threads that are missing. */
void pool_enter(int n_threads);
void pool_leave(void);

/* Run parts 0 to n_parts - 1 of a job, in any order, and return when all are done. */
void parallel(const Team *team, int64_t n_parts, RunPart run, const void *job);

#endif
