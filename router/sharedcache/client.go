package sharedcache

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Options configure a Client.
type Options struct {
	// URL is the http or https URL of the service. "/check_blocks" is added to its path.
	URL string
	// Timeout bounds one query; 0 means 100 ms. The routed request waits for the answer.
	Timeout time.Duration
	// Pairs says that engines hash pairs of tokens (Eagle): see kv.BlockTokens.
	Pairs bool
	// Transport sends the queries; nil means a transport of the client's own, without a
	// proxy.
	Transport http.RoundTripper
}

const defaultTimeout = 100 * time.Millisecond

// Validate reports the first option that is out of range.
func (o *Options) Validate() error {
	u, err := url.Parse(o.URL)
	if err != nil {
		return fmt.Errorf("shared cache url: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("shared cache url: %q is not http://HOST or https://HOST", o.URL)
	}
	if o.Timeout < 0 || o.Timeout > time.Minute {
		return fmt.Errorf("shared cache timeout: %v is not in 0..%v", o.Timeout, time.Minute)
	}
	return nil
}

// Client queries a service over HTTP. Make one with NewClient.
type Client struct {
	url     string
	timeout time.Duration
	pairs   func() bool
	http    http.Client
	breaker *backoff.Breaker
}

var _ Cache = (*Client)(nil)

// NewClient returns a client of a service. The error names the option that is out
// of range. NewClient does not connect.
func NewClient(o Options) (*Client, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	// Validate has parsed the URL.
	u, _ := url.Parse(o.URL)
	c := &Client{url: u.JoinPath("check_blocks").String(), timeout: o.Timeout, pairs: func() bool { return o.Pairs }, breaker: new(backoff.Breaker)}
	c.timeout = cmp.Or(c.timeout, defaultTimeout)
	c.http.Transport = o.Transport
	if o.Transport == nil {
		c.http.Transport = &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second}
	}
	return c, nil
}

// Over returns a client of the same service for engines that hash pairs of tokens
// while pairs returns true. Both clients share connections and failures. Closing
// either closes both.
func (c *Client) Over(pairs func() bool) *Client {
	over := *c
	over.pairs = pairs
	return &over
}

// Close closes idle connections. The client may still be used.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// CheckBlocks implements Cache: it asks the service which full blocks of the prompt it holds. The
// error is ErrPaused or describes the failure.
func (c *Client) CheckBlocks(ctx context.Context, tokens []uint32, blockSize int, namespace string) (schedule.SharedHits, error) {
	hashes := c.hashes(tokens, blockSize, namespace)
	if len(hashes) == 0 {
		return schedule.SharedHits{}, nil
	}
	if !c.breaker.Allows(time.Now()) {
		return schedule.SharedHits{}, ErrPaused
	}
	queryCtx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	hits, err := c.query(queryCtx, hashes)
	// The end of ctx is no failure of the service.
	if err == nil || ctx.Err() == nil {
		c.breaker.Record(err == nil, time.Now())
	}
	if err != nil {
		return schedule.SharedHits{}, fmt.Errorf("shared cache: %w", err)
	}
	return hits, nil
}

// hashes returns the SequenceHashes of a prompt's full blocks in namespace: the names of the blocks
// in the service.
func (c *Client) hashes(tokens []uint32, blockSize int, namespace string) []kv.SequenceHash {
	var h kv.Hasher
	seed := kv.LocalSeed("", namespace)
	if !c.pairs() {
		return kv.AppendSequence(nil, h.AppendLocals(nil, tokens, blockSize, seed))
	}
	// A block of pairs is full only with the first token of the next block.
	var locals []kv.LocalHash
	for i := 0; blockSize > 0 && (i+1)*blockSize < len(tokens); i++ {
		locals = append(locals, h.Local(kv.BlockTokens(tokens, i, blockSize, true), seed, nil))
	}
	return kv.AppendSequence(nil, locals)
}

// query sends one query to the service and returns the positions of the blocks that it holds. An
// answer that is longer than these blocks need is an error.
func (c *Client) query(ctx context.Context, hashes []kv.SequenceHash) (schedule.SharedHits, error) {
	var none schedule.SharedHits
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(appendQuery(nil, hashes)))
	if err != nil {
		return none, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.http.Do(req)
	if err != nil {
		return none, err
	}
	defer res.Body.Close()
	// Each block takes at most two numbers of ten digits and punctuation. 4096 bytes are
	// for unknown keys.
	limit := int64(len(hashes))*64 + 4096
	body, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	switch {
	case err != nil:
		return none, err
	case res.StatusCode != http.StatusOK:
		return none, fmt.Errorf("status %d", res.StatusCode)
	case int64(len(body)) > limit:
		return none, fmt.Errorf("answer: more than %d bytes for %d blocks", limit, len(hashes))
	}
	return decodeRanges(body, len(hashes))
}

// appendQuery appends the JSON body of a query, which lists the hashes as numbers.
func appendQuery(b []byte, hashes []kv.SequenceHash) []byte {
	b = append(b, `{"block_hashes":[`...)
	for i, h := range hashes {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(h), 10)
	}
	return append(b, "]}"...)
}

// decodeRanges decodes an answer about a number of blocks: half-open ranges of positions. Ranges
// that are empty, out of bounds or not in order are an error.
func decodeRanges(body []byte, blocks int) (schedule.SharedHits, error) {
	var none schedule.SharedHits
	var answer struct {
		Ranges *[][]uint64 `json:"ranges"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return none, fmt.Errorf("answer: %w", err)
	}
	if answer.Ranges == nil {
		return none, errors.New("answer: ranges are missing")
	}
	ranges := make([]schedule.Range, 0, len(*answer.Ranges))
	end := uint64(0)
	for i, r := range *answer.Ranges {
		switch {
		case len(r) != 2:
			return none, fmt.Errorf("answer: ranges[%d] has %d numbers, want 2", i, len(r))
		case r[0] >= r[1] || r[1] > uint64(min(blocks, math.MaxUint32)):
			return none, fmt.Errorf("answer: ranges[%d] is %d..%d, want a part of 0..%d", i, r[0], r[1], blocks)
		case r[0] < end:
			return none, fmt.Errorf("answer: ranges[%d] begins at %d, before the end of the previous range, %d", i, r[0], end)
		}
		end = r[1]
		ranges = append(ranges, schedule.Range{First: uint32(r[0]), End: uint32(r[1])})
	}
	return schedule.FromRanges(ranges), nil
}
