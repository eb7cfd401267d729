/* The driver's calls, with the fake's checks. */
#include "fakestate.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local CUcontext context;
static _Thread_local int mode, mode_known;
static _Thread_local int copies; /* calls of this thread that copy */

void fake_context(int on)
{
	context = on ? CONTEXT : NULL;
}

CUresult enter(int unsafe)
{
	pthread_mutex_lock(&lock);
	CUresult error = fake.sticky;
	if (!error && !context)
		error = INVALID_CONTEXT;
	if (!error && unsafe && fake.capturing && !(mode_known && mode == 2)) {
		fake.captures_broken++;
		error = CAPTURE_UNSAFE;
	}
	if (error)
		pthread_mutex_unlock(&lock);
	return error;
}

CUresult leave(CUresult result)
{
	pthread_mutex_unlock(&lock);
	return result;
}

void finish(const struct CUstream_st *stream)
{
	while (stream->first != stream->last || stream->busy)
		pthread_cond_wait(&change, &lock);
}

CUresult add_range(struct range *ranges, int *count, uint64_t at, size_t bytes)
{
	if (*count == MAX_RANGES)
		return OUT_OF_MEMORY;
	ranges[(*count)++] = (struct range){at, bytes};
	return 0;
}

CUresult drop_range(struct range *ranges, int *count, uint64_t at)
{
	for (int n = 0; n < *count; n++)
		if (ranges[n].at == at) {
			ranges[n] = ranges[--*count];
			return 0;
		}
	return INVALID_VALUE;
}

CUresult cuCtxGetCurrent(CUcontext *out)
{
	*out = context;
	return 0;
}

CUresult cuCtxSetCurrent(CUcontext to)
{
	context = to;
	return fake.sticky;
}

CUresult cuThreadExchangeStreamCaptureMode(int *exchange)
{
	int before = mode;
	mode = *exchange;
	mode_known = 1;
	*exchange = before;
	return 0;
}

CUstream new_stream(void)
{
	for (int n = 0; n < MAX_STREAMS; n++)
		if (!streams[n])
			return streams[n] = calloc(1, sizeof *streams[n]);
	return NULL;
}

CUresult cuStreamCreate(CUstream *out, unsigned int flags)
{
	(void)flags;
	CUresult error = enter(0);
	if (error)
		return error;
	*out = new_stream();
	return leave(*out ? 0 : OUT_OF_MEMORY);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
	pthread_mutex_lock(&lock);
	settle();
	while (stream->busy)
		pthread_cond_wait(&change, &lock);
	for (int n = 0; n < MAX_STREAMS; n++)
		if (streams[n] == stream)
			streams[n] = NULL;
	free(stream);
	return leave(0);
}

CUresult cuStreamSynchronize(CUstream stream)
{
	CUresult error = enter(1);
	if (error)
		return error;
	finish(stream);
	return leave(fake.sticky);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
	(void)flags;
	CUresult error = enter(0);
	if (error)
		return error;
	push(stream, (struct item){.kind = WAIT, .event = event, .record = event->asked});
	return leave(0);
}

CUresult cuStreamIsCapturing(CUstream stream, int *out)
{
	*out = stream->capturing;
	return 0;
}

CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
	(void)flags;
	*out = calloc(1, sizeof **out);
	return 0;
}

CUresult cuEventDestroy_v2(CUevent event)
{
	free(event);
	return 0;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	CUresult error = enter(0);
	if (error)
		return error;
	push(stream, (struct item){.kind = RECORD, .event = event, .record = ++event->asked});
	return leave(0);
}

CUresult cuEventQuery(CUevent event)
{
	CUresult error = enter(1);
	if (error)
		return error;
	return leave(event->reached < event->asked ? CUDA_ERROR_NOT_READY : 0);
}

CUresult cuMemHostRegister_v2(void *at, size_t bytes, unsigned int flags)
{
	(void)flags;
	CUresult error = enter(1);
	if (error)
		return error;
	fake.pins_on_copy_threads += copies > 0;
	pass_pin_gate();
	if (touches(pinned, pinned_count, (uintptr_t)at, bytes))
		return leave(ALREADY_REGISTERED);
	return leave(add_range(pinned, &pinned_count, (uintptr_t)at, bytes));
}

CUresult cuMemHostUnregister(void *at)
{
	CUresult error = enter(1);
	if (error)
		return error;
	return leave(drop_range(pinned, &pinned_count, (uintptr_t)at));
}

static CUresult copy_one(uint64_t to, uint64_t from, size_t bytes, uint64_t host, CUstream stream)
{
	CUresult error = enter(1);
	if (error)
		return error;
	copies++;
	memset((void *)(uintptr_t)to, POISON, bytes);
	push(stream, (struct item){.kind = COPY, .to_one = to, .from_one = from, .size_one = bytes,
				   .count = 1, .single = 1});
	if (inside(pinned, pinned_count, host, bytes))
		return leave(0);
	settle(); /* unpinned memory is copied inside the call */
	if (stream->first != stream->last)
		fake.calls_that_waited++;
	finish(stream);
	return leave(fake.sticky);
}

CUresult cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, CUstream stream)
{
	return copy_one(to, (uintptr_t)from, bytes, (uintptr_t)from, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, CUstream stream)
{
	return copy_one((uintptr_t)to, from, bytes, (uintptr_t)to, stream);
}

CUresult cuMemcpyBatchAsync(uint64_t *to, uint64_t *from, size_t *sizes, size_t count,
			    struct CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count,
			    size_t *failed, CUstream stream)
{
	size_t bytes = 0;
	CUresult error = enter(1);
	if (error)
		return error;
	copies++;
	for (size_t n = 0; n < count; n++)
		bytes += sizes[n];
	if (attribute_count != 1 || indices[0] || !count || bytes > fake.batch_limit ||
	    fake.fail_batches) {
		*failed = 0;
		return leave(INVALID_VALUE);
	}
	struct item item = {.kind = COPY, .to = to, .from = from, .sizes = sizes, .count = count,
			    .attributes = attributes};
	if (attributes->srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_ANY) {
		uint8_t *into = item.early = malloc(bytes);
		for (size_t n = 0; n < count; into += sizes[n++])
			memcpy(into, (void *)(uintptr_t)from[n], sizes[n]);
	}
	for (size_t n = 0; n < count; n++)
		memset((void *)(uintptr_t)to[n], POISON, sizes[n]);
	push(stream, item);
	return leave(0);
}
