/* Calls between the files of the library. */
#ifndef BLOCKYARD_INTERNAL_H
#define BLOCKYARD_INTERNAL_H

#include "blockyard.h"

#include <pthread.h>
#include <stdatomic.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* plan.c */
HIDDEN uint32_t by_plan_lists(const struct by_plan *plan, uint32_t group);
HIDDEN uint64_t by_plan_end(const struct by_plan *plan, uint32_t group);

/* extents.c */

/* Whether the extents of all slots are mapped. */
HIDDEN int by_extents_known(struct by_extents *table, const struct by_slot *slots, size_t count);
/* Addresses of leading slots that are mapped and have `need` bytes. Returns their number. */
HIDDEN size_t by_extents_addresses(struct by_extents *table, const struct by_slot *slots,
				   size_t count, uint64_t need, uint64_t *out);

/* queue.c: ends of jobs. One producer and one consumer at a time, and no lock. */
struct by_ring {
	_Atomic uint32_t written, read;
	struct by_end ends[BY_MAX_JOBS];
};

/* Adds an end. The copier never has more than BY_MAX_JOBS jobs, so there is room. */
HIDDEN void by_ring_put(struct by_ring *ring, const struct by_end *end);
HIDDEN uint32_t by_ring_take(struct by_ring *ring, struct by_end *out, uint32_t room);

/* queue.c: jobs in their order. */

struct job {
	struct job *next;
	struct by_job ask; /* its lists are behind the job */
	uint32_t at;       /* slots before this index are copied or in flight */
	uint32_t flying;   /* pieces in progress, in a thread or on a device */
	uint32_t early;
	int waited;        /* has waited for an extent */
	uint64_t until;    /* held: when the job fails */
	uint64_t began;    /* as by_end.began_ns */
	char text[BY_TEXT];
	const struct by_slot *slots;
	const uint32_t *blocks;
};

struct queue {
	struct job *first, **last;
	uint32_t length;
};

HIDDEN void by_queue_init(struct queue *queue);
HIDDEN void by_queue_push(struct queue *queue, struct job *job);
HIDDEN struct job *by_queue_pop(struct queue *queue);
/* Removes a job from anywhere. Returns whether it was there. */
HIDDEN int by_queue_remove(struct queue *queue, struct job *job);
/* A job with copies of the lists. NULL: no memory. */
HIDDEN struct job *by_job_new(const struct by_job *ask);

/* copier.c. The functions below hold the copier's lock. */

#define MAX_THREADS 16
#define SEEN_ROWS 512
#define SEEN_COLUMNS 4
#define SEEN_ADDS (SEEN_ROWS * SEEN_COLUMNS)

/* The last SEEN_ADDS jobs that were added. A scheduler counts its jobs up, so the rows fill evenly.
 * In rows that do not, a number may be forgotten earlier. */
struct seen {
	uint64_t adds;
	struct {
		uint64_t number, add;
	} at[SEEN_ROWS][SEEN_COLUMNS];
};

struct flight {
	struct job *job;
	uint64_t copy;
};

struct by_copier {
	const struct by_plan *plan;
	struct by_extents *table;
	struct by_backend backend;
	int wake;
	pthread_mutex_t lock;
	pthread_cond_t work;
	struct queue loads, stores, held;
	struct flight *flights; /* copies in flight on a device */
	uint32_t flying;
	uint32_t in_progress; /* pieces in threads and on a device */
	uint32_t storing;     /* store pieces in threads */
	uint64_t since;       /* when in_progress left 0 */
	struct by_counts counts;
	_Atomic uint32_t busy;
	struct seen seen;
	int ending;
	uint32_t threads;
	pthread_t thread[MAX_THREADS];
	struct by_ring ring;
};

/* Fails a job. The first text stays. */
HIDDEN void by_job_fail(struct job *job, const char *text);
/* Ends a job without pieces in progress, and frees the job. */
HIDDEN void by_copier_end(struct by_copier *copier, struct job *job);
/* The job whose piece is the most urgent one, or NULL. Failed jobs end. */
HIDDEN struct job *by_copier_urgent(struct by_copier *copier);
/* Copies one piece. Releases the lock during the copy. */
HIDDEN void by_copier_piece(struct by_copier *copier, struct job *job);
/* Takes the device's ended copies. Only the thread that begins them may poll. */
HIDDEN void by_copier_poll(struct by_copier *copier);
/* Queues held jobs whose extents have arrived, or whose time is over. */
HIDDEN void by_copier_queue_held(struct by_copier *copier);

/* control.c */
HIDDEN struct queue *by_queue_of(struct by_copier *copier, const struct job *job);
/* Queues the job of a LOAD frame. */
HIDDEN int by_copier_add_early(struct by_copier *copier, const struct by_job *job);
/* Copies a piece of a load in the calling thread, beside the copier's threads. Returns 0 if no load
 * waits, or if only those threads may copy. */
HIDDEN int by_copier_help(struct by_copier *copier);
HIDDEN uint64_t by_now(void);

#endif
