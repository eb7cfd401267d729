/* memcpy with streaming stores, which leave the engine's caches alone. */
#include "blockyard.h"

#include <string.h>

/* Below this size the block stays in the cache, and memcpy is faster. */
#define LEAST_STREAM 2048

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx"))) static void stream_avx(char *to, const char *from, size_t bytes)
{
	for (; bytes >= 128; bytes -= 128, to += 128, from += 128) {
		__m256i a = _mm256_loadu_si256((const __m256i *)from);
		__m256i b = _mm256_loadu_si256((const __m256i *)(from + 32));
		__m256i c = _mm256_loadu_si256((const __m256i *)(from + 64));
		__m256i d = _mm256_loadu_si256((const __m256i *)(from + 96));
		_mm_prefetch(from + 1024, _MM_HINT_NTA);
		_mm_prefetch(from + 1088, _MM_HINT_NTA);
		_mm256_stream_si256((__m256i *)to, a);
		_mm256_stream_si256((__m256i *)(to + 32), b);
		_mm256_stream_si256((__m256i *)(to + 64), c);
		_mm256_stream_si256((__m256i *)(to + 96), d);
	}
	memcpy(to, from, bytes);
}

static void stream_sse2(char *to, const char *from, size_t bytes)
{
	for (; bytes >= 64; bytes -= 64, to += 64, from += 64) {
		__m128i a = _mm_loadu_si128((const __m128i *)from);
		__m128i b = _mm_loadu_si128((const __m128i *)(from + 16));
		__m128i c = _mm_loadu_si128((const __m128i *)(from + 32));
		__m128i d = _mm_loadu_si128((const __m128i *)(from + 48));
		_mm_stream_si128((__m128i *)to, a);
		_mm_stream_si128((__m128i *)(to + 16), b);
		_mm_stream_si128((__m128i *)(to + 32), c);
		_mm_stream_si128((__m128i *)(to + 48), d);
	}
	memcpy(to, from, bytes);
}

static void stream(char *to, const char *from, size_t bytes)
{
	if (__builtin_cpu_supports("avx"))
		stream_avx(to, from, bytes);
	else
		stream_sse2(to, from, bytes);
	_mm_sfence(); /* other threads see the bytes before the job's end */
}

#elif defined(__aarch64__)

static void stream(char *to, const char *from, size_t bytes)
{
	for (; bytes >= 64; bytes -= 64, to += 64, from += 64) {
		__asm__ volatile("ldnp q0, q1, [%1]\n\t"
				 "ldnp q2, q3, [%1, #32]\n\t"
				 "stnp q0, q1, [%0]\n\t"
				 "stnp q2, q3, [%0, #32]"
				 :
				 : "r"(to), "r"(from)
				 : "v0", "v1", "v2", "v3", "memory");
	}
	memcpy(to, from, bytes);
	__asm__ volatile("dmb ishst" ::: "memory");
}

#else

static void stream(char *to, const char *from, size_t bytes)
{
	memcpy(to, from, bytes);
}

#endif

void by_copy(void *to, const void *from, size_t bytes)
{
	if (bytes < LEAST_STREAM) {
		memcpy(to, from, bytes);
		return;
	}
	/* Streaming stores need an aligned destination. */
	size_t head = -(uintptr_t)to & 63;
	memcpy(to, from, head);
	stream((char *)to + head, (const char *)from + head, bytes - head);
}
