/*
 * A libcuda.so.1 without a device, for tests. "Device" memory is host memory: memory that the test
 * declares, and that of cuMemAlloc().
 *
 * Work runs lazily on two threads, each time on a random stream whose next item may run. What a copy
 * reads and writes, and the arrays that describe it, are looked at when the copy runs and not when
 * it is asked for. A destination is poisoned when its copy is asked for. The fake counts what the
 * real driver punishes later, elsewhere or not at all: see struct fake.
 */
#include "fakestate.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t change = PTHREAD_COND_INITIALIZER;
struct CUstream_st *streams[MAX_STREAMS];
struct range pinned[MAX_RANGES], device[MAX_RANGES];
int pinned_count, device_count;
struct fake fake;
static int started, open_gates, hold_pins, held_pins;
static uint64_t seed = 1;

struct fake *fake_state(void)
{
	return &fake;
}

static uint32_t random_below(uint32_t limit)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 33) % limit;
}

int inside(const struct range *ranges, int count, uint64_t at, uint64_t bytes)
{
	for (int n = 0; n < count; n++)
		if (at >= ranges[n].at && at + bytes <= ranges[n].at + ranges[n].bytes)
			return 1;
	return 0;
}

int touches(const struct range *ranges, int count, uint64_t at, uint64_t bytes)
{
	for (int n = 0; n < count; n++)
		if (at < ranges[n].at + ranges[n].bytes && ranges[n].at < at + bytes)
			return 1;
	return 0;
}

/* Whether an address range is one that a device copy may use. Partly pinned memory is not. */
static int usable(uint64_t at, uint64_t bytes, int must_be_pinned)
{
	if (inside(device, device_count, at, bytes) || inside(pinned, pinned_count, at, bytes))
		return 1;
	return !must_be_pinned && !touches(pinned, pinned_count, at, bytes) &&
	       !touches(device, device_count, at, bytes);
}

static void run_copy(struct item *item)
{
	uint8_t *early = item->early;
	for (size_t n = 0; n < item->count; n++) {
		uint64_t to = item->to[n], from = item->from[n], bytes = item->sizes[n];
		if (!usable(to, bytes, !item->single) || !usable(from, bytes, !item->single)) {
			fake.sticky = ILLEGAL_ADDRESS;
			break;
		}
		memcpy((void *)(uintptr_t)to, early ? (void *)early : (void *)(uintptr_t)from, bytes);
		if (fake.damages && n + 1 == item->count)
			((uint8_t *)(uintptr_t)to)[bytes - 1]++;
		early = early ? early + bytes : NULL;
		fake.copied += bytes;
	}
	free(item->early);
}

static int may_run(const struct CUstream_st *stream)
{
	if (!stream || stream->busy || stream->first == stream->last)
		return 0;
	const struct item *item = &stream->items[stream->first % MAX_ITEMS];
	if (item->kind == WAIT)
		return fake.overtakes || item->event->reached >= item->record;
	return item->kind != GATE || open_gates > 0;
}

/* Runs the next item of a stream that may run. Holds the lock, and releases it in between. */
static void run_next(struct CUstream_st *stream)
{
	struct item item = stream->items[stream->first % MAX_ITEMS];
	stream->busy = 1;
	if (item.kind == HOST)
		pthread_cond_broadcast(&change); /* settle() does not wait for the program */
	pthread_mutex_unlock(&lock);
	if (item.kind == COPY || item.kind == KERNEL)
		nanosleep(&(struct timespec){0, 1000}, NULL);
	else if (item.kind == HOST)
		item.kernel(item.argument);
	pthread_mutex_lock(&lock);
	if (item.kind == COPY)
		run_copy(&item);
	else if (item.kind == KERNEL)
		item.kernel(item.argument);
	else if (item.kind == RECORD && item.event->reached < item.record)
		item.event->reached = item.record;
	else if (item.kind == GATE)
		open_gates--;
	stream->busy = 0;
	stream->first++;
	pthread_cond_broadcast(&change);
}

static void *work(void *unused)
{
	pthread_mutex_lock(&lock);
	for (;;) {
		struct CUstream_st *ready[MAX_STREAMS];
		uint32_t count = 0;
		for (int n = 0; n < MAX_STREAMS; n++)
			if (may_run(streams[n]))
				ready[count++] = streams[n];
		if (count)
			run_next(ready[random_below(count)]);
		else
			pthread_cond_wait(&change, &lock);
	}
	return unused;
}

/* Whether a stream runs a function of the program. */
static int in_host(const struct CUstream_st *stream)
{
	return stream->busy && stream->items[stream->first % MAX_ITEMS].kind == HOST;
}

/* Holds the lock. */
void settle(void)
{
	for (;;) {
		int busy = 0;
		for (int n = 0; n < MAX_STREAMS; n++)
			busy |= streams[n] && !in_host(streams[n]) &&
				(streams[n]->busy || may_run(streams[n]));
		if (!busy)
			return;
		pthread_cond_wait(&change, &lock);
	}
}

void fake_settle(void)
{
	pthread_mutex_lock(&lock);
	settle();
	pthread_mutex_unlock(&lock);
}

void push(struct CUstream_st *stream, struct item item)
{
	if (stream->last - stream->first == MAX_ITEMS)
		abort();
	struct item *at = &stream->items[stream->last++ % MAX_ITEMS];
	*at = item;
	if (item.single) {
		at->to = &at->to_one;
		at->from = &at->from_one;
		at->sizes = &at->size_one;
	}
	pthread_cond_broadcast(&change);
}

void fake_reset(uint64_t with)
{
	pthread_mutex_lock(&lock);
	memset(&fake, 0, sizeof fake);
	fake.batch_limit = 64 << 20;
	seed = with;
	device_count = pinned_count = open_gates = hold_pins = 0;
	if (!started)
		for (started = 0; started < 2; started++) {
			pthread_t thread;
			pthread_create(&thread, NULL, work, NULL);
			pthread_detach(thread);
		}
	pthread_mutex_unlock(&lock);
}

void fake_device(void *at, size_t bytes)
{
	pthread_mutex_lock(&lock);
	device[device_count++] = (struct range){(uintptr_t)at, bytes};
	pthread_mutex_unlock(&lock);
}

void fake_kernel(void *stream, void (*kernel)(void *), void *argument)
{
	pthread_mutex_lock(&lock);
	push(stream, (struct item){.kind = KERNEL, .kernel = kernel, .argument = argument});
	pthread_mutex_unlock(&lock);
}

void fake_gate(void *stream)
{
	pthread_mutex_lock(&lock);
	push(stream, (struct item){.kind = GATE});
	pthread_mutex_unlock(&lock);
}

void fake_open(void)
{
	pthread_mutex_lock(&lock);
	open_gates++;
	pthread_cond_broadcast(&change);
	pthread_mutex_unlock(&lock);
}

void fake_hold_pins(int on)
{
	pthread_mutex_lock(&lock);
	hold_pins = on;
	pthread_cond_broadcast(&change);
	pthread_mutex_unlock(&lock);
}

int fake_held_pins(void)
{
	pthread_mutex_lock(&lock);
	int held = held_pins;
	pthread_mutex_unlock(&lock);
	return held;
}

void pass_pin_gate(void)
{
	held_pins++;
	while (hold_pins)
		pthread_cond_wait(&change, &lock);
	held_pins--;
}

void fake_capture(void *stream, int on)
{
	pthread_mutex_lock(&lock);
	((struct CUstream_st *)stream)->capturing = on;
	fake.capturing = on;
	pthread_mutex_unlock(&lock);
}
