/* The calls of the CUDA driver that the library uses, and its own state. */
#ifndef BLOCKYARD_CUDA_H
#define BLOCKYARD_CUDA_H

#include "internal.h"

typedef int CUresult;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;

#define CUDA_SUCCESS 0
#define CUDA_ERROR_NOT_READY 600
#define CU_STREAM_NON_BLOCKING 1
#define CU_EVENT_DISABLE_TIMING 2
#define CU_MEMHOSTREGISTER_PORTABLE 1
#define CU_STREAM_CAPTURE_MODE_RELAXED 2
#define CU_MEMCPY_SRC_ACCESS_ORDER_STREAM 1
#define CU_MEMCPY_SRC_ACCESS_ORDER_ANY 3

/* CUmemcpyAttributes of CUDA 12.8. The hints matter for managed memory alone. */
struct CUmemcpyAttributes {
	int srcAccessOrder;
	struct {
		int type, id;
	} srcLocHint, dstLocHint;
	unsigned int flags;
};

struct driver {
	CUresult (*cuCtxGetCurrent)(CUcontext *);
	CUresult (*cuCtxSetCurrent)(CUcontext);
	CUresult (*cuThreadExchangeStreamCaptureMode)(int *);
	CUresult (*cuStreamCreate)(CUstream *, unsigned int);
	CUresult (*cuStreamDestroy)(CUstream);
	CUresult (*cuStreamSynchronize)(CUstream);
	CUresult (*cuStreamWaitEvent)(CUstream, CUevent, unsigned int);
	CUresult (*cuStreamIsCapturing)(CUstream, int *);
	CUresult (*cuEventCreate)(CUevent *, unsigned int);
	CUresult (*cuEventDestroy)(CUevent);
	CUresult (*cuEventRecord)(CUevent, CUstream);
	CUresult (*cuEventQuery)(CUevent);
	CUresult (*cuMemHostRegister)(void *, size_t, unsigned int);
	CUresult (*cuMemHostUnregister)(void *);
	CUresult (*cuMemcpyHtoDAsync)(uint64_t, const void *, size_t, CUstream);
	CUresult (*cuMemcpyDtoHAsync)(void *, uint64_t, size_t, CUstream);
	/* NULL before CUDA 12.8. The unversioned symbol keeps this signature in CUDA 13. */
	CUresult (*cuMemcpyBatchAsync)(uint64_t *, uint64_t *, size_t *, size_t,
				       struct CUmemcpyAttributes *, size_t *, size_t, size_t *,
				       CUstream);
};

struct fence {
	CUevent event;
	_Atomic int references;
	struct fence *next; /* in the list of unused fences */
};

/* A pinned piece of host memory. */
struct pin {
	uint64_t address, end;
};

struct copy;

struct by_cuda {
	struct driver call;
	void *library;
	CUcontext context;
	CUstream loads, stores;
	const struct by_plan *plan;
	pthread_mutex_t lock; /* guards pins and unused */
	struct pin *pins;     /* sorted */
	size_t pin_count, pin_room;
	struct fence *unused;
	struct copy *lost; /* only the copying thread uses this list */
	_Atomic uint64_t batches, singles;
};

/* Frees the copies that a failed driver may have read until its streams were destroyed. */
HIDDEN void by_cuda_free_lost(struct by_cuda *cuda);

#endif
