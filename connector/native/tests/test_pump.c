/* Tests of pump.c: the wait of the worker's thread, and the thread that begins the jobs of LOADs. */
#include "copierworld.h"

/* A backend whose stores wait until the gate is open. */
struct gate {
	const struct by_plan *plan;
	_Atomic int open;
};

static int gated_begin(void *self, const struct by_piece *piece, uint64_t *copy, char *text)
{
	struct gate *gate = self;
	(void)copy;
	(void)text;
	while (piece->kind == BY_STORE && !gate->open)
		nap(100000);
	return by_plan_copy(gate->plan, piece);
}

static void the_pump_copies_a_load_itself(void)
{
	struct world w = make(0);
	struct gate gate = {.plan = w.plan};
	struct by_backend backend = {.self = &gate, .begin = gated_begin, .load_bytes = SLOT,
				     .store_bytes = SLOT};
	uint32_t queued, busy, held;
	struct by_end got;
	int ends[2], wake = eventfd(0, EFD_NONBLOCK);
	map(&w);
	by_copier_free(w.copier);
	w.copier = by_copier_new(w.plan, w.table, &backend, wake);
	CHECK(w.copier && wake >= 0 && !by_copier_start(w.copier, 1, "test"));
	CHECK(!add(&w, 1, BY_STORE, BY_ALL_GROUPS, 0, 7));
	do
		by_copier_load(w.copier, &queued, &busy, &held);
	while (!busy); /* now the only thread waits */
	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
	load(ends[1], (uint64_t)3 << 32 | 9, 0, 1);
	struct by_pump pump = {.copier = w.copier, .socket = ends[0], .wake = wake, .early = 1,
			       .session = 3};
	CHECK(by_pump(&pump, -1) == BY_PUMP_WAKE && pump.begun == 1);
	CHECK(by_copier_take(w.copier, &got, 1) == 1 && got.ok && got.early);
	CHECK(got.number == ((uint64_t)3 << 32 | 9));
	gate.open = 1;
	CHECK(wait_end(&w, 1));
	end(&w);
	close(ends[0]);
	close(ends[1]);
	close(wake);
}

/* Takes ended jobs. Returns their number, and frees their blocks. owner: the job of each block. */
static uint32_t take_ends(struct world *w, uint64_t *owner, uint8_t blocks)
{
	struct by_end got[16];
	uint32_t count = by_copier_take(w->copier, got, 16);
	for (uint32_t at = 0; at < count; at++)
		for (uint8_t n = 0; n < blocks; n++)
			if (owner[n] == got[at].number)
				owner[n] = 0;
	return count;
}

/* Loads a slot into a block that no other load uses, as an engine does. */
static void load_free_block(int socket, uint64_t job, uint64_t *owner)
{
	uint8_t n = 0;
	while (owner[n])
		n++;
	owner[n] = job;
	load(socket, job, n, 0);
}

/* The frames that Python reads are numbered. Any other frame is a LOAD. */
static void the_loader_leaves_other_frames_in_their_order(void)
{
	enum { FRAMES = 2000, FREE = 8 };
	struct world w = make(2);
	int ends[2], wake = eventfd(0, EFD_NONBLOCK);
	uint64_t seed = 5, loads = 0, begun = 0, wakes, owner[FREE] = {0};
	uint32_t sent = 0, read_at = 0, others = 0;
	char frame[256];
	map(&w);
	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
	struct by_pump pump = {.copier = w.copier, .socket = ends[0], .early = 1, .session = 3,
			       .patience_ns = 2000000, .wake = wake};
	struct by_loader *loader = by_loader_new(w.copier, wake, "test");
	CHECK(loader);
	double until = seconds() + 60;
	uint32_t ended = 0;
	while (sent < FRAMES || read_at < others || ended < loads) {
		CHECK(seconds() < until);
		for (int n = 0; n < 3 && sent < FRAMES && loads < ended + FREE; n++, sent++) {
			if (random_below(&seed, 4)) {
				load_free_block(ends[1], (uint64_t)3 << 32 | loads, owner);
				loads++;
			} else {
				CHECK(send(ends[1], &others, sizeof others, 0) == sizeof others);
				others++;
			}
		}
		by_loader_go(loader, &pump);
		if (random_below(&seed, 2))
			nap(20000);
		by_loader_hold(loader, &begun);
		if (read(wake, &wakes, sizeof wakes) < 0)
			wakes = 0;
		/* The loader has the LOADs up to the next other frame. That one is for the reader. */
		ssize_t bytes = recv(ends[0], frame, sizeof frame, MSG_PEEK | MSG_DONTWAIT);
		if (bytes == sizeof read_at) {
			uint32_t number;
			CHECK(recv(ends[0], &number, sizeof number, 0) == sizeof number);
			CHECK(number == read_at++);
		}
		ended += take_ends(&w, owner, FREE);
	}
	by_loader_hold(loader, &begun);
	CHECK(begun == loads);
	by_loader_free(loader);
	end(&w);
	close(ends[0]);
	close(ends[1]);
	close(wake);
}

int main(void)
{
	the_pump_copies_a_load_itself();
	the_loader_leaves_other_frames_in_their_order();
	puts("test_pump: ok");
	return 0;
}
