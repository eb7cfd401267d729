#include "textflag.h"

// func prefetch(words []word)
TEXT ·prefetch(SB), NOSPLIT, $0-24
	MOVQ words_base+0(FP), AX
	MOVQ words_len+8(FP), CX
	LEAQ (AX)(CX*8), CX

line:
	CMPQ AX, CX
	JAE  done
	PREFETCHT0 (AX)
	ADDQ $64, AX
	JMP  line

done:
	RET

// func prefetchHead(h *head)
TEXT ·prefetchHead(SB), NOSPLIT, $0-8
	MOVQ h+0(FP), AX
	PREFETCHT0 (AX)
	RET
