package disk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr"
)

// copierProcess is a running copier.
type copierProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	to  *json.Encoder
	out *json.Decoder
}

// startCopier starts command, a process that runs ServeCopies. The process ends with ctx at the
// latest. It is not a cluster.Process, which drops lines that wait: a copier answers after every
// block, and the bench needs every answer.
func startCopier(ctx context.Context, command []string) (*copierProcess, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start copier: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start copier: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start copier: %w", err)
	}
	return &copierProcess{cmd, in, json.NewEncoder(in), json.NewDecoder(out)}, nil
}

// stop ends the process and waits for it.
func (c *copierProcess) stop() error {
	err := c.in.Close()
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("copier: %w", err)
	}
	return err
}

// send writes one value.
func (c *copierProcess) send(v any) error {
	if err := c.to.Encode(v); err != nil {
		return fmt.Errorf("copier's pipe: %w", err)
	}
	return nil
}

func (c *copierProcess) receive() (copyReply, error) {
	var r copyReply
	if err := c.out.Decode(&r); err != nil {
		return r, fmt.Errorf("copier's pipe: %w", err)
	}
	return r, nil
}

// do has the copier make a round of copies, and calls each with the number of a block after its
// copy. It returns start, when the copier was told to start, and elapsed, the copying time on the
// copier's clock.
func (c *copierProcess) do(req copyRequest, each func(i int) error) (start time.Time, elapsed time.Duration, err error) {
	if err := c.send(req); err != nil {
		return start, 0, err
	}
	if _, err := c.receive(); err != nil {
		return start, 0, err
	}
	start = time.Now()
	if err := c.send(true); err != nil {
		return start, 0, err
	}
	for done := 0; done < req.Count; {
		r, err := c.receive()
		if err != nil {
			return start, 0, err
		}
		for ; done < r.Done; done++ {
			if err := each(done); err != nil {
				return start, 0, err
			}
		}
		elapsed = r.Elapsed
	}
	return start, elapsed, nil
}

// copyBench is a host pool and the process that fills it.
type copyBench struct {
	manager *blockmgr.Manager
	pool    *blockmgr.Pool
	extents map[uint32]blockmgr.ExtentInfo
	engine  *copierProcess
	n       int
	prompt  uint64
}

// openCopyBench opens a pool in dir with host memory for one round of blocks of size bytes, and
// starts a copier. The caller closes the bench.
func openCopyBench(ctx context.Context, o *Options, dir *workspace, size uint64) (*copyBench, error) {
	n := o.roundBlocks(size)
	round := uint64(n) * size
	m, err := blockmgr.Open(blockmgr.Config{
		HostDir: filepath.Join(dir.host, "blocks"), HostBytes: round, ExtentBytes: round,
		ScrubBytesPerSecond: noScrub, DiscardHost: true, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	b := &copyBench{manager: m, n: n, extents: map[uint32]blockmgr.ExtentInfo{}}
	if b.pool, err = m.Pool(namespaceOf("copy", size)); err == nil {
		err = b.pool.BeginSession(sessionID)
	}
	if err == nil {
		b.engine, err = startCopier(ctx, o.Copier)
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	for _, info := range b.pool.Extents() {
		b.extents[info.ID] = info
	}
	return b, nil
}

func (b *copyBench) close() error {
	var err error
	if b.engine != nil {
		err = b.engine.stop()
	}
	return errors.Join(err, b.manager.Close())
}

// store stores a new prompt: another process copies its blocks into granted slots, and each block
// is committed when its copy is done. The time runs from the start of the copies until the last
// block is sealed, that is, checked and final.
func (b *copyBench) store(ctx context.Context) (sample, error) {
	b.prompt++
	slots, err := grantAll(b.pool, appendPrompt(nil, b.prompt, 0, b.n))
	if err != nil {
		return sample{}, err
	}
	req := copyRequest{Block: b.pool.BlockBytes(), Count: b.n, Targets: make([]copyTarget, b.n)}
	for i, s := range slots {
		info := b.extents[s.Extent]
		req.Targets[i] = copyTarget{info.Path, info.DataOffset + uint64(s.Index)*info.SlotBytes}
	}
	start, _, err := b.engine.do(req, func(i int) error { return b.pool.Commit(sessionID, slots[i:i+1]) })
	if err != nil {
		return sample{}, err
	}
	if err := b.pool.Quiesce(ctx); err != nil {
		return sample{}, err
	}
	elapsed := time.Since(start)
	if st := b.pool.Stats(); st.Host.Inactive != b.n {
		return sample{}, fmt.Errorf("%d of %d blocks were sealed", st.Host.Inactive, b.n)
	}
	return sample{b.n, req.Block * uint64(b.n), elapsed}, nil
}

// compareCopies compares storing blocks of size bytes, copies by an engine included, with plain
// copies of as many bytes.
func compareCopies(ctx context.Context, o *Options, w *workspace, size uint64) (found []Comparison, err error) {
	dir, err := w.sub("copy-" + number(size))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dir.remove()) }()
	b, err := openCopyBench(ctx, o, dir, size)
	if err != nil {
		return nil, fmt.Errorf("pool of blocks of %d bytes: %w", size, err)
	}
	defer func() { err = errors.Join(err, b.close()) }()
	plain, err := startCopier(ctx, o.Copier)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, plain.stop()) }()
	return alternate(ctx, o.Duration/4, &pair{
		what: copyName, against: "memcpy", block: size, ours: b.store,
		ceiling: func(context.Context) (sample, error) {
			req := copyRequest{Block: size, Count: b.n}
			_, elapsed, err := plain.do(req, func(int) error { return nil })
			return sample{b.n, size * uint64(b.n), elapsed}, err
		},
	})
}
