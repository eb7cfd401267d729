package simulate

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/blockyard-ai/blockyard/lab/workload"
)

// forksApart is the mean time between two conversations of a group.
const forksApart = 100 * time.Millisecond

// forks returns groups of four conversations that continue one history, which no engine has yet, and begin
// nearly at the same time. rate groups begin in a second. Later turns come when the turn before has ended.
func forks(rate float64, span time.Duration) func(uint64) ([]workload.Request, error) {
	return func(seed uint64) (all []workload.Request, err error) {
		rng := rand.New(rand.NewPCG(seed, 30))
		exp := func(mean time.Duration) time.Duration { return time.Duration(rng.ExpFloat64() * float64(mean)) }
		for at, group := exp(time.Duration(float64(time.Second)/rate)), 0; at < span; group++ {
			history := workload.Piece{Stream: workload.StreamOf(fmt.Sprint("history ", seed, group)), Tokens: 2000 + rng.IntN(8000)}
			begin := at
			for n := range 4 {
				session := 4*group + n
				due := begin
				for turn := range 3 {
					r := workload.Request{ID: fmt.Sprintf("f%d-t%d", session, turn), Session: session, Turn: turn, At: due, OutputTokens: 20 + rng.IntN(200),
						Pieces: []workload.Piece{{Stream: workload.StreamOf(fmt.Sprint("question ", seed, session, turn)), Tokens: 50 + rng.IntN(400)}}}
					if turn == 0 {
						r.Pieces = append([]workload.Piece{history}, r.Pieces...)
					} else {
						r.Think = exp(2 * time.Second)
						due += r.Think
						r.At = due
					}
					all = append(all, r)
				}
				begin += exp(forksApart)
			}
			at += exp(time.Duration(float64(time.Second) / rate))
		}
		return all, nil
	}
}
