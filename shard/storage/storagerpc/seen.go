package storagerpc

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// counter is a storage that can be called by those who know another bucket_count, while it
// is being doubled.
type counter interface {
	As(count uint32) (*storage.Counted, error)
}

// checker is a storage as one with another bucket_count sees it: nil while that is served.
type checker interface{ Check() error }

// count returns the bucket_count that a client believes in, 0 when it does not say.
func count(ctx context.Context) (n uint32, said string) {
	md, _ := metadata.FromIncomingContext(ctx)
	for _, said = range md.Get(metaBuckets) {
		if said == "" {
			continue
		}
		v, err := strconv.ParseUint(said, 10, 32)
		if err != nil {
			return 0, said
		}
		return uint32(v), said
	}
	return 0, ""
}

// seen returns the storage as a client knows it, by the bucket_count that it believes in.
func (s *Server) seen(ctx context.Context) (Storage, error) {
	n, said := count(ctx)
	if said == "" {
		return s.storage, nil
	}
	if c, ok := s.storage.(counter); ok && n != 0 {
		// Also when it is that of this node, which may be behind.
		as, err := c.As(n)
		switch {
		case err != nil:
			return nil, err
		case n != s.storage.BucketCount():
			return as, nil
		}
		return s.storage, nil
	}
	if n != s.storage.BucketCount() {
		return nil, differ("bucket_count", said, strconv.Itoa(int(s.storage.BucketCount())), s.storage.ReplicaSet())
	}
	return s.storage, nil
}

// seenOr is seen of a client that is checked elsewhere.
func (s *Server) seenOr(ctx context.Context) Storage {
	if seen, err := s.seen(ctx); err == nil {
		return seen
	}
	return s.storage
}

func (s *Server) bucketIDs(ctx context.Context, ids []uint32) ([]shard.BucketID, error) {
	seen, err := s.seen(ctx)
	if err != nil {
		return nil, err
	}
	return bucketIDs(seen, ids)
}

// join is seen of a stream, which is counted until leave is called.
func (s *Server) join(ctx context.Context) (seen Storage, leave func(), err error) {
	if seen, err = s.seen(ctx); err != nil {
		return nil, nil, err
	}
	n := seen.BucketCount()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.callers[n]++
	return seen, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.callers[n]--
		s.left[n] = time.Now()
	}, nil
}

// lingers is how long a client that has left counts on, and how long after the start there may be
// one: it may be on its way back.
const lingers = 3 * time.Second

// Callers returns how many streams there are of clients that believe in a bucket_count; it is one
// at least for a while after there were some, or may have been.
func (s *Server) Callers(count uint32) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.callers[count]
	if time.Since(s.left[count]) < lingers || time.Since(s.started) < lingers {
		n = max(n, 1)
	}
	return n
}
