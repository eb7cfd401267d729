/*
 * The order of copies, their pieces and their generation checks. Loads go before stores, even
 * before the rest of a store in progress.
 *
 * The functions hold the copier's lock. Copies run without the lock. Threads take pieces of the
 * same job, so a large job uses all threads.
 */
#include "internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void by_job_fail(struct job *job, const char *text)
{
	if (!job->text[0])
		snprintf(job->text, sizeof job->text, "%s", text);
}

static void check_generations(struct by_copier *copier, struct job *job, const char *when)
{
	size_t right = by_extents_match(copier->table, job->slots, job->ask.count);
	if (right == job->ask.count || job->text[0])
		return;
	const struct by_slot *slot = &job->slots[right];
	snprintf(job->text, sizeof job->text,
		 "Slot(extent=%u, index=%u, generation=%llu) has another generation %s the copy,"
		 " or no extent",
		 slot->extent, slot->index, (unsigned long long)slot->generation, when);
}

void by_copier_end(struct by_copier *copier, struct job *job)
{
	if (job->ask.kind == BY_LOAD)
		check_generations(copier, job, "after");
	struct by_end out = {.number = job->ask.number,
			     .began_ns = job->began,
			     .kind = job->ask.kind,
			     .blocks = job->ask.count,
			     .ok = !job->text[0],
			     .early = job->early};
	memcpy(out.text, job->text, sizeof out.text);
	if (copier->backend.drop && job->ask.fence)
		copier->backend.drop(copier->backend.self, job->ask.fence);
	by_ring_put(&copier->ring, &out);
	free(job);
	uint64_t one = 1;
	if (copier->wake >= 0 && write(copier->wake, &one, sizeof one) < 0) {
		/* A full eventfd wakes its reader as well. */
	}
}

/* Ends a job without pieces in progress that has failed or that is copied. */
static void end_if_over(struct by_copier *copier, struct job *job)
{
	if (job->flying || !(job->text[0] || job->at == job->ask.count))
		return;
	by_copier_end(copier, job);
}

static void count_begin(struct by_copier *copier, struct job *job)
{
	uint64_t now = !copier->in_progress || !job->began ? by_now() : 0;
	if (!copier->in_progress++)
		copier->since = now;
	if (!job->began)
		job->began = now;
	job->flying++;
	copier->counts.pieces++;
}

static void count_end(struct by_copier *copier, struct job *job)
{
	uint64_t now = by_now();
	copier->counts.copy_ns += now - copier->since;
	copier->since = now;
	copier->in_progress--;
	job->flying--;
}

/* Holds a new job that lacks an extent. Returns whether the job is held. */
static int hold(struct by_copier *copier, struct job *job)
{
	if (job->at || job->waited ||
	    by_extents_known(copier->table, job->slots, job->ask.count))
		return 0;
	job->waited = 1;
	job->until = by_now() + job->ask.patience_ns;
	by_queue_remove(by_queue_of(copier, job), job);
	by_queue_push(&copier->held, job);
	return 1;
}

void by_copier_queue_held(struct by_copier *copier)
{
	uint64_t now = copier->held.length ? by_now() : 0;
	for (uint32_t left = copier->held.length; left; left--) {
		struct job *job = by_queue_pop(&copier->held);
		int ready = now >= job->until ||
			    by_extents_known(copier->table, job->slots, job->ask.count);
		by_queue_push(ready ? by_queue_of(copier, job) : &copier->held, job);
	}
}

/* Checks a job that has not begun. Returns whether the job is held. */
static int prepare(struct by_copier *copier, struct job *job)
{
	if (job->at || job->text[0])
		return 0;
	if (hold(copier, job))
		return 1;
	check_generations(copier, job, "before");
	if (!by_plan_check(copier->plan, job->blocks, job->ask.block_count))
		by_job_fail(job, "a block is outside the pool");
	return 0;
}

