package storagerpc

import "github.com/switchyard-dev/switchyard/shard/engine"

// role returns the master as this member knows it, and its term.
func (s *Server) role() (master string, term uint64) {
	st := s.storage.Status()
	switch {
	case st.State == engine.Master:
		return s.opts.Member, st.Term
	case st.Master == st.Member:
		return "", st.Term // not yet, or not any more
	}
	return st.Master, st.Term
}

// leader is a storage that tells who is master, and every change of that.
type leader interface {
	WatchMaster(fn func(engine.Leadership)) (stop func())
}
