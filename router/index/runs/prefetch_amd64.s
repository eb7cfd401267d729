#include "textflag.h"

// func Prefetch(words []Word)
TEXT ·Prefetch(SB), NOSPLIT, $0-24
	MOVQ words_base+0(FP), AX
	MOVQ words_len+8(FP), CX
	LEAQ (AX)(CX*8), CX

lines:
	// The last step may go beyond the words, which does no harm.
	CMPQ AX, CX
	JAE  done
	PREFETCHT0 (AX)
	PREFETCHT0 64(AX)
	PREFETCHT0 128(AX)
	PREFETCHT0 192(AX)
	ADDQ $256, AX
	JMP  lines

done:
	RET

// func PrefetchHead(h *Head)
TEXT ·PrefetchHead(SB), NOSPLIT, $0-8
	MOVQ h+0(FP), AX
	PREFETCHT0 (AX)
	RET

// func prefetchSlot(slot *uint64)
TEXT ·prefetchSlot(SB), NOSPLIT, $0-8
	MOVQ slot+0(FP), AX
	PREFETCHT0 (AX)
	RET

// func prefetchState(s *WriterState)
TEXT ·prefetchState(SB), NOSPLIT, $0-8
	MOVQ s+0(FP), AX
	// A state may lie in two lines.
	PREFETCHT0 (AX)
	PREFETCHT0 40(AX)
	RET
