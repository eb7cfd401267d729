package registry

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/reload"
	"github.com/blockyard-ai/blockyard/internal/strictjson"
	"github.com/blockyard-ai/blockyard/router/source"
)

// WorkersFile is the content of Options.File: one JSON object.
type WorkersFile struct {
	// Agents are base URLs of agents to follow over HTTP.
	Agents []string `json:"agents"`
	// Workers are workers without a publisher.
	Workers []Registration `json:"workers"`
}

// errFileUnchanged says that the file, or its error, has not changed since it was read.
var errFileUnchanged = errors.New("the file has not changed")

// fileState describes the file when it was last read. Only New and run use it.
type fileState struct {
	size      int64
	modTime   time.Time
	lastError string
}

// ReadWorkersFile reads and checks a regular file. The error names the field.
func ReadWorkersFile(path string) (*WorkersFile, error) {
	data, err := reload.ReadRegular(path)
	if err != nil {
		return nil, fmt.Errorf("workers file: %w", err)
	}
	w, err := parseWorkersFile(data)
	if err != nil {
		return nil, fmt.Errorf("workers file %s: %w", path, err)
	}
	return w, nil
}

// parseWorkersFile decodes and checks the content of a workers file.
func parseWorkersFile(data []byte) (*WorkersFile, error) {
	var w WorkersFile
	if err := strictjson.Decode(bytes.NewReader(data), &w, "object", nil); err != nil {
		return nil, err
	}
	if err := source.CheckAgents(w.Agents); err != nil {
		return nil, err
	}
	seen := make(map[uint64]bool)
	ranks := 0
	for i := range w.Workers {
		g := &w.Workers[i]
		if err := g.Validate(); err != nil {
			return nil, fmt.Errorf("workers[%d].%w", i, err)
		}
		if seen[g.WorkerID] {
			return nil, fmt.Errorf("workers[%d].worker_id: %d occurs twice", i, g.WorkerID)
		}
		seen[g.WorkerID] = true
		if ranks += int(g.ranks()); ranks > maxRegistered {
			return nil, fmt.Errorf("workers[%d].ranks: more than %d ranks in all", i, maxRegistered)
		}
	}
	return &w, nil
}

// readFile applies the workers file, which lists workers and agents, if its size or time has
// changed; else the error is errFileUnchanged. An invalid file changes nothing, and its error is
// returned once.
func (r *Source) readFile() error {
	info, err := os.Stat(r.opt.File)
	if err != nil {
		return r.recordFileError(fmt.Errorf("workers file: %w", err), nil)
	}
	if info.Size() == r.lastFile.size && info.ModTime().Equal(r.lastFile.modTime) {
		return errFileUnchanged
	}
	w, err := ReadWorkersFile(r.opt.File)
	if err == nil && len(w.Agents) > 0 && r.opt.HTTP == nil {
		err = fmt.Errorf("workers file %s: agents: this router does not follow agents over HTTP", r.opt.File)
	}
	if err == nil {
		err = r.setAgents(w.Agents)
	}
	if err != nil {
		return r.recordFileError(err, info)
	}
	r.lastFile = fileState{size: info.Size(), modTime: info.ModTime()}
	r.replaceWorkers(w.Workers)
	r.log.Info("workers file is applied", zap.String("file", r.opt.File),
		zap.Int("agents", len(w.Agents)), zap.Int("workers", len(w.Workers)))
	return nil
}

// recordFileError counts and returns an error of the file, whose state is info; nil without a file.
// For an error that repeats the last one it returns errFileUnchanged, so that the error is logged
// once.
func (r *Source) recordFileError(err error, info fs.FileInfo) error {
	repeated := r.lastFile.lastError == err.Error()
	r.lastFile.lastError = err.Error()
	if info != nil {
		r.lastFile.size, r.lastFile.modTime = info.Size(), info.ModTime()
	}
	if repeated {
		return errFileUnchanged
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.FileErrors++
	return err
}

// setAgents passes the agents of the options and of the file to HTTP.
func (r *Source) setAgents(fromFile []string) error {
	if r.opt.HTTP == nil {
		return nil
	}
	all := append(append([]string(nil), r.opt.Agents...), fromFile...)
	return r.opt.HTTP.SetAgents(all)
}

// replaceWorkers registers the workers of a new version of the file, and ends those that only the
// last version had. A worker that registered over HTTP and is in the file belongs to the file.
func (r *Source) replaceWorkers(workers []Registration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.FileReads++
	listed := make(map[kv.Worker]bool)
	for i := range workers {
		g := &workers[i]
		for _, w := range g.workers() {
			listed[w] = true
			r.upsertLocked(w, g, source.FromFile, time.Time{})
		}
	}
	for w, e := range r.entries {
		if e.source == source.FromFile && !listed[w] {
			e.ended = true
		}
	}
}
