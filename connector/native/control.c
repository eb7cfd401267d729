/* A copier's life: its threads, and the calls that add jobs and take ends. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POLL_NS 50000 /* pause between polls of a device */

uint32_t by_abi(void)
{
	return BY_ABI;
}

uint64_t by_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int memory_begin(void *plan, const struct by_piece *piece, uint64_t *copy, char *text)
{
	(void)copy;
	(void)text;
	return by_plan_copy(plan, piece);
}

void by_memory_backend(struct by_backend *backend, const struct by_plan *plan)
{
	memset(backend, 0, sizeof *backend);
	backend->self = (void *)(uintptr_t)plan;
	backend->begin = memory_begin;
	/* Small pieces share a job among the threads, and let a load overtake a store soon. */
	backend->load_bytes = backend->store_bytes = 1 << 20;
}

struct by_copier *by_copier_new(const struct by_plan *plan, struct by_extents *table,
				const struct by_backend *backend, int wake)
{
	struct by_copier *copier = calloc(1, sizeof *copier);
	if (!copier)
		return NULL;
	copier->flights = calloc(backend->max_flying + 1, sizeof *copier->flights);
	if (!copier->flights) {
		free(copier);
		return NULL;
	}
	copier->plan = plan;
	copier->table = table;
	copier->backend = *backend;
	copier->wake = wake;
	pthread_condattr_t clock;
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_mutex_init(&copier->lock, NULL);
	pthread_cond_init(&copier->work, &clock);
	pthread_condattr_destroy(&clock);
	by_queue_init(&copier->loads);
	by_queue_init(&copier->stores);
	by_queue_init(&copier->held);
	return copier;
}

struct queue *by_queue_of(struct by_copier *copier, const struct job *job)
{
	return job->ask.kind == BY_STORE ? &copier->stores : &copier->loads;
}

/* Returns whether a number was there, and remembers it if asked to. */
static int seen(struct seen *seen, uint64_t number, int remember)
{
	uint64_t row = number % SEEN_ROWS;
	unsigned oldest = 0;
	for (unsigned n = 0; n < SEEN_COLUMNS; n++) {
		uint64_t add = seen->at[row][n].add; /* 0: never used */
		if (add && seen->at[row][n].number == number && seen->adds - add < SEEN_ADDS)
			return 1;
		if (add < seen->at[row][oldest].add)
			oldest = n;
	}
	if (!remember)
		return 0;
	seen->at[row][oldest].number = number;
	seen->at[row][oldest].add = ++seen->adds;
	return 0;
}

static int add(struct by_copier *copier, const struct by_job *ask, uint32_t early)
{
	uint64_t bytes = by_plan_bytes(copier->plan, ask->group);
	uint64_t ids = (uint64_t)ask->count * by_plan_lists(copier->plan, ask->group);
	if (!ask->count || !bytes || ask->block_count != ids || ask->kind > BY_STORE)
		return -EINVAL;
	struct job *job = by_job_new(ask);
	if (!job)
		return -ENOMEM;
	job->early = early;
	pthread_mutex_lock(&copier->lock);
	/* The caller fails a job that is refused, so a later LOAD of it must not begin. A LOAD that
	 * is refused goes to the caller, which adds the job. */
	int full = atomic_load(&copier->busy) >= BY_MAX_JOBS;
	int refused = seen(&copier->seen, ask->number, !full || !early) ? -EEXIST
		      : full						? -EAGAIN
									: 0;
	if (refused) {
		pthread_mutex_unlock(&copier->lock);
		free(job);
		return refused;
	}
	atomic_fetch_add(&copier->busy, 1);
	by_queue_push(by_queue_of(copier, job), job);
	if (ask->kind == BY_LOAD)
		pthread_cond_broadcast(&copier->work);
	else if (!copier->storing) /* the thread that stores looks for more by itself */
		pthread_cond_signal(&copier->work);
	pthread_mutex_unlock(&copier->lock);
	return 0;
}

int by_copier_add(struct by_copier *copier, const struct by_job *ask)
{
	return add(copier, ask, 0);
}

int by_copier_add_early(struct by_copier *copier, const struct by_job *ask)
{
	return add(copier, ask, 1);
}

void by_copier_step(struct by_copier *copier)
{
	pthread_mutex_lock(&copier->lock);
	by_copier_poll(copier);
	by_copier_queue_held(copier);
	struct job *job = by_copier_urgent(copier);
	if (job)
		by_copier_piece(copier, job);
	pthread_mutex_unlock(&copier->lock);
}

