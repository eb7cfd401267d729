/*
 * Copies on a CUDA device. The rules, each of which has a test with tests/fakecuda.c:
 *
 * - Loads and stores have a stream each, so no load queues behind a store that waits for a step.
 * - A copy begins behind its fence, an event of the engine's stream. It ends with its own event.
 * - What the driver reads (addresses, sizes, attributes) lives until that event.
 * - A run lies in one registration. A call takes at most BATCH_BYTES.
 * - The source of a load may be read in any order: nobody writes a pinned slot. The source of a
 *   store is read in stream order, behind the step that writes it.
 * - The driver copies unpinned memory inside the call. Such a copy is queued when its fence has been
 *   reached, so that the call never waits for a step.
 * - The library's threads use the engine's context, and capture mode relaxed: a thread of the engine
 *   may be capturing a graph, and a call of ours must not break the capture.
 */
#define _GNU_SOURCE
#include "cuda.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_BYTES (64ull << 20)
#define MAX_FLYING 16

/* A copy: its runs and what the driver reads of them. */
struct copy {
	int is_load, queued;
	struct fence *fence; /* until the copy is queued */
	struct fence *ended;
	size_t count;
	uint64_t *to, *from;
	size_t *sizes;
	struct CUmemcpyAttributes attributes;
	struct copy *next; /* in the list of lost copies */
};

static int say(char *text, const char *what, CUresult error)
{
	snprintf(text, BY_TEXT, "%s: CUDA error %d", what, error);
	return -EIO;
}

/* Gives the calling thread the engine's context. Every call of the driver comes behind this. */
static CUresult enter(struct by_cuda *cuda)
{
	static _Thread_local int relaxed;
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	if (!relaxed && cuda->call.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS)
		relaxed = 1;
	return cuda->call.cuCtxSetCurrent(cuda->context);
}

static struct fence *new_fence(struct by_cuda *cuda)
{
	pthread_mutex_lock(&cuda->lock);
	struct fence *fence = cuda->unused;
	if (fence)
		cuda->unused = fence->next;
	pthread_mutex_unlock(&cuda->lock);
	if (!fence) {
		fence = calloc(1, sizeof *fence);
		if (fence && cuda->call.cuEventCreate(&fence->event, CU_EVENT_DISABLE_TIMING)) {
			free(fence);
			return NULL;
		}
	}
	if (fence)
		atomic_store(&fence->references, 1);
	return fence;
}

void by_cuda_keep(struct by_cuda *cuda, uint64_t fence)
{
	(void)cuda;
	atomic_fetch_add(&((struct fence *)(uintptr_t)fence)->references, 1);
}

void by_cuda_drop(struct by_cuda *cuda, uint64_t handle)
{
	struct fence *fence = (struct fence *)(uintptr_t)handle;
	if (atomic_fetch_sub(&fence->references, 1) != 1)
		return;
	pthread_mutex_lock(&cuda->lock);
	fence->next = cuda->unused;
	cuda->unused = fence;
	pthread_mutex_unlock(&cuda->lock);
}

uint64_t by_cuda_fence(struct by_cuda *cuda, uint64_t stream, char *text)
{
	/* The engine's own thread: neither its context nor its capture mode is ours. */
	CUstream on = (CUstream)(uintptr_t)stream;
	int capturing = 0;
	CUresult error = cuda->call.cuStreamIsCapturing(on, &capturing);
	if (!error && capturing) {
		snprintf(text, BY_TEXT, "the engine's stream is capturing a graph");
		return 0;
	}
	struct fence *fence = error ? NULL : new_fence(cuda);
	if (fence)
		error = cuda->call.cuEventRecord(fence->event, on);
	if (!fence || error) {
		say(text, "fence", error);
		if (fence)
			by_cuda_drop(cuda, (uintptr_t)fence);
		return 0;
	}
	return (uintptr_t)fence;
}

