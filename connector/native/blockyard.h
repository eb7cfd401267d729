/*
 * The C interface of the connector's data plane. docs/native.md explains the parts.
 *
 * Python loads the library with ctypes (blockyard/native.py). The exported symbols have the version
 * BLOCKYARD_1. A change that breaks a caller raises BY_ABI, which the caller compares.
 *
 * Functions that return int return 0 or a negative errno, unless their comment says otherwise.
 * Integers of packed lists are little-endian, like every platform of the agent.
 */
#ifndef BLOCKYARD_H
#define BLOCKYARD_H

#include <stddef.h>
#include <stdint.h>

#define BY_ABI 3
#define BY_ALL_GROUPS 0xffffffffu
#define BY_MAX_JOBS 4096       /* jobs of a copier that have not been taken from its ring */
#define BY_MAX_EXTENTS 16384   /* as MAX_EXTENTS in extents.py */
#define BY_TEXT 192

#define BY_LOAD 0
#define BY_STORE 1

/* One run of bytes of each block, as mover.Page. offset counts from the begin of a slot. */
struct by_page {
	uint64_t address, stride, bytes, offset;
	uint32_t group, unused;
};

/* A packed slot of the protocol. */
struct by_slot {
	uint32_t extent, index;
	uint64_t generation;
};

/* One run of a copy: `bytes` bytes between device memory and a slot. */
struct by_run {
	uint64_t device, host, bytes;
};

/* A piece of a job, for a backend. slots: addresses. blocks: one list of `stride` ids for each
 * group, of which the first `count` belong to the piece; one list if the job names a group. */
struct by_piece {
	uint32_t kind, group, count, stride;
	const uint64_t *slots;
	const uint32_t *blocks;
	uint64_t fence;
};

/* What copies. Calls of one copier come from one thread at a time if max_flying > 0, and from
 * several threads otherwise. A text of BY_TEXT bytes takes the reason of a failure. */
struct by_backend {
	void *self;
	/* Begins a copy. 0: the copy has ended. 1: *copy is in flight. Negative: failed, and no copy
	 * is in flight. */
	int (*begin)(void *self, const struct by_piece *piece, uint64_t *copy, char *text);
	/* 1: in flight. 0: ended. Negative: failed and ended. */
	int (*poll)(void *self, uint64_t copy, char *text);
	/* Releases the job's fence. NULL: fences need no release. */
	void (*drop)(void *self, uint64_t fence);
	uint64_t load_bytes, store_bytes; /* limit of a piece */
	uint32_t max_flying;              /* limit of copies in flight; 0: begin() copies */
	uint32_t unused;
};

/* A job. group: BY_ALL_GROUPS, or the only group whose pages are copied. patience_ns: how long the
 * job waits for an extent that is not mapped yet. */
struct by_job {
	uint64_t number;
	uint32_t kind, group;
	uint32_t count, block_count;
	const void *slots;
	const void *blocks;
	uint64_t fence, patience_ns;
};

/* The end of a job. early: the job came with a LOAD frame. began_ns: when the first piece began, by
 * CLOCK_MONOTONIC; 0 if none did. */
struct by_end {
	uint64_t number, began_ns;
	uint32_t kind, blocks, ok, early;
	char text[BY_TEXT];
};

/* Counters since the start. copy_ns: time with a copy in progress. */
struct by_counts {
	uint64_t copied_bytes, copy_ns, pieces;
};

struct by_plan;
struct by_extents;
struct by_copier;
struct by_cuda;
struct by_loader;

uint32_t by_abi(void);

/* plan.c: where the bytes of a block lie. A plan is immutable. */

/* A plan of pages that mover.Pages has checked. groups: number of groups. NULL: no memory. */
struct by_plan *by_plan_new(const struct by_page *pages, uint32_t count, uint32_t groups,
			    uint32_t blocks);
void by_plan_free(struct by_plan *plan);
/* Bytes of a block that a job of this group copies. 0: the group does not exist. */
uint64_t by_plan_bytes(const struct by_plan *plan, uint32_t group);
/* Whether every id is a block of the pool. */
int by_plan_check(const struct by_plan *plan, const uint32_t *blocks, size_t count);
/* The runs of a piece of at most `largest` bytes each. Adjacent runs are merged. out has room for
 * `room` runs. Returns the number of runs, or -ENOSPC. */
int64_t by_plan_runs(const struct by_plan *plan, const struct by_piece *piece, uint64_t largest,
		     struct by_run *out, size_t room);
/* Upper limit of the number of runs. */
size_t by_plan_room(const struct by_plan *plan, uint32_t group, uint32_t count, uint64_t largest);
/* Copies a piece in the calling thread, with streaming stores. */
int by_plan_copy(const struct by_plan *plan, const struct by_piece *piece);

/* copy.c */
void by_copy(void *to, const void *from, size_t bytes);

/* extents.c: the table of mapped extents. Thread-safe. */

struct by_extents *by_extents_new(void);
void by_extents_free(struct by_extents *table);
/* Sets the mapping of a number. address: the generation words. data: slot 0. */
int by_extents_set(struct by_extents *table, uint32_t number, uint64_t address, uint64_t data,
		   uint32_t slots, uint64_t slot_bytes);
/* Removes a mapping. The caller unmaps the memory only when no job is in progress. */
void by_extents_drop(struct by_extents *table, uint32_t number);
/* How many leading slots match their generation words. */
size_t by_extents_match(struct by_extents *table, const struct by_slot *slots, size_t count);

