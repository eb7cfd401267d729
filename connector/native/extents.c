/* The table of mapped extents, by number. */
#include "internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct extent {
	uint32_t number, slots;
	const uint64_t *words;
	uint64_t data, slot_bytes;
};

struct by_extents {
	pthread_mutex_t lock;
	size_t count;
	struct extent at[BY_MAX_EXTENTS]; /* sorted by number */
};

struct by_extents *by_extents_new(void)
{
	struct by_extents *table = calloc(1, sizeof *table);
	if (table)
		pthread_mutex_init(&table->lock, NULL);
	return table;
}

void by_extents_free(struct by_extents *table)
{
	pthread_mutex_destroy(&table->lock);
	free(table);
}

/* Index of the first extent whose number is not lower. */
static size_t place(const struct by_extents *table, uint32_t number)
{
	size_t low = 0, high = table->count;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (table->at[middle].number < number)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static int there(const struct by_extents *table, size_t at, uint32_t number)
{
	return at < table->count && table->at[at].number == number;
}

int by_extents_set(struct by_extents *table, uint32_t number, uint64_t address, uint64_t data,
		   uint32_t slots, uint64_t slot_bytes)
{
	int result = 0;
	if (!address || !slots || !slot_bytes)
		return -EINVAL;
	pthread_mutex_lock(&table->lock);
	size_t at = place(table, number);
	if (!there(table, at, number)) {
		if (table->count == BY_MAX_EXTENTS) {
			result = -ENOSPC;
		} else {
			memmove(&table->at[at + 1], &table->at[at],
				(table->count++ - at) * sizeof table->at[0]);
		}
	}
	if (!result)
		table->at[at] = (struct extent){number, slots,
						(const uint64_t *)(uintptr_t)address, data,
						slot_bytes};
	pthread_mutex_unlock(&table->lock);
	return result;
}

void by_extents_drop(struct by_extents *table, uint32_t number)
{
	pthread_mutex_lock(&table->lock);
	size_t at = place(table, number);
	if (there(table, at, number))
		memmove(&table->at[at], &table->at[at + 1],
			(--table->count - at) * sizeof table->at[0]);
	pthread_mutex_unlock(&table->lock);
}

/* The mapping of a slot's extent, or NULL. last: the previous answer, often the same. */
static const struct extent *find(const struct by_extents *table, const struct by_slot *slot,
				 const struct extent *last)
{
	if (last && last->number == slot->extent)
		return last;
	size_t at = place(table, slot->extent);
	return there(table, at, slot->extent) ? &table->at[at] : NULL;
}

size_t by_extents_match(struct by_extents *table, const struct by_slot *slots, size_t count)
{
	size_t n = 0;
	/* Copies of the slots end before the words are read. */
	__atomic_thread_fence(__ATOMIC_ACQ_REL);
	pthread_mutex_lock(&table->lock);
	for (const struct extent *extent = NULL; n < count; n++) {
		extent = find(table, &slots[n], extent);
		if (!extent || slots[n].index >= extent->slots)
			break;
		uint64_t word = __atomic_load_n(&extent->words[slots[n].index], __ATOMIC_ACQUIRE);
		if (word != slots[n].generation)
			break;
	}
	pthread_mutex_unlock(&table->lock);
	return n;
}

int by_extents_known(struct by_extents *table, const struct by_slot *slots, size_t count)
{
	size_t n = 0;
	pthread_mutex_lock(&table->lock);
	for (const struct extent *extent = NULL; n < count; n++) {
		extent = find(table, &slots[n], extent);
		if (!extent)
			break;
	}
	pthread_mutex_unlock(&table->lock);
	return n == count;
}

size_t by_extents_addresses(struct by_extents *table, const struct by_slot *slots, size_t count,
			    uint64_t need, uint64_t *out)
{
	size_t n = 0;
	pthread_mutex_lock(&table->lock);
	for (const struct extent *extent = NULL; n < count; n++) {
		extent = find(table, &slots[n], extent);
		if (!extent || slots[n].index >= extent->slots || need > extent->slot_bytes)
			break;
		out[n] = extent->data + slots[n].index * extent->slot_bytes;
	}
	pthread_mutex_unlock(&table->lock);
	return n;
}
