package feed

import (
	"fmt"
	"maps"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Two publishers of one owner cannot both be right. Their messages do not tell which one is:
// the later one may be a restarted process, or one that was cut off for a while. The router
// follows the later publisher and fences the earlier one: it drops the events of the fenced
// publisher.
//
// While the fenced publisher still announces itself, the owner is ambiguous: its feed is
// degraded, and the log names both publishers. The fence falls when the followed publisher
// ends, or falls silent while the fenced publisher does not.

const (
	// maxFenced bounds the fenced publishers.
	maxFenced = 1 << 14
	// fencedMaxAge is how long a silent publisher stays fenced.
	fencedMaxAge = time.Hour
	// minContest is how long a publisher must be fenced before its announcements show that
	// it is alive. Earlier announcements may have been sent before the fence.
	minContest = 2 * time.Second
)

// fence describes a fenced publisher.
type fence struct {
	owner kv.Owner
	// fencedAt is when the publisher was fenced, seen when it last announced itself.
	fencedAt, seenAt time.Time
	// gone is true after the publisher's goodbye.
	gone bool
}

// fenceLocked fences the publisher of a: the Set drops its events and announcements from now on.
// gone is true after the publisher's goodbye, false when another publisher took its owner over or
// it fell silent. At maxFenced fenceLocked forgets an arbitrary fenced publisher.
func (s *Set) fenceLocked(a *kvevent.Announcement, now time.Time, gone bool) {
	if len(s.fenced) >= maxFenced {
		for id := range s.fenced {
			delete(s.fenced, id)
			s.counters.Unfenced++
			break
		}
	}
	s.fenced[a.PublisherID] = fence{owner: a.Owner, fencedAt: now, seenAt: now, gone: gone}
}

// handleFencedLocked drops an announcement of a fenced publisher: one that has ended, or whose owner
// another publisher took over. While two publishers announce the owner, the owner is ambiguous.
// from is the source of the announcement. The result is false when the publisher is not fenced, or
// takes its owner back now: the caller then handles the announcement.
func (s *Set) handleFencedLocked(a *kvevent.Announcement, from int, now time.Time) bool {
	p, ok := s.fenced[a.PublisherID]
	if !ok {
		return false
	}
	followed := s.byOwner[p.owner]
	if a.Owner == p.owner && !p.gone && a.Health != kvevent.HealthGone && s.takesOverLocked(followed, &p, now) {
		delete(s.fenced, a.PublisherID)
		return false
	}
	s.counters.Fenced++
	p.seenAt = now
	p.gone = p.gone || a.Health == kvevent.HealthGone
	s.fenced[a.PublisherID] = p
	switch {
	case followed == nil || s.disconnected[from] || source.IsRegistered(a): // no contest, or an old message
	case p.gone && followed.rival == a.PublisherID:
		s.endContestLocked(followed)
	case !p.gone && now.Sub(p.fencedAt) >= minContest: // sent after the fence, so p is alive
		s.contestLocked(followed, a.PublisherID, now)
	}
	return true
}

// takesOverLocked reports whether fenced publisher p, which announces itself now, takes its owner
// over. It does if the owner has no feed or only a registration, or if the followed publisher fell
// silent while p did not. A third of the timeout is enough silence, because p is alive.
func (s *Set) takesOverLocked(followed *feed, p *fence, now time.Time) bool {
	if followed == nil || source.IsRegistered(&followed.announcement) {
		return true
	}
	fellSilent := p.seenAt.After(followed.announcedAt) && now.Sub(followed.announcedAt) > s.silenceTimeout/3
	return fellSilent && !s.disconnected[followed.source] // a disconnected source shows no silence
}

// contestLocked records that rival, a fenced publisher of the feed's owner, is alive. The feed is
// not exact until the contest ends.
func (s *Set) contestLocked(f *feed, rival uint64, now time.Time) {
	if f.rival == 0 {
		s.counters.Contests++
		s.log.Warn("two publishers announce one owner; the owner is degraded until one of them ends. "+
			"Two nodes may have the same --node, or two engines the same worker id",
			zap.Stringer("owner", f.owner()), zap.String("followed", source.PublisherName(f.announcement.PublisherID)),
			zap.String("fenced", source.PublisherName(rival)))
	}
	f.rival, f.rivalSeen = rival, now
	s.recountLocked(f)
}

// endContestLocked records that the feed's owner has one publisher again.
func (s *Set) endContestLocked(f *feed) {
	s.log.Info("one publisher announces the owner again", zap.Stringer("owner", f.owner()),
		zap.String("followed", source.PublisherName(f.announcement.PublisherID)), zap.String("fenced", source.PublisherName(f.rival)))
	f.rival = 0
	s.recountLocked(f)
}

// sweepFencedLocked ends the contests whose fenced publisher fell silent. It forgets fenced
// publishers that were silent for fencedMaxAge, and gone ones sooner.
func (s *Set) sweepFencedLocked(now time.Time) {
	for _, f := range s.feeds {
		if f.rival != 0 && !s.disconnected[f.source] && now.Sub(f.rivalSeen) > s.silenceTimeout {
			s.endContestLocked(f)
		}
	}
	maps.DeleteFunc(s.fenced, func(_ uint64, p fence) bool {
		silent := now.Sub(p.seenAt)
		return silent > fencedMaxAge || p.gone && silent > 2*s.silenceTimeout
	})
}

// maxRefused bounds Set.refused. Further refused publishers are counted at each
// announcement and not logged.
const maxRefused = 1024

// refusal is a refused publisher.
type refusal struct {
	seenAt time.Time
	reason string
}

// refusalReasonLocked returns why an announcement is refused, or an empty string. f is the
// publisher's feed, nil for a new publisher.
func (s *Set) refusalReasonLocked(f *feed, a *kvevent.Announcement) string {
	if f != nil && f.owner() != a.Owner {
		return fmt.Sprintf("the publisher announced %s before", f.owner())
	}
	if a.Owner.Kind == kv.OwnerWorker && a.Owner.ID == 0 || a.BlockSize == 0 {
		return fmt.Sprintf("worker id %d or block size %d is 0", a.Owner.ID, a.BlockSize)
	}
	if !utf8.ValidString(a.Model) {
		return fmt.Sprintf("model %.64q is not valid UTF-8", a.Model)
	}
	if s.blockSize != 0 && a.BlockSize != s.blockSize {
		return fmt.Sprintf("block size is %d, configured is %d", a.BlockSize, s.blockSize)
	}
	previous := s.byOwner[a.Owner]
	if previous != nil && previous != f && source.IsRegistered(a) && !source.IsRegistered(&previous.announcement) {
		return "the worker has a publisher" // which knows more than a registration
	}
	if f == nil && previous == nil && len(s.feeds) >= s.maxFeeds {
		return fmt.Sprintf("the router has %d feeds, limit %d", len(s.feeds), s.maxFeeds)
	}
	return ""
}

// refuseLocked ends the feed of a refused publisher, if any. It logs each new reason once.
func (s *Set) refuseLocked(a *kvevent.Announcement, now time.Time, reason string) {
	if f := s.feeds[a.PublisherID]; f != nil {
		s.endLocked(f, reason)
		s.refreshLocked()
	}
	before, known := s.refused[a.PublisherID]
	if before.reason != reason {
		s.counters.Refused++
	}
	if !known && len(s.refused) >= maxRefused {
		return // without a record of the reason, each announcement would log it
	}
	if before.reason != reason {
		s.log.Warn("publisher is refused", zap.Stringer("owner", a.Owner),
			zap.String("publisher", source.PublisherName(a.PublisherID)), zap.String("reason", reason))
	}
	s.refused[a.PublisherID] = refusal{now, reason}
}

// Silence ends a publisher only while the router was listening. Pauses of the process and
// of a disconnected source do not count. While the transport drops messages, it may drop
// announcements, so the timeout is longer.
const (
	// stallLimit is the shortest pause of the router that does not count as silence of the
	// publishers. The router ticks ten times a second.
	stallLimit = time.Second
	// lossyFactor multiplies the timeout while messages are dropped.
	lossyFactor = 4
)

// listening records the pauses of the router and the drops of its transport.
type listening struct {
	// lastInput is when the router last handled a message or a tick.
	lastInput time.Time
	// dropped is the transport's count of dropped messages. droppedAt is when the count
	// last grew.
	dropped   uint64
	droppedAt time.Time
}

// recordInputLocked records that the router handles a message or a tick. It extends the
// timeouts of the publishers by a pause of the router.
func (s *Set) recordInputLocked(now time.Time) {
	pause := now.Sub(s.lastInput)
	before := s.lastInput
	if pause > 0 {
		s.lastInput = now
	}
	if before.IsZero() || pause < stallLimit {
		return
	}
	s.counters.Stalls++
	for _, all := range []map[uint64]*feed{s.feeds, s.restored} {
		for _, f := range all {
			f.announcedAt = f.announcedAt.Add(pause)
			f.rivalSeen = f.rivalSeen.Add(pause)
		}
	}
}

// NoteDrops records how many messages the transport has dropped so far.
func (s *Set) NoteDrops(dropped uint64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if dropped > s.dropped {
		s.droppedAt = now
	}
	s.dropped = dropped
}

// silentLocked reports whether a feed's publisher exceeded its timeout. Silence does not count
// while the source is disconnected. After dropped messages the timeout is longer, because they may
// have been announcements.
func (s *Set) silentLocked(f *feed, now time.Time) bool {
	limit := s.silenceTimeout
	if now.Sub(s.droppedAt) < s.silenceTimeout {
		limit *= lossyFactor
	}
	return !s.disconnected[f.source] && now.Sub(f.announcedAt) > limit
}