int by_copier_help(struct by_copier *copier)
{
	int helped = 0;
	if (!copier->threads || copier->backend.max_flying)
		return 0; /* only the device's own thread begins its copies */
	pthread_mutex_lock(&copier->lock);
	if (copier->loads.first && !copier->ending) {
		struct job *job = by_copier_urgent(copier);
		helped = job && job->ask.kind == BY_LOAD;
		if (helped)
			by_copier_piece(copier, job);
	}
	pthread_mutex_unlock(&copier->lock);
	return helped;
}

/* Waits for a job, an extent, the device, or the end of a held job's patience. */
static void wait_for_work(struct by_copier *copier)
{
	uint64_t until = copier->flying ? by_now() + POLL_NS : 0;
	for (struct job *job = copier->held.first; job; job = job->next)
		if (!until || job->until < until)
			until = job->until;
	struct timespec at = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
	if (until)
		pthread_cond_timedwait(&copier->work, &copier->lock, &at);
	else
		pthread_cond_wait(&copier->work, &copier->lock);
}

static void *run(void *of)
{
	struct by_copier *copier = of;
	pthread_mutex_lock(&copier->lock);
	for (;;) {
		by_copier_poll(copier);
		by_copier_queue_held(copier);
		struct job *job = copier->ending ? NULL : by_copier_urgent(copier);
		if (job)
			by_copier_piece(copier, job);
		else if (copier->ending && !copier->flying)
			break;
		else
			wait_for_work(copier);
	}
	pthread_mutex_unlock(&copier->lock);
	return NULL;
}

int by_copier_start(struct by_copier *copier, uint32_t threads, const char *name)
{
	if (copier->backend.max_flying)
		threads = 1; /* a device keeps the order of its streams */
	if (!threads || threads > MAX_THREADS || copier->threads)
		return -EINVAL;
	for (uint32_t n = 0; n < threads; n++) {
		int failed = pthread_create(&copier->thread[n], NULL, run, copier);
		if (failed)
			return copier->threads ? 0 : -failed; /* fewer threads copy as well */
		pthread_setname_np(copier->thread[n], name);
		copier->threads++;
	}
	return 0;
}

uint32_t by_copier_take(struct by_copier *copier, struct by_end *out, uint32_t room)
{
	uint32_t count = by_ring_take(&copier->ring, out, room);
	atomic_fetch_sub(&copier->busy, count);
	return count;
}

uint32_t by_copier_busy(const struct by_copier *copier)
{
	return atomic_load(&copier->busy);
}

void by_copier_load(struct by_copier *copier, uint32_t *queued, uint32_t *flying, uint32_t *held)
{
	pthread_mutex_lock(&copier->lock);
	*queued = copier->loads.length + copier->stores.length;
	*flying = copier->in_progress;
	*held = copier->held.length;
	pthread_mutex_unlock(&copier->lock);
}

void by_copier_remapped(struct by_copier *copier)
{
	pthread_mutex_lock(&copier->lock);
	pthread_cond_broadcast(&copier->work);
	pthread_mutex_unlock(&copier->lock);
}

void by_copier_drop(struct by_copier *copier, const char *text)
{
	struct queue *queues[] = {&copier->loads, &copier->stores, &copier->held};
	pthread_mutex_lock(&copier->lock);
	for (unsigned n = 0; n < 3; n++) {
		struct job *job;
		while ((job = by_queue_pop(queues[n]))) {
			by_job_fail(job, text);
			if (!job->flying)
				by_copier_end(copier, job);
		}
	}
	pthread_mutex_unlock(&copier->lock);
}

void by_copier_counts(struct by_copier *copier, struct by_counts *counts)
{
	pthread_mutex_lock(&copier->lock);
	*counts = copier->counts;
	if (copier->in_progress)
		counts->copy_ns += by_now() - copier->since;
	pthread_mutex_unlock(&copier->lock);
}

void by_copier_free(struct by_copier *copier)
{
	by_copier_drop(copier, "the copier ends");
	pthread_mutex_lock(&copier->lock);
	copier->ending = 1;
	pthread_cond_broadcast(&copier->work);
	while (!copier->threads && copier->flying) {
		by_copier_poll(copier);
		pthread_mutex_unlock(&copier->lock);
		nanosleep(&(struct timespec){0, POLL_NS}, NULL);
		pthread_mutex_lock(&copier->lock);
	}
	pthread_mutex_unlock(&copier->lock);
	for (uint32_t n = 0; n < copier->threads; n++)
		pthread_join(copier->thread[n], NULL);
	pthread_cond_destroy(&copier->work);
	pthread_mutex_destroy(&copier->lock);
	free(copier->flights);
	free(copier);
}
