package membership

import "slices"

// Subscription hears of changes. Close it when it is no longer needed.
type Subscription struct {
	m     *Membership
	role  Role
	facts bool
	c     chan struct{}
}

// Subscribe hears when the nodes that act in all of the roles change, or what they tell
// of themselves; with no role, when any node does, acting or not.
func (m *Membership) Subscribe(r Role) *Subscription {
	return m.subscribe(&Subscription{role: r})
}

// SubscribeFacts hears when facts change.
func (m *Membership) SubscribeFacts() *Subscription {
	return m.subscribe(&Subscription{facts: true})
}

func (m *Membership) subscribe(s *Subscription) *Subscription {
	s.m, s.c = m, make(chan struct{}, 1)
	s.ring()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.subs[s] = struct{}{}
	return s
}

// C has a value when there is something new since one was last taken from it, and at
// first. Who takes it and then looks at the View, or the facts, misses nothing; changes in
// quick succession are heard as one.
func (s *Subscription) C() <-chan struct{} { return s.c }

// Close ends the subscription. C is not closed.
func (s *Subscription) Close() {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	delete(s.m.subs, s)
}

func (s *Subscription) concerns(old, v *View) bool {
	if s.facts {
		return false
	}
	if s.role == 0 && !slices.Equal(old.Nodes(), v.Nodes()) {
		return true
	}
	return !slices.Equal(old.Acting(s.role), v.Acting(s.role))
}

func (s *Subscription) ring() {
	select {
	case s.c <- struct{}{}:
	default:
	}
}
