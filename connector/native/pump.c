/* The wait of the worker's thread. LOADs begin here, without Python's lock. Between two frames the
 * thread copies too: a load then begins without the time that another thread needs to wake up. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define MAX_FRAME (32 * 1024)

/* Looks at the next message without taking it. Returns its bytes, or 0: Python reads it. */
static size_t peek(const struct by_pump *pump, void *frame)
{
	struct iovec piece = {frame, MAX_FRAME};
	struct msghdr head = {.msg_iov = &piece, .msg_iovlen = 1};
	/* MSG_CTRUNC: the message carries descriptors, which no LOAD does. */
	ssize_t bytes = recvmsg(pump->socket, &head, MSG_PEEK | MSG_DONTWAIT);
	if (bytes <= 0 || head.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
		return 0;
	return (size_t)bytes;
}

/* Begins the job of a LOAD. Returns whether the frame has been taken from the socket. */
static int take(struct by_pump *pump, void *frame)
{
	struct by_load load;
	size_t bytes = peek(pump, frame);
	if (!bytes || by_frame_load(frame, bytes, &load))
		return 0;
	if (!pump->early || load.job >> 32 != pump->session) {
		pump->skipped++; /* the engine's own record begins the job */
	} else {
		struct by_job job = {.number = load.job,
				     .kind = BY_LOAD,
				     .group = load.group,
				     .count = load.count,
				     .block_count = load.block_count,
				     .slots = load.slots,
				     .blocks = load.blocks,
				     .patience_ns = pump->patience_ns};
		int refused = by_copier_add_early(pump->copier, &job);
		if (refused && refused != -EEXIST)
			return 0;
		pump->begun += !refused;
	}
	recv(pump->socket, frame, MAX_FRAME, MSG_DONTWAIT);
	return 1;
}

static int wait_until(struct pollfd *fds, uint64_t until, int64_t timeout_ns)
{
	if (timeout_ns < 0)
		return ppoll(fds, 2, NULL, NULL);
	uint64_t now = by_now(), left = until > now ? until - now : 0;
	struct timespec time = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
	return ppoll(fds, 2, &time, NULL);
}

int by_pump(struct by_pump *pump, int64_t timeout_ns)
{
	uint64_t until = by_now() + (uint64_t)(timeout_ns < 0 ? 0 : timeout_ns);
	struct pollfd fds[2] = {{pump->wake, POLLIN, 0}, {pump->socket, POLLIN, 0}};
	_Alignas(8) char frame[MAX_FRAME];
	int help = 0;
	for (;;) {
		int ready = help ? poll(fds, 2, 0) : wait_until(fds, until, timeout_ns);
		if (!ready && help) {
			help = by_copier_help(pump->copier);
			continue;
		}
		if (ready <= 0)
			return ready < 0 && errno != EINTR ? -errno : 0;
		if (fds[0].revents)
			return BY_PUMP_WAKE; /* the caller may want something else of LOADs now */
		if (fds[1].revents && !take(pump, frame))
			return BY_PUMP_FRAME;
		help = 1;
	}
}