/* copier.c: jobs in, ends out. Thread-safe, except that one thread at a time takes ends. */

/* A copier without threads. wake: an eventfd that each end increments, or -1. */
struct by_copier *by_copier_new(const struct by_plan *plan, struct by_extents *table,
				const struct by_backend *backend, int wake);
/* The backend that copies in plain memory. The plan must outlive the backend. */
void by_memory_backend(struct by_backend *backend, const struct by_plan *plan);
/* Starts threads. Without threads, by_copier_step() copies. name: of the threads. */
int by_copier_start(struct by_copier *copier, uint32_t threads, const char *name);
/* Queues a job, and takes over its fence. -EINVAL: lists of different lengths. -EAGAIN: BY_MAX_JOBS
 * jobs have not been taken. -EEXIST: the job was one of the last 2048 that were added. A refused job
 * keeps its fence. */
int by_copier_add(struct by_copier *copier, const struct by_job *job);
/* Polls the device and begins at most one piece. */
void by_copier_step(struct by_copier *copier);
/* Takes ends without a lock. Returns their number. */
uint32_t by_copier_take(struct by_copier *copier, struct by_end *out, uint32_t room);
/* Jobs that have been added and not been taken. */
uint32_t by_copier_busy(const struct by_copier *copier);
/* Jobs without a free thread to begin them now, jobs in flight, and held jobs. */
void by_copier_load(struct by_copier *copier, uint32_t *queued, uint32_t *flying, uint32_t *held);
/* Looks at held jobs again, after the table has changed. */
void by_copier_remapped(struct by_copier *copier);
/* Fails every queued and held job. */
void by_copier_drop(struct by_copier *copier, const char *text);
void by_copier_counts(struct by_copier *copier, struct by_counts *counts);
/* Waits for copies in flight, ends the threads and frees the copier. */
void by_copier_free(struct by_copier *copier);

/* frames.c: the frames of docs/protocol.md that the library reads. */

#define BY_FRAME_LOAD 27

/* A LOAD. The lists point into the frame. */
struct by_load {
	uint64_t job;
	uint32_t group, count, block_count, unused;
	const void *slots;
	const void *blocks;
};

/* The type of a frame, or -EBADMSG for a malformed header. */
int by_frame_type(const void *frame, size_t bytes);
/* Reads a LOAD. -EBADMSG: Python reads the frame, and decides. */
int by_frame_load(const void *frame, size_t bytes, struct by_load *load);

/* pump.c: the wait of the worker's thread. */

#define BY_PUMP_FRAME 1 /* a frame for Python has arrived, or the connection has ended */
#define BY_PUMP_WAKE 2  /* wake was written, or a job has ended */

/* What a pump does with LOADs. session: upper half of the numbers of the jobs that the pump begins.
 * early: whether it begins any. socket: -1 without a connection. */
struct by_pump {
	struct by_copier *copier;
	int32_t socket, wake;
	uint32_t early, session;
	uint64_t patience_ns;
	uint64_t begun, skipped; /* LOADs */
};

/* Waits for a frame, a wake or timeout_ns (negative: no limit), and begins the jobs of LOADs
 * meanwhile. Returns a BY_PUMP_ number, 0 after the timeout, or a negative errno. */
int by_pump(struct by_pump *pump, int64_t timeout_ns);

/* A thread that begins the jobs of LOADs while the worker's thread waits, for example for Python's
 * lock. It does not read a socket before by_loader_go(). wake: an eventfd that tells the caller to
 * read the socket. NULL: no thread. */
struct by_loader *by_loader_new(struct by_copier *copier, int wake, const char *name);
/* Gives the thread the pump's socket, until by_loader_hold() or the first message that is no LOAD. */
void by_loader_go(struct by_loader *loader, const struct by_pump *pump);
/* Takes the socket back. Waits while the thread takes a message, some microseconds. begun: LOADs
 * whose jobs the thread has begun so far. */
void by_loader_hold(struct by_loader *loader, uint64_t *begun);
/* Ends the thread. */
void by_loader_free(struct by_loader *loader);

/* cuda.c: copies on a device. */

/* Opens the driver `library` ("libcuda.so.1") with the context of the calling thread. NULL: failed,
 * text says why. */
struct by_cuda *by_cuda_new(const char *library, const struct by_plan *plan, char *text);
void by_cuda_backend(struct by_backend *backend, struct by_cuda *cuda);
/* An event behind the work of the engine's stream. 0: failed, text says why. */
uint64_t by_cuda_fence(struct by_cuda *cuda, uint64_t stream, char *text);
/* Adds a reference to a fence, or removes one. The last removal destroys the fence. */
void by_cuda_keep(struct by_cuda *cuda, uint64_t fence);
void by_cuda_drop(struct by_cuda *cuda, uint64_t fence);
/* Pins or unpins host memory. 0 or the driver's error. */
int by_cuda_pin(struct by_cuda *cuda, uint64_t address, uint64_t bytes);
int by_cuda_unpin(struct by_cuda *cuda, uint64_t address);
/* How many bytes of calls were made: batches, single copies. For tests and figures. */
void by_cuda_calls(struct by_cuda *cuda, uint64_t *batches, uint64_t *singles);
/* Frees the streams. No copy may be in flight. */
void by_cuda_free(struct by_cuda *cuda);

#endif
