/* Opening and closing the CUDA driver. */
#define _GNU_SOURCE
#include "cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Finds the driver's calls. Returns the name of a missing one, or NULL. */
static const char *find_calls(void *library, struct driver *call)
{
	static const char *names[] = {
		"cuCtxGetCurrent",     "cuCtxSetCurrent",   "cuThreadExchangeStreamCaptureMode",
		"cuStreamCreate",      "cuStreamDestroy_v2", "cuStreamSynchronize",
		"cuStreamWaitEvent",   "cuStreamIsCapturing", "cuEventCreate",
		"cuEventDestroy_v2",   "cuEventRecord",     "cuEventQuery",
		"cuMemHostRegister_v2", "cuMemHostUnregister", "cuMemcpyHtoDAsync_v2",
		"cuMemcpyDtoHAsync_v2", "cuMemcpyBatchAsync",
	};
	_Static_assert(sizeof names == sizeof *call, "one name for each call");
	for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
		void *found = dlsym(library, names[n]);
		if (!found && strcmp(names[n], "cuMemcpyBatchAsync"))
			return names[n];
		memcpy((char *)call + n * sizeof found, &found, sizeof found);
	}
	return NULL;
}

static int open_streams(struct by_cuda *cuda, char *text)
{
	CUresult error = cuda->call.cuCtxGetCurrent(&cuda->context);
	if (error || !cuda->context) {
		snprintf(text, BY_TEXT, "the thread has no context yet (CUDA error %d)", error);
		return 0;
	}
	error = cuda->call.cuStreamCreate(&cuda->loads, CU_STREAM_NON_BLOCKING);
	if (!error)
		error = cuda->call.cuStreamCreate(&cuda->stores, CU_STREAM_NON_BLOCKING);
	if (error)
		snprintf(text, BY_TEXT, "stream: CUDA error %d", error);
	return !error;
}

struct by_cuda *by_cuda_new(const char *library, const struct by_plan *plan, char *text)
{
	struct by_cuda *cuda = calloc(1, sizeof *cuda);
	if (!cuda) {
		snprintf(text, BY_TEXT, "no memory");
		return NULL;
	}
	cuda->plan = plan;
	pthread_mutex_init(&cuda->lock, NULL);
	cuda->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	const char *missing = cuda->library ? find_calls(cuda->library, &cuda->call) : NULL;
	if (!cuda->library)
		snprintf(text, BY_TEXT, "no CUDA driver: %s", dlerror());
	else if (missing)
		snprintf(text, BY_TEXT, "%s has no %s", library, missing);
	else if (open_streams(cuda, text))
		return cuda;
	by_cuda_free(cuda);
	return NULL;
}

void by_cuda_calls(struct by_cuda *cuda, uint64_t *batches, uint64_t *singles)
{
	*batches = atomic_load(&cuda->batches);
	*singles = atomic_load(&cuda->singles);
}

void by_cuda_free(struct by_cuda *cuda)
{
	if (cuda->loads)
		cuda->call.cuStreamDestroy(cuda->loads);
	if (cuda->stores)
		cuda->call.cuStreamDestroy(cuda->stores);
	by_cuda_free_lost(cuda);
	while (cuda->unused) {
		struct fence *fence = cuda->unused;
		cuda->unused = fence->next;
		cuda->call.cuEventDestroy(fence->event);
		free(fence);
	}
	/* The driver stays open: to close it ends the engine's own use in some versions. */
	pthread_mutex_destroy(&cuda->lock);
	free(cuda->pins);
	free(cuda);
}
