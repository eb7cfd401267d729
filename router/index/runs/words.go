package runs

import "github.com/blockyard-ai/blockyard/internal/kv"

// Digest returns the sum of kv.Digest over sequence hashes of blocks in tier t.
func Digest(hashes []Word, t kv.Tier) (sum uint64) {
	// Four at a time, because the multiplications of one block need not wait for
	// those of another.
	for ; len(hashes) >= 4; hashes = hashes[4:] {
		h := (*[4]Word)(hashes)
		a, b := kv.Digest(kv.SequenceHash(h[0]), t), kv.Digest(kv.SequenceHash(h[1]), t)
		sum += a + b + kv.Digest(kv.SequenceHash(h[2]), t) + kv.Digest(kv.SequenceHash(h[3]), t)
	}
	for _, h := range hashes {
		sum += kv.Digest(kv.SequenceHash(h), t)
	}
	return sum
}

// IndexOf returns the position of the first h in hashes, or -1.
func IndexOf(hashes []Word, h Word) int {
	i := 0
	// Eight comparisons for each branch, because a scan compares millions of hashes.
	for ; i+8 <= len(hashes); i += 8 {
		b := (*[8]Word)(hashes[i:])
		if b[0] == h || b[1] == h || b[2] == h || b[3] == h || b[4] == h || b[5] == h || b[6] == h || b[7] == h {
			break
		}
	}
	for ; i < len(hashes); i++ {
		if hashes[i] == h {
			return i
		}
	}
	return -1
}

// CommonPrefix returns the number of leading words that a and b share. a has at most MaxBlocks words. Meanwhile it loads
// ahead and next, which the caller reads later, into the cache. Both may be empty.
func CommonPrefix(a, b, ahead, next []Word) int {
	if more := len(ahead) - MaxBlocks; more > 0 {
		Prefetch(ahead[:more])
		ahead = ahead[more:]
	}
	n := min(len(a), len(b))
	if n == MaxBlocks { // a whole run in one comparison is the usual case
		if equalRun((*[MaxBlocks]Word)(a), (*[MaxBlocks]Word)(b), ahead, next) {
			return n
		}
	} else {
		Prefetch(ahead)
		Prefetch(next)
	}
	i := 0
	for ; i+16 <= n; i += 16 { // Go compares arrays as memory
		if *(*[16]Word)(a[i:]) != *(*[16]Word)(b[i:]) {
			break
		}
	}
	for ; i < n; i++ {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// equalRunInTurn is equalRun that loads first and compares then.
func equalRunInTurn(a, b *[MaxBlocks]Word, ahead, next []Word) bool {
	Prefetch(ahead)
	Prefetch(next)
	return *a == *b
}
