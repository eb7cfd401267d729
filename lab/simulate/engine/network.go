package engine

// receive brings the blocks of a prompt that another engine has computed to the device, over the network of both
// engines, and then has the request wait for its first step. Each network sends or receives one prompt after the
// other. What finds no room is computed again.
func (e *Engine) receive(r *Request) {
	full := r.Numbers[:(r.Prompt-1)/e.options.BlockSize] // the last token is always computed
	missing := len(full) - e.device.blocks.prefix(full)
	from := r.Source.engine
	bytes := float64(missing) * e.node.options.BlockBytes
	done := max(e.networkFree, from.networkFree, e.clock.now)
	if missing > 0 {
		done += seconds(bytes / min(e.options.NetworkBytes, from.options.NetworkBytes))
		e.networkFree, from.networkFree = done, done
	}
	e.loading++
	e.clock.At(done, func() {
		r.releaseSource()
		if e.failIfDead(r) {
			return
		}
		e.node.Moved.Network += bytes
		if have := e.device.blocks.prefix(full); have < len(full) {
			e.device.load(r.Chain, have, len(full))
		}
		r.fromNetwork = missing
		e.loading--
		e.enqueue(r)
	})
}

// NetworkSeconds returns how long it takes to bring blocks from another engine.
func (e *Engine) NetworkSeconds(blocks int) float64 {
	if blocks == 0 {
		return 0
	}
	return max(0, e.networkFree-e.clock.now).Seconds() + float64(blocks)*e.node.options.BlockBytes/e.options.NetworkBytes
}

// releaseSource gives the blocks of the request's Source back. A second call does nothing.
func (r *Request) releaseSource() {
	if s := r.Source; s != nil && s.named > 0 {
		s.engine.device.unpin(s.Numbers[:s.named])
		s.named = 0
		s.engine.kick()
	}
}