/* The job whose piece is the most urgent one, or NULL. Failed jobs leave the queue. */
struct job *by_copier_urgent(struct by_copier *copier)
{
	if (copier->backend.max_flying && copier->flying >= copier->backend.max_flying)
		return NULL;
	for (;;) {
		struct job *job = copier->loads.first;
		/* One thread stores: no request waits for a store, and the engine needs the cores. */
		if (!job && !copier->storing)
			job = copier->stores.first;
		if (!job)
			return NULL;
		if (prepare(copier, job))
			continue;
		if (!job->text[0])
			return job;
		by_queue_remove(by_queue_of(copier, job), job);
		end_if_over(copier, job);
	}
}

static uint32_t piece_blocks(const struct by_copier *copier, const struct job *job)
{
	uint64_t bytes = by_plan_bytes(copier->plan, job->ask.group);
	uint64_t limit = job->ask.kind == BY_STORE ? copier->backend.store_bytes
						   : copier->backend.load_bytes;
	uint64_t blocks = limit > bytes ? limit / bytes : 1;
	uint32_t left = job->ask.count - job->at;
	return blocks < left ? (uint32_t)blocks : left;
}

/* Copies one piece. Releases the lock during the copy. */
void by_copier_piece(struct by_copier *copier, struct job *job)
{
	uint32_t count = piece_blocks(copier, job), at = job->at;
	int is_store = job->ask.kind == BY_STORE;
	uint64_t need = by_plan_end(copier->plan, job->ask.group), copy = 0;
	char text[BY_TEXT] = "";
	int result = -ENOMEM;
	job->at += count;
	count_begin(copier, job);
	copier->storing += is_store;
	if (job->at == job->ask.count)
		by_queue_remove(by_queue_of(copier, job), job);
	pthread_mutex_unlock(&copier->lock);

	uint64_t *slots = malloc(count * sizeof *slots);
	size_t found = 0;
	if (slots)
		found = by_extents_addresses(copier->table, job->slots + at, count, need, slots);
	if (found == count) {
		struct by_piece piece = {job->ask.kind, job->ask.group,   count,
					 job->ask.count, slots, job->blocks + at, job->ask.fence};
		result = copier->backend.begin(copier->backend.self, &piece, &copy, text);
	} else if (slots) {
		const struct by_slot *slot = &job->slots[at + found];
		snprintf(text, sizeof text, "slot %u of extent %u: no mapping, or less than %llu"
			 " bytes", slot->index, slot->extent, (unsigned long long)need);
	}
	free(slots);

	pthread_mutex_lock(&copier->lock);
	copier->storing -= is_store;
	if (result >= 0)
		copier->counts.copied_bytes += count * by_plan_bytes(copier->plan, job->ask.group);
	if (result == 1) {
		copier->flights[copier->flying++] = (struct flight){job, copy};
		return;
	}
	if (result < 0)
		by_job_fail(job, text[0] ? text : "the copy failed");
	count_end(copier, job);
	if (job->text[0])
		by_queue_remove(by_queue_of(copier, job), job);
	end_if_over(copier, job);
}

/* Only the thread of a copier with a device, or by_copier_step(), polls the device. */
void by_copier_poll(struct by_copier *copier)
{
	uint32_t still = 0, flying = copier->flying;
	for (uint32_t n = 0; n < flying; n++) {
		struct flight flight = copier->flights[n];
		char text[BY_TEXT] = "";
		pthread_mutex_unlock(&copier->lock);
		int result = copier->backend.poll(copier->backend.self, flight.copy, text);
		pthread_mutex_lock(&copier->lock);
		if (result == 1) {
			copier->flights[still++] = flight;
			continue;
		}
		if (result < 0)
			by_job_fail(flight.job, text[0] ? text : "the device failed");
		count_end(copier, flight.job);
		if (flight.job->text[0])
			by_queue_remove(by_queue_of(copier, flight.job), flight.job);
		end_if_over(copier, flight.job);
	}
	copier->flying = still;
}
