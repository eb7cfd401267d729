/* The driver's calls that a program without torch makes itself. */
#include "fakestate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CUresult cuInit(unsigned int flags)
{
	const char *fault = getenv("FAKECUDA_FAULT");
	(void)flags;
	fake_reset(1);
	if (!fault)
		return 0;
	fake.damages = !strcmp(fault, "damages");
	fake.overtakes = !strcmp(fault, "overtakes");
	return fake.damages || fake.overtakes ? 0 : INVALID_VALUE;
}

CUresult cuDeviceGet(int *out, int number)
{
	*out = number;
	return number ? INVALID_DEVICE : 0;
}

CUresult cuDeviceGetName(char *out, int room, int number)
{
	snprintf(out, (size_t)room, "fake libcuda.so.1 without a GPU");
	return number ? INVALID_DEVICE : 0;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, int number)
{
	*out = CONTEXT;
	return number ? INVALID_DEVICE : 0;
}

CUresult cuCtxSynchronize(void)
{
	CUresult error = enter(1);
	if (error)
		return error;
	for (int n = 0; n < MAX_STREAMS; n++)
		if (streams[n])
			finish(streams[n]);
	return leave(fake.sticky);
}

static CUresult allocate(struct range *ranges, int *count, size_t bytes, uint64_t *out)
{
	CUresult error = enter(1);
	if (error)
		return error;
	void *at = malloc(bytes);
	error = at ? add_range(ranges, count, (uintptr_t)at, bytes) : OUT_OF_MEMORY;
	if (error)
		free(at);
	else
		memset(at, POISON, bytes);
	*out = error ? 0 : (uintptr_t)at;
	return leave(error);
}

static CUresult release(struct range *ranges, int *count, uint64_t at)
{
	CUresult error = enter(1);
	if (error)
		return error;
	settle();
	error = drop_range(ranges, count, at);
	if (!error)
		free((void *)(uintptr_t)at);
	return leave(error);
}

CUresult cuMemAlloc_v2(uint64_t *out, size_t bytes)
{
	return allocate(device, &device_count, bytes, out);
}

CUresult cuMemFree_v2(uint64_t at)
{
	return release(device, &device_count, at);
}

CUresult cuMemAllocHost_v2(void **out, size_t bytes)
{
	uint64_t at = 0;
	CUresult error = allocate(pinned, &pinned_count, bytes, &at);
	*out = (void *)(uintptr_t)at;
	return error;
}

CUresult cuMemFreeHost(void *at)
{
	return release(pinned, &pinned_count, (uintptr_t)at);
}

/* The default stream of copies without a stream. Other streams do not wait for it. Holds the lock. */
static CUstream default_stream(void)
{
	static CUstream stream;
	if (!stream)
		stream = new_stream();
	return stream;
}

/* Returns when unpinned sources are read. The bytes may reach the device later. */
CUresult cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes)
{
	CUresult error = enter(1);
	if (error)
		return error;
	uint8_t *read = inside(device, device_count, to, bytes) ? malloc(bytes) : NULL;
	if (!read)
		return leave(INVALID_VALUE);
	memcpy(read, from, bytes);
	push(default_stream(), (struct item){.kind = COPY, .to_one = to, .from_one = (uintptr_t)read,
					     .size_one = bytes, .count = 1, .single = 1,
					     .early = read});
	if (inside(pinned, pinned_count, (uintptr_t)from, bytes))
		finish(default_stream());
	return leave(fake.sticky);
}

CUresult cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
	CUresult error = enter(1);
	if (error)
		return error;
	if (!inside(device, device_count, from, bytes))
		return leave(INVALID_VALUE);
	finish(default_stream());
	memcpy(to, (void *)(uintptr_t)from, bytes);
	return leave(fake.sticky);
}

CUresult cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, CUstream stream)
{
	CUresult error = enter(1);
	if (error)
		return error;
	if (!inside(device, device_count, to, bytes) || !inside(device, device_count, from, bytes))
		return leave(INVALID_VALUE);
	push(stream, (struct item){.kind = COPY, .to_one = to, .from_one = from, .size_one = bytes,
				   .count = 1, .single = 1});
	return leave(0);
}

/* The function runs on a thread of the fake, without the lock. It must not call the driver. */
CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *argument)
{
	CUresult error = enter(0);
	if (error)
		return error;
	push(stream, (struct item){.kind = HOST, .kernel = function, .argument = argument});
	return leave(0);
}
