/* Where the bytes of blocks lie, and the runs of a copy. */
#include "blockyard.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct by_plan {
	uint32_t count, groups, blocks;
	struct by_page pages[];
};

struct by_plan *by_plan_new(const struct by_page *pages, uint32_t count, uint32_t groups,
			    uint32_t blocks)
{
	struct by_plan *plan = malloc(sizeof *plan + count * sizeof *pages);
	if (!plan)
		return NULL;
	plan->count = count;
	plan->groups = groups;
	plan->blocks = blocks;
	memcpy(plan->pages, pages, count * sizeof *pages);
	return plan;
}

void by_plan_free(struct by_plan *plan)
{
	free(plan);
}

static int copies(uint32_t group, const struct by_page *page)
{
	return group == BY_ALL_GROUPS || group == page->group;
}

uint64_t by_plan_bytes(const struct by_plan *plan, uint32_t group)
{
	uint64_t sum = 0;
	for (uint32_t n = 0; n < plan->count; n++)
		if (copies(group, &plan->pages[n]))
			sum += plan->pages[n].bytes;
	return sum;
}

/* Lists of block ids in a job of this group. */
uint32_t by_plan_lists(const struct by_plan *plan, uint32_t group)
{
	return group == BY_ALL_GROUPS ? plan->groups : 1;
}

/* End of the last byte of a slot that a job of this group copies. */
uint64_t by_plan_end(const struct by_plan *plan, uint32_t group)
{
	uint64_t end = 0;
	for (uint32_t n = 0; n < plan->count; n++) {
		const struct by_page *page = &plan->pages[n];
		if (copies(group, page) && page->offset + page->bytes > end)
			end = page->offset + page->bytes;
	}
	return end;
}

int by_plan_check(const struct by_plan *plan, const uint32_t *blocks, size_t count)
{
	for (size_t n = 0; n < count; n++)
		if (blocks[n] >= plan->blocks)
			return 0;
	return 1;
}

size_t by_plan_room(const struct by_plan *plan, uint32_t group, uint32_t count, uint64_t largest)
{
	size_t room = 0;
	for (uint32_t n = 0; n < plan->count; n++)
		if (copies(group, &plan->pages[n]))
			room += count * ((plan->pages[n].bytes + largest - 1) / largest);
	return room;
}

/* The ids of a page's group. */
static const uint32_t *ids_of(const struct by_piece *piece, const struct by_page *page)
{
	if (piece->group != BY_ALL_GROUPS)
		return piece->blocks;
	return piece->blocks + (size_t)page->group * piece->stride;
}

/* Blocks from `at` on whose runs of this page are adjacent in the slots and on the device. */
static uint32_t adjacent(const struct by_page *page, const uint32_t *ids, const uint64_t *slots,
			 uint32_t at, uint32_t count)
{
	uint32_t n = 1;
	if (page->stride != page->bytes)
		return 1;
	while (at + n < count && ids[at + n] == ids[at + n - 1] + 1 &&
	       slots[at + n] == slots[at + n - 1] + page->bytes)
		n++;
	return n;
}

int64_t by_plan_runs(const struct by_plan *plan, const struct by_piece *piece, uint64_t largest,
		     struct by_run *out, size_t room)
{
	size_t made = 0;
	for (uint32_t p = 0; p < plan->count; p++) {
		const struct by_page *page = &plan->pages[p];
		if (!copies(piece->group, page))
			continue;
		const uint32_t *ids = ids_of(piece, page);
		for (uint32_t at = 0, n; at < piece->count; at += n) {
			n = adjacent(page, ids, piece->slots, at, piece->count);
			uint64_t device = page->address + page->stride * ids[at];
			uint64_t host = piece->slots[at] + page->offset;
			for (uint64_t left = n * page->bytes; left;) {
				uint64_t bytes = left < largest ? left : largest;
				if (made == room)
					return -ENOSPC;
				out[made++] = (struct by_run){device, host, bytes};
				device += bytes;
				host += bytes;
				left -= bytes;
			}
		}
	}
	return (int64_t)made;
}

int by_plan_copy(const struct by_plan *plan, const struct by_piece *piece)
{
	for (uint32_t p = 0; p < plan->count; p++) {
		const struct by_page *page = &plan->pages[p];
		if (!copies(piece->group, page))
			continue;
		const uint32_t *ids = ids_of(piece, page);
		for (uint32_t at = 0, n; at < piece->count; at += n) {
			n = adjacent(page, ids, piece->slots, at, piece->count);
			void *device = (void *)(uintptr_t)(page->address + page->stride * ids[at]);
			void *host = (void *)(uintptr_t)(piece->slots[at] + page->offset);
			if (piece->kind == BY_LOAD)
				by_copy(device, host, n * page->bytes);
			else
				by_copy(host, device, n * page->bytes);
		}
	}
	return 0;
}
