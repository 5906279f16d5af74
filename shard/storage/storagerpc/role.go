package storagerpc

import "github.com/switchyard-dev/switchyard/shard/engine"

// role returns the master as this member knows it, and its term.
func (s *Server) role() (master string, term uint64) {
	st := s.storage.Status()
	if st.State == engine.Master {
		return s.opts.Member, term
	}
	return "", term
}