/* Index of the pin behind the last one that begins at or before an address. Holds the lock. */
static size_t pin_after(const struct by_cuda *cuda, uint64_t address)
{
	size_t low = 0, high = cuda->pin_count;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (cuda->pins[middle].address <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

int by_cuda_pin(struct by_cuda *cuda, uint64_t address, uint64_t bytes)
{
	CUresult error = enter(cuda);
	if (!error)
		error = cuda->call.cuMemHostRegister((void *)(uintptr_t)address, bytes,
						     CU_MEMHOSTREGISTER_PORTABLE);
	if (error)
		return error;
	pthread_mutex_lock(&cuda->lock);
	if (cuda->pin_count == cuda->pin_room) {
		size_t room = 2 * cuda->pin_room + 64;
		struct pin *more = realloc(cuda->pins, room * sizeof *more);
		if (!more) { /* stays registered, and its copies take the slow way */
			pthread_mutex_unlock(&cuda->lock);
			return 0;
		}
		cuda->pins = more;
		cuda->pin_room = room;
	}
	size_t at = pin_after(cuda, address);
	memmove(&cuda->pins[at + 1], &cuda->pins[at], (cuda->pin_count++ - at) * sizeof cuda->pins[0]);
	cuda->pins[at] = (struct pin){address, address + bytes};
	pthread_mutex_unlock(&cuda->lock);
	return 0;
}

int by_cuda_unpin(struct by_cuda *cuda, uint64_t address)
{
	CUresult error = enter(cuda);
	pthread_mutex_lock(&cuda->lock);
	size_t at = pin_after(cuda, address);
	if (at && cuda->pins[at - 1].address == address) {
		memmove(&cuda->pins[at - 1], &cuda->pins[at],
			(cuda->pin_count-- - at) * sizeof cuda->pins[0]);
	}
	pthread_mutex_unlock(&cuda->lock);
	return error ? error : cuda->call.cuMemHostUnregister((void *)(uintptr_t)address);
}

/* Splits runs where a registration ends. Returns the number of runs, or 0 when a byte is unpinned.
 * out has room for `room` runs. */
static size_t split_at_pins(struct by_cuda *cuda, const struct by_run *runs, size_t count,
			    struct by_run *out, size_t room)
{
	size_t made = 0;
	pthread_mutex_lock(&cuda->lock);
	for (size_t n = 0; n < count; n++) {
		struct by_run left = runs[n];
		while (left.bytes) {
			size_t at = pin_after(cuda, left.host);
			uint64_t end = at ? cuda->pins[at - 1].end : 0;
			if (end <= left.host || made == room) {
				pthread_mutex_unlock(&cuda->lock);
				return 0;
			}
			uint64_t bytes = end - left.host < left.bytes ? end - left.host : left.bytes;
			out[made++] = (struct by_run){left.device, left.host, bytes};
			left.device += bytes;
			left.host += bytes;
			left.bytes -= bytes;
		}
	}
	pthread_mutex_unlock(&cuda->lock);
	return made;
}

static void free_arrays(struct copy *copy)
{
	free(copy->to);
	free(copy->from);
	free(copy->sizes);
	free(copy);
}

static void free_copy(struct by_cuda *cuda, struct copy *copy)
{
	if (copy->ended)
		by_cuda_drop(cuda, (uintptr_t)copy->ended);
	if (copy->fence)
		by_cuda_drop(cuda, (uintptr_t)copy->fence);
	free_arrays(copy);
}

/* Gives up a copy that may still run: the driver has failed, and does not say. Later copies fail
 * before they are queued, so at most MAX_FLYING copies are lost. */
static void lose_copy(struct by_cuda *cuda, struct copy *copy)
{
	copy->next = cuda->lost;
	cuda->lost = copy;
}

void by_cuda_free_lost(struct by_cuda *cuda)
{
	while (cuda->lost) {
		struct copy *copy = cuda->lost;
		cuda->lost = copy->next;
		free_copy(cuda, copy);
	}
}

/* A copy of these runs, with arrays for the driver. NULL: no memory. */
static struct copy *new_copy(int is_load, const struct by_run *runs, size_t count)
{
	struct copy *copy = calloc(1, sizeof *copy);
	if (!copy)
		return NULL;
	copy->is_load = is_load;
	copy->count = count;
	copy->to = malloc(count * sizeof *copy->to);
	copy->from = malloc(count * sizeof *copy->from);
	copy->sizes = malloc(count * sizeof *copy->sizes);
	if (!copy->to || !copy->from || !copy->sizes) {
		free_arrays(copy);
		return NULL;
	}
	for (size_t n = 0; n < count; n++) {
		copy->to[n] = is_load ? runs[n].device : runs[n].host;
		copy->from[n] = is_load ? runs[n].host : runs[n].device;
		copy->sizes[n] = runs[n].bytes;
	}
	copy->attributes.srcAccessOrder =
		is_load ? CU_MEMCPY_SRC_ACCESS_ORDER_ANY : CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
	return copy;
}

/* Queues the runs in calls of at most BATCH_BYTES. The arrays stay the copy's. */
static CUresult queue_batches(struct by_cuda *cuda, struct copy *copy, CUstream stream)
{
	static size_t first = 0;
	CUresult error = 0;
	for (size_t at = 0, n; at < copy->count && !error; at += n) {
		uint64_t bytes = 0;
		for (n = 0; at + n < copy->count && (!n || bytes + copy->sizes[at + n] <= BATCH_BYTES);
		     n++)
			bytes += copy->sizes[at + n];
		size_t failed = 0;
		error = cuda->call.cuMemcpyBatchAsync(copy->to + at, copy->from + at,
						      copy->sizes + at, n, &copy->attributes,
						      &first, 1, &failed, stream);
		cuda->batches++;
	}
	return error;
}

static CUresult queue_singles(struct by_cuda *cuda, struct copy *copy, CUstream stream)
{
	CUresult error = 0;
	for (size_t n = 0; n < copy->count && !error; n++) {
		if (copy->is_load)
			error = cuda->call.cuMemcpyHtoDAsync(
				copy->to[n], (void *)(uintptr_t)copy->from[n], copy->sizes[n], stream);
		else
			error = cuda->call.cuMemcpyDtoHAsync((void *)(uintptr_t)copy->to[n],
							     copy->from[n], copy->sizes[n], stream);
		cuda->singles++;
	}
	return error;
}

/* Queues a copy behind its fence, and its event behind the copy. A failed copy is freed. */
static int queue(struct by_cuda *cuda, struct copy *copy, int pinned, char *text)
{
	CUstream stream = copy->is_load ? cuda->loads : cuda->stores;
	CUresult error = enter(cuda);
	copy->ended = error ? NULL : new_fence(cuda);
	if (!copy->ended) {
		free_copy(cuda, copy);
		return say(text, "event", error);
	}
	if (copy->fence)
		error = cuda->call.cuStreamWaitEvent(stream, copy->fence->event, 0);
	if (!error)
		error = pinned && cuda->call.cuMemcpyBatchAsync ? queue_batches(cuda, copy, stream)
								: queue_singles(cuda, copy, stream);
	if (!error)
		error = cuda->call.cuEventRecord(copy->ended->event, stream);
	if (error) {
		/* Some runs may be queued. A failed job must not touch its slots any more. */
		if (cuda->call.cuStreamSynchronize(stream))
			lose_copy(cuda, copy);
		else
			free_copy(cuda, copy);
		return say(text, "copy", error);
	}
	copy->queued = 1;
	return 0;
}

static int begin(void *of, const struct by_piece *piece, uint64_t *out, char *text)
{
	struct by_cuda *cuda = of;
	size_t room = by_plan_room(cuda->plan, piece->group, piece->count, BATCH_BYTES);
	struct by_run *runs = malloc(room * sizeof *runs);
	struct by_run *split = malloc(2 * room * sizeof *split);
	struct copy *copy = NULL;
	size_t parts = 0;
	if (runs && split) {
		int64_t count = by_plan_runs(cuda->plan, piece, BATCH_BYTES, runs, room);
		parts = split_at_pins(cuda, runs, (size_t)count, split, 2 * room);
		copy = new_copy(piece->kind == BY_LOAD, parts ? split : runs,
				parts ? parts : (size_t)count);
	}
	free(runs);
	free(split);
	if (!copy)
		return -ENOMEM;
	if (piece->fence) {
		by_cuda_keep(cuda, piece->fence);
		copy->fence = (struct fence *)(uintptr_t)piece->fence;
	}
	/* Unpinned behind a fence: poll() queues the copy when the fence has been reached. */
	if (parts || !copy->fence) {
		int failed = queue(cuda, copy, parts > 0, text);
		if (failed)
			return failed;
	}
	*out = (uintptr_t)copy;
	return 1;
}

static int poll_copy(void *of, uint64_t handle, char *text)
{
	struct by_cuda *cuda = of;
	struct copy *copy = (struct copy *)(uintptr_t)handle;
	CUresult error = enter(cuda);
	if (!error)
		error = cuda->call.cuEventQuery(copy->queued ? copy->ended->event
							      : copy->fence->event);
	if (error == CUDA_ERROR_NOT_READY)
		return 1;
	if (error && copy->queued) {
		lose_copy(cuda, copy);
		return say(text, "the device", error);
	}
	if (!error && !copy->queued) {
		int failed = queue(cuda, copy, 0, text);
		return failed ? failed : 1;
	}
	free_copy(cuda, copy);
	return error ? say(text, "the fence", error) : 0;
}

static void drop(void *cuda, uint64_t fence)
{
	by_cuda_drop(cuda, fence);
}

void by_cuda_backend(struct by_backend *backend, struct by_cuda *cuda)
{
	*backend = (struct by_backend){cuda, begin, poll_copy, drop, BATCH_BYTES, 16 << 20, MAX_FLYING, 0};
}
