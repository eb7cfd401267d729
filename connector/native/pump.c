/* The wait of the worker's thread, and a thread that begins the jobs of LOADs. Both need no lock of
 * Python. After a LOAD the thread copies too: the load then begins without the time that another
 * thread needs to wake up.
 *
 * The worker's thread needs Python's lock after each wait, and waits for the lock while the engine
 * computes in Python. LOADs must not wait with it, so the loader reads them meanwhile. One thread at
 * a time reads the socket: the loader between by_loader_go() and by_loader_hold(), else Python. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

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

struct by_loader {
	struct by_pump pump; /* what the thread does with LOADs */
	pthread_mutex_t lock;
	pthread_cond_t go;
	int kick; /* eventfd: the thread looks at its state again */
	int held; /* the socket is Python's */
	int ending;
	pthread_t thread;
};

static void add_one(int eventfd)
{
	uint64_t one = 1;
	if (write(eventfd, &one, sizeof one) < 0) {
		/* A full eventfd wakes its reader as well. */
	}
}

/* Takes what has arrived, or leaves the socket to Python. Returns whether a LOAD was taken. */
static int look(struct by_loader *loader, int socket, void *frame)
{
	if (loader->held || socket != loader->pump.socket)
		return 0;
	if (take(&loader->pump, frame))
		return 1;
	loader->held = 1;
	add_one(loader->pump.wake);
	return 0;
}

static void *run(void *of)
{
	struct by_loader *loader = of;
	_Alignas(8) char frame[MAX_FRAME];
	int help = 0;
	pthread_mutex_lock(&loader->lock);
	for (;;) {
		while (loader->held && !loader->ending && !help)
			pthread_cond_wait(&loader->go, &loader->lock);
		if (loader->ending)
			break;
		int socket = loader->held ? -1 : loader->pump.socket;
		struct pollfd fds[2] = {{loader->kick, POLLIN, 0}, {socket, POLLIN, 0}};
		pthread_mutex_unlock(&loader->lock);
		int ready = poll(fds, 2, help ? 0 : -1);
		if (!ready)
			help = by_copier_help(loader->pump.copier);
		uint64_t kicks;
		if (ready > 0 && fds[0].revents && read(loader->kick, &kicks, sizeof kicks) < 0)
			kicks = 0;
		pthread_mutex_lock(&loader->lock);
		if (ready > 0 && fds[1].revents && look(loader, socket, frame))
			help = 1;
	}
	pthread_mutex_unlock(&loader->lock);
	return NULL;
}

struct by_loader *by_loader_new(struct by_copier *copier, int wake, const char *name)
{
	struct by_loader *loader = calloc(1, sizeof *loader);
	if (!loader)
		return NULL;
	loader->pump.copier = copier;
	loader->pump.wake = wake;
	loader->pump.socket = -1;
	loader->held = 1;
	loader->kick = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	pthread_mutex_init(&loader->lock, NULL);
	pthread_cond_init(&loader->go, NULL);
	if (loader->kick >= 0 && !pthread_create(&loader->thread, NULL, run, loader)) {
		pthread_setname_np(loader->thread, name);
		return loader;
	}
	if (loader->kick >= 0)
		close(loader->kick);
	free(loader);
	return NULL;
}

void by_loader_go(struct by_loader *loader, const struct by_pump *pump)
{
	pthread_mutex_lock(&loader->lock);
	int other = pump->socket != loader->pump.socket;
	loader->pump.socket = pump->socket;
	loader->pump.early = pump->early;
	loader->pump.session = pump->session;
	loader->pump.patience_ns = pump->patience_ns;
	loader->held = pump->socket < 0;
	pthread_cond_signal(&loader->go);
	pthread_mutex_unlock(&loader->lock);
	if (other)
		add_one(loader->kick);
}

void by_loader_hold(struct by_loader *loader, uint64_t *begun)
{
	pthread_mutex_lock(&loader->lock);
	loader->held = 1;
	*begun = loader->pump.begun;
	pthread_mutex_unlock(&loader->lock);
}

void by_loader_free(struct by_loader *loader)
{
	pthread_mutex_lock(&loader->lock);
	loader->ending = 1;
	pthread_cond_signal(&loader->go);
	pthread_mutex_unlock(&loader->lock);
	add_one(loader->kick);
	pthread_join(loader->thread, NULL);
	pthread_mutex_destroy(&loader->lock);
	pthread_cond_destroy(&loader->go);
	close(loader->kick);
	free(loader);
}
