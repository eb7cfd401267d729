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

// func equalWhileLoading(a, b *[MaxBlocks]Word, ahead, next *Word) bool
TEXT ·equalWhileLoading(SB), NOSPLIT, $0-33
	MOVQ a+0(FP), AX
	MOVQ b+8(FP), BX
	MOVQ ahead+16(FP), CX
	MOVQ next+24(FP), DX
	MOVQ $8, DI // steps of 16 words

step:
	PREFETCHT0 (CX)
	PREFETCHT0 64(CX)
	PREFETCHT0 (DX)
	PREFETCHT0 64(DX)
	VMOVDQU (AX), Y0
	VMOVDQU 32(AX), Y1
	VMOVDQU 64(AX), Y2
	VMOVDQU 96(AX), Y3
	VPXOR (BX), Y0, Y0
	VPXOR 32(BX), Y1, Y1
	VPXOR 64(BX), Y2, Y2
	VPXOR 96(BX), Y3, Y3
	VPOR Y0, Y1, Y0
	VPOR Y2, Y3, Y2
	VPOR Y0, Y2, Y0
	VPTEST Y0, Y0
	JNZ  differ
	ADDQ $128, AX
	ADDQ $128, BX
	ADDQ $128, CX
	ADDQ $128, DX
	DECQ DI
	JNZ  step
	VZEROUPPER
	MOVB $1, ret+32(FP)
	RET

differ:
	VZEROUPPER
	MOVB $0, ret+32(FP)
	RET
