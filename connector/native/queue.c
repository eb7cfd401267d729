/* Jobs, their queues, and the ring of their ends. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

void by_queue_init(struct queue *queue)
{
	queue->first = NULL;
	queue->last = &queue->first;
	queue->length = 0;
}

void by_queue_push(struct queue *queue, struct job *job)
{
	job->next = NULL;
	*queue->last = job;
	queue->last = &job->next;
	queue->length++;
}

int by_queue_remove(struct queue *queue, struct job *job)
{
	struct job **at = &queue->first;
	while (*at && *at != job)
		at = &(*at)->next;
	if (!*at)
		return 0;
	*at = job->next;
	if (queue->last == &job->next)
		queue->last = at;
	queue->length--;
	return 1;
}

struct job *by_queue_pop(struct queue *queue)
{
	struct job *job = queue->first;
	if (job)
		by_queue_remove(queue, job);
	return job;
}

struct job *by_job_new(const struct by_job *ask)
{
	size_t slots = ask->count * sizeof(struct by_slot);
	size_t blocks = ask->block_count * sizeof(uint32_t);
	struct job *job = malloc(sizeof *job + slots + blocks);
	if (!job)
		return NULL;
	memset(job, 0, sizeof *job);
	char *lists = (char *)(job + 1);
	memcpy(lists, ask->slots, slots);
	memcpy(lists + slots, ask->blocks, blocks);
	job->ask = *ask;
	job->slots = (const struct by_slot *)(void *)lists;
	job->blocks = (const uint32_t *)(void *)(lists + slots);
	return job;
}

void by_ring_put(struct by_ring *ring, const struct by_end *end)
{
	uint32_t at = atomic_load_explicit(&ring->written, memory_order_relaxed);
	ring->ends[at % BY_MAX_JOBS] = *end;
	atomic_store_explicit(&ring->written, at + 1, memory_order_release);
}

uint32_t by_ring_take(struct by_ring *ring, struct by_end *out, uint32_t room)
{
	uint32_t at = atomic_load_explicit(&ring->read, memory_order_relaxed);
	uint32_t ready = atomic_load_explicit(&ring->written, memory_order_acquire) - at;
	uint32_t count = ready < room ? ready : room;
	for (uint32_t n = 0; n < count; n++)
		out[n] = ring->ends[(at + n) % BY_MAX_JOBS];
	atomic_store_explicit(&ring->read, at + count, memory_order_release);
	return count;
}
